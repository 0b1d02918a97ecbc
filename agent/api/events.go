package api

import (
	"context"
	"fmt"
	"sort"
	"sync"

	"berth.dev/berth/agent"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
)

// The kinds of events beside those of package agent.
const (
	Started  agent.EventKind = "started"  // the agent is ready
	Stopping agent.EventKind = "stopping" // the agent stops
	Reloaded agent.EventKind = "reloaded" // another configuration is active
	Kept     agent.EventKind = "kept"     // another configuration was refused; the old one stays
	Lost     agent.EventKind = "lost"     // events that are no longer kept
	Slow     agent.EventKind = "slow"     // groups are not all watched
	Opened   agent.EventKind = "opened"   // the status page is served where it could not be before
)

// Event is something that happened, in the order of Seq.
type Event struct {
	// Seq rises, with gaps, also over restarts of the agent.
	Seq uint64 `json:"seq"`
	agent.Event
	// By is who asked for it; absent is the agent itself.
	By *Origin `json:"by,omitempty"`
	// Finding is what an event of kind Found is about, Guard one of kind Guarded, with
	// its evidence, what was written and what was measured.
	Finding *detect.Finding `json:"finding,omitempty"`
	Guard   *control.Event  `json:"guard,omitempty"`
}

// Origin is who asked for something.
type Origin struct {
	Kind OriginKind `json:"kind"`
	// Peer is the client; absent unless Kind is client.
	*Peer
}

// OriginKind says what asked.
type OriginKind string

// The kinds of origins.
const (
	ByClient OriginKind = "client" // a process at the agent's socket
	ByConfig OriginKind = "config" // the configuration: a group came that it names, or it changed
)

type originKey struct{}

// WithOrigin returns a context for calls that something other than a client asks for.
func WithOrigin(ctx context.Context, kind OriginKind) context.Context {
	return context.WithValue(ctx, originKey{}, Origin{Kind: kind})
}

// OriginOf returns who asked for a call; nil is the agent itself.
func OriginOf(ctx context.Context) *Origin {
	if p, ok := PeerOf(ctx); ok {
		return &Origin{Kind: ByClient, Peer: &p}
	}
	if o, ok := ctx.Value(originKey{}).(Origin); ok {
		return &o
	}
	return nil
}

// Peer is the process at the other end of the socket (SO_PEERCRED, unix(7)).
type Peer struct {
	PID int `json:"pid"`
	UID int `json:"uid"`
	GID int `json:"gid"`
}

func (p Peer) String() string { return fmt.Sprintf("process %d of user %d", p.PID, p.UID) }

// History keeps the latest events. Its methods may be called concurrently.
type History struct {
	size   int
	mu     sync.Mutex
	events []Event // oldest first
	last   uint64
	grown  chan struct{} // closed when an event comes
}

// NewHistory returns a History of at most size events. The first has a number beyond
// first: with microseconds of the clock, numbers rise over restarts.
func NewHistory(size int, first uint64) *History {
	return &History{size: size, last: first, grown: make(chan struct{})}
}

// Add appends an event and numbers it.
func (h *History) Add(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last++
	e.Seq = h.last
	h.events = append(h.events[max(len(h.events)+1-h.size, 0):], e)
	close(h.grown)
	h.grown = make(chan struct{})
}

// After returns the events with a number above the given one, oldest first. If some
// between are no longer kept, the first returned is of kind Lost and has the
// number before the next one's.
func (h *History) After(seq uint64) []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.after(seq)
}

func (h *History) after(seq uint64) []Event {
	if seq > h.last {
		seq = 1 // of an earlier start, before the clock was set back
	}
	kept := h.events[sort.Search(len(h.events), func(i int) bool { return h.events[i].Seq > seq }):]
	var all []Event
	if len(kept) > 0 && seq != 0 && kept[0].Seq > seq+1 {
		lost := Event{Seq: kept[0].Seq - 1}
		lost.Time, lost.Kind = kept[0].Time, Lost
		lost.Text = fmt.Sprintf("events after %d and before %d are no longer kept, or those of an earlier start", seq, kept[0].Seq)
		all = append(all, lost)
	}
	return append(all, kept...)
}

// Wait is After, but waits until there is an event, or for the context.
func (h *History) Wait(ctx context.Context, seq uint64) ([]Event, error) {
	for {
		h.mu.Lock()
		all, grown := h.after(seq), h.grown
		h.mu.Unlock()
		if len(all) > 0 {
			return all, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-grown:
		}
	}
}
