package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"
	"time"

	"berth.dev/berth/watch"
	"berth.dev/berth/watch/runq"
)

// Programs are told with the limit of the root group: none on a host, or where nothing tells, that of
// the container in one.
func TestPrograms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stat    string
		periods float64
	}{
		"host":      {"usage_usec 9000000\n", 0},
		"nothing":   {"", 0},
		"container": {"usage_usec 9000000\nnr_periods 40\nnr_throttled 30\nthrottled_usec 5000000\n", 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := plant(t)
			use := func(ticks int) {
				write(t, root, map[string]string{
					"proc/9/stat":      fmt.Sprintf("9 (nginx) S 1 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 5 0 0\n", ticks),
					"proc/9/schedstat": fmt.Sprintf("0 %d 0\n", ticks*2e6), "proc/9/comm": "nginx\n",
				})
			}
			use(100)
			write(t, root, map[string]string{
				cgroupDir + "cgroup.procs": "9\n", "proc/self/schedstat": "0 0 0\n",
			})
			if c.stat != "" {
				write(t, root, map[string]string{cgroupDir + "cpu.stat": c.stat, cgroupDir + "cpu.max": "max 100000\n"})
			}
			o, err := Open(Config{Root: root, Programs: true})
			if err != nil {
				t.Fatal(err)
			}
			defer o.Close()
			tick(t, o, watch.Second)
			use(150)
			got := tick(t, o, 2*watch.Second)
			nginx := watch.Sample{Time: 2 * watch.Second, Subject: watch.Subject{Scope: watch.Process, Name: "nginx"}}
			for q, want := range map[watch.Quantity]float64{watch.CPUTime: 0.5, watch.CPUWait: 0.1, watch.CPUThrottledPeriods: c.periods} {
				nginx.Quantity = q
				if v, told := got[nginx]; v != want || !told {
					t.Errorf("%v of nginx is %v (told: %v), want %v", q, v, told, want)
				}
			}
			for s := range got {
				if s.Subject.Scope == watch.Process && s.Subject.Name == "" && s.Quantity == watch.CPUThrottledPeriods || s.Quantity == watch.CPUPeriods && s.Subject.Scope == watch.Host {
					t.Errorf("%+v: the limit is told of each program alone", s)
				}
			}
			if names, err := o.Names(); err != nil || len(names["nginx"]) != 1 || names["nginx"][0] != 9 {
				t.Errorf("processes named nginx: %v, %v", names["nginx"], err)
			}
			if p, err := o.Process(9); err != nil || p.Name != "nginx" {
				t.Errorf("process 9: %+v, %v", p, err)
			}
			if _, err := o.Process(10); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("no process: %v", err)
			}
		})
	}
}

// The process to act on is the one above all workers of a program, and never a shell that
// others are below as well, or a process in a group.
func TestBusiest(t *testing.T) {
	t.Parallel()
	type process struct {
		pid, parent int
		name        string
		ticks       int
		group       string
	}
	hog := []process{{20, 10, "stress-ng", 1, ""}, {21, 20, "stress-ng-cpu", 500, ""}, {22, 20, "stress-ng-cpu", 900, ""}}
	shell := process{10, 1, "sh", 1, ""}
	for name, c := range map[string]struct {
		of              string
		all             []process
		pid, among, sum int
	}{
		"workers":              {"stress-ng-cpu", append(hog, shell), 20, 2, 2},
		"one":                  {"nginx", []process{shell, {30, 10, "nginx", 7, ""}}, 30, 1, 1},
		"master and workers":   {"nginx", []process{{30, 1, "nginx", 1, ""}, {31, 30, "nginx", 9, ""}, {32, 30, "nginx", 8, ""}}, 30, 3, 3},
		"of two masters":       {"nginx", []process{{30, 1, "nginx", 1, ""}, {31, 30, "nginx", 9, ""}, {40, 1, "nginx", 3, ""}}, 30, 2, 3},
		"a supervisor of all":  {"stress-ng-cpu", append(hog, process{23, 20, "backup", 1, ""}), 22, 1, 2},
		"in a group":           {"nginx", []process{{30, 1, "nginx", 9, "web"}, {31, 1, "nginx", 2, ""}}, 31, 1, 1},
		"below one in a group": {"nginx", []process{{30, 1, "nginx", 9, "web"}, {31, 30, "nginx", 2, ""}}, 31, 1, 1},
		"below init":           {"initd", []process{{30, 1, "initd", 2, ""}}, 30, 1, 1},
		"a kernel thread":      {"kworker", []process{{2, 0, "kthreadd", 1, ""}, {30, 2, "kworker", 900, ""}, {31, 1, "kworker", 2, ""}}, 31, 1, 1},
		"none":                 {"nginx", []process{shell}, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := plant(t)
			for _, p := range append(c.all, process{1, 0, "init", 1, ""}) {
				dir, flags := fmt.Sprintf("proc/%d/", p.pid), 0
				if p.parent == 2 { // kthreadd
					flags = 0x200000
				}
				write(t, root, map[string]string{
					dir + "stat":   fmt.Sprintf("%d (%s) S %d 1 1 0 -1 %d 0 0 0 0 %d 0 0 0 20 0 1 0 5 0 0\n", p.pid, p.name, p.parent, flags, p.ticks),
					dir + "comm":   p.name + "\n",
					dir + "cgroup": "0::/" + p.group + "\n",
				})
			}
			o, err := Open(Config{Root: root})
			if err != nil {
				t.Fatal(err)
			}
			defer o.Close()
			if pid, among, all := o.Busiest(c.of); pid != c.pid || among != c.among || all != c.sum {
				t.Errorf("process %d, with %d of %d; want %d, %d of %d", pid, among, all, c.pid, c.among, c.sum)
			}
		})
	}
}

