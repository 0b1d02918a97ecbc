package runq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unsafe"

	"berth.dev/berth/kernel"
	"github.com/google/go-cmp/cmp"
)

func TestBucketsCoverAllTimes(t *testing.T) {
	t.Parallel()
	var h Histogram
	var end time.Duration
	for i := range buckets {
		from, to := h.Bounds(i)
		if from != end || to <= from {
			t.Fatalf("bucket %d is from %d to %d, want from %d to more", i, from, to, end)
		}
		if i >= linearSteps && i < buckets-1 && to-from > from/8 {
			t.Errorf("bucket %d is from %v to %v, wider than an eighth", i, from, to)
		}
		end = to
	}
	if end != math.MaxInt64 {
		t.Errorf("the last bucket ends at %v", end)
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	three := Histogram{0: 1, 16: 1, 191: 1} // 0, 2048 ns, 8 s
	for _, tc := range []struct {
		name     string
		h        Histogram
		q        float64
		from, to time.Duration
		ok       bool
	}{
		{"least", three, 0, 0, 128, true},
		{"first third", three, 1. / 3, 0, 128, true},
		{"median", three, 0.5, 2048, 2304, true},
		{"p99", three, 0.99, 15 << 29, math.MaxInt64, true},
		{"largest", three, 1, 15 << 29, math.MaxInt64, true},
		{"one of many", Histogram{3: 99, 20: 1}, 0.99, 384, 512, true},
		{"the last of many", Histogram{3: 99, 20: 1}, 0.991, 3072, 3328, true},
		{"too many for a float", Histogram{5: math.MaxUint64}, 1, 640, 768, true},

		{"empty", Histogram{}, 0.5, 0, 0, false},
		{"negative", three, -0.1, 0, 0, false},
		{"beyond one", three, 1.1, 0, 0, false},
		{"no number", three, math.NaN(), 0, 0, false},
	} {
		from, to, ok := tc.h.Quantile(tc.q)
		if from != tc.from || to != tc.to || ok != tc.ok {
			t.Errorf("%s: Quantile(%v) = %d, %d, %v, want %d, %d, %v", tc.name, tc.q, from, to, ok, tc.from, tc.to, tc.ok)
		}
	}
}

func TestLayoutIsTheKernels(t *testing.T) {
	t.Parallel()
	var g runqGroup
	for _, tc := range []struct {
		name      string
		got, want uintptr
	}{
		{"group", unsafe.Sizeof(g), groupBytes},
		{"buckets", unsafe.Offsetof(g.Buckets), 8},
		{"waits", unsafe.Offsetof(g.Waits), 8 * (1 + buckets)},
		{"culprits", unsafe.Offsetof(g.Culprits), 8 * headWords},
		{"culprit", unsafe.Sizeof(g.Culprits[0]), 8 * culpritWords},
	} {
		if tc.got != tc.want {
			t.Errorf("%s at or of %d bytes, want %d", tc.name, tc.got, tc.want)
		}
	}
}

// encode is memory as the kernel fills it.
func encode(t testing.TB, values ...any) *bytes.Reader {
	t.Helper()
	var buf []byte
	for _, v := range values {
		var err error
		if buf, err = binary.Append(buf, binary.NativeEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return bytes.NewReader(buf)
}

func TestReadGroup(t *testing.T) {
	t.Parallel()
	var on [2]runqGroup // of slot 1 of 2
	on[0].Buckets[7], on[0].Waits, on[0].WaitNs = 2, 2, 1900
	on[0].Culprits[5].Id, on[0].Culprits[5].WaitNs, on[0].Culprits[5].Preemptions = 40, 1000, 1
	on[0].Culprits[9].Id, on[0].Culprits[9].WaitNs = uint64(Idle), 900
	on[1].Buckets[7], on[1].Buckets[191], on[1].Waits, on[1].WaitNs = 1, 1, 2, 9e9
	on[1].Culprits[0].Id, on[1].Culprits[0].WaitNs, on[1].Culprits[0].Preemptions = 40, 500, 2
	on[1].Culprits[1].Id, on[1].Culprits[1].WaitNs = uint64(Throttled), 9e9
	on[1].DroppedNs, on[1].DroppedPreemptions = 30, 3
	other := runqGroup{Waits: 77}
	memory := encode(t, other, on[0], other, on[1])

	g := Group{Path: "/a", ID: 9, Waits: 5, Shares: make([]Share, 3)} // of an earlier reading
	if err := (layout{cpus: 2, groups: 2}).read(&g, memory, 1, make([]byte, groupBytes)); err != nil {
		t.Fatal(err)
	}
	want := Group{
		Path: "/a", ID: 9, Histogram: Histogram{7: 3, 191: 1}, Waits: 4, Wait: 9*time.Second + 1900,
		Shares:  []Share{{Throttled, 9 * time.Second, 0}, {40, 1500, 3}, {Idle, 900, 0}},
		Dropped: Share{Wait: 30, Preemptions: 3},
	}
	if diff := cmp.Diff(want, g); diff != "" {
		t.Errorf("group (-want +got):\n%s", diff)
	}
	if err := (layout{cpus: 3, groups: 2}).read(&g, memory, 1, make([]byte, groupBytes)); !errors.Is(err, io.EOF) {
		t.Errorf("reading a CPU that is not there: %v, want EOF", err)
	}
}

func TestSince(t *testing.T) {
	t.Parallel()
	added, again := time.Unix(1, 0), time.Unix(2, 0)
	before := Snapshot{Cost: Cost{10, 100, time.Second}, Groups: []Group{
		{Path: "/gone", ID: 1, Added: added, Waits: 3},
		{Path: "/a", ID: 2, Added: added, Histogram: Histogram{4: 5}, Waits: 5, Wait: 50,
			Shares: []Share{{2, 40, 4}, {30, 10, 1}}, Dropped: Share{Wait: 1, Preemptions: 1}},
		{Path: "/b", ID: 3, Added: added, Waits: 9},
	}}
	after := Snapshot{Cost: Cost{15, 190, 3 * time.Second}, Groups: []Group{
		{Path: "/a", ID: 2, Added: added, Histogram: Histogram{4: 6, 5: 1}, Waits: 7, Wait: 90,
			Shares: []Share{{2, 40, 4}, {30, 35, 2}, {31, 12, 0}}, Dropped: Share{Wait: 4, Preemptions: 3}},
		{Path: "/b", ID: 3, Added: again, Waits: 11}, // removed and added again
		{Path: "/new", ID: 4, Added: again, Waits: 1},
	}}
	want := Snapshot{Cost: Cost{5, 90, 2 * time.Second}, Groups: []Group{
		{Path: "/a", ID: 2, Added: added, Histogram: Histogram{4: 1, 5: 1}, Waits: 2, Wait: 40,
			Shares: []Share{{30, 25, 1}, {31, 12, 0}}, Dropped: Share{Wait: 3, Preemptions: 2}},
		{Path: "/b", ID: 3, Added: again, Waits: 11},
		{Path: "/new", ID: 4, Added: again, Waits: 1},
	}}
	var got Snapshot
	for range 2 { // the second time in used memory
		got.Since(&before, &after)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Since (-want +got):\n%s", diff)
		}
	}
	if after.Groups[0].Shares[1].Wait != 35 {
		t.Error("Since changed the later snapshot")
	}
	if s := got.Groups[0].Share(99); s != (Share{Culprit: 99}) {
		t.Errorf("Share of one who did nothing = %+v", s)
	}
}

// meter is a kernel that measures programs.
type meter struct {
	cost    Cost
	running int
	err     error
}

func (m *meter) Close() error { m.running--; return nil }

func (m *meter) guard(limit float64) *guard {
	g := newGuard(limit, nil)
	g.enable = func() (io.Closer, error) { m.running++; return m, m.err }
	g.read = func() (Cost, error) { return m.cost, nil }
	return &g
}

func TestGuardMeasuresInWindows(t *testing.T) {
	t.Parallel()
	m := meter{cost: Cost{Runs: 1000, Time: time.Hour}} // from before
	g := m.guard(0.03)
	start := time.Unix(100, 0)
	if err := g.start(start); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		at      time.Duration
		use     time.Duration // since the last step
		want    Cost
		err     string
		running int
	}{
		{at: 500 * time.Millisecond, use: 10 * time.Millisecond, want: Cost{1, 10e6, 500e6}, running: 1},
		{at: time.Second, use: 10 * time.Millisecond, want: Cost{2, 20e6, 1e9}, running: 0},
		{at: 4900 * time.Millisecond, use: time.Second, want: Cost{2, 20e6, 1e9}, running: 0}, // someone else had it measure
		{at: 5 * time.Second, want: Cost{2, 20e6, 1e9}, running: 1},
		{at: 5500 * time.Millisecond, use: 500 * time.Millisecond, want: Cost{3, 520e6, 15e8}, running: 1}, // a burst
		{at: 7 * time.Second, want: Cost{4, 520e6, 3e9}, running: 1},                                       // too dear: once more
		{at: 8 * time.Second, want: Cost{5, 520e6, 4e9}, running: 0},                                       // it was a burst
		{at: 12 * time.Second, want: Cost{5, 520e6, 4e9}, running: 1},
		{at: 13 * time.Second, use: 100 * time.Millisecond, want: Cost{6, 620e6, 5e9}, running: 1},
		{at: 14 * time.Second, use: 250 * time.Millisecond, want: Cost{7, 870e6, 6e9}, err: "takes 25.00 % of a core, may take 3.00 %", running: 0},
	} {
		m.cost.Runs++
		m.cost.Time += tc.use
		got, err := g.check(start.Add(tc.at))
		checkError(t, tc.at.String(), err, tc.err)
		if got != tc.want || m.running != tc.running {
			t.Errorf("after %v: cost %+v, measuring %d, want %+v, %d", tc.at, got, m.running, tc.want, tc.running)
		}
	}
}

// A window that was too dear before the probe was detached does not count with the first one after.
func TestGuardIsArmedAgain(t *testing.T) {
	t.Parallel()
	m := meter{}
	g := m.guard(0.03)
	now := time.Unix(100, 0)
	dear := func(when, want string) {
		t.Helper()
		now = now.Add(time.Second)
		m.cost.Time += 100 * time.Millisecond
		_, err := g.check(now)
		checkError(t, when, err, want)
	}
	for _, when := range []string{"armed", "armed again"} {
		if err := g.arm(now); err != nil {
			t.Fatal(err)
		}
		dear(when, "")
		if err := g.stop(now); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Minute)
	}
	if err := g.arm(now); err != nil {
		t.Fatal(err)
	}
	dear("armed for long", "")
	dear("dear once more", "takes 10.00 % of a core")
}

