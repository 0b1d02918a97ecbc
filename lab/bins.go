package lab

import (
	"math"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/lab/stats"
)

// binLength is the resolution at which a window is watched for disturbances.
const binLength = 50 * time.Millisecond

// The rule by which a bin is disturbed. It was fixed before any round was judged by it,
// is absolute, and the same in all scenarios: nothing that a scenario does to the tenant
// moves it.
const (
	// lagLimit is of a generator that runs before all ordinary work, so that it is late
	// only where the whole machine stood still (ahead). In three runs on an ordinary
	// virtual machine 99 of 100 bins stayed below 0.6 ms.
	lagLimit = time.Millisecond
	// othersLimit is per shared CPU: a fifth of its time. /proc/stat counts in hundredths
	// of a second, so that rounding alone never goes beyond it.
	othersLimit = 10 * time.Millisecond
	// aftermath is how many bins after a disturbed one still answer its backlog.
	aftermath = 3
)

// Bin is 50 ms of a round's window, the last one maybe less.
type Bin struct {
	// What others took of the shared CPUs, in CPU seconds: Steal the hypervisor, Foreign
	// processes outside of the lab. Foreign is exact to a hundredth of a second per CPU.
	Steal   float64 `json:"steal,omitempty"`
	Foreign float64 `json:"foreign,omitempty"`
	// Lag is the longest of the generator, in µs, of the requests due in the bin.
	Lag float64 `json:"lag,omitempty"`
	// Disturbed: others took more than a fifth of the shared CPUs' time, or a generator
	// that runs before all ordinary work was more than 1 ms late.
	Disturbed bool `json:"disturbed,omitempty"`
}

// Undisturbed is the response time of the requests that were due neither in a
// disturbed bin nor in one of the three after it.
type Undisturbed struct {
	// Response is a histogram as in load.seconds.
	Response string `json:"response"`
	// Requests were offered, of which Censored failed or were not answered.
	Requests int `json:"requests"`
	Censored int `json:"censored,omitempty"`
	// LeftOut is how many more the window had.
	LeftOut int `json:"leftOut"`
}

// binsOf is what others took of each bin of a window, which opens at an instant. What they
// took between two readings is spread evenly: readings may come late. The host's time is read in
// hundredths of a second and that of groups exactly, so that the difference may go back for a bin:
// that is taken off the bins after it, or their sum would be too much.
func binsOf(readings []reading, opens int64, window time.Duration, shared cpuset.Set) []Bin {
	if len(readings) == 0 {
		return nil
	}
	first := readings[0]
	next := 0 // the first reading at or after an instant, or the last
	taken := func(at int64) (steal, foreign float64) {
		for next < len(readings)-1 && readings[next].at < at {
			next++
		}
		steal, foreign = readings[next].others(first, shared)
		if next == 0 || readings[next].at <= at {
			return steal, foreign
		}
		last := readings[next-1]
		s, f := last.others(first, shared)
		part := float64(at-last.at) / float64(readings[next].at-last.at)
		return s + part*(steal-s), f + part*(foreign-f)
	}
	more := func(filed *float64, total float64) float64 {
		seconds := max(0, math.Round((total-*filed)*1e4)/1e4)
		*filed += seconds
		return seconds
	}
	var bins []Bin
	steal, foreign := taken(opens)
	for at := time.Duration(0); at < window; at += binLength {
		s, f := taken(opens + min(at+binLength, window).Nanoseconds())
		bins = append(bins, Bin{Steal: more(&steal, s), Foreign: more(&foreign, f)})
	}
	return bins
}

// waste is the time that limits withheld while shared CPUs were idle, in CPU seconds: of
// each interval between readings the lesser of both.
func waste(readings []reading, shared cpuset.Set) (wasted float64) {
	for i := 1; i < len(readings); i++ {
		r, before := readings[i], readings[i-1]
		idle := 0.0
		for n, cpu := range r.host.CPUs {
			if shared.Has(cpu.ID) && n < len(before.host.CPUs) && before.host.CPUs[n].ID == cpu.ID {
				d := cpu.Since(before.host.CPUs[n].Times)
				idle += (d.Idle + d.IOWait).Seconds()
			}
		}
		wasted += min(idle, r.throttled-before.throttled)
	}
	return wasted
}

// ahead says whether a generator runs before all ordinary work: on CPUs of its own, which are "" if it shares them, or
// with real-time priority. Any other is held up by the neighbour, too: to leave out where it was late would leave out
// harm, and in the neighbour's scenarios only.
func ahead(cpus, policy string) bool { return cpus != "" || strings.HasPrefix(policy, "SCHED_FIFO") }

// judgeBins enters the lag of each bin, from the requests of the window, and applies
// the rule: that of lag only where the generator is ahead. Requests that the generator
// never got to were late until closed.
func judgeBins(bins []Bin, requests []Request, sharedCPUs int, closed time.Duration, ahead bool) {
	for _, r := range requests {
		i := int(r.Due / binLength)
		if i >= len(bins) {
			continue
		}
		seen := r.Seen
		if seen < 0 {
			seen = closed
		}
		bins[i].Lag = max(bins[i].Lag, float64((seen - r.Due).Round(time.Microsecond).Microseconds()))
	}
	for i := range bins {
		b := &bins[i]
		b.Disturbed = ahead && b.Lag > float64(lagLimit.Microseconds()) || b.Steal+b.Foreign > float64(sharedCPUs)*othersLimit.Seconds()
	}
}

// undisturbed is what the bins leave of the window's requests. A request that failed or
// was not answered counts until it did, or until closed: a lower bound.
func undisturbed(bins []Bin, requests []Request, closed time.Duration) (*Undisturbed, error) {
	out := make([]bool, len(bins))
	for i, b := range bins {
		for after := i; b.Disturbed && after < min(i+aftermath+1, len(bins)); after++ {
			out[after] = true
		}
	}
	var u Undisturbed
	response := stats.NewHistogram()
	for _, r := range requests {
		if i := int(r.Due / binLength); i < len(out) && out[i] {
			u.LeftOut++
			continue
		}
		u.Requests++
		done := r.Done
		if done < 0 || r.Failed {
			u.Censored++
		}
		if done < 0 {
			done = closed
		}
		took := min(max((done-r.Due).Round(time.Microsecond).Microseconds(), 0), stats.MaxLatency)
		if err := response.RecordValue(took); err != nil {
			return nil, err
		}
	}
	text, err := stats.Encode(response)
	u.Response = text
	return &u, err
}
