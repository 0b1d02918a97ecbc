package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/internal/plain"
)

// exitLosses is the status of preview and apply where workloads would lose their places,
// or be refused what they ask for.
const exitLosses = 3

// proposalFlags are those of commands that preview or apply.
type proposalFlags struct {
	replace, losses bool
	digest          string
}

func (f *proposalFlags) register(cmd *cobra.Command, applies bool) {
	cmd.Flags().BoolVar(&f.replace, "replace", false, "place all workloads anew, as if none had a place; else only those move that have to")
	if applies {
		cmd.Flags().BoolVar(&f.losses, "allow-loss", false, "apply it though workloads lose their places that it still names")
		cmd.Flags().StringVar(&f.digest, "digest", "", "apply it only if it comes to what the preview with this `digest` said")
	}
	agentFlag(cmd)
	outputFlag(cmd, "text or json")
}

// agentFlag adds the flag that names the agent to ask.
func agentFlag(cmd *cobra.Command) {
	cmd.Flags().String("socket", "", "`path` of the agent's socket (default where berth agent has it)")
}

// withConfigured runs do with the agent that runs.
func withConfigured(cmd *cobra.Command, do func(*api.Client) error) error {
	c, err := dial(cmd)
	if err != nil {
		return err
	}
	if c == nil {
		return errors.New("no agent runs, whose configuration it could be: start one with 'berth agent --config FILE'; with --dry-run it says what FILE comes to")
	}
	return errors.Join(do(c), c.Close())
}

func configPreviewCommand() *cobra.Command {
	var f proposalFlags
	cmd := &cobra.Command{
		Use:   "preview FILE",
		Short: "Say what the running agent would do under a NodeConfig: moves, limits, refusals",
		Long: `Say what the running agent would do under a NodeConfig: which workloads would move,
get other limits, be refused or lose their places, and why. Nothing is changed.

The agent decides as for apply: what it says here is what apply does, as long as no
workload comes or goes in between. With the digest at its end, apply does that or nothing.

Exit status: 0, 1 if it cannot be said or FILE is not valid on this host, 2 for wrong
usage, 3 if workloads would lose their places or be refused.`,
		Example: `  berth config preview node.yaml
  berth config preview node.yaml --replace -o json`,
		Args: fileArgs(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withConfigured(cmd, func(c *api.Client) error {
				p, err := f.proposal(args[0])
				if err != nil {
					return err
				}
				r, err := c.PreviewConfig(cmd.Context(), p)
				if err != nil {
					return f.withoutReplace(err)
				}
				return errors.Join(show(cmd, r, func() string { return revisionText(&r, false) }), lossStatus(&r))
			})
		},
	}
	f.register(cmd, false)
	return cmd
}

func configApplyCommand() *cobra.Command {
	var f proposalFlags
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Have the running agent follow a NodeConfig, all of it or nothing",
		Long: `Have the running agent follow a NodeConfig, all of it or, after an error, nothing.

The agent previews it, changes what differs, and puts it in the place of its own
configuration file, in one transaction: killed at any instant, it has the old or the
new configuration in force when it starts again. What was in force before is kept
('berth config history'); 'berth config rollback' takes it back.

A configuration that takes away a workload's place, though it still names it, is not
applied without --allow-loss. With --replace, all workloads get places anew, as
another policy would have given them; else only those move that have to.

Only root and the users in agent.admins may.

Exit status: 0, 1 if it was not applied, 2 for wrong usage, 3 if it was not applied as
workloads would lose their places, or was and workloads are refused what they ask for.`,
		Example: `  berth config apply node.yaml
  berth config apply node.yaml --replace`,
		Args: fileArgs(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withConfigured(cmd, func(c *api.Client) error {
				p, err := f.proposal(args[0])
				if err != nil {
					return err
				}
				return f.apply(cmd, c, p)
			})
		},
	}
	f.register(cmd, true)
	return cmd
}

