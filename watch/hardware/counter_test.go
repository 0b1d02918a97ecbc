package hardware

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

func words(all ...uint64) []byte {
	var data []byte
	for _, w := range all {
		data = binary.NativeEndian.AppendUint64(data, w)
	}
	return data
}

func TestParseCounter(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		data   []byte
		events int
		want   perfReading
		ok     bool
	}{
		{"two", words(2, 100, 50, 7, 8), 2, perfReading{100, 50, [4]uint64{7, 8}}, true},
		{"four", words(4, 1, 1, 1, 2, 3, 4), 4, perfReading{1, 1, [4]uint64{1, 2, 3, 4}}, true},
		{"fewer events", words(1, 100, 50, 7), 2, perfReading{}, false},
		{"another count", words(3, 100, 50, 7, 8), 2, perfReading{}, false},
		{"cut short", words(2, 100, 50, 7, 8)[:39], 2, perfReading{}, false},
		{"empty", nil, 1, perfReading{}, false},
		{"more than there is room for", words(5, 1, 1, 1, 2, 3, 4, 5), 5, perfReading{}, false},
	} {
		got, err := parseCounts(tc.data, tc.events)
		if (err == nil) != tc.ok || got != tc.want {
			t.Errorf("%s: %+v, %v", tc.name, got, err)
		}
	}
}

func FuzzParseCounter(f *testing.F) {
	f.Add(words(2, 100, 50, 7, 8), uint8(2))
	f.Add([]byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, n uint8) {
		events := int(n)
		r, err := parseCounts(data, events)
		if err == nil && len(data) != 8*(3+events) {
			t.Errorf("%d bytes taken for %d events: %+v", len(data), events, r)
		}
	})
}

// Values are scaled by what was missed since the reading before, and never go
// back; what came while there were no counters is added once there are.
func TestScale(t *testing.T) {
	t.Parallel()
	c := &Counter{events: []counted{
		{perfEvent: perfEvent{quantity: watch.Cycles}},
		{perfEvent: perfEvent{quantity: watch.LLCReferences}, missing: unix.ENOENT},
		{perfEvent: perfEvent{quantity: watch.Instructions}},
	}}
	on := &onCPU{fds: []int{-1, -1}}
	for _, step := range []struct {
		r                    perfReading
		cycles, instructions float64
	}{
		{perfReading{}, 0, 0},
		{perfReading{100, 100, [4]uint64{10, 20}}, 10, 20},      // had counters all the time
		{perfReading{200, 150, [4]uint64{20, 30}}, 30, 40},      // half of it
		{perfReading{300, 150, [4]uint64{20, 30}}, 30, 40},      // never
		{perfReading{500, 200, [4]uint64{30, 40}}, 90, 100},     // 50 of the last 300
		{perfReading{600, 300, [4]uint64{25, 50}}, 90, 110},     // one that went back adds nothing
		{perfReading{600, 300, [4]uint64{99, 99}}, 90, 110},     // did not run
		{perfReading{500, 200, [4]uint64{30, 40}}, 90, 110},     // times went back
		{perfReading{700, 401, [4]uint64{35, 60}}, 100, 120},    // running ahead of enabled does not shrink
		{perfReading{1700, 402, [4]uint64{36, 61}}, 1100, 1120}, // a thousandth
	} {
		c.add(on, &step.r)
		if got, want := [2]float64{c.events[0].sum, c.events[2].sum}, [2]float64{step.cycles, step.instructions}; !cmp.Equal(got, want) {
			t.Errorf("after %+v: %v, want %v", step.r, got, want)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	hardware, software := &Counter{set: HardwareEvents, group: true}, &Counter{set: SoftwareEvents, group: true}
	for _, tc := range []struct {
		c            *Counter
		err          error
		reason, cure string
	}{
		{hardware, unix.ENOENT, "no performance counters", "virtual machine"},
		{hardware, unix.EOPNOTSUPP, "no performance counters", "virtual machine"},
		{software, unix.ENOENT, "not in the tree", "directory"},
		{hardware, unix.EACCES, "perf_event_paranoid is", "CAP_PERFMON"},
		{software, unix.EPERM, "perf_event_open is refused", "SystemCallFilter=perf_event_open"},
		{hardware, unix.EMFILE, "64 CPUs and 0 events", "limit of open files"},
		{hardware, unix.ENOSPC, "64 CPUs", "fewer groups"},
		{hardware, unix.ENOSYS, "no perf events", "CONFIG_PERF_EVENTS"},
		{hardware, unix.EBUSY, "another program", "end it"},
		{software, unix.EINVAL, "by group", "CONFIG_CGROUP_PERF"},
	} {
		var no *kernel.NotSupportedError
		if err := tc.c.explain(tc.err, 64); !errors.As(err, &no) || !strings.Contains(no.Reason, tc.reason) || !strings.Contains(no.Remedy, tc.cure) {
			t.Errorf("%v: %v", tc.err, err)
		}
	}
	if err := (&Counter{}).explain(unix.EINVAL, 1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an error that is not known: %v", err)
	}
}

func TestOpenCounterRefuses(t *testing.T) {
	t.Parallel()
	if _, err := OpenCounter(CounterConfig{Dir: t.TempDir() + "/none", CPUs: cpuset.MustParse("0")}); !errors.Is(err, watch.ErrGone) {
		t.Errorf("a group that does not exist: %v", err)
	}
	if _, err := OpenCounter(CounterConfig{Set: SoftwareEvents}); err == nil {
		t.Error("no CPUs")
	}
	if _, err := OpenCounter(CounterConfig{Set: SoftwareEvents, CPUs: cpuset.MustParse("0"), Only: []watch.Quantity{watch.Cycles}}); err == nil {
		t.Error("no events")
	}
}
