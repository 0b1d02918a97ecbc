// Package load is the lab's open-loop load generator, and the well-behaved service
// that it loads: the Tenant.
//
// Requests are due on a schedule that is fixed before the run; a request's
// latency counts from the instant it was due, not from when it was sent, so a
// stall of the service is paid by every request that was due while it lasted
// (Tene's "coordinated omission" cannot happen). What the generator itself is
// late by is recorded beside it.
//
// The generator is a process of its own: one locked thread on a raw epoll
// loop, garbage collector off, samples preallocated, timer slack 1 ns. Its
// parent gives it SCHED_FIFO where permitted.
package load

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Config is what the generator's parent sends on its standard input.
type Config struct {
	Target
	// Others are further servers like that at Addr. Routing says which request goes to
	// which; the connections are divided evenly.
	Others  []string `json:"others,omitempty"`
	Routing Routing  `json:"routing,omitempty"`
	// EachServer has the report tell of each server by itself, too.
	EachServer bool `json:"eachServer,omitempty"`
	// Wrk, if there is one, asks in place of the generator.
	Wrk *Wrk `json:"wrk,omitempty"`
	// Paths, if there are any, stand in place of Path: requests ask for them in turn.
	Paths []string `json:"paths,omitempty"`
	// Rate is the mean number of requests due per second. Arrivals are Poisson;
	// the same Seed and Rate give the same schedule in every round.
	Rate float64 `json:"rate"`
	Seed uint64  `json:"seed"`
	// Clients, if there are any, ask in a closed loop, with the next request when the one
	// before is answered. Rate is then the most that there is room for.
	Clients int `json:"clients,omitempty"`
	// Connections are opened before the start and kept. A request that finds
	// none free waits in the generator, counted in its latency.
	Connections int `json:"connections"`
	// Settle is sent like the rest but not recorded; then Window is recorded;
	// then requests still under way have Grace to finish.
	Settle time.Duration `json:"settle"`
	Window time.Duration `json:"window"`
	Grace  time.Duration `json:"grace"`
	// RawFile receives one CSV line per request of the window; empty: none.
	RawFile string `json:"rawFile,omitempty"`
}

// Bounds of a Config: what one generator thread can be asked to do at all.
const (
	maxConnections = 16384
	maxRequests    = 20_000_000 // a Result takes 64 bytes, locked in memory
)