func configRollbackCommand() *cobra.Command {
	var f proposalFlags
	cmd := &cobra.Command{
		Use:   "rollback [NUMBER]",
		Short: "Apply the configuration that was in force before, or the one of a number",
		Long: `Apply the configuration that was in force before or, with NUMBER, that version of
'berth config history', as 'berth config apply' does. It becomes the latest version: a
second rollback takes the first one back.

Exit status: as of berth config apply.`,
		Example: `  berth config rollback        # the one before
  berth config history
  berth config rollback 3      # version 3 again`,
		Args: versionArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withConfigured(cmd, func(c *api.Client) error {
				p := api.Proposal{Replace: f.replace, Losses: f.losses, Digest: f.digest}
				if len(args) == 1 {
					p.Version, _ = strconv.Atoi(args[0])
					return f.apply(cmd, c, p)
				}
				all, err := c.Versions(cmd.Context())
				if err != nil {
					return err
				}
				if len(all) < 2 {
					return errors.New("no configuration was in force before this one, of those that are kept (berth config history)")
				}
				p.Version = all[1].Number
				return f.apply(cmd, c, p)
			})
		},
	}
	f.register(cmd, true)
	return cmd
}

// versionArg accepts the number of a version.
func versionArg(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return exitStatus{exitUsage, fmt.Errorf("%s: one NUMBER, not %d (see berth config history)", cmd.Name(), len(args))}
	}
	if len(args) == 1 {
		if n, err := strconv.Atoi(args[0]); err != nil || n < 1 {
			return exitStatus{exitUsage, fmt.Errorf("%s: %q is no number of a version (see berth config history)", cmd.Name(), args[0])}
		}
	}
	return nil
}

func (f *proposalFlags) proposal(file string) (api.Proposal, error) {
	text, err := daemon.ReadFile(file)
	return api.Proposal{Text: string(text), Name: file, Replace: f.replace, Losses: f.losses, Digest: f.digest}, err
}

// apply applies a proposal, or says why not.
func (f *proposalFlags) apply(cmd *cobra.Command, c *api.Client, p api.Proposal) error {
	r, err := c.PreviewConfig(cmd.Context(), p)
	if err != nil {
		return f.withoutReplace(err)
	}
	lost := 0
	for i := range r.Effects {
		if r.Effects[i].Kind == agent.EffectLost {
			lost++
		}
	}
	if lost > 0 && !f.losses {
		places := "its place"
		if lost > 1 {
			places = "their places"
		}
		err := show(cmd, r, func() string { return revisionText(&r, false) })
		return errors.Join(err, exitStatus{exitLosses, fmt.Errorf("not applied: %s would lose %s; change what the reasons name, or apply it with --allow-loss", plain.Count(lost, "workload"), places)})
	}
	if r, err = c.ApplyConfig(cmd.Context(), p); err != nil {
		return err
	}
	return errors.Join(show(cmd, r, func() string { return revisionText(&r, true) }), lossStatus(&r))
}

// withoutReplace adds to an error that places need not be given anew, where that may be why: a
// file that is not valid stays so.
func (f *proposalFlags) withoutReplace(err error) error {
	if err != nil && f.replace && !is[*api.RequestError](err) {
		return fmt.Errorf("%w (without --replace only those move that have to)", err)
	}
	return err
}

// lossStatus is the exit status of a revision.
func lossStatus(r *api.Revision) error {
	for i := range r.Effects {
		if r.Effects[i].Reason != "" {
			return exitStatus{code: exitLosses}
		}
	}
	return nil
}

// revisionText says what a configuration comes to, or what came of it.
func revisionText(r *api.Revision, applied bool) string {
	var b strings.Builder
	if len(r.Changes) == 0 {
		b.WriteString("It says what is in force.\n")
	} else {
		b.WriteString("configuration\n")
	}
	for _, c := range r.Changes {
		fmt.Fprintf(&b, "    %s\n", plain.Line(c))
	}
	for _, p := range r.Pending {
		fmt.Fprintf(&b, "    %s\n", plain.Line(p))
	}
	if len(r.Effects) > 0 {
		b.WriteString("workloads\n")
		rows := [][]string{{"    NAME", "EFFECT", "CPUS", "LIMITS", "WHY"}}
		for i := range r.Effects {
			rows = append(rows, effectRow(&r.Effects[i]))
		}
		plain.Columns(&b, rows)
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", plain.Line(w))
	}
	keep, did := "keeps what it has", "would be written; nothing was changed. 'apply --digest "+r.Digest+"' does exactly this"
	if r.Unchanged != 1 {
		keep = "keep what they have"
	}
	fmt.Fprintf(&b, "%s %s. ", plain.Count(r.Unchanged, "workload"), keep)
	switch {
	case applied && r.Version == 0:
		b.WriteString("Nothing differs.\n")
	case applied:
		fmt.Fprintf(&b, "Applied as version %d; 'berth config rollback' takes it back.\n", r.Version)
	default:
		fmt.Fprintf(&b, "%s %s.\n", plain.Count(r.Writes, "value"), did)
		if slices.ContainsFunc(r.Effects, func(e agent.Effect) bool { return e.Was != nil && e.Is == nil }) {
			b.WriteString("Workloads that lose their places, or are released, would get back what they had before Berth.\n")
		}
	}
	return b.String()
}

