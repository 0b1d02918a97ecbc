// Package load is the lab's open-loop load generator.
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

import "time"

// Config is what the generator's parent sends on its standard input.
type Config struct {
	Addr string `json:"addr"` // host:port of the tenant
	Path string `json:"path"` // of the GET request
	// Rate is the mean number of requests due per second. Arrivals are Poisson;
	// the same Seed and Rate give the same schedule in every round.
	Rate float64 `json:"rate"`
	Seed uint64  `json:"seed"`
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

// Result is one request. All instants are CLOCK_MONOTONIC nanoseconds; zero
// means that it did not happen.
type Result struct {
	Seq  int
	Due  int64 // when it should have been sent
	Seen int64 // when the generator got round to it: Seen-Due is the generator's own lag
	Sent int64 // when a connection was free and the request was written
	Done int64 // when the whole response had been read
	Err  string
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
	// DoneInWindow is how many responses arrived before WindowEnd, whatever
	// their due time: the achieved throughput.
	DoneInWindow int      `json:"doneInWindow"`
	Seconds      []Second `json:"seconds"`
	// CPUSeconds is the generator's own processor time over the window.
	CPUSeconds float64 `json:"cpuSeconds"`
	// Policy is the scheduling policy that the generator's thread really had
	// ("SCHED_FIFO 50", "SCHED_OTHER nice 0").
	Policy string `json:"policy"`
	// Perturbed lists preparations that did not succeed (mlock refused, ...).
	Perturbed []string `json:"perturbed,omitempty"`
}

// Second is what was due in one second of the window (the last may be shorter).
// The histograms are HdrHistogram V2 compressed base64 in microseconds, 1 µs to
// 60 s, 3 significant digits (see NewHistogram). Failed and unfinished requests
// are in Response with the time they had waited when they failed or the grace
// was over: a lower bound, never dropped.
type Second struct {
	Offered  int    `json:"offered"`
	Censored int    `json:"censored"` // failed or unfinished
	Response string `json:"response"` // Done - Due
	Service  string `json:"service"`  // Done - Sent
	Queue    string `json:"queue"`    // Sent - Seen: waiting for a free connection
	Lag      string `json:"lag"`      // Seen - Due: the generator's own
}
