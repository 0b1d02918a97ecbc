package web

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/fstest"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
)

// ticking is a host whose two CPUs have been busy and idle for so many ticks, and has
// waited.
func ticking(h *Hour, busy0, idle0, busy1, idle1 int, waited time.Duration) {
	h.root = fstest.MapFS{
		"proc/stat": {Data: fmt.Appendf(nil, "cpu  %d 0 0 %d 0 0 0 0 0 0\ncpu0 %d 0 0 %d 0 0 0 0 0 0\ncpu1 %d 0 0 %d 0 0 0 0 0 0\n",
			busy0+busy1, idle0+idle1, busy0, idle0, busy1, idle1)},
		"proc/pressure/cpu": {Data: fmt.Appendf(nil, "some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n", waited.Microseconds())},
	}
}

func TestHour(t *testing.T) {
	t.Parallel()
	began := time.Unix(1000, 0)
	h := NewHour(nil)
	ticking(h, 0, 0, 0, 0, 0)
	h.add(began)
	h.Loads(began)
	ticking(h, 300, 100, 0, 400, 5*time.Second)
	h.add(began.Add(20 * time.Second))
	if loads := h.Loads(began.Add(20 * time.Second)); loads[0] != 0.75 || loads[1] != 0 || len(loads) != 2 {
		t.Errorf("loads %v", loads)
	}
	if loads := h.Loads(began.Add(5 * time.Minute)); loads != nil {
		t.Errorf("loads of long ago: %v", loads)
	}
	history := api.NewHistory(10, 0)
	for i, outcome := range []control.Outcome{control.Applied, control.Kept, control.Reverted} {
		history.Add(api.Event{
			Event: agent.Event{Time: began.Add(time.Duration(i) * time.Second), Kind: api.Guarded},
			Guard: &control.Event{Outcome: outcome, Action: &control.Action{Remedy: detect.Weight, Group: "batch"}},
		})
	}
	p := h.past(began.Add(time.Minute), history)
	if len(p.Points) != 1 || *p.Points[0].Busy != 0.375 || *p.Points[0].Waits != 0.25 {
		text, _ := json.Marshal(p.Points)
		t.Errorf("points %s", text)
	}
	if len(p.Marks) != 2 || p.Marks[0].Text[:6] != "acted:" || p.Marks[1].Text[:10] != "took back:" {
		t.Errorf("marks %v", p.Marks)
	}
	if p := h.past(began.Add(2*time.Hour), history); len(p.Marks) != 0 {
		t.Errorf("marks of long ago: %v", p.Marks)
	}
	for i := range 2 * points {
		h.add(began.Add(time.Duration(i) * pointEvery))
	}
	if n := len(h.past(began, history).Points); n != points {
		t.Errorf("%d points are kept, want %d", n, points)
	}
}

// What the host does not tell is absent, and nobody's hour is empty.
func TestHourOfNothing(t *testing.T) {
	t.Parallel()
	h := NewHour(fstest.MapFS{})
	h.add(time.Unix(1, 0))
	h.add(time.Unix(21, 0))
	var none *Hour
	for _, h := range []*Hour{h, none} {
		text, err := json.Marshal(h.past(time.Unix(30, 0), api.NewHistory(1, 0)))
		if err != nil || string(text) != `{"points":[],"marks":[]}` {
			t.Errorf("%s, %v", text, err)
		}
		if loads := h.Loads(time.Unix(30, 0)); loads != nil {
			t.Errorf("loads %v", loads)
		}
	}
}
