package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// host simulates a proc file system and one group.
type host struct {
	t    testing.TB
	dir  string
	list string
}

func newHost(t testing.TB, list string) *host {
	h := &host{t, t.TempDir(), list}
	h.write("proc/self/schedstat", "0 0 0")
	h.write("group/"+list, "")
	return h
}

func (h *host) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) thread(tid int, ran, waited watch.Time, switches int) {
	h.t.Helper()
	h.write(fmt.Sprintf("proc/%d/schedstat", tid), fmt.Sprintf("%d %d 1\n", ran, waited))
	h.write(fmt.Sprintf("proc/%d/status", tid), fmt.Sprintf("Name:\tx\nnonvoluntary_ctxt_switches:\t%d\n", switches))
}

func (h *host) members(tids ...int) {
	h.t.Helper()
	text := ""
	for _, tid := range tids {
		text += fmt.Sprintln(tid)
	}
	h.write("group/"+h.list, text)
}

func (h *host) open(maxThreads int) *Group {
	h.t.Helper()
	g, err := OpenGroup(GroupConfig{Proc: h.dir + "/proc", Dir: h.dir + "/group", Name: "g", MaxThreads: maxThreads, Switches: true})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { g.Close() })
	return g
}

// reading is "waited switches", in milliseconds.
func reading(t testing.TB, g *Group, now watch.Time) string {
	t.Helper()
	samples, err := g.Read(now, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(samples) != 2 || samples[0].Quantity != watch.CPUWait ||
		samples[1].Quantity != watch.SwitchesInvoluntary || samples[1].Time != now || samples[0].Subject.Name != "g" {
		t.Fatalf("%+v", samples)
	}
	return fmt.Sprintf("%.0f %.0f", samples[0].Value*1e3, samples[1].Value)
}

func TestGroup(t *testing.T) {
	t.Parallel()
	const s, ms = watch.Second, watch.Millisecond
	for _, list := range []string{"cgroup.threads", "tasks"} {
		t.Run(list, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, list)
			g := h.open(0)
			for i, step := range []struct {
				name string
				do   func()
				want string
			}{
				{"the past does not count", func() { h.thread(1, 90*s, 80*s, 70); h.members(1, 0) }, "0 0"},
				{"a gain", func() { h.thread(1, 90*s+300*ms, 80*s+200*ms, 71) }, "200 1"},
				{"a new thread counts whole", func() { h.thread(2, 100*ms, 50*ms, 5); h.members(2, 1, 2) }, "250 6"},
				{"one that moved in does not", func() { h.thread(3, 40*s, 1, 1000); h.members(1, 2, 3) }, "250 6"},
				{"then it counts", func() { h.thread(3, 40*s+100*ms, 1, 1001) }, "250 7"},
				{"one ended, still listed", func() { os.RemoveAll(h.dir + "/proc/3") }, "250 7"},
				{"it is listed no more", func() { h.members(1, 2) }, "250 7"},
				{"a number used again", func() { h.thread(2, 10*ms, 20*ms, 1) }, "270 8"},
				{"the same, with a past", func() { h.thread(2, 9*ms, 99*s, 1) }, "270 8"},
				{"empty", func() { h.members() }, "270 8"},
				{"back again", func() { h.members(1) }, "270 8"},
			} {
				step.do()
				if got := reading(t, g, watch.Time(i)*s); got != step.want {
					t.Errorf("%s: %s, want %s", step.name, got, step.want)
				}
			}
		})
	}
}

