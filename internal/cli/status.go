package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/internal/plain"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say on one screen what Berth does on this host: agent, guard, workloads",
		Long: `Say on one screen what Berth does on this host: whether an agent runs, where its guard
or another stands, what it found and which remedies are active, and the workloads, those
without a place too. Nothing is changed. berth ps has the workloads' figures, berth
diagnose looks for who suffers.

Exit status: 0, 1 if that cannot be read, 2 for wrong usage.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := readStatus(cmd)
			if err != nil {
				return err
			}
			return show(cmd, s, func() string { return s.text(time.Now()) })
		},
	}
	outputFlag(cmd, "text or json")
	socketFlag(cmd)
	return cmd
}

// hostStatus is the output of berth status.
type hostStatus struct {
	// Agent is nil where none runs.
	Agent     *api.About  `json:"agent,omitempty"`
	Guard     *guardState `json:"guard"`
	Workloads []psRow     `json:"workloads"`
}

func readStatus(cmd *cobra.Command) (s hostStatus, err error) {
	if s.Guard, err = guardStatus(cmd); err != nil {
		return s, err
	}
	return s, withReader(cmd, func(n node) error {
		if c, ok := n.(agentNode); ok {
			about, err := c.About(cmd.Context())
			if err != nil {
				return err
			}
			s.Agent = &about
		}
		s.Workloads, err = listRows(cmd.Context(), n)
		return err
	})
}

func (s *hostStatus) text(now time.Time) string {
	var b strings.Builder
	if a := s.Agent; a != nil {
		fmt.Fprintf(&b, "an agent runs: process %d, for %s, policy %s, %s\n", a.PID, age(now.Sub(a.Started)), plain.Line(a.Policy), plain.Line(backendWords(a.Backend)))
		for _, address := range a.Unserved {
			fmt.Fprintf(&b, "  no status page: %s\n", plain.Line(address))
		}
	} else {
		b.WriteString("no agent runs; berth run and berth guard work without one\n")
	}
	b.WriteString(s.Guard.text())
	titles := []string{"NAME", "CLASS", "CPUS", "ASKED", "LIMITS", "AGE"}
	hint := ""
	if s.Agent == nil && s.Guard.none() && len(s.Workloads) == 0 {
		hint = "\nBerth does nothing here so far. To see which workload suffers, from what, because of which:\n  sudo berth diagnose\n"
	}
	return b.String() + "\n" + workloadTable(s.Workloads, now, titles, func(w *agent.Workload, _ *usage) []string {
		return []string{plain.Line(w.ID()), w.Spec.Request.Class.String(), starred(w), dash(askedCPU(w)), dash(limitsText(&w.Limits)), age(now.Sub(w.Since))}
	}) + hint
}