// The run-queue probe tells of programs in focus as of groups, and of them as culprits.
func TestProbedPrograms(t *testing.T) {
	t.Parallel()
	o, err := Open(Config{Root: plant(t), Programs: true, Probe: true})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	p := &fakeProbe{names: map[uint64]string{1 << 62: runq.ProgramPath("a/hog")}}
	o.queue = newQueue(p, "")
	o.FocusPrograms([]string{"web", "a/hog"})
	if err := o.Focus(nil); err != nil || !p.armed || !slices.Equal(p.watched, []string{"//web", "//a/hog"}) {
		t.Fatalf("armed %v, watches %q: %v", p.armed, p.watched, err)
	}
	p.snapshot.Groups = []runq.Group{{Path: runq.ProgramPath("web"), ID: 1<<62 + 1}}
	if _, err := o.queue.read(watch.Second, 0, nil); err != nil {
		t.Fatal(err)
	}
	p.snapshot.Groups = []runq.Group{{
		Path: runq.ProgramPath("web"), ID: 1<<62 + 1, Histogram: runq.Histogram{40: 100}, Waits: 100, Wait: time.Second, Shares: shares(1 << 62),
	}}
	got, err := o.queue.read(2*watch.Second, watch.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	told := map[watch.Quantity]string{}
	for _, s := range got {
		if s.Subject != (watch.Subject{Scope: watch.Process, Name: "web"}) {
			t.Errorf("%+v is not of the program", s)
		}
		if s.Value > 0 {
			told[s.Quantity] = s.By
		}
	}
	if by := told[watch.QueuedBy]; by != "process a/hog" || len(told) != 3 {
		t.Errorf("by %q; %v", by, told)
	}
}

// A program that the probe refuses is told, and costs neither the others nor the probe. No more are in focus than may be.
func TestProbeRefusesAProgram(t *testing.T) {
	t.Parallel()
	o, err := Open(Config{Root: plant(t), Programs: true, Probe: true})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	no := errors.New("no room")
	p := &fakeProbe{refuses: map[string]error{runq.ProgramPath("p2"): no}}
	o.queue = newQueue(p, "")
	var names, want []string
	for i := range MaxFocus + 2 {
		if names = append(names, fmt.Sprint("p", i)); i < MaxFocus && i != 2 {
			want = append(want, runq.ProgramPath(names[i]))
		}
	}
	o.FocusPrograms(names)
	if err := o.Focus(nil); err != nil || !p.armed || !slices.Equal(p.watched, want) {
		t.Errorf("armed %v, watches %q, want %q: %v", p.armed, p.watched, want, err)
	}
	if _, err := o.Tick(watch.Second, nil); !errors.Is(err, no) {
		t.Errorf("told %v", err)
	}
}

// Without being asked for, processes are not read.
func TestNoPrograms(t *testing.T) {
	t.Parallel()
	root := plant(t)
	write(t, root, map[string]string{cgroupDir + "cgroup.procs": "9\n", "proc/9/stat": "9 (nginx) S 1 1 1 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 5 0 0\n"})
	for s := range tick(t, open(t, root), watch.Second) {
		if s.Subject.Scope == watch.Process {
			t.Errorf("%+v", s)
		}
	}
}
