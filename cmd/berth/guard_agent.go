package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/internal/plain"
)

// agentGuard asks the agent for the state of its guard; nil if no agent runs.
func agentGuard(cmd *cobra.Command) (*api.Guard, error) {
	c, err := dial(cmd)
	if err != nil || c == nil {
		return nil, err
	}
	defer c.Close()
	g, err := c.Guard(cmd.Context())
	return &g, err
}

// agentGuardOff turns the guard of the agent off, which restores what it has in
// force; ok is false if no agent runs, or its guard is off.
func agentGuardOff(cmd *cobra.Command) (ok bool, err error) {
	c, err := dial(cmd)
	if err != nil || c == nil {
		return false, err
	}
	defer c.Close()
	g, err := c.Guard(cmd.Context())
	if err != nil || g.Mode == config.GuardOff {
		return false, err
	}
	return true, c.SetMode(cmd.Context(), config.GuardOff)
}

// printAgentGuard says where the guard of the agent stands.
func printAgentGuard(w io.Writer, g *api.Guard) {
	name := func(group string) string {
		if id, ok := g.Workloads[group]; ok {
			group = id
		}
		return plain.Line(group)
	}
	switch {
	case g.Status == nil && g.Reason != "":
		fmt.Fprintf(w, "the agent's guard (%s) does not run: %s\n", g.Mode, plain.Line(g.Reason))
		return
	case g.Status == nil:
		fmt.Fprintf(w, "the agent's guard is %s\n", g.Mode)
		return
	}
	fmt.Fprintf(w, "the agent's guard runs (%s), helps %d groups\n", g.Mode, len(g.Status.Sensitive))
	for _, f := range g.Status.Findings {
		fmt.Fprintf(w, "  found: %s lacks %v", name(f.Victim), f.Resource)
		if f.Suspect != "" {
			fmt.Fprintf(w, ", because of %s", name(f.Suspect))
		}
		fmt.Fprintf(w, " (%.0f %% sure)\n", 100*f.Confidence)
	}
	if g.Mode != config.GuardEnforce {
		return
	}
	for _, a := range g.Status.Active {
		fmt.Fprintf(w, "  active: %s, for %s\n", plain.Line(a.String()), name(a.Victim))
	}
	if len(g.Status.Active) == 0 {
		fmt.Fprintln(w, "  no remedy is active")
	}
}