func TestGuardRefusals(t *testing.T) {
	t.Parallel()
	off := meter{err: errors.New("not permitted")}
	checkError(t, "no guard", off.guard(-1).start(time.Now()), "")
	checkError(t, "guard", off.guard(1).start(time.Now()), "not permitted")
	if cost, err := off.guard(-1).check(time.Now()); err != nil || cost != (Cost{}) || cost.Share() != 0 {
		t.Errorf("check without a guard = %+v, %v", cost, err)
	}
	unread := meter{}
	g := unread.guard(1)
	g.read = func() (Cost, error) { return Cost{}, errors.New("not read") }
	checkError(t, "figures that cannot be read", g.start(time.Now()), "not read")
	if unread.running != 0 || g.measuring {
		t.Errorf("the kernel goes on measuring: %d, %v", unread.running, g.measuring)
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	good := func() fstest.MapFS {
		return fstest.MapFS{
			"proc/sys/kernel/osrelease":    file("6.1.0-18-amd64\n"),
			"sys/kernel/btf/vmlinux":       file("\x9f\xeb"),
			"sys/kernel/security/lockdown": file("none [integrity] confidentiality\n"),
			"proc/self/status":             file("Name:\tberth\nCapEff:\t000000c000000004\n"),
		}
	}
	for _, tc := range []struct {
		name, path, text string // "-" removes the file
		want             string
	}{
		{name: "all there"},
		{name: "oldest", path: "proc/sys/kernel/osrelease", text: "5.16-rc1"},
		{name: "next major", path: "proc/sys/kernel/osrelease", text: "7.2.3"},
		{name: "odd release", path: "proc/sys/kernel/osrelease", text: "custom"},
		{name: "no lockdown file", path: "sys/kernel/security/lockdown", text: "-"},
		{name: "no status", path: "proc/self/status", text: "-"},
		{name: "administrator", path: "proc/self/status", text: "CapEff:\t0000000000200004\n"},
		{name: "capabilities not readable", path: "proc/self/status", text: "CapEff:\tlots\n"},

		{name: "old", path: "proc/sys/kernel/osrelease", text: "5.15.167", want: "kernel 5.15.167 is too old (boot a kernel 5.16"},
		{name: "very old", path: "proc/sys/kernel/osrelease", text: "4.19", want: "too old"},
		{name: "no types", path: "sys/kernel/btf/vmlinux", text: "-", want: "CONFIG_DEBUG_INFO_BTF"},
		{name: "lockdown", path: "sys/kernel/security/lockdown", text: "none integrity [confidentiality]", want: "lockdown"},
		{name: "no capability", path: "proc/self/status", text: "CapEff:\t0000000000000000\n", want: "lacks CAP_BPF and CAP_PERFMON and CAP_DAC_READ_SEARCH"},
		{name: "one capability", path: "proc/self/status", text: "CapEff:\t0000008000000004\n", want: "lacks CAP_PERFMON ("},
		{name: "the other", path: "proc/self/status", text: "CapEff:\t0000004000000004\n", want: "lacks CAP_BPF ("},
		{name: "no names", path: "proc/self/status", text: "CapEff:\t0000000000200000\n", want: "lacks CAP_DAC_READ_SEARCH ("},
	} {
		host := good()
		if tc.text == "-" {
			delete(host, tc.path)
		} else if tc.path != "" {
			host[tc.path] = file(tc.text)
		}
		err := inspect(host)
		checkError(t, tc.name, err, tc.want)
		if err != nil && !errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("%s: %v is not a NotSupportedError", tc.name, err)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		o    Options
		want string
	}{
		{"least", Options{Root: "/x"}, ""},
		{"full", Options{Root: "/x", Room: MaxGroups, MaxShare: -1}, ""},
		{"empty", Options{}, "no root"},
		{"negative room", Options{Root: "/x", Room: -1}, "room for -1"},
		{"too much room", Options{Root: "/x", Room: MaxGroups + 1}, "want 0 to 32"},
		{"no number", Options{Root: "/x", MaxShare: math.NaN()}, "not a number"},
	} {
		checkError(t, tc.name, tc.o.Validate(), tc.want)
		if _, err := Open(tc.o); tc.want != "" {
			checkError(t, tc.name, err, tc.want)
		}
	}
	_, err := Open(Options{Root: t.TempDir()})
	checkError(t, "not a control group", err, "no control groups are mounted")
	_, err = Open(Options{Root: "/berth-nowhere"})
	checkError(t, "not there", err, "no such file")
}

func TestCulprit(t *testing.T) {
	t.Parallel()
	for c, want := range map[Culprit]string{
		Unknown: "unknown", Idle: "idle", Kernel: "kernel", Throttled: "throttled", 74: "cgroup 74",
	} {
		if c.String() != want {
			t.Errorf("%#x = %q, want %q", uint64(c), c, want)
		}
		if _, ok := c.Group(); ok != strings.HasPrefix(want, "cgroup") {
			t.Errorf("%v is a group: %v", c, ok)
		}
	}
}

func FuzzGroup(f *testing.F) {
	f.Add(make([]byte, groupBytes))
	f.Add(bytes.Repeat([]byte{0xff}, groupBytes))
	f.Fuzz(func(t *testing.T, data []byte) {
		buf := make([]byte, groupBytes)
		copy(buf, data)
		var g Group
		g.add(buf)
		var before Group
		before.copy(&g)
		before.subtract(&g)
		if len(before.Shares) != 0 || before.Wait != 0 || before.Histogram != (Histogram{}) {
			t.Errorf("a group less itself = %+v", before)
		}
	})
}

func FuzzInspect(f *testing.F) {
	f.Add("6.1.0", "CapEff:\t000000c000000000\n")
	f.Add("5.", "CapEff:\n")
	f.Fuzz(func(t *testing.T, release, status string) {
		if v, ok := parseRelease(release); !ok && v != [2]int{} {
			t.Errorf("parseRelease(%q) = %v, false", release, v)
		}
		missingCapabilities(status)
	})
}

func checkError(t *testing.T, name string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: error = %v, want %q in it", name, err, want)
	}
}
