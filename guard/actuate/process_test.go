package actuate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/sched"
)

// scheduled are the kernel's files, and processes in no group that a test plays.
type scheduled struct {
	*fate
	t     *testing.T
	dir   string
	state map[int]sched.State
	ends  int // a process that ends when another one is next changed
	stuck int // a process that cannot be changed
	fades int // a process that ends once it has been read so often
	reads int
}

func (s *scheduled) GetScheduling(tid int) (sched.State, error) {
	if tid == s.fades && s.fades != 0 {
		if s.reads--; s.reads < 0 {
			s.end(tid)
			s.fades = 0
		}
	}
	if state, ok := s.state[tid]; ok {
		return state, nil
	}
	return sched.State{}, unix.ESRCH
}

func (s *scheduled) SetScheduling(tid int, a sched.Attr) error {
	if tid == s.stuck {
		return unix.EINVAL
	}
	state := s.state[tid]
	if a.Policy != sched.Leave {
		state.Policy, state.Priority = a.Policy, a.Priority
	}
	if a.Nice != nil {
		state.Nice = *a.Nice
	}
	if !a.Affinity.IsEmpty() {
		state.Affinity = a.Affinity
	}
	s.state[tid] = state
	if s.ends != 0 && tid != s.ends {
		s.end(s.ends)
		s.ends = 0
	}
	return nil
}

// player is a process: what /proc shows of it.
type player struct {
	pid, parent int
	flags       int // 0x00200000 is a thread of the kernel
	session     int
	terminal    bool
	uids        string // "0 0 0" by default
	exe, group  string
	comm        string // "p" by default
	score       int
	state       sched.State
	start       string // by default its number, and a nought
	threads     int    // 1 by default
}

func (s *scheduled) play(p player) control.Process {
	s.t.Helper()
	pid := fmt.Sprint(p.pid)
	if p.start == "" {
		p.start = pid + "0"
	}
	if p.uids == "" {
		p.uids = "0 0 0"
	}
	if p.group == "" {
		p.group = "/"
	}
	if p.state.Policy == sched.Leave {
		p.state.Policy = sched.Other
	}
	if p.state.Affinity.IsEmpty() {
		p.state.Affinity = cpuset.MustParse("0-7")
	}
	terminal := 0
	if p.terminal {
		terminal = 34816
	}
	if p.comm == "" {
		p.comm = "p"
	}
	stat := fmt.Sprintf("%d (%s) R %d 0 %d %d 0 %d%s %d 0 %s 0\n", p.pid, p.comm, p.parent, p.session, terminal, p.flags, strings.Repeat(" 0", 10), max(p.threads, 1), p.start)
	dir := "proc/" + pid + "/"
	for name, text := range map[string]string{
		dir + "stat": stat, dir + "task/" + pid + "/stat": stat, dir + "status": "Uid:\t" + p.uids + " 0\n",
		dir + "cgroup": "1:name=systemd:/user.slice\n0::" + p.group + "\n", dir + "oom_score_adj": fmt.Sprint(p.score),
	} {
		s.file(name, text)
	}
	if p.exe != "" {
		if err := os.Symlink(p.exe, filepath.Join(s.dir, dir+"exe")); err != nil {
			s.t.Fatal(err)
		}
	}
	s.state[p.pid] = p.state
	return control.Process{PID: p.pid, Start: p.start, Program: "p"}
}

