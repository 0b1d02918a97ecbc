package proc

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

const (
	// KernelThreads is the name of all kernel threads together. It is longer than the
	// 15 bytes that the name of a process can have.
	KernelThreads = "(kernel threads)"
	// OtherPrograms is the name of what is beyond those that are told apart, likewise.
	OtherPrograms = "(other programs)"
)

const (
	maxPrograms = 64   // that are told apart
	maxBusy     = 500  // files that a reading between two of all may read, or one process may take
	restPerFile = 1e-3 // seconds until all are read again, for each file that this took
	lasting     = 60   // readings of all for which a name without a process is kept
)

// Programs adds up what the processes of one control group ran and waited for a CPU, by
// the names of their programs, from the first reading on. It is meant for the root group,
// whose processes are in no group of their own. It is for one goroutine at a time.
//
// A reading of all takes two files for each process and one for each thread more. The next one
// follows a millisecond per file later; until then the processes that used most are read.
// What a process did after its last visit is lost, and so is what one with more than 500 threads
// waited, whose threads are not read: the sums are too low rather than too high. A new process
// counts from its start, unless it ran and waited longer than it can have been there.
type Programs struct {
	proc      string
	dir       kernel.Dir // proc
	list      kernel.File
	waits     bool // there is schedstat
	processes map[int]*process
	programs  map[string]*program
	busy      []int // the processes that gained most at the last reading of all
	all       time.Duration
	round     int
	reads     int // files that this reading has read
	last      watch.Time
	listed    watch.Time // when all were read last
	due       watch.Time // when they are next
	buf       []byte
}

type process struct {
	started string
	name    string
	kernel  bool
	seen    watch.Time // the last visit
	ran     time.Duration
	rate    float64               // the CPU time per second between the last two visits, in CPUs
	waited  map[int]time.Duration // by thread; nil if they were not read
	gained  time.Duration         // at the last visit, run or waited
	round   int                   // the reading of all that listed it last
}

// program is the sum over processes with one name.
type program struct {
	ran, waited time.Duration
	told        bool
	round       int
}

// OpenPrograms opens a proc file system and the directory of a control group. A group
// that does not exist is watch.ErrGone.
func OpenPrograms(proc, group string) (*Programs, error) {
	p := &Programs{proc: proc, processes: map[int]*process{}, programs: map[string]*program{}}
	var err error
	if p.dir, err = kernel.OpenDir(proc); err != nil {
		return nil, fmt.Errorf("open processes: %w", err)
	}
	p.waits = p.dir.Has("self/schedstat")
	if p.list, err = kernel.OpenFile(filepath.Join(group, "cgroup.procs")); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = watch.ErrGone
		}
		return nil, errors.Join(fmt.Errorf("open processes of %s: %w", group, err), p.dir.Close())
	}
	return p, nil
}

// Read appends CPUTime of all processes together, of the subject without a name, and CPUTime
// and CPUWait of each program that used any since the first reading, kernel threads as one.
// Without schedstat (CONFIG_SCHED_INFO) there is no CPUWait.
func (p *Programs) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	p.reads = 0
	before := p.last
	var err error
	if p.round < 2 || now >= p.due { // after the second it is known which processes are busy
		err = p.readAll(now)
	} else {
		err = p.readBusy(now)
	}
	if err != nil {
		return to, fmt.Errorf("read processes: %w", err)
	}
	p.last = now
	return p.tell(before, now, to), nil
}

func (p *Programs) readAll(now watch.Time) error {
	text, buf, err := p.list.ReadAll(p.buf)
	p.buf = buf
	if errors.Is(err, syscall.ENODEV) {
		return watch.ErrGone
	}
	if err != nil {
		return err
	}
	pids, err := kernel.ParsePIDs(text)
	if err != nil {
		return fmt.Errorf("%s: %w", p.list.Path(), err)
	}
	p.round++
	for _, pid := range pids {
		if err := p.visit(pid, now); err != nil {
			return err
		}
	}
	maps.DeleteFunc(p.processes, func(_ int, one *process) bool { return one.round != p.round })
	maps.DeleteFunc(p.programs, func(_ string, one *program) bool { return p.round-one.round > lasting })
	p.busy = pids[:0]
	for pid, one := range p.processes {
		if one.gained > 0 {
			p.busy = append(p.busy, pid)
		}
	}
	slices.SortFunc(p.busy, func(a, b int) int {
		return cmp.Or(cmp.Compare(p.processes[b].gained, p.processes[a].gained), cmp.Compare(a, b))
	})
	p.listed = now
	p.due = now + watch.Time(float64(p.reads)*restPerFile*float64(watch.Second))
	return nil
}

func (p *Programs) readBusy(now watch.Time) error {
	for _, pid := range p.busy {
		if p.reads >= maxBusy {
			break
		}
		if err := p.visit(pid, now); err != nil {
			return err
		}
	}
	return nil
}

