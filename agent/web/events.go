package web

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
)

// told is what events tell.
type told struct {
	events, refused *prometheus.CounterVec
	took            *prometheus.HistogramVec
	actions         *prometheus.CounterVec
}

// newTold makes the counters begin at zero, as they otherwise would at one, which
// no rate sees.
func newTold(kinds []string) told {
	t := told{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_events_total", Help: "Events by kind: repaired is a repair of drift, yielded a value left to another writer.",
		}, []string{"kind"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_placements_refused_total", Help: "Placements and changes that were refused, by reason.",
		}, []string{"reason"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_placement_duration_seconds", Help: "Time from the request to a workload placed or changed in the kernel.",
			Buckets: []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5},
		}, []string{"kind"}),
		actions: newActions(),
	}
	for _, kind := range eventKinds() {
		t.events.WithLabelValues(string(kind))
	}
	for _, kind := range kinds {
		t.events.WithLabelValues(kind)
	}
	for _, kind := range api.Kinds() {
		t.refused.WithLabelValues(kind)
	}
	t.took.WithLabelValues(string(agent.Placed))
	t.took.WithLabelValues(string(agent.Changed))
	return t
}

// Follow counts the events of a history until the context ends, whose error it
// returns.
func (m *Metrics) Follow(ctx context.Context, h *api.History) error {
	var last uint64
	for {
		events, err := h.Wait(ctx, last)
		if err != nil {
			return err
		}
		for _, e := range events {
			m.observe(e.Event)
			m.guarded(e.Guard)
			last = e.Seq
		}
	}
}

func (t *told) observe(e agent.Event) {
	t.events.WithLabelValues(string(e.Kind)).Inc()
	if e.Kind == agent.Refused {
		t.refused.WithLabelValues(api.KindOf(e.Err)).Inc()
	}
	if e.Took > 0 {
		t.took.WithLabelValues(string(e.Kind)).Observe(e.Took.Seconds())
	}
}

// eventKinds are the kinds that are counted from zero.
func eventKinds() []agent.EventKind {
	return []agent.EventKind{
		agent.Placed, agent.Changed, agent.Released, agent.Refused, agent.Repaired, agent.Yielded, agent.Dropped, agent.Restored, agent.Scaled, agent.Failed,
		api.Started, api.Stopping, api.Reloaded, api.Kept, api.Lost, api.Slow, api.Opened, api.Found, api.Guarded, api.GuardMode,
	}
}
