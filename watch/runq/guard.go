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

// guard compares what the programs take with what they may.
type guard struct {
	limit    float64       // of one core; negative: no guard
	window   time.Duration // the least over which a share is taken: a burst is no reason to detach
	programs []*ebpf.Program
	stats    io.Closer // nil where the kernel keeps statistics anyway
	from     time.Time
	used     time.Duration // at from
}

// start has the kernel keep the run time of programs (BPF_ENABLE_STATS).
func (g *guard) start(limit float64, programs []*ebpf.Program) error {
	g.limit, g.window, g.programs = limit, time.Second, programs
	if limit < 0 {
		return nil
	}
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err == nil {
		g.stats = stats
		return nil
	}
	always, readErr := os.ReadFile("/proc/sys/kernel/bpf_stats_enabled")
	if readErr == nil && strings.TrimSpace(string(always)) == "1" {
		return nil
	}
	if errors.Is(err, unix.EPERM) {
		return &kernel.NotSupportedError{
			Feature: "overhead guard of the run-queue probe",
			Reason:  "not permitted to have the run time of programs counted",
			Remedy:  "grant CAP_SYS_ADMIN, or set the sysctl kernel.bpf_stats_enabled=1, or open the probe without a guard",
		}
	}
	return fmt.Errorf("enable run-time statistics of programs: %w", err)
}

func (g *guard) cost() (Cost, error) {
	var sum Cost
	if g.limit < 0 {
		return sum, nil
	}
	for _, p := range g.programs {
		stats, err := p.Stats()
		if err != nil {
			return Cost{}, fmt.Errorf("read run time of a program: %w", err)
		}
		sum.Runs += stats.RunCount
		sum.Time += stats.Runtime
	}
	return sum, nil
}

// check returns a *CostError if the share since the last window was too large.
func (g *guard) check(used time.Duration, now time.Time) error {
	if g.limit < 0 {
		return nil
	}
	if g.from.IsZero() {
		g.from, g.used = now, used
	}
	passed := now.Sub(g.from)
	if passed < g.window {
		return nil
	}
	share := float64(used-g.used) / float64(passed)
	g.from, g.used = now, used
	if share > g.limit {
		return &CostError{Share: share, Limit: g.limit}
	}
	return nil
}

func (g *guard) close() error {
	if g.stats == nil {
		return nil
	}
	err := g.stats.Close()
	g.stats = nil
	return err
}
