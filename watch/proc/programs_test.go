package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/watch"
)

// process writes a process of the root group: times are in milliseconds, waits by thread.
func (h *host) process(pid int, name string, flags uint64, started, ran int, waits ...int) {
	h.t.Helper()
	h.write(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (%s) S 1 1 1 0 -1 %d 0 0 0 0 %d 0 0 0 20 0 %d 0 %d 0 0\n",
		pid, name, flags, ran/10, len(waits), started))
	h.write(fmt.Sprintf("proc/%d/comm", pid), name+"\n")
	for i, wait := range waits {
		text := fmt.Sprintf("0 %d 1\n", wait*1e6)
		h.write(fmt.Sprintf("proc/%d/task/%d/schedstat", pid, pid+i), text)
		if i == 0 {
			h.write(fmt.Sprintf("proc/%d/schedstat", pid), text)
		}
	}
}

func (h *host) openPrograms() *Programs {
	h.t.Helper()
	p, err := OpenPrograms(h.dir+"/proc", h.dir+"/group")
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { p.Close() })
	return p
}

// figures are the samples of one reading by program and quantity, in milliseconds; a
// sample of an earlier time must be 0.
func figures(t testing.TB, p *Programs, now watch.Time) map[string]string {
	t.Helper()
	samples, err := p.Read(now, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range samples {
		switch {
		case s.Subject.Scope != watch.Process:
			t.Errorf("%+v is not of a process", s)
		case s.Time != now && s.Value != 0:
			t.Errorf("%+v is not of now", s)
		case s.Time == now && s.Quantity == watch.CPUTime:
			got[s.Subject.Name] = fmt.Sprintf("%.0f", s.Value*1e3) + got[s.Subject.Name]
		case s.Time == now:
			got[s.Subject.Name] += fmt.Sprintf(" %.0f", s.Value*1e3)
		}
	}
	return got
}

func want(t *testing.T, got map[string]string, names ...string) {
	t.Helper()
	wanted := map[string]string{}
	for i := 0; i < len(names); i += 2 {
		wanted[names[i]] = names[i+1]
	}
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		t.Errorf("got %q, want %q", got, wanted)
	}
}

func TestPrograms(t *testing.T) {
	t.Parallel()
	const s = watch.Second
	const evil = "\x1b[2J) R 1 (x\n"
	h := newHost(t, "cgroup.procs")
	h.process(2, "kworker/0:1", 0x200000, 1, 500, 9)
	h.process(10, "hog", 0, 5, 1000, 300)
	h.process(11, "hog", 0, 5, 2000, 300)
	h.process(12, "web", 0, 6, 100, 50, 60)
	h.process(13, evil, 0, 7, 0, 0)
	h.process(14, "idle", 0, 7, 10, 10)
	h.process(17, "", 0, 7, 0, 0)
	h.members(0, 2, 10, 11, 12, 13, 14, 17, 99) // one of another namespace, one that has gone
	p := h.openPrograms()
	want(t, figures(t, p, s), "", "0")

	h.process(2, "kworker/0:1", 0x200000, 1, 600, 99)
	h.process(10, "hog", 0, 5, 1400, 500)
	h.process(11, "hog", 0, 5, 2300, 400)
	h.process(12, "web", 0, 6, 200, 80, 160)
	h.process(13, evil, 0, 7, 20, 0)
	h.process(15, "new", 0, 90, 400, 100)    // since the last reading
	h.process(16, "moved", 0, 2, 90000, 500) // has a past elsewhere
	h.process(17, "", 0, 7, 30, 5)
	h.members(2, 10, 11, 12, 13, 14, 15, 16, 17)
	got := figures(t, p, 2*s)
	want(t, got, "", "1350", OtherPrograms, "30 5", KernelThreads, "100", "hog", "700 300", "web", "100 130", evil, "20 0", "new", "400 100")

	// 11 ends; 10 ends and its number is another's; the second thread of 12 ends, and a third begins.
	h.process(10, "other", 0, 200, 50, 20)
	h.process(12, "web", 0, 6, 220, 90)
	h.write("proc/12/task/40/schedstat", "0 7000000 1\n")
	h.write("proc/12/stat", strings.Replace(h.text("proc/12/stat"), "20 0 1 0", "20 0 2 0", 1))
	if err := errors.Join(os.RemoveAll(h.dir+"/proc/11"), os.RemoveAll(h.dir+"/proc/12/task/13")); err != nil {
		t.Fatal(err)
	}
	h.members(2, 10, 11, 12, 13, 14, 15, 16, 17)
	got = figures(t, p, 3*s)
	want(t, got, "", "1420", OtherPrograms, "30 5", KernelThreads, "100", "hog", "700 300", "web", "120 147", evil, "20 0", "new", "400 100", "other", "50 20")
	if names, err := Names(os.DirFS(h.dir)); err != nil || !slices.Equal(names["web"], []int{12}) {
		t.Errorf("processes named web: %v, %v", names["web"], err)
	}
}

