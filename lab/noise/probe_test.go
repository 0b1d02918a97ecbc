package noise

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlanProbes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		l2, l3 int64
		want   ProbeSizes // Note: part of it
	}{
		{"server", mib, 32 * mib, ProbeSizes{512 * kib, 4 * mib, 128 * mib, ""}},
		{"guest that is shown the host's L3", 2 * mib, 260 * mib, ProbeSizes{mib, 8 * mib, 256 * mib, "four times an L3 of 260 MiB"}},
		{"odd sizes", 1280 * kib, 30 * mib, ProbeSizes{512 * kib, 4 * mib, 64 * mib, ""}},
		{"small L3", 512 * kib, 2 * mib, ProbeSizes{256 * kib, mib, 8 * mib, ""}},
		{"L3 no larger than L2", 4 * mib, 4 * mib, ProbeSizes{2 * mib, 8 * mib, 16 * mib, ""}},
		{"L3 at the cap", mib, 64 * mib, ProbeSizes{512 * kib, 4 * mib, 256 * mib, ""}},
		{"L3 above the cap", mib, 65 * mib, ProbeSizes{512 * kib, 4 * mib, 256 * mib, "less than four times"}},
		{"unknown", 0, 0, ProbeSizes{512 * kib, 4 * mib, 128 * mib, ""}},
		{"negative is unknown", -1, math.MinInt64, ProbeSizes{512 * kib, 4 * mib, 128 * mib, ""}},
		{"L2 alone", 2 * mib, 0, ProbeSizes{mib, 8 * mib, 128 * mib, ""}},
		{"tiny", 1, 1, ProbeSizes{64 * kib, 64 * kib, 128 * kib, ""}},
		{"absurd", math.MaxInt64 / 4, math.MaxInt64, ProbeSizes{128 * mib, 256 * mib, 256 * mib, "less than four times"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := planProbes(tc.l2, tc.l3)
			if (got.Note == "") != (tc.want.Note == "") || !strings.Contains(got.Note, tc.want.Note) {
				t.Errorf("note %q, want %q in it", got.Note, tc.want.Note)
			}
			got.Note = tc.want.Note
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Plan differs (-want +got):\n%s", diff)
			}
		})
	}
}

// A chain visits every line once before it comes back.
func TestChainIsOneCycle(t *testing.T) {
	t.Parallel()
	for lines := 1; lines <= 1<<16; lines *= 2 {
		c := newChain(make([]uint64, lines*lineWords))
		for step := 1; step <= lines; step++ {
			c.chase(1)
			if c.at%lineWords != 0 {
				t.Fatalf("%d lines: at word %d, within a line", lines, c.at)
			}
			if home := c.at == 0; home != (step == lines) {
				t.Fatalf("%d lines: back at the start after %d", lines, step)
			}
		}
	}
}

// The next line is rarely near: a prefetcher has nothing to follow.
func TestChainJumps(t *testing.T) {
	t.Parallel()
	const lines = 1 << 16
	c := newChain(make([]uint64, lines*lineWords))
	near := 0
	strides := map[uint64]int{}
	for range lines {
		from := c.at
		c.chase(1)
		stride := c.at - from
		strides[stride]++
		if int64(stride) > -512 && int64(stride) < 512 { // 4 KiB
			near++
		}
	}
	if near > lines/100 {
		t.Errorf("%d of %d jumps stay within a page", near, lines)
	}
	for stride, n := range strides {
		if n > lines/1000 {
			t.Errorf("stride %d is taken %d times", int64(stride), n)
		}
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	s, err := NewProbes(256*kib, mib)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var names []string
		for _, r := range s.Run() {
			names = append(names, r.Probe)
			if !(r.NS > 0.01 && r.NS < 1e6) {
				t.Errorf("%s takes %g ns", r.Probe, r.NS)
			}
		}
		if diff := cmp.Diff([]string{"alu", "l2", "l3", "dram"}, names); diff != "" {
			t.Errorf("probes differ (-want +got):\n%s", diff)
		}
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// BenchmarkRun is the cost of the whole set between two rounds.
func BenchmarkRun(b *testing.B) {
	s, err := NewProbes(2*mib, 32*mib)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	sum := map[string]float64{}
	b.ReportAllocs()
	for b.Loop() {
		for _, r := range s.Run() {
			sum[r.Probe] += r.NS
		}
	}
	for name, ns := range sum {
		b.ReportMetric(ns/float64(b.N), name+"-ns")
	}
}

func Example_planProbes() {
	s := planProbes(2<<20, 260<<20)
	fmt.Printf("L2 %d KiB, L3 %d MiB, DRAM %d MiB\n", s.L2>>10, s.L3>>20, s.DRAM>>20)
	fmt.Println(s.Note)
	// Output:
	// L2 1024 KiB, L3 8 MiB, DRAM 256 MiB
	// the DRAM probe uses 256 MiB, less than four times an L3 of 260 MiB: part of it may be answered by the L3
}