// However many groups are below one, a reading looks at no more than a few. Not parallel: AllocsPerRun counts for
// the whole program.
func TestGroupBelowBounded(t *testing.T) {
	h := newHost(t, "tasks")
	g, err := OpenGroup(GroupConfig{Proc: h.dir + "/proc", Dir: h.dir + "/group", Name: "g", Below: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	made := 0
	allocations := func(groups int) float64 {
		for ; made < groups; made++ {
			if err := os.Mkdir(fmt.Sprintf("%s/group/%d", h.dir, made), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return testing.AllocsPerRun(1, func() {
			if _, err := g.Read(1, nil); err != nil {
				t.Error(err)
			}
		})
	}
	if few, many := allocations(1200), allocations(6000); many > 2*few {
		t.Errorf("%v allocations for a reading of a group with 6000 below it, %v with 1200", many, few)
	}
}

// A pod's threads are in the groups of its containers, which come and go.
func TestGroupBelow(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"cgroup.threads", "tasks"} {
		h := newHost(t, list)
		h.write("group/a/"+list, "1\n")
		config := GroupConfig{Proc: h.dir + "/proc", Dir: h.dir + "/group", Name: "g", Switches: true}
		for _, below := range []bool{false, true} {
			config.Below = below
			g, err := OpenGroup(config)
			if err != nil {
				t.Fatal(err)
			}
			waits := func(n watch.Time) {
				for tid := 1; tid <= 3; tid++ {
					h.thread(tid, 0, 10*watch.Second+n*watch.Millisecond, 0)
				}
			}
			waits(0)
			got := []string{reading(t, g, 0)}
			waits(100)
			h.write("group/b/c/"+list, "2\n3\n") // a new container, with threads that have a past
			got = append(got, reading(t, g, watch.Second))
			waits(300)
			got = append(got, reading(t, g, 2*watch.Second))
			if err := os.RemoveAll(h.dir + "/group/b"); err != nil {
				t.Fatal(err)
			}
			waits(400)
			got = append(got, reading(t, g, 3*watch.Second))
			want := "0 0, 0 0, 0 0, 0 0"
			if below {
				want = "0 0, 100 0, 700 0, 800 0"
			}
			if all := strings.Join(got, ", "); all != want {
				t.Errorf("%s, below %v: %s, want %s", list, below, all, want)
			}
			g.Close()
		}
	}
}

// With more threads than may be visited, all get their turn, for all of their time.
func TestGroupTakesTurns(t *testing.T) {
	t.Parallel()
	h := newHost(t, "tasks")
	g := h.open(2)
	all := func(waited watch.Time) {
		for tid := 1; tid <= 5; tid++ {
			h.thread(tid, 0, waited, 0)
		}
	}
	h.members(1, 2, 3, 4, 5)
	// Each thread waits 10 ms between two rounds.
	for i, want := range []string{
		"0 0",  // 1 and 2, for the first time
		"0 0",  // 3 and 4, for the first time
		"20 0", // 5 for the first time, 1 for two rounds
		"70 0", // 2 for three rounds, 3 for two
	} {
		all(watch.Second + watch.Time(i)*10*watch.Millisecond)
		if got := reading(t, g, watch.Time(i)*watch.Second); got != want {
			t.Errorf("round %d: %s, want %s", i, got, want)
		}
	}
}

func TestGroupRefuses(t *testing.T) {
	t.Parallel()
	h := newHost(t, "tasks")
	h.members(1)
	for _, tc := range []struct{ schedstat, status, list, want string }{
		{"1 2", "nonvoluntary_ctxt_switches: 1", "1", "parse 1/schedstat"},
		{"1 2 3", "Name: x", "1", "parse 1/status: no nonvoluntary"},
		{"1 2 3", "nonvoluntary_ctxt_switches: x", "1", "parse 1/status"},
		{"1 2 3", "nonvoluntary_ctxt_switches: 1", "x", "tasks"},
		{"1 2 3", "nonvoluntary_ctxt_switches: 1", "-1", "tasks"},
	} {
		h.write("proc/1/schedstat", tc.schedstat)
		h.write("proc/1/status", tc.status)
		h.write("group/tasks", tc.list)
		samples, err := h.open(0).Read(1, nil)
		checkError(t, err, tc.want)
		if len(samples) != 0 {
			t.Errorf("%s: %d samples", tc.want, len(samples))
		}
	}
	for _, tc := range []struct {
		config GroupConfig
		is     error
	}{
		{GroupConfig{Proc: h.dir + "/proc", Dir: h.dir + "/none"}, watch.ErrGone},
		{GroupConfig{Proc: h.dir + "/none", Dir: h.dir + "/group"}, fs.ErrNotExist},
		{GroupConfig{Proc: h.dir, Dir: h.dir + "/group"}, kernel.ErrNotSupported},
		{GroupConfig{Proc: h.dir + "/proc", Dir: h.dir + "/proc"}, fs.ErrNotExist},
	} {
		if _, err := OpenGroup(tc.config); !errors.Is(err, tc.is) {
			t.Errorf("%+v: %v, want %v", tc.config, err, tc.is)
		}
	}
	for _, config := range []GroupConfig{{}, {Proc: "x"}, {Dir: "x"}, {Proc: "x", Dir: "x", MaxThreads: -1}} {
		if err := config.Validate(); err == nil {
			t.Errorf("%+v: no error", config)
		}
	}
}

// liveGroup makes a group of this host.
func liveGroup(t testing.TB) string {
	t.Helper()
	for _, tree := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu"} {
		dir, err := os.MkdirTemp(tree, "berth-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { os.Remove(dir) })
		if _, err := os.Stat(dir + "/cgroup.procs"); err == nil {
			return dir
		}
	}
	t.Skip("no cgroup tree in which groups can be made")
	return ""
}

func TestLiveGone(t *testing.T) {
	t.Parallel()
	dir := liveGroup(t)
	g, err := OpenGroup(GroupConfig{Proc: "/proc", Dir: dir, Name: "g"})
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if samples, err := g.Read(1, nil); len(samples) != 1 || err != nil {
		t.Errorf("an empty group: %v, %v", samples, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if samples, err := g.Read(2, nil); !errors.Is(err, watch.ErrGone) || len(samples) != 0 {
		t.Errorf("removed: %v, %v; want ErrGone", samples, err)
	}
}

// BenchmarkGroup reads this process's threads, as if a group listed them.
func BenchmarkGroup(b *testing.B) {
	for _, switches := range []bool{false, true} {
		b.Run(fmt.Sprintf("switches=%v", switches), func(b *testing.B) {
			dir := b.TempDir()
			tasks, err := os.ReadDir("/proc/self/task")
			if err != nil {
				b.Skip(err)
			}
			var list strings.Builder
			for i := range 64 {
				fmt.Fprintln(&list, tasks[i%len(tasks)].Name())
			}
			if err := os.WriteFile(dir+"/tasks", []byte(list.String()), 0o644); err != nil {
				b.Fatal(err)
			}
			g, err := OpenGroup(GroupConfig{Proc: "/proc", Dir: dir, Switches: switches})
			if err != nil {
				b.Skip(err)
			}
			defer g.Close()
			b.ReportAllocs()
			var samples []watch.Sample
			start := time.Now()
			for b.Loop() {
				if samples, err = g.Read(watch.Time(time.Since(start)), samples[:0]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*max(len(g.threads), 1)), "ns/thread")
		})
	}
}
