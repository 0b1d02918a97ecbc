package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/doctor"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/traffic"
)

func doctorCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host can do for isolation and measurement, and how to get more",
		Long: `Say what this host can do: what is there to place work, to guard it and to
measure it, why something is limited or missing, what would remedy that, and
what Berth does without it. The doctor changes nothing.

States: ok, limited (there in a lesser form), missing, unknown (a file could
not be read or understood), not applicable (of no use on this kind of machine).

Exit status: 0 the host was examined, whatever came out; 1 it could not be;
2 wrong usage.`,
		Example: `  berth doctor
  berth doctor -o json | jq -r '.capabilities[] | select(.state=="missing") | .name'
  berth --root /mnt/image doctor`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := examine(rootDir(cmd))
			if err != nil {
				return err
			}
			s := screenOf(cmd.OutOrStdout())
			s.all = all
			return show(cmd, report, func() string { return s.report(report) })
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "give reasons for what is not applicable too")
	outputFlag(cmd, "text or json")
	cmd.AddCommand(delegationCommand())
	return cmd
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && cmd.HasSubCommands() {
		return unknownVerb(cmd, args[0])
	}
	if len(args) > 0 {
		return exitStatus{exitUsage, fmt.Errorf("unknown argument %q (see '%s --help')", args[0], cmd.CommandPath())}
	}
	return nil
}

func writeJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}

// isLive reports whether dir is the root of the running host.
func isLive(dir string) bool { return filepath.Clean(dir) == "/" }

// openTree returns the tree below dir. That of another host cannot lead out of
// dir; the live one may hold absolute links.
func openTree(dir string) (fs.FS, error) {
	if isLive(dir) {
		return os.DirFS("/"), nil
	}
	root, err := os.OpenRoot(dir) // open until the process ends
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	return root.FS(), nil
}

func examine(dir string) (*doctor.Report, error) {
	fsys, err := openTree(dir)
	if err != nil {
		return nil, err
	}
	probes := doctor.Probes{}
	if isLive(dir) {
		probes.HardwareCounter, probes.Links, probes.Power = doctor.HardwareCounter, links, readPower
	}
	return doctor.Look(fsys, probes), nil
}

// readPower reads what power profiles set on the live host.
func readPower() (*power.Host, error) {
	root, err := kernel.Open("/")
	if err != nil {
		return nil, err
	}
	return power.Read(power.Over(root).FS())
}

// links are what can divide each network device of the live host.
func links() (map[string]string, error) {
	root, err := kernel.Open("/")
	if err != nil {
		return nil, err
	}
	h, err := traffic.Read(traffic.Over(root).FS(), nil)
	if err != nil {
		return nil, err
	}
	words := map[string]string{}
	for name, d := range h.Devices {
		words[name] = d.Means()
	}
	return words, nil
}

// screen writes aligned text for people.
type screen struct {
	width  int
	colour bool
	all    bool              // reasons for everything
	seen   map[string]string // remedy: the capability that it was shown with
}

// screenOf returns the screen for w: colour and width only where it is a terminal.
func screenOf(w io.Writer) screen {
	width, colour := terminal(w)
	return screen{width: min(max(cmp.Or(width, 100), 60), 120), colour: colour, seen: map[string]string{}}
}

// paint colours text that means a state.
func (s screen) paint(state doctor.State, text string) string {
	codes := map[doctor.State]string{doctor.OK: "32", doctor.Limited: "33", doctor.Missing: "31", doctor.Unknown: "35", doctor.NotApplicable: "2"}
	if !s.colour {
		return text
	}
	return "\x1b[" + codes[state] + "m" + text + "\x1b[0m"
}

const (
	stateWidth   = len(doctor.NotApplicable)
	detailIndent = 6
)

func (s screen) report(r *doctor.Report) string {
	var b strings.Builder
	s.wrap(&b, 0, cmp.Or(r.Host, "unnamed host")+", kernel "+cmp.Or(r.Kernel, "unknown"))
	names := 0
	for _, c := range r.Capabilities {
		names = max(names, len(c.Name))
	}
	for _, group := range doctor.Groups() {
		fmt.Fprintf(&b, "\n%s\n", group)
		for _, c := range r.Capabilities {
			if c.Group == group {
				s.capability(&b, c, names)
			}
		}
	}
	b.WriteString("\nWhat this host allows:\n")
	s.summary(&b, r.Summary)
	return b.String()
}

func (s screen) capability(b *strings.Builder, c doctor.Capability, names int) {
	state := s.paint(c.State, fmt.Sprintf("%-*s", stateWidth, c.State))
	fmt.Fprintf(b, "  %-*s  %s  ", names, c.Name, state)
	s.wrap(b, 2+names+2+stateWidth+2, c.Found)
	if c.State == doctor.OK || (c.State == doctor.NotApplicable && !s.all) {
		return
	}
	remedy := c.Remedy
	if first, shown := s.seen[remedy]; shown && remedy != "" {
		remedy = "see " + first
	}
	s.seen[c.Remedy] = cmp.Or(s.seen[c.Remedy], c.Name)
	for _, line := range [][2]string{{"why", c.Reason}, {"remedy", remedy}, {"without", c.Without}} {
		if line[1] != "" {
			fmt.Fprintf(b, "%*s%-9s", detailIndent, "", line[0])
			s.wrap(b, detailIndent+9, line[1])
		}
	}
}

func (s screen) summary(b *strings.Builder, sum doctor.Summary) {
	for _, line := range []struct {
		label string
		state doctor.State
		names []string
	}{{"In full", doctor.OK, sum.Fully}, {"In part", doctor.Limited, sum.Lesser}, {"Not here", doctor.Missing, sum.Not}, {"Not known", doctor.Unknown, sum.Unknown}} {
		if len(line.names) > 0 {
			b.WriteString(s.paint(line.state, fmt.Sprintf("%-11s", line.label)))
			s.wrap(b, 11, strings.Join(line.names, "; "))
		}
	}
	if sum.Remedy != "" {
		fmt.Fprintf(b, "%-11s", "Buys most")
		s.wrap(b, 11, sum.For+": "+sum.Remedy)
	}
}

// wrap writes text and a new line; lines after the first start at column
// indent. Some text comes from files of the tree.
func (s screen) wrap(b *strings.Builder, indent int, text string) {
	lines := plain.Wrap(plain.Line(text), s.width-indent)
	b.WriteString(strings.Join(lines, "\n"+strings.Repeat(" ", indent)) + "\n")
}

// lines writes "label  text" pairs below each other; an empty label continues.
func (s screen) lines(pairs [][2]string) string {
	var b strings.Builder
	labels := 0
	for _, p := range pairs {
		labels = max(labels, len(p[0]))
	}
	for _, p := range slices.DeleteFunc(pairs, func(p [2]string) bool { return p[1] == "" }) {
		fmt.Fprintf(&b, "  %-*s  ", labels, p[0])
		s.wrap(&b, labels+4, p[1])
	}
	return b.String()
}
