package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/plain"
)

// withAgent asks the agent; if none runs, it does nothing.
func withAgent(cmd *cobra.Command, ask func(c *api.Client) error) error {
	c, err := dial(cmd)
	if err != nil || c == nil {
		return err
	}
	return errors.Join(ask(c), c.Close())
}

// agentGuardOff turns the guard of the agent off, which restores what it has in
// force; was is false if no agent runs, or its guard is off.
func agentGuardOff(cmd *cobra.Command) (was bool, err error) {
	err = withAgent(cmd, func(c *api.Client) error {
		g, err := c.Guard(cmd.Context())
		if was = err == nil && g.Mode != config.GuardOff; !was {
			return err
		}
		return c.SetMode(cmd.Context(), config.GuardOff)
	})
	return was, err
}

// agentGuardText says where the guard of the agent stands.
func agentGuardText(g *api.Guard) string {
	name := func(group string) string {
		return plain.Line(cmp.Or(g.Workloads[group], group))
	}
	switch {
	case g.Status == nil && g.Reason != "":
		return fmt.Sprintf("the agent's guard (%s) does not run: %s\n", g.Mode, plain.Line(g.Reason))
	case g.Status == nil:
		return fmt.Sprintf("the agent's guard is %s\n", g.Mode)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the agent's guard runs (%s), helps %s\n", g.Mode, plain.Count(len(g.Status.Sensitive), "group"))
	for _, f := range g.Status.Findings {
		f.Victim, f.Suspect = name(f.Victim), name(f.Suspect)
		fmt.Fprintf(&b, "  found: %s\n", plain.Line(f.Sentence()))
	}
	if g.Mode == config.GuardEnforce {
		activeText(&b, g.Status.Active, name)
	} else {
		b.WriteString("  it reports and changes nothing (guard.mode)\n")
	}
	return b.String()
}

// activeText lists the remedies that are active, with the names of groups.
func activeText(b *strings.Builder, active []control.Action, name func(group string) string) {
	for _, a := range active {
		fmt.Fprintf(b, "  active: %s, for %s\n", plain.Line(a.Sentence(name(a.Group))), cmp.Or(name(a.Victim), "all others"))
	}
	if len(active) == 0 {
		b.WriteString("  no remedy is active\n")
	}
}