func (s *scheduled) file(name, text string) {
	s.t.Helper()
	name = filepath.Join(s.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scheduled) end(pid int) {
	s.t.Helper()
	if err := os.RemoveAll(filepath.Join(s.dir, "proc", fmt.Sprint(pid))); err != nil {
		s.t.Fatal(err)
	}
	delete(s.state, pid)
}

// withProcesses has the host play processes.
func withProcesses(t *testing.T) (*host, *scheduled) {
	t.Helper()
	h := newHost(t, "v2")
	s := &scheduled{fate: h.fate, t: t, dir: h.dir, state: map[int]sched.State{}}
	h.files = s
	return h, s
}

func yield(of ...control.Process) control.Action {
	return control.Action{
		Remedy: detect.ProcessWeight, Group: detect.Outside, Victim: "svc/web", Suspect: detect.Outside, Processes: of, Limits: cgroup.Limits{Idle: cgroup.On},
	}
}

func pin(cpus string, of ...control.Process) control.Action {
	return control.Action{
		Remedy: detect.ProcessCPUs, Group: detect.Outside, Victim: "svc/web", Suspect: detect.Outside, Processes: of, Limits: cgroup.Limits{CPUs: cpuset.MustParse(cpus)},
	}
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h, s := withProcesses(t)
	nice := sched.State{Nice: 5, Policy: sched.Batch, Affinity: cpuset.MustParse("0-3")}
	a, b := s.play(player{pid: 70}), s.play(player{pid: 80, state: nice})
	was := map[int]sched.State{70: s.state[70], 80: s.state[80]}
	g := h.open()
	idle, both := yield(a), yield(a, b)
	promised, err := g.Preview(ctx, both)
	if err != nil || len(promised) != 2 || promised[0].Path != "/proc/70@700/sched.policy" || promised[1].From != "SCHED_BATCH" || promised[1].To != "SCHED_IDLE" {
		t.Fatalf("%+v, %v", promised, err)
	}
	did, err := g.Apply(ctx, both)
	if err != nil || !slices.Equal(did, promised) || s.state[70].Policy != sched.Idle || s.state[80].Policy != sched.Idle {
		t.Fatalf("%+v, %v; %+v", did, err, s.state)
	}
	if again, err := g.Apply(ctx, both); err != nil || len(again) > 0 {
		t.Errorf("once more: %v, %v", again, err)
	}
	if _, err := g.Apply(ctx, idle); err != nil || s.state[80] != was[80] || s.state[70].Policy != sched.Idle {
		t.Errorf("about one of the two: %v; %+v", err, s.state)
	}
	floor := both
	floor.Limits = cgroup.Limits{Weight: 6}
	if _, err := g.Apply(ctx, floor); err != nil || s.state[70].Policy != sched.Other || s.state[70].Nice != 13 || s.state[80].Nice != 13 {
		t.Errorf("their floor: %v; %+v", err, s.state)
	}
	if _, err := g.Apply(ctx, pin("2-5", a, b)); err != nil || s.state[70].Affinity.String() != "2-5" || s.state[80].Affinity.String() != "2-3" {
		t.Errorf("fewer CPUs: %v; %+v", err, s.state)
	}
	for _, action := range []control.Action{floor, pin("2-5", a, b)} {
		if _, err := g.Revert(ctx, action); err != nil {
			t.Error(err)
		}
	}
	for pid, want := range was {
		if s.state[pid] != want {
			t.Errorf("reverted: %d has %+v, want %+v", pid, s.state[pid], want)
		}
	}
	if notes := g.Notes(); len(notes) > 0 {
		t.Errorf("still noted: %v", notes)
	}
	s.ends = 80 // as soon as the other one is written
	if _, err := g.Apply(ctx, both); err != nil || s.state[70].Policy != sched.Idle {
		t.Errorf("one ends meanwhile: %v; %+v", err, s.state)
	}
	s.end(70)
	if _, err := g.Apply(ctx, both); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("they have ended: %v", err)
	}
}

// A process that is put into a group gets back what it had, at the next look or with the next step.
func TestProcessJoinsGroup(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, look := range map[string]func(g *Host, of control.Action) error{
		"look": func(g *Host, _ control.Action) error { return g.Follow() },
		"step": func(g *Host, of control.Action) error { _, err := g.Apply(ctx, of); return err },
	} {
		h, s := withProcesses(t)
		both := yield(s.play(player{pid: 70}), s.play(player{pid: 80}))
		g := h.open()
		if _, err := g.Apply(ctx, both); err != nil {
			t.Fatal(err)
		}
		s.file("proc/70/cgroup", "0::/batch/a\n")
		if err := look(g, both); err != nil || s.state[70].Policy != sched.Other || s.state[80].Policy != sched.Idle {
			t.Errorf("%s: %v; %+v", name, err, s.state)
		}
		if differs, err := g.Preview(ctx, both); err != nil || len(differs) > 0 || len(g.Notes()) != 1 {
			t.Errorf("%s: %v, %v, noted %v", name, differs, err, g.Notes())
		}
	}
}