// Validate says what is wrong with c: all of it, in one line.
func (c Config) Validate() error {
	var wrong []string
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, path := range c.paths() {
		if err := c.asked(path).Validate(); err != nil {
			bad("%v", err)
		}
	}
	if err := c.Routing.Validate(); err != nil {
		bad("%v", err)
	}
	if c.Wrk != nil {
		if err := c.Wrk.validate(c); err != nil {
			bad("%v", err)
		}
	}
	if c.Connections < len(c.addrs()) {
		bad("connections %d: want one for each of %d servers", c.Connections, len(c.addrs()))
	}
	if c.Clients < 0 || c.Clients > c.Connections {
		bad("clients %d: want at most %d, the connections", c.Clients, c.Connections)
	}
	if !(c.Rate > 0) || math.IsInf(c.Rate, 0) {
		bad("rate %v: want more than 0 requests per second", c.Rate)
	}
	if c.Connections < 1 || c.Connections > maxConnections {
		bad("connections %d: want 1 to %d", c.Connections, maxConnections)
	}
	if c.Settle < 0 || c.Window <= 0 || c.Grace < 0 {
		bad("settle %v, window %v, grace %v: want a positive window and no negative time", c.Settle, c.Window, c.Grace)
	} else if n := c.Rate * (c.Settle.Seconds() + c.Window.Seconds()); n > maxRequests {
		bad("rate %v over %v: want at most %d requests", c.Rate, c.Settle+c.Window, maxRequests)
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// addrs are the servers, and paths what they are asked for.
func (c Config) addrs() []string { return append([]string{c.Addr}, c.Others...) }

func (c Config) paths() []string {
	if len(c.Paths) > 0 {
		return c.Paths
	}
	return []string{c.Path}
}

// asked is the target, asked for a path.
func (c Config) asked(path string) Target {
	t := c.Target
	t.Path = path
	return t
}

// requests are the different requests of a run, as they are sent in turn.
func (c Config) requests() ([][]byte, error) {
	var all [][]byte
	for _, path := range c.paths() {
		some, err := c.asked(path).requests(c.Seed)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// Result is one request. All instants are CLOCK_MONOTONIC nanoseconds; zero
// means that it did not happen.
type Result struct {
	Seq  int
	Due  int64 // when it should have been sent
	Seen int64 // when the generator got round to it: Seen-Due is the generator's own lag
	Sent int64 // when a connection was free, just before the request was written
	Done int64 // when the whole response had been read, or the request failed
	Err  string
	// Server is the number of that which it was sent to, from 0.
	Server int32
}

// Report is what the generator prints on its standard output, in JSON.
type Report struct {
	// WindowStart and WindowEnd are CLOCK_MONOTONIC nanoseconds.
	WindowStart int64 `json:"windowStart"`
	WindowEnd   int64 `json:"windowEnd"`
	// Counts of requests due in the window. Offered = Done + Failed + Unfinished.
	Offered    int `json:"offered"`
	Done       int `json:"done"`
	Failed     int `json:"failed"`
	Unfinished int `json:"unfinished"` // not done when the grace was over: censored
	// Errors counts failures by text.
	Errors map[string]int `json:"errors,omitempty"`
	// DoneInWindow is how many good responses arrived between WindowStart and
	// WindowEnd, whatever their due time: the achieved throughput.
	DoneInWindow int `json:"doneInWindow"`
	// Reconnects counts connections opened again after the service closed or
	// reset one, settle and grace included.
	Reconnects int `json:"reconnects,omitempty"`
	// Servers counts the requests of the window that each server got, and Same those that
	// went to the server of the one before. Absent with one server.
	Servers []int `json:"servers,omitempty"`
	Same    int   `json:"same,omitempty"`
	// Each is every server by itself, where that was asked for.
	Each    []Served `json:"each,omitempty"`
	Seconds []Second `json:"seconds"`
	// CPUSeconds is the generator's own processor time over the window.
	CPUSeconds float64 `json:"cpuSeconds"`
	// Policy is the scheduling policy that the generator's thread really had
	// ("SCHED_FIFO 50", "SCHED_OTHER").
	Policy string `json:"policy"`
	// Perturbed lists preparations that did not succeed (mlock refused, ...).
	Perturbed []string `json:"perturbed,omitempty"`
}

// Served is what became of the requests of the window that one of several servers got. Offered = Done + Censored.
type Served struct {
	Offered      int `json:"offered"`
	Done         int `json:"done"`
	Censored     int `json:"censored,omitempty"` // failed or unfinished
	DoneInWindow int `json:"doneInWindow"`       // whatever their due time
	// Response is a histogram as that of a Second, of the whole window.
	Response string `json:"response"`
}

// Second is what was due in one second of the window (the last may be shorter).
// The histograms are HdrHistogram V2 compressed base64 in microseconds, 1 µs to
// 60 s, 3 significant digits; what took longer counts as 60 s.
//
// A failed or unfinished request is never dropped: it is in Response with the
// time it had waited when it failed or the grace was over, and likewise in the
// histogram of the phase in which it ended: a lower bound.
type Second struct {
	Offered  int    `json:"offered"`
	Censored int    `json:"censored"` // failed or unfinished
	Response string `json:"response"` // Done - Due
	Service  string `json:"service"`  // Done - Sent
	Queue    string `json:"queue"`    // Sent - Seen: waiting for a free connection
	Lag      string `json:"lag"`      // Seen - Due: the generator's own
}
