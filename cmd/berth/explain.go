package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/amount"
	"berth.dev/berth/kernel/cgroup"
)

func explainCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "explain NAME",
		Short: "Say what a workload has and why: the candidates at each choice, and what decided",
		Long: `Say what a workload has and why: the candidates at each choice, and what decided.

Ranks are short lists of numbers, compared from the first on; the lowest wins,
and ties end in the lowest CPU number. A workload whose CPUs were named by hand
had nothing to choose.

Exit status: 0, 1 if there is no such workload or it cannot be read, 2 for wrong
usage.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			return withNode(cmd, func(n node) error {
				w, err := n.Get(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if output == "json" {
					return writeJSON(cmd.OutOrStdout(), w)
				}
				_, err = io.WriteString(cmd.OutOrStdout(), explanation(&w))
				return err
			})
		},
	}
	oneName(cmd)
	outputFlag(cmd, &output)
	socketFlag(cmd)
	return cmd
}

// explanation says what a workload has and, below a line "why", why.
func explanation(w *agent.Workload) string {
	var b strings.Builder
	r, g := &w.Spec.Request, w.Grant
	asked := r.Class.String()
	if r.Milli > 0 {
		asked += ", " + amount.Milli(r.Milli).String() + " CPU"
	}
	rows := [][]string{{"workload", onLine(w.ID())}, {"class", asked}, {"runs on", cell(w.CPUs)}}
	add := func(name, text string) {
		if text != "" {
			rows = append(rows, []string{name, text})
		}
	}
	add("own", g.Own.String())
	add("kept idle", g.Fence.String())
	add("memory nodes", w.Mems.String())
	add("limits", limitsText(&w.Spec.Limits))
	add("by", w.Backend)
	add("group", w.Group)
	columns(&b, rows)
	for _, note := range w.Notes {
		fmt.Fprintf(&b, "note: %s\n", onLine(note))
	}
	b.WriteString("\nwhy\n")
	if g.Why == nil || len(g.Why.Decisions) == 0 {
		b.WriteString("  there was nothing to choose\n")
		return b.String()
	}
	for _, d := range g.Why.Decisions {
		explainDecision(&b, d)
	}
	return b.String()
}

// limitsText writes the limits that are set, in the words of the flags.
func limitsText(l *cgroup.Limits) string {
	var parts []string
	add := func(set bool, format string, args ...any) {
		if set {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(l.Idle == cgroup.On, "idle")
	add(l.Weight != 0, "weight %d", l.Weight)
	add(l.Quota > 0, "quota %v", quota{l.Quota, l.Period})
	add(l.MemoryMax > 0, "memory %v", amount.Bytes(l.MemoryMax))
	add(l.IOWeight != 0, "I/O weight %d", l.IOWeight)
	return strings.Join(parts, ", ")
}