// effectRow is a row of the table of effects.
func effectRow(e *agent.Effect) []string {
	words := map[agent.EffectKind]string{agent.EffectLost: "loses its place", agent.EffectRefused: "refused", agent.EffectPlaced: "placed", agent.EffectReleased: "released", agent.EffectMoved: "moves", agent.EffectChanged: "changes"}
	cpus := func(h *agent.Holding) string {
		text := h.CPUs.String()
		if h.Own.IsEmpty() {
			text += " shared"
		}
		if !h.Mems.IsEmpty() {
			text += " on node " + h.Mems.String()
		}
		return text
	}
	limits := func(h *agent.Holding) string {
		text := limitsText(&h.Limits)
		if text == "" {
			return "none"
		}
		return text
	}
	return []string{
		"    " + plain.Line(e.ID), words[e.Kind], between(e, cpus), between(e, limits), dash(plain.Line(e.Reason)),
	}
}

// between writes what a workload has before and after, once if it is the same.
func between(e *agent.Effect, text func(*agent.Holding) string) string {
	switch {
	case e.Was == nil && e.Is == nil:
		return dash("")
	case e.Was == nil:
		return text(e.Is)
	}
	was, is := text(e.Was), "none"
	if e.Is != nil {
		is = text(e.Is)
	}
	if was == is {
		return is
	}
	return was + " -> " + is
}

func configHistoryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history [NUMBER]",
		Short: "List the last configurations that were in force, or print one",
		Long: `List the last ten configurations that were in force: since when, by whom, and what each
changed; the one marked with * is. With NUMBER, print that one.

BY is the user who applied it, as the kernel tells the agent. For those of a changed
file or of the agent's start it is the user to whom the file belongs.

Exit status: 0, 1 if it cannot be read, 2 for wrong usage.`,
		Args: versionArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withConfigured(cmd, func(c *api.Client) error {
				if len(args) == 1 {
					number, _ := strconv.Atoi(args[0])
					v, err := c.Version(cmd.Context(), number)
					if err != nil {
						return err
					}
					return show(cmd, v, func() string { return plain.Text(v.Text) })
				}
				all, err := c.Versions(cmd.Context())
				if err != nil {
					return err
				}
				return showVersions(cmd, all)
			})
		},
	}
	agentFlag(cmd)
	outputFlag(cmd, "text or json")
	return cmd
}

// showVersions lists versions; as JSON, one a line.
func showVersions(cmd *cobra.Command, all []api.Version) error {
	out := cmd.OutOrStdout()
	if isJSON(cmd) {
		for i := range all {
			if err := json.NewEncoder(out).Encode(all[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "none is kept: the agent has no configuration file, or cannot write its history (see its log)")
		return err
	}
	rows := [][]string{{"NUMBER", "IN FORCE SINCE", "BY", "HOW", "CHANGES"}}
	for i := range all {
		v := &all[i]
		number := strconv.Itoa(v.Number)
		if v.InForce {
			number += " *"
		}
		how := v.How
		if v.Of != 0 {
			how += fmt.Sprintf(" to %d", v.Of)
		}
		rows = append(rows, []string{number, v.Since.Local().Format("2006-01-02 15:04:05"), userName(v.UID), how, changesText(v.Changes)})
	}
	var b strings.Builder
	plain.Columns(&b, rows)
	_, err := io.WriteString(out, b.String())
	return err
}

// changesText is the first of changes, and how many more there are.
func changesText(changes []string) string {
	switch len(changes) {
	case 0:
		return dash("")
	case 1:
		return plain.Line(changes[0])
	}
	return fmt.Sprintf("%s; and %d more", plain.Line(changes[0]), len(changes)-1)
}

// userName is the name of a user or, if the host has none, the number.
func userName(uid int) string {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return fmt.Sprintf("user %d", uid)
	}
	return plain.Line(u.Username)
}