// One process that cannot be set keeps none of the others from it, and nothing of it stays noted.
func TestProcessesFailAlone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h, s := withProcesses(t)
	a, b := s.play(player{pid: 70}), s.play(player{pid: 80})
	s.stuck = 70
	g := h.open()
	did, err := g.Apply(ctx, yield(a, b))
	if err != nil || len(did) != 1 || did[0].Process.PID != 80 || s.state[80].Policy != sched.Idle {
		t.Errorf("%+v, %v; %+v", did, err, s.state[80])
	}
	if notes := g.Notes(); len(notes) != 1 || notes[0].Step.Path != "proc/80@800/sched.policy" {
		t.Errorf("noted: %+v", notes)
	}
	if _, err := g.Apply(ctx, yield(a)); err == nil || errors.Is(err, fs.ErrNotExist) || !errors.Is(err, unix.EINVAL) {
		t.Errorf("it alone: %v", err)
	}
	s.stuck = 0
	if differs, err := g.Preview(ctx, yield(a, b)); err != nil || len(differs) == 0 || !differs[0].Process.Is(a) {
		t.Errorf("it is found to differ: %+v, %v", differs, err)
	}
}

// What a killed guard left is given back, to the processes and to those that they have
// started since, and to nobody who has a number by now.
func TestKilledBesideProcesses(t *testing.T) {
	t.Parallel()
	h, s := withProcesses(t)
	a, b, c := s.play(player{pid: 70}), s.play(player{pid: 80}), s.play(player{pid: 90})
	g := h.open()
	if _, err := g.Apply(context.Background(), yield(a, b, c)); err != nil {
		t.Fatal(err)
	}
	if err := g.lock.Close(); err != nil { // killed
		t.Fatal(err)
	}
	inherited, other := s.state[70], sched.State{Policy: sched.Batch, Affinity: cpuset.MustParse("0-7")}
	const later = "99999999999999"
	s.play(player{pid: 71, parent: 70, state: inherited, start: later})
	s.play(player{pid: 72, parent: 71, state: inherited, start: later})
	s.play(player{pid: 73, parent: 70, state: other, start: later})
	s.play(player{pid: 74, parent: 1, state: inherited, start: later}) // of nobody that was acted on
	s.play(player{pid: 75, parent: 70, state: inherited})              // it has been idle since before
	s.play(player{pid: 76, parent: 75, state: inherited, start: later})
	s.end(80)
	s.play(player{pid: 80, start: "999", state: inherited})
	s.state[90] = other // by somebody else
	if _, err := h.open().Restore(); err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]sched.Policy{70: sched.Other, 71: sched.Other, 72: sched.Other, 73: sched.Batch, 74: sched.Idle, 75: sched.Idle, 76: sched.Idle, 80: sched.Idle, 90: sched.Batch} {
		if got := s.state[pid].Policy; got != want {
			t.Errorf("process %d has %v, want %v", pid, got, want)
		}
	}
}

