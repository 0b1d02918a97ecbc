package runq

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"berth.dev/berth/kernel"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// guard compares what the programs take with what they may. Having the kernel
// measure it about doubles it, so it is measured in one second out of five. A window
// that is too dear is followed by another at once, and only both together count: a
// burst is not limited.
type guard struct {
	limit        float64 // of one core; negative: no guard
	window, rest time.Duration
	enable       func() (io.Closer, error) // measuring; nil where it is on anyway
	read         func() (Cost, error)      // what the kernel has measured ever

	measuring bool
	stats     io.Closer // ends it
	since     time.Time // it is measuring, or not
	from      Cost      // the kernel's figures at since
	total     Cost      // of the windows that have ended
	dear      bool      // the last window was above the limit
}

func newGuard(limit float64, programs []*ebpf.Program) guard {
	return guard{
		limit: limit, window: time.Second, rest: 4 * time.Second,
		enable: enableStats,
		read:   func() (Cost, error) { return readStats(programs) },
	}
}

// arm begins the first window since the probe is armed: one before that does not count with it.
func (g *guard) arm(now time.Time) error {
	g.dear = false
	return g.start(now)
}

// start begins a window.
func (g *guard) start(now time.Time) error {
	if g.limit < 0 {
		return nil
	}
	var err error
	if g.stats, err = g.enable(); err != nil {
		return err
	}
	g.measuring, g.since = true, now
	if g.from, err = g.read(); err != nil {
		return errors.Join(err, g.stop(now))
	}
	return nil
}

// stop ends a window, if there is one.
func (g *guard) stop(now time.Time) error {
	g.measuring, g.since = false, now
	if g.stats == nil {
		return nil
	}
	err := g.stats.Close()
	g.stats = nil
	return err
}

// check returns the cost so far, and a *CostError if a window has ended in which
// it was too high.
func (g *guard) check(now time.Time) (Cost, error) {
	passed := now.Sub(g.since)
	if !g.measuring {
		if g.limit < 0 || passed < g.rest {
			return g.total, nil
		}
		return g.total, g.start(now)
	}
	used, err := g.read()
	if err != nil {
		return Cost{}, err
	}
	last := used.since(g.from)
	last.Over = passed
	sum := g.total.plus(last)
	if passed < g.window {
		return sum, nil
	}
	g.total = sum
	if err := g.stop(now); err != nil {
		return sum, err
	}
	share, again := last.Share(), g.dear
	g.dear = share > g.limit
	switch {
	case g.dear && again:
		g.dear = false
		return sum, &CostError{Share: share, Limit: g.limit}
	case g.dear:
		return sum, g.start(now)
	}
	return sum, nil
}

// readStats returns the kernel's figures, which grow while anyone has it measure.
func readStats(programs []*ebpf.Program) (Cost, error) {
	var sum Cost
	for _, p := range programs {
		stats, err := p.Stats()
		if err != nil {
			return Cost{}, fmt.Errorf("read run time of a program: %w", err)
		}
		sum.Runs += stats.RunCount
		sum.Time += stats.Runtime
	}
	return sum, nil
}

// enableStats has the kernel measure the run time of programs until the result
// is closed (BPF_ENABLE_STATS). The result is nil where a sysctl has it do so.
func enableStats() (io.Closer, error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err == nil {
		return stats, nil
	}
	if !errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("enable run-time statistics of programs: %w", err)
	}
	always, err := os.ReadFile("/proc/sys/kernel/bpf_stats_enabled")
	if err == nil && strings.TrimSpace(string(always)) == "1" {
		return nil, nil
	}
	return nil, &kernel.NotSupportedError{
		Feature: "overhead guard of the run-queue probe",
		Reason:  "not permitted to have the run time of programs measured",
		Remedy:  "grant CAP_SYS_ADMIN, or set the sysctl kernel.bpf_stats_enabled=1, or open the probe without a guard",
	}
}
