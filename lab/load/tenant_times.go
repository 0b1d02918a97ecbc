package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"berth.dev/berth/lab/stats"
)

// timesLimit is how long a service may take to tell its times: on a busy machine it waits for
// a CPU.
const timesLimit = 30 * time.Second

// timesPath is where a timed service tells its ServiceTimes.
const timesPath = "/times"

// ServiceTimes are what the requests of a service took since they were last taken.
type ServiceTimes struct {
	Requests int `json:"requests"`
	Failed   int `json:"failed,omitempty"`
	// Whole is from the start of the handler to its answer, Own the part of it in which the
	// service did not wait for those that it called: its work, and waiting for a CPU.
	Whole Spread `json:"whole"`
	Own   Spread `json:"own"`
}

// Spread is a distribution in short, in microseconds; zero without requests.
type Spread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
}

// stopwatch keeps the ServiceTimes of a service. Its methods may be called from several goroutines.
type stopwatch struct {
	mutex      sync.Mutex
	failed     int
	whole, own *hdrhistogram.Histogram
}

func newStopwatch() *stopwatch {
	return &stopwatch{whole: stats.NewHistogram(), own: stats.NewHistogram()}
}

// record enters a request; nil keeps none.
func (s *stopwatch) record(whole, waited time.Duration, failed bool) {
	if s == nil {
		return
	}
	in := func(d time.Duration) int64 { return min(max(d.Microseconds(), 1), stats.MaxLatency) }
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if failed {
		s.failed++
	}
	// Both are within the range of the histogram.
	_ = s.whole.RecordValue(in(whole))
	_ = s.own.RecordValue(in(whole - waited))
}

// take returns the times so far, and begins anew.
func (s *stopwatch) take() ServiceTimes {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	t := ServiceTimes{Requests: int(s.whole.TotalCount()), Failed: s.failed, Whole: spreadOf(s.whole), Own: spreadOf(s.own)}
	s.failed = 0
	s.whole.Reset()
	s.own.Reset()
	return t
}

func spreadOf(h *hdrhistogram.Histogram) Spread {
	if h.TotalCount() == 0 {
		return Spread{}
	}
	return Spread{math.Round(10*h.Mean()) / 10, float64(h.ValueAtQuantile(50)), float64(h.ValueAtQuantile(99))}
}

func (s *Tenant) serveTimes(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.stopwatch.take()) // a client that went away is no concern of the service's
}

// TakeTimes asks a timed service for its times, which it then begins anew.
func TakeTimes(ctx context.Context, addr string) (t ServiceTimes, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: timesLimit}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+timesPath, nil)
	if err != nil {
		return t, fmt.Errorf("times of %s: %w", addr, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return t, fmt.Errorf("times: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return t, errors.Join(fmt.Errorf("times of %s: %s", addr, response.Status), response.Body.Close())
	}
	if err := errors.Join(json.NewDecoder(response.Body).Decode(&t), response.Body.Close()); err != nil {
		return t, fmt.Errorf("times of %s: %w", addr, err)
	}
	return t, nil
}

// UnitCost measures what a unit of a tenant's work takes here, in CPU time, on a store of its
// size that nobody else uses.
func UnitCost(c TenantConfig) (time.Duration, error) {
	const enough = 20 * time.Millisecond
	c.Units = 16
	s, err := NewTenant(c)
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	work := new(scratch)
	units := uint64(0)
	for began := threadTime(); ; {
		for range 8 {
			if err := s.render(work, units); err != nil {
				return 0, err
			}
			units += uint64(c.Units)
		}
		if took := threadTime() - began; took >= enough {
			return took / time.Duration(units), nil
		}
	}
}

// threadTime is the CPU time of the calling thread so far.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // it exists on every Linux
	return time.Duration(ts.Nano())
}
