package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/place"
)

func psCommand() *cobra.Command {
	var again bool
	var interval time.Duration
	var output string
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List workloads: class, CPUs, memory nodes, and how they fare",
		Long: `List workloads: class, CPUs, memory nodes, and how they fare.

CPUs and MEMS are what a workload may use; an asterisk marks exclusive CPUs. The figures are over --interval (not those of MEMORY and TASKS):
  CPU%       CPU time used; 100 is one CPU
  STALL%     time in which some task of it waited for a CPU (pressure stall
             information, cgroup v2)
  THROTTLE%  enforcement periods in which its --quota ran out
  TASKS      processes and threads
A figure that this host does not provide is –, and left out with -o json.
-o wide adds memory and I/O pressure, request, limits, how it is placed, and its
control group.

Exit status: 0, 1 if the node cannot be read, 2 for wrong usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withReader(cmd, func(n node) error {
				m, err := newMeters(rootDir(cmd))
				if err != nil {
					return err
				}
				// The first look has nothing to compare with.
				if _, err := listUsage(cmd.Context(), n, m); err != nil {
					return err
				}
				wait(cmd.Context(), interval)
				return refresh(cmd, again, interval, func() (string, error) {
					rows, err := listUsage(cmd.Context(), n, m)
					if err != nil {
						return "", err
					}
					if output == "json" {
						return jsonText(rows)
					}
					return psTable(rows, output == "wide", time.Now()), nil
				})
			})
		},
	}
	outputFlag(cmd, &output, "text, wide or json", "wide")
	watchFlags(cmd, &again, &interval)
	socketFlag(cmd)
	return cmd
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

type psRow struct {
	agent.Workload
	Usage usage `json:"usage"`
}

// listUsage returns the workloads with their usage since the last call. Their
// explanation is left to berth explain.
func listUsage(ctx context.Context, n node, m *meters) ([]psRow, error) {
	all, err := n.List(ctx)
	if err != nil {
		return nil, err
	}
	rows := make([]psRow, len(all))
	for i, w := range all {
		g := *w.Grant
		g.Why = nil
		w.Grant = &g
		rows[i].Workload = w
		if rows[i].Usage, err = m.read(&w); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func psTable(rows []psRow, wide bool, now time.Time) string {
	if len(rows) == 0 {
		return "no workloads\n"
	}
	titles := []string{"NAME", "CLASS", "CPUS", "MEMS", "CPU%", "STALL%", "THROTTLE%", "MEMORY", "TASKS", "AGE"}
	if wide {
		titles = append(titles, "MEMSTALL%", "IOSTALL%", "ASKED", "LIMITS", "BY", "GROUP")
	}
	table := [][]string{titles}
	for i := range rows {
		w, u := &rows[i].Workload, &rows[i].Usage
		cpus := list(w.CPUs)
		if w.CPUs == w.Grant.Own {
			cpus += "*"
		}
		row := []string{
			plain.Line(w.ID()), w.Spec.Request.Class.String(), cpus, cell(w.Mems), percent(u.CPU), percent(u.CPUStall), percent(u.Throttled),
			bytesCell(u.Memory), number(u.Tasks), age(now.Sub(w.Since)),
		}
		if wide {
			row = append(row, percent(u.MemoryStall), percent(u.IOStall), dash(askedCPU(w)), dash(limitsText(&w.Limits)), w.Backend, dash(w.Group))
		}
		table = append(table, row)
	}
	var b strings.Builder
	plain.Columns(&b, table, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	return b.String()
}

func askedCPU(w *agent.Workload) string {
	if w.Spec.Request.Milli == 0 {
		return ""
	}
	return place.Milli(w.Spec.Request.Milli).String()
}

func dash(text string) string {
	if text == "" {
		return "–"
	}
	return plain.Line(text)
}

func percent(v *float64) string {
	if v == nil {
		return "–"
	}
	return strconv.FormatFloat(*v, 'f', 1, 64)
}

func number(v *float64) string {
	if v == nil {
		return "–"
	}
	return strconv.FormatFloat(*v, 'f', 0, 64)
}

func bytesCell(v *float64) string {
	if v == nil {
		return "–"
	}
	return plain.Bytes(int64(*v))
}

// age writes a time in its two greatest units: "3d4h", "5m2s".
func age(d time.Duration) string {
	d = max(0, d).Truncate(time.Second)
	if d >= 24*time.Hour {
		days := d / (24 * time.Hour)
		return strconv.Itoa(int(days)) + "d" + strconv.Itoa(int((d-days*24*time.Hour)/time.Hour)) + "h"
	}
	if d >= time.Hour {
		return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	}
	return d.String()
}
