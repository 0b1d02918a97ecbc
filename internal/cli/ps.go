package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/place"
)

func psCommand() *cobra.Command {
	var again bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List workloads: class, CPUs, memory nodes, and how they fare",
		Long: `List workloads: class, CPUs, memory nodes, and how they fare.

CPUs and MEMS are what a workload may use; an asterisk marks exclusive CPUs. The figures
are over --interval (not those of MEMORY and TASKS):
  CPU%       CPU time used; 100 is one CPU
  STALL%     time in which some task of it waited for a CPU (pressure stall
             information, cgroup v2)
  THROTTLE%  enforcement periods in which its --quota ran out
  TASKS      processes and threads
A figure that this host does not provide is –, and left out with -o json.
-o wide adds memory and I/O pressure, request, limits, how it is placed, and its
control group. Workloads of the agent's configuration that have no place come last, with
the reason.

Exit status: 0, 1 if the node cannot be read, 2 for wrong usage.`,
		Example: `  berth ps
  berth ps --watch
  berth ps -o wide --interval 5s`,
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
				return refresh(cmd, again, interval, func() (any, func() string, error) {
					rows, err := listUsage(cmd.Context(), n, m)
					return rows, func() string { return psTable(rows, word(cmd, "output") == "wide", time.Now()) }, err
				})
			})
		},
	}
	outputFlag(cmd, "text, wide or json", "wide")
	watchFlags(cmd, &again, &interval)
	socketFlag(cmd)
	return cmd
}

type psRow struct {
	agent.Workload
	Usage usage `json:"usage"`
}

// listUsage returns the workloads with their usage since the last call.
func listUsage(ctx context.Context, n node, m *meters) ([]psRow, error) {
	rows, err := listRows(ctx, n)
	for i := range rows {
		if w := &rows[i].Workload; err == nil && w.Grant != nil {
			rows[i].Usage, err = m.read(w)
		}
	}
	return rows, err
}

// listRows returns the workloads, those without a place last. Their explanation is left to
// berth explain.
func listRows(ctx context.Context, n node) ([]psRow, error) {
	all, err := n.List(ctx)
	if err != nil {
		return nil, err
	}
	waiting, err := listWaiting(ctx, n)
	if err != nil {
		return nil, err
	}
	rows := make([]psRow, len(all)+len(waiting))
	for i, w := range waiting {
		rows[len(all)+i].Workload = w
	}
	for i, w := range all {
		g := *w.Grant
		g.Why = nil
		w.Grant = &g
		rows[i].Workload = w
	}
	return rows, nil
}

// agentNode is a node that an agent keeps.
type agentNode interface {
	About(ctx context.Context) (api.About, error)
}

// listWaiting returns the workloads of an agent's configuration that have no place.
func listWaiting(ctx context.Context, n node) ([]agent.Workload, error) {
	c, ok := n.(agentNode)
	if !ok {
		return nil, nil
	}
	about, err := c.About(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]agent.Workload, len(about.Waiting))
	for i, w := range about.Waiting {
		all[i] = agent.Workload{State: agent.Waiting, Since: w.Since, Group: w.Group, Notes: []string{w.Reason}}
		all[i].Spec.Request.ID = w.ID
	}
	return all, nil
}

func psTable(rows []psRow, wide bool, now time.Time) string {
	titles := []string{"NAME", "CLASS", "CPUS", "MEMS", "CPU%", "STALL%", "THROTTLE%", "MEMORY", "TASKS", "AGE"}
	if wide {
		titles = append(titles, "MEMSTALL%", "IOSTALL%", "ASKED", "LIMITS", "BY", "GROUP")
	}
	return workloadTable(rows, now, titles, func(w *agent.Workload, u *usage) []string {
		row := []string{
			plain.Line(w.ID()), w.Spec.Request.Class.String(), starred(w), cell(w.Mems), figure(u.CPU, tenths), figure(u.CPUStall, tenths), figure(u.Throttled, tenths),
			figure(u.Memory, memoryCell), figure(u.Tasks, wholeCell), age(now.Sub(w.Since)),
		}
		if wide {
			row = append(row, figure(u.MemoryStall, tenths), figure(u.IOStall, tenths), dash(askedCPU(w)), dash(limitsText(&w.Limits)), backendWords(w.Backend), dash(w.Group))
		}
		return row
	}, 4, 5, 6, 7, 8, 9, 10, 11, 12)
}

// workloadTable has a row for each workload with a place, and then a line for each without.
func workloadTable(rows []psRow, now time.Time, titles []string, cells func(*agent.Workload, *usage) []string, right ...int) string {
	if len(rows) == 0 {
		return "no workloads\n"
	}
	table := [][]string{titles}
	waiting := ""
	for i := range rows {
		if w := &rows[i].Workload; w.Grant == nil {
			waiting += waits(w, now) + "\n"
		} else {
			table = append(table, cells(w, &rows[i].Usage))
		}
	}
	var b strings.Builder
	if len(table) > 1 {
		plain.Columns(&b, table, right...)
	}
	return b.String() + waiting
}

// waits says in a line since when a workload has no place, and why.
func waits(w *agent.Workload, now time.Time) string {
	return fmt.Sprintf("%s waits for a place (%s): %s", plain.Line(w.ID()), age(now.Sub(w.Since)), plain.Line(strings.Join(w.Notes, "; ")))
}

// starred lists the CPUs of a workload, with an asterisk if they are its own.
func starred(w *agent.Workload) string {
	if w.CPUs == w.Grant.Own {
		return list(w.CPUs) + "*"
	}
	return list(w.CPUs)
}

func askedCPU(w *agent.Workload) string {
	if w.Spec.Request.Milli == 0 {
		return ""
	}
	return place.Milli(w.Spec.Request.Milli).String()
}

func dash(text string) string {
	if text == "" {
		return absent
	}
	return plain.Line(text)
}

func figure(v *float64, cell func(float64) string) string {
	if v == nil {
		return absent
	}
	return cell(*v)
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