// visit adds what a process gained. One that has ended, or may not be looked at, is left out.
func (p *Programs) visit(pid int, now watch.Time) error {
	dir := strconv.Itoa(pid)
	text, err := p.read(dir + "/stat")
	if unseen(err) {
		return nil
	}
	if err != nil {
		return err
	}
	stat, err := kernel.ParseProcess(text)
	if err != nil {
		return fmt.Errorf("parse %s/stat: %w", dir, err)
	}
	waited, err := p.waitsOf(dir, pid, stat)
	if err != nil {
		return err
	}
	one, known := p.processes[pid]
	if known && one.started != stat.Start {
		known = false // the number is another process's now
	}
	ran := stat.Own
	if !known {
		one = &process{started: stat.Start}
		p.processes[pid] = one
	}
	run, wait := max(ran-one.ran, 0), time.Duration(0)
	if !known || one.waited != nil { // else what its threads waited may be long ago
		for tid, all := range waited {
			wait += max(all-one.waited[tid], 0)
		}
	}
	if !known && (p.round == 1 || run+wait > time.Duration(now-p.listed)*time.Duration(max(stat.Threads, 1))) {
		run, wait = 0, 0 // it has a past
	}
	one.rate = 0
	if known && now > one.seen {
		one.rate = run.Seconds() / (now - one.seen).Seconds()
	}
	one.ran, one.waited, one.gained, one.round = ran, waited, run+wait, p.round
	one.name, one.kernel, one.seen = stat.Name, stat.Kernel, now
	name := stat.Name
	switch {
	case stat.Kernel:
		name = KernelThreads
	case name == "": // which stands for all of them
		name = OtherPrograms
	}
	p.charge(name, run, wait)
	return nil
}

// waitsOf are the times that the threads of a process waited for a CPU; nil if they are not read, as of one with very
// many threads.
func (p *Programs) waitsOf(dir string, pid int, stat kernel.Process) (map[int]time.Duration, error) {
	if !p.waits || stat.Kernel || stat.Threads > maxBusy {
		return nil, nil
	}
	waited := make(map[int]time.Duration, 1)
	add := func(tid int, file string) error {
		text, err := p.read(file)
		if unseen(err) {
			return nil
		}
		if err != nil {
			return err
		}
		times, err := ParseTask(text)
		if err != nil {
			return fmt.Errorf("parse %s: %w", file, err)
		}
		waited[tid] = times.Waited
		return nil
	}
	if stat.Threads <= 1 {
		return waited, add(pid, dir+"/schedstat")
	}
	tasks, err := os.ReadDir(filepath.Join(p.proc, dir, "task"))
	if unseen(err) {
		return waited, nil
	}
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			return nil, fmt.Errorf("%s/task: %w", dir, err)
		}
		if err := add(tid, dir+"/task/"+task.Name()+"/schedstat"); err != nil {
			return nil, err
		}
	}
	return waited, nil
}

// unseen reports whether a process has ended, or is hidden from this user (hidepid).
func unseen(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrPermission)
}

func (p *Programs) read(name string) ([]byte, error) {
	p.reads++
	f, err := p.dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, buf, err := f.Read(p.buf)
	p.buf = buf
	return text, err
}

func (p *Programs) charge(name string, ran, waited time.Duration) {
	p.all += ran
	one := p.programs[name]
	if one == nil {
		if ran+waited == 0 {
			return
		}
		one = &program{}
		p.programs[name] = one
	}
	one.ran += ran
	one.waited += waited
	one.round = p.round
}

// tell appends the sums. One that is told for the first time was 0 before.
func (p *Programs) tell(before, now watch.Time, to []watch.Sample) []watch.Sample {
	add := func(at watch.Time, name string, q watch.Quantity, v time.Duration) {
		subject := watch.Subject{Scope: watch.Process, Name: name}
		to = append(to, watch.Sample{Time: at, Subject: subject, Quantity: q, Value: v.Seconds()})
	}
	add(now, "", watch.CPUTime, p.all)
	names := slices.Collect(maps.Keys(p.programs))
	slices.SortFunc(names, func(a, b string) int {
		x, y := p.programs[a], p.programs[b]
		return cmp.Or(cmp.Compare(y.ran+y.waited, x.ran+x.waited), cmp.Compare(a, b))
	})
	for len(names) > maxPrograms {
		last := names[len(names)-1]
		names = names[:len(names)-1]
		if one := p.programs[last]; last != OtherPrograms {
			p.charge(OtherPrograms, one.ran, one.waited)
			p.all -= one.ran
			delete(p.programs, last)
		}
	}
	if p.programs[OtherPrograms] != nil && !slices.Contains(names, OtherPrograms) {
		names = append(names, OtherPrograms)
	}
	slices.Sort(names)
	for _, name := range names {
		one := p.programs[name]
		if !one.told {
			one.told = true
			add(before, name, watch.CPUTime, 0)
			if p.waits && name != KernelThreads {
				add(before, name, watch.CPUWait, 0)
			}
		}
		add(now, name, watch.CPUTime, one.ran)
		if p.waits && name != KernelThreads {
			add(now, name, watch.CPUWait, one.waited)
		}
	}
	return to
}

// Busy is a process that uses CPU time.
type Busy struct {
	PID            int
	Start, Program string
	CPUs           float64 // CPU time per second between the last two visits
}

// Busy returns the processes that used at least so many CPUs, those first that used most, without
// threads of the kernel. One that was not visited by the last reading has ended, or is not busy.
func (p *Programs) Busy(least float64) (all []Busy) {
	for pid, one := range p.processes {
		if one.rate >= least && one.seen == p.last && !one.kernel {
			all = append(all, Busy{pid, one.started, one.name, one.rate})
		}
	}
	slices.SortFunc(all, func(a, b Busy) int { return cmp.Or(cmp.Compare(b.CPUs, a.CPUs), cmp.Compare(a.PID, b.PID)) })
	return all
}

// Close closes what is open.
func (p *Programs) Close() error { return errors.Join(p.list.Close(), p.dir.Close()) }

// Names returns the processes by the name of their program (/proc/PID/comm), each list rising.
func Names(fsys fs.FS) (map[string][]int, error) {
	entries, err := fs.ReadDir(fsys, "proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	names := map[string][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if text, err := fs.ReadFile(fsys, "proc/"+e.Name()+"/comm"); err == nil {
			name := strings.TrimSuffix(string(text), "\n")
			names[name] = append(names[name], pid)
		}
	}
	for _, pids := range names {
		slices.Sort(pids)
	}
	return names, nil
}
