package agent

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// wideMachine has 256 CPUs: 2 nodes of 64 cores of 2 CPUs.
func wideMachine() *machine.Machine {
	m := &machine.Machine{}
	m.Online, _ = cpuset.Range(0, 255)
	for i := range 256 {
		m.CPUs = append(m.CPUs, machine.CPU{ID: i})
	}
	for i := range 2 {
		cpus, _ := cpuset.Range(128*i, 128*i+127)
		m.Domains = append(m.Domains, machine.Domain{Kind: machine.Node, ID: i, KernelID: i, CPUs: cpus})
	}
	for i := range 128 {
		m.Domains = append(m.Domains, machine.Domain{Kind: machine.Core, ID: i, KernelID: i, CPUs: cpuset.MustOf(2*i, 2*i+1)})
	}
	return m
}

// Placing and releasing where 250 others are, 200 of them in the shared pool: an
// exclusive workload, for which the pool narrows and widens, and one that joins
// the pool. Keep is the agent, which has the records in memory; otherwise every
// call reads them, as every 'berth run' does. cpu-ns/op is the time of this
// process on CPUs, which a busy machine does not lengthen.
func BenchmarkPlaceRelease(b *testing.B) {
	l := layouts()["v1"] // the fake v2 tree works out all effective sets anew at each write
	l.CPUs = "0-255"
	h := newHost(b, l)
	opt := h.options()
	opt.Machine, opt.Events = wideMachine(), nil
	benchmarkPlaceRelease(b, opt, 50)
}

// The same on the live kernel; 2 CPUs are enough.
func BenchmarkRealPlaceRelease(b *testing.B) {
	h := newRealHost(b)
	benchmarkPlaceRelease(b, h.opt, 0)
}

func benchmarkPlaceRelease(b *testing.B, opt Options, exclusive int) {
	ctx := context.Background()
	opt.Keep = true
	n, err := Open(ctx, opt)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { n.Close() }()
	for i := range 250 {
		class, milli := place.LS, 1
		if i < exclusive {
			class, milli = place.LSE, 1000
		}
		if _, err := n.Place(ctx, spec(fmt.Sprintf("w%03d", i), class, milli, 0)); err != nil {
			b.Fatal(err)
		}
	}
	for _, keep := range []bool{true, false} {
		n.Close()
		opt.Keep = keep
		if n, err = Open(ctx, opt); err != nil {
			b.Fatal(err)
		}
		for _, s := range []Spec{spec("one", place.LSE, 1000, 0), spec("one", place.LS, 1, 0)} {
			b.Run(fmt.Sprintf("%s/keep=%v", s.Request.Class, keep), func(b *testing.B) {
				b.ReportAllocs()
				before := cpuTime()
				for b.Loop() {
					if _, err := n.Place(ctx, s); err != nil {
						b.Fatal(err)
					}
					if err := n.Release(ctx, "one", WhenEmpty); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpuTime is the CPU time of this process, in nanoseconds.
func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}
