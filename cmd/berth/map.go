package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

func mapCommand() *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "map",
		Short: "Draw the machine with the owners of its CPUs",
		Long: `Draw the machine with the owners of its CPUs: a line for each NUMA node, a bar
between L3 domains, a group of marks for each core, a mark for each of its
threads. A letter is a workload with exclusive CPUs; the legend names it.

On a terminal the class has a colour: LSE red, LSR yellow, LS blue, BE green,
SYSTEM magenta. NO_COLOR in the environment leaves letters only.

Exit status: 0, 1 if the node cannot be read, 2 for wrong usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var m *ownerMap
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
					return owners(s), func() string { return m.draw(s) }, nil
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