func (h *host) text(name string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

// Without schedstat there are no waits, and nothing stands for them.
func TestProgramsWithoutSchedstat(t *testing.T) {
	t.Parallel()
	h := newHost(t, "cgroup.procs")
	if err := os.Remove(h.dir + "/proc/self/schedstat"); err != nil {
		t.Fatal(err)
	}
	h.process(10, "hog", 0, 5, 1000, 300)
	h.members(10)
	p := h.openPrograms()
	figures(t, p, watch.Second)
	h.process(10, "hog", 0, 5, 1500, 400)
	want(t, figures(t, p, 2*watch.Second), "", "500", "hog", "500")
}

// The threads of a process with very many are not read. What they waited does not count once it has fewer, either.
func TestProgramsOfManyThreads(t *testing.T) {
	t.Parallel()
	const s = watch.Second
	h := newHost(t, "cgroup.procs")
	h.members(10)
	h.process(10, "crowd", 0, 5, 1000, make([]int, maxBusy+1)...)
	p := h.openPrograms()
	figures(t, p, s)
	h.process(10, "crowd", 0, 5, 1500, slices.Repeat([]int{10}, maxBusy+1)...)
	if want(t, figures(t, p, 2*s), "", "500", "crowd", "500 0"); p.reads != 1 {
		t.Errorf("%d files are read, want 1", p.reads)
	}
	if err := os.RemoveAll(h.dir + "/proc/10/task"); err != nil {
		t.Fatal(err)
	}
	h.process(10, "crowd", 0, 5, 1600, 20, 30)
	want(t, figures(t, p, 3*s), "", "600", "crowd", "600 0")
	h.process(10, "crowd", 0, 5, 1700, 25, 40)
	want(t, figures(t, p, 4*s), "", "700", "crowd", "700 15")
	h.process(10, "crowd", 0, 5, 1800, slices.Repeat([]int{50}, maxBusy)...)
	if figures(t, p, 5*s); p.reads != 1+maxBusy {
		t.Errorf("%d files are read of the most that one may take, want %d", p.reads, 1+maxBusy)
	}
}

// As many names as a user likes to give take bounded room, and those that used most are told.
func TestProgramsOfManyNames(t *testing.T) {
	t.Parallel()
	h := newHost(t, "cgroup.procs")
	var pids []int
	run := func(ran int) {
		for i := range 200 {
			h.process(1000+i, fmt.Sprintf("name-%d", i), 0, 5, ran, 0)
		}
		h.process(10, "hog", 0, 5, 10*ran, 0)
	}
	for i := range 200 {
		pids = append(pids, 1000+i)
	}
	run(0)
	h.members(append(pids, 10)...)
	p := h.openPrograms()
	figures(t, p, watch.Second)
	run(100)
	got := figures(t, p, 2*watch.Second)
	if len(got) != maxPrograms+2 || got["hog"] != "1000 0" || got[""] != "21000" || got[OtherPrograms] != "13700 0" {
		t.Errorf("%d names, hog %q, all %q, others %q", len(got), got["hog"], got[""], got[OtherPrograms])
	}
}

// All are read again a millisecond per file later, the busy ones each time.
func TestProgramsTakeTurns(t *testing.T) {
	t.Parallel()
	h := newHost(t, "cgroup.procs")
	pids := []int{10}
	h.process(10, "hog", 0, 5, 0, 0)
	for i := range 1000 {
		pids = append(pids, 1000+i)
		h.process(1000+i, "idle", 0, 5, 0, 0)
	}
	h.members(pids...)
	p := h.openPrograms()
	figures(t, p, watch.Second)
	h.process(10, "hog", 0, 5, 500, 0)
	if got := figures(t, p, 2*watch.Second); p.reads != 2002 || got["hog"] != "500 0" {
		t.Errorf("after a second %d files are read, and it tells %q", p.reads, got)
	}
	h.process(10, "hog", 0, 5, 900, 0)
	h.process(1000, "idle", 0, 5, 100, 0)
	if got := figures(t, p, 4*watch.Second); p.reads != 2 || got["hog"] != "900 0" || got["idle"] != "" {
		t.Errorf("two seconds later %d files are read, and it tells %q", p.reads, got)
	}
	if got := figures(t, p, 5*watch.Second); p.reads != 2002 || got["idle"] != "100 0" {
		t.Errorf("three seconds later %d files are read, and it tells %q", p.reads, got)
	}
}

func TestProgramsRefuse(t *testing.T) {
	t.Parallel()
	h := newHost(t, "cgroup.procs")
	if _, err := OpenPrograms(h.dir+"/proc", h.dir+"/none"); !errors.Is(err, watch.ErrGone) {
		t.Errorf("no group: %v", err)
	}
	if _, err := OpenPrograms(h.dir+"/none", h.dir+"/group"); err == nil {
		t.Error("no proc file system: no error")
	}
	for file, text := range map[string]string{"group/cgroup.procs": "x\n", "proc/10/stat": "10 (a) S 1", "proc/10/schedstat": "1 2"} {
		h := newHost(t, "cgroup.procs")
		h.process(10, "a", 0, 5, 0, 0)
		h.members(10)
		h.write(file, text)
		if _, err := h.openPrograms().Read(watch.Second, nil); err == nil || !strings.Contains(err.Error(), filepath.Base(file)) {
			t.Errorf("%s is %q: %v", file, text, err)
		}
	}
}

func BenchmarkPrograms4000(b *testing.B) {
	h := newHost(b, "cgroup.procs")
	var pids []int
	for i := range 4000 {
		h.process(1000+i, fmt.Sprintf("name-%d", i%300), 0, 5, 0, 0)
		pids = append(pids, 1000+i)
	}
	h.members(pids...)
	p, err := OpenPrograms(h.dir+"/proc", h.dir+"/group")
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	now := watch.Time(0)
	for b.Loop() {
		now += 60 * watch.Second // all of them
		if _, err := p.Read(now, nil); err != nil {
			b.Fatal(err)
		}
	}
}
