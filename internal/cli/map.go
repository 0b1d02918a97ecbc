package cli

import (
	"context"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
	"berth.dev/berth/watch/proc"
)

func mapCommand() *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "map",
		Short: "Draw the machine with the owners of its CPUs",
		Long: `Draw the machine with the owners of its CPUs: a block for each NUMA node, with the
numbers of its CPUs core by core, a mark below each, and how busy it is (over a quarter
of a second, or since the last look with --watch); bars stand between L3 domains. A
letter is a workload with exclusive CPUs; the legend names it.

On a terminal the class has a colour: LSE red, LSR yellow, LS blue, BE green,
SYSTEM magenta. NO_COLOR in the environment leaves letters only.

Exit status: 0, 1 if the node cannot be read, 2 for wrong usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var m *ownerMap
			var use cpuUse
			return withReader(cmd, func(n node) error {
				return refresh(cmd, watch, interval, func() (any, func() string, error) {
					s, err := n.State(cmd.Context())
					if err != nil {
						return nil, nil, err
					}
					if m == nil {
						_, colours := terminal(cmd.OutOrStdout())
						m = newOwnerMap(s.Topology(), colours)
					}
					m.used = use.look(cmd.Context(), os.DirFS(rootDir(cmd)))
					drawn := owners(s)
					drawn.Used = m.used
					return drawn, func() string { return m.draw(s) }, nil
				})
			})
		},
	}
	outputFlag(cmd, "text or json")
	watchFlags(cmd, &watch, &interval)
	socketFlag(cmd)
	return cmd
}

type ownerRow struct {
	ID    string      `json:"id"`
	Class place.Class `json:"class"`
	Own   cpuset.Set  `json:"own,omitzero"`
	Fence cpuset.Set  `json:"fence,omitzero"`
	CPUs  cpuset.Set  `json:"cpus"`
	Mems  cpuset.Set  `json:"mems,omitzero"`
}

// ownersMap is the map as JSON: Shared are the CPUs that are not exclusive.
type ownersMap struct {
	Online    cpuset.Set `json:"online"`
	Shared    cpuset.Set `json:"shared"`
	Workloads []ownerRow `json:"workloads"`
	// Used is the part of the time for which each CPU ran something; absent where the
	// host does not say.
	Used map[int]float64 `json:"used,omitempty"`
}

// cpuUse tells how busy the CPUs are between two looks.
type cpuUse struct{ last proc.Stat }

// look returns how busy the CPUs were since the last look; the first one takes a moment.
func (u *cpuUse) look(ctx context.Context, host fs.FS) map[int]float64 {
	const moment = 250 * time.Millisecond
	before := u.last
	var err error
	if before.CPUs == nil {
		if before, err = proc.ReadStat(host); err != nil {
			return nil
		}
		wait(ctx, moment)
	}
	if u.last, err = proc.ReadStat(host); err != nil {
		return nil
	}
	return u.last.BusySince(&before)
}

func owners(s *place.State) ownersMap {
	m := ownersMap{Online: s.Topology().Online(), Shared: s.Sharable(), Workloads: []ownerRow{}}
	for g := range s.Grants() {
		m.Workloads = append(m.Workloads, ownerRow{g.ID, g.Request.Class, g.Own, g.Fence, s.Effective(g), g.Mems})
	}
	return m
}

type ownerMap struct {
	*replayDrawing
	classes map[rune]place.Class
}

func newOwnerMap(t *place.Topology, colour bool) *ownerMap {
	m := &ownerMap{newReplayDrawing(t), map[rune]place.Class{}}
	m.numbered = true
	m.title = func(g *place.Grant) string { return g.ID + " (" + g.Request.Class.String() + ")" }
	if colour {
		m.paint = m.coloured
	}
	return m
}

func (m *ownerMap) draw(s *place.State) string {
	for g := range s.Grants() {
		if !g.Held().IsEmpty() {
			m.classes[m.letter(g.ID)] = g.Request.Class
		}
	}
	var b strings.Builder
	b.WriteString(machineLine(m.t) + "\n\n")
	m.replayDrawing.draw(&b, s)
	return b.String()
}

func (m *ownerMap) coloured(mark rune) string {
	colour := map[place.Class]string{place.LSE: "31", place.LSR: "33", place.LS: "34", place.BE: "32", place.System: "35"}
	class, owned := m.classes[mark]
	if !owned || mark == markUnnamed {
		return string(mark)
	}
	return "\x1b[1;" + colour[class] + "m" + string(mark) + "\x1b[0m"
}
