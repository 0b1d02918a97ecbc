package web

import (
	"context"
	"io/fs"
	"sync"
	"time"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/watch/proc"
)

const (
	// pointEvery is how far apart the points of the last hour are, points how many are kept.
	pointEvery = 20 * time.Second
	points     = int(time.Hour / pointEvery)
)

// Hour keeps the last hour of the host for the page, whether somebody looks or not. A nil
// *Hour knows nothing.
type Hour struct {
	root fs.FS

	mu     sync.Mutex
	points []Point
	last   *instant // of the latest point
	looked *instant // of the latest look at the CPUs
}

// Point is what the host did from the point before to this one, as shares (0-1). What the
// host does not tell is absent.
type Point struct {
	Time time.Time `json:"time"`
	// Busy is of the time of all online CPUs.
	Busy *float64 `json:"busy,omitempty"`
	// Waits is of the time in which some task waited for a CPU (PSI).
	Waits *float64 `json:"waits,omitempty"`
}

// Mark is something that the guard did.
type Mark struct {
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

// Past is what the page shows of the last hour.
type Past struct {
	Points []Point `json:"points"` // oldest first
	Marks  []Mark  `json:"marks"`
}

// instant is what the kernel had counted.
type instant struct {
	at    time.Time
	stat  proc.Stat
	waits time.Duration
	psi   bool
}

// NewHour keeps nothing yet.
func NewHour(root fs.FS) *Hour { return &Hour{root: root} }

// Follow adds points until the end of the context.
func (h *Hour) Follow(ctx context.Context) {
	every := time.NewTicker(pointEvery)
	defer every.Stop()
	for {
		h.add(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

func (h *Hour) look(now time.Time) *instant {
	stat, err := proc.ReadStat(h.root)
	if err != nil {
		return nil
	}
	i := &instant{at: now, stat: stat}
	if p, err := proc.ReadPressure(h.root, "proc/pressure/cpu"); err == nil {
		i.waits, i.psi = p.Some, p.HasSome
	}
	return i
}

// add adds a point; the first look is only what the next one is compared with.
func (h *Hour) add(now time.Time) {
	i := h.look(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	if i != nil && h.last != nil {
		p := Point{Time: now}
		if busy, ok := i.stat.Total.Since(h.last.stat.Total).BusyPart(); ok {
			p.Busy = &busy
		}
		if took := now.Sub(h.last.at); i.psi && h.last.psi && took > 0 {
			share := min(1, max(0, float64(i.waits-h.last.waits)/float64(took)))
			p.Waits = &share
		}
		h.points = append(h.points[max(0, len(h.points)+1-points):len(h.points):len(h.points)], p)
	}
	h.last = i
}

// Loads are how busy each CPU was since the last look, as a share (0-1), if that is not long
// ago.
func (h *Hour) Loads(now time.Time) map[int]float64 {
	if h == nil {
		return nil
	}
	i := h.look(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	if i == nil {
		return nil
	}
	last := h.looked
	h.looked = i
	if last == nil || now.Sub(last.at) > time.Minute {
		return nil
	}
	return i.stat.BusySince(&last.stat)
}

// marked says what a step of the guard changed; "" if it changed nothing.
func marked(e *control.Event) string {
	if e.Action == nil {
		return ""
	}
	what := e.Action.Sentence(e.Action.Group)
	switch e.Outcome {
	case control.Applied:
		return "acted: " + what
	case control.Reverted:
		return "took back: " + what
	case control.Relaxed:
		return "eased: " + what
	case control.Restored:
		return "acted again: " + what
	}
	return ""
}

// past is the hour before now, with what the guard did in it.
func (h *Hour) past(now time.Time, history *api.History) Past {
	out := Past{Points: []Point{}, Marks: []Mark{}}
	for _, e := range history.After(0) {
		if e.Kind != api.Guarded || e.Guard == nil || now.Sub(e.Time) > time.Hour {
			continue
		}
		if text := marked(e.Guard); text != "" {
			out.Marks = append(out.Marks, Mark{e.Time, text})
		}
	}
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		out.Points = append(out.Points, h.points...)
	}
	return out
}
