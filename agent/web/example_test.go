package web_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/web"
	"berth.dev/berth/machine"
)

// idle is an agent without workloads.
type idle struct{}

func (idle) About(context.Context) (api.About, error)   { return api.About{Backend: "cgroup v2"}, nil }
func (idle) Config(context.Context) (api.Config, error) { return api.Config{}, nil }
func (idle) Stats(context.Context) (api.Stats, error)   { return api.Stats{}, nil }
func (idle) Guard(context.Context) (api.Guard, error)   { return api.Guard{}, nil }
func (idle) ClassReport(context.Context) (agent.ClassReport, error) {
	return agent.ClassReport{}, nil
}
func (idle) Machine(context.Context) (api.Machine, error) {
	return api.Machine{Machine: &machine.Machine{}}, nil
}

// The handler for the agent's address, and the counters behind it.
func Example() {
	server := api.Server{View: idle{}, History: api.NewHistory(16, 0)}
	server.History.Add(api.Event{Event: agent.Event{Kind: api.Started}})
	ctx, stop := context.WithCancel(context.Background())
	m := web.NewMetrics(server.View, web.MetricsOptions{})
	done := make(chan error)
	go func() { done <- m.Follow(ctx, server.History) }()
	stop()
	<-done // what there is has been counted
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "berth_agent_info") || strings.Contains(line, `kind="started"`) {
			fmt.Print(line)
		}
	}
	// Output:
	// berth_agent_info{backend="cgroup v2",policy=""} 1
	// berth_events_total{kind="started"} 1
}
