package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
	"berth.dev/berth/place"
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
			return withReader(cmd, func(n node) error {
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
	outputFlag(cmd, &output, "text or json")
	socketFlag(cmd)
	return cmd
}

// explanation describes the CPUs and limits of a workload and, below a line "why", the
// reasons.
func explanation(w *agent.Workload) string {
	var b strings.Builder
	r, g := &w.Spec.Request, w.Grant
	asked := r.Class.String()
	if r.Milli > 0 {
		asked += ", " + place.Milli(r.Milli).String() + " CPU"
	}
	rows := [][]string{{"workload", plain.Line(w.ID())}, {"class", asked}, {"runs on", cell(w.CPUs)}}
	add := func(name, text string) {
		if text != "" {
			rows = append(rows, []string{name, plain.Line(text)})
		}
	}
	add("own", g.Own.String())
	add("kept idle", g.Fence.String())
	add("memory nodes", w.Mems.String())
	add("limits", limitsText(&w.Limits))
	add("by", w.Backend)
	add("group", w.Group)
	plain.Columns(&b, rows)
	for _, note := range w.Notes {
		fmt.Fprintf(&b, "note: %s\n", plain.Line(note))
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
	settings := l.Settings()
	for _, id := range settings.IDs() {
		value := settings[id]
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case id.Type == knob.Switch && value == id.Default:
			parts = append(parts, "not "+id.Words)
			continue
		case id.Type == knob.Switch:
			parts = append(parts, id.Words)
			continue
		case id.Type != knob.Share && value == id.Default || strings.HasPrefix(value, knob.Max):
			continue // taken away
		case id.Type == knob.Bandwidth:
			value = quota{l.Quota, l.Period}.String()
		case id.Type == knob.Bytes && err == nil:
			value = place.Bytes(n).String()
		case id.Type == knob.Time && err == nil:
			value = (time.Duration(n) * time.Microsecond).String()
		}
		parts = append(parts, strings.TrimSpace(id.Words+" "+value+" "+id.Key))
	}
	return strings.Join(parts, ", ")
}