func TestProtectedProcesses(t *testing.T) {
	t.Parallel()
	const sshd = "/usr/sbin/sshd"
	for name, tt := range map[string]struct {
		of     player
		beside []player
		says   string // "" is not protected
	}{
		"plain":                      {player{exe: "/home/u/hog"}, nil, ""},
		"of the kernel":              {player{flags: 0x00200000}, nil, "kernel"},
		"first":                      {player{pid: 1}, nil, "first"},
		"of many threads":            {player{threads: mostThreads}, nil, ""},
		"of too many":                {player{threads: mostThreads + 1}, nil, "1001 threads"},
		"in a group":                 {player{group: "/batch"}, nil, "group /batch"},
		"real-time":                  {player{state: sched.State{Policy: sched.FIFO, Priority: 1}}, nil, "SCHED_FIFO:1"},
		"deadline":                   {player{state: sched.State{Policy: sched.Deadline}}, nil, "SCHED_DEADLINE"},
		"not to be lost":             {player{score: -900}, nil, "oom_score_adj"},
		"sshd":                       {player{exe: sshd}, nil, "sshd"},
		"sshd that was replaced":     {player{exe: sshd + " (deleted)"}, nil, "sshd"},
		"sshd of a user":             {player{exe: sshd, uids: "1000 1000 1000", parent: 9}, []player{{pid: 9, exe: sshd}}, "sshd"},
		"a user's own sshd":          {player{exe: sshd, uids: "1000 1000 1000", parent: 9}, []player{{pid: 9, exe: sshd, uids: "1000 1000 1000"}}, ""},
		"a user's copy of sshd":      {player{exe: "/home/u/sshd", uids: "1000 1000 1000"}, nil, ""},
		"root's program of the name": {player{exe: "/srv/sshd"}, nil, ""},
		"systemd-journald":           {player{exe: "/lib/systemd/systemd-journald"}, nil, "systemd-journald"},
		"chronyd":                    {player{exe: "/usr/sbin/chronyd"}, nil, "chronyd"},
		"NetworkManager":             {player{exe: "/usr/sbin/NetworkManager"}, nil, "NetworkManager"},
		"iscsid":                     {player{exe: "/usr/sbin/iscsid"}, nil, "iscsid"},
		"multipathd":                 {player{exe: "/sbin/multipathd"}, nil, "multipathd"},
		"polkitd":                    {player{exe: "/usr/lib/polkit-1/polkitd"}, nil, "polkitd"},
		"udevd":                      {player{exe: "/sbin/udevd"}, nil, "udevd"},
		"dbus-daemon":                {player{exe: "/usr/bin/dbus-daemon"}, nil, "dbus-daemon"},
		"dbus-daemon of its account": {player{exe: "/usr/bin/dbus-daemon", uids: "101 101 101"}, nil, "dbus-daemon"},
		"a user's dbus-daemon":       {player{exe: "/usr/bin/dbus-daemon", uids: "1000 1000 1000"}, nil, ""},
		"half a user's":              {player{exe: "/usr/bin/dbus-daemon", uids: "1000 101 101"}, nil, ""},
		"busybox as getty":           {player{exe: "/bin/busybox", comm: "getty"}, nil, "getty"},
		"busybox as a shell at work": {player{pid: 70, session: 70, terminal: true, exe: "/bin/busybox", comm: "ash"}, nil, "ash"},
		"busybox as a script":        {player{exe: "/bin/busybox", comm: "ash"}, nil, ""},
		"busybox as another program": {player{exe: "/bin/busybox", comm: "yes"}, nil, ""},
		"a user's busybox":           {player{exe: "/bin/busybox", comm: "getty", uids: "1000 1000 1000"}, nil, ""},
		"root's shell at work":       {player{pid: 70, session: 70, terminal: true, exe: "/usr/bin/bash"}, nil, "bash"},
		"root's script":              {player{pid: 70, session: 9, terminal: true, exe: "/usr/bin/bash"}, nil, ""},
		"root's job without a tty":   {player{pid: 70, session: 70, exe: "/usr/bin/bash"}, nil, ""},
		"a user's shell":             {player{pid: 70, session: 70, terminal: true, exe: "/usr/bin/bash", uids: "1000 1000 1000"}, nil, ""},
		"above the guard":            {player{pid: 70}, []player{{pid: 500, parent: 70}}, "started by it"},
		"above that":                 {player{pid: 70, parent: 1}, []player{{pid: 500, parent: 71}, {pid: 71, parent: 70}}, "started by it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, s := withProcesses(t)
			if tt.of.pid == 0 {
				tt.of.pid = 70
			}
			for _, p := range tt.beside {
				s.play(p)
				if p.pid == 500 {
					s.file("proc/self/stat", fmt.Sprintf("500 (berth) R %d%s 1 0 5000 0\n", p.parent, strings.Repeat(" 0", 15)))
				}
			}
			p := s.play(tt.of)
			g := h.open()
			why := g.protects(p)
			if (why == "") != (tt.says == "") || !strings.Contains(why, tt.says) {
				t.Errorf("%q, want %q", why, tt.says)
			}
			if got := g.Actable([]control.Process{p}); (len(got) == 0) != (tt.says != "") {
				t.Errorf("may be acted on: %v", got)
			}
			if _, err := g.Apply(context.Background(), yield(p)); (err == nil) != (tt.says == "") {
				t.Errorf("apply: %v", err)
			}
			if why := g.protects(control.Process{PID: p.PID, Start: "1"}); !strings.Contains(why, "ended") {
				t.Errorf("of another start: %q", why)
			}
		})
	}
}

// Where the kernel weighs processes by session, it is said why not.
func TestAutogroup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		enabled string
		want    bool
	}{{"1\n", true}, {"0\n", false}} {
		h, s := withProcesses(t)
		s.file("proc/sys/kernel/sched_autogroup_enabled", tt.enabled)
		lacks := h.open().Unavailable()
		if got := strings.Contains(lacks[detect.ProcessWeight], "session"); got != tt.want || lacks[detect.ProcessCPUs] != "" {
			t.Errorf("autogroup %q: %v", tt.enabled, lacks)
		}
	}
}
