package agent

import (
	"context"
	"fmt"
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

// Placing and releasing an exclusive workload where 250 others are, 200
// of them in the shared pools, which narrow and widen. Keep is the agent, which has the
// books in memory; otherwise every call reads them, as every 'berth run' does.
func BenchmarkPlaceRelease(b *testing.B) {
	for _, keep := range []bool{true, false} {
		b.Run(fmt.Sprintf("keep=%v", keep), func(b *testing.B) {
			ctx := context.Background()
			l := layouts()["v1"] // the fake v2 tree works out all effective sets anew at each write
			l.CPUs = "0-255"
			h := newHost(b, l)
			opt := h.options()
			opt.Machine, opt.Keep, opt.Events = wideMachine(), true, nil
			n, err := Open(ctx, opt)
			if err != nil {
				b.Fatal(err)
			}
			for i := range 250 {
				class, milli := place.LS, 100
				if i < 50 {
					class, milli = place.LSE, 1000
				}
				if _, err := n.Place(ctx, spec(fmt.Sprintf("w%03d", i), class, milli, 0)); err != nil {
					b.Fatal(err)
				}
			}
			if !keep {
				n.Close()
				opt.Keep = false
				if n, err = Open(ctx, opt); err != nil {
					b.Fatal(err)
				}
			}
			defer n.Close()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := n.Place(ctx, spec("one", place.LSE, 2000, 0)); err != nil {
					b.Fatal(err)
				}
				if err := n.Release(ctx, "one", false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
