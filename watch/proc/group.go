package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// GroupConfig says what a Group reads.
type GroupConfig struct {
	// Proc is the proc file system, Dir the directory of the group, as for the
	// operating system.
	Proc, Dir string
	// Below takes in the threads of the groups below it, at most maxBelow of them, which are
	// looked for at each reading. Without it they are not the group's.
	Below bool
	// Name is the group's name in samples.
	Name string
	// MaxThreads bounds the threads that one reading visits; 0 stands for 64. A
	// group with more is visited in turns, each thread for all the time since its
	// last turn.
	MaxThreads int
	// Switches reads the involuntary context switches too, which costs about twice
	// as much as the times.
	Switches bool
}

// Validate says what is wrong with the configuration.
func (c GroupConfig) Validate() error {
	switch {
	case c.Proc == "" || c.Dir == "":
		return errors.New("run delay of group: no proc file system or no directory")
	case c.MaxThreads < 0:
		return fmt.Errorf("run delay of group: at most %d threads", c.MaxThreads)
	}
	return nil
}

// Group adds up what the threads of a control group ran, waited and were switched
// for, from the first reading on. It is for one goroutine at a time.
//
// Of a thread that ends, what came after its last visit is lost, so that the sums
// are too low rather than too high. A new thread counts from its start; one that
// has run and waited for longer than it can have been in the group moved in, and
// counts from its first visit.
type Group struct {
	config  GroupConfig
	subject watch.Subject
	proc    kernel.Dir
	dir     kernel.Dir
	list    kernel.File
	threads map[int]*thread
	turn    []int // the threads in rising order
	next    int   // the thread number at which the next turn starts
	buf     []byte
	round   uint64
	last    watch.Time // of the round before
	sum     counts
}

// counts of a thread, or of all; times are in nanoseconds.
type counts struct{ ran, waited, switches uint64 }

type thread struct {
	counts
	// since is its last visit; before the first, the last time that it was not
	// there.
	since watch.Time
	// known is false before its first visit, old says that it was there at the
	// first reading.
	known, old bool
	listed     uint64 // the round in which it was last listed
}

// OpenGroup opens a group. A group that does not exist is watch.ErrGone; where threads
// have no schedstat (CONFIG_SCHED_INFO) it is a kernel.NotSupportedError.
func OpenGroup(c GroupConfig) (*Group, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.MaxThreads == 0 {
		c.MaxThreads = 64
	}
	g := &Group{config: c, subject: watch.Subject{Scope: watch.Group, Name: c.Name}, threads: map[int]*thread{}}
	if err := g.open(); err != nil {
		return nil, fmt.Errorf("open threads of group %q: %w", c.Name, err)
	}
	return g, nil
}

func (g *Group) open() (err error) {
	if g.proc, err = kernel.OpenDir(g.config.Proc); err != nil {
		return err
	}
	if !g.proc.Has("self/schedstat") {
		g.proc.Close()
		return &kernel.NotSupportedError{
			Feature: "run delay of threads",
			Reason:  "there is no " + g.config.Proc + "/self/schedstat",
			Remedy:  "boot a kernel with CONFIG_SCHED_INFO",
		}
	}
	if g.dir, err = kernel.OpenDir(g.config.Dir); err != nil {
		g.proc.Close()
		if errors.Is(err, fs.ErrNotExist) {
			err = watch.ErrGone
		}
		return err
	}
	for _, name := range []string{"cgroup.threads", "tasks"} { // v2, v1
		if g.list, err = g.dir.Open(name); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		g.proc.Close()
		g.dir.Close()
	}
	return err
}

// Read appends the samples CPUWait and, if asked for, SwitchesInvoluntary, stamped with
// now. Their CPU time is the group's, which another signal tells. The first reading is where they start,
// at 0. For a group that vanished it is watch.ErrGone; nothing is appended then.
func (g *Group) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	if err := g.read(now); err != nil {
		return to, fmt.Errorf("read threads of group %q: %w", g.config.Name, err)
	}
	sample := watch.Sample{Time: now, Subject: g.subject, Quantity: watch.CPUWait, Value: float64(g.sum.waited) / 1e9}
	to = append(to, sample)
	if g.config.Switches {
		sample.Quantity, sample.Value = watch.SwitchesInvoluntary, float64(g.sum.switches)
		to = append(to, sample)
	}
	return to, nil
}

func (g *Group) read(now watch.Time) error {
	g.round++
	if err := g.update(); err != nil {
		return err
	}
	start, _ := slices.BinarySearch(g.turn, g.next)
	for i := range min(len(g.turn), g.config.MaxThreads) {
		tid := g.turn[(start+i)%len(g.turn)]
		if err := g.visit(tid, now); err != nil {
			return err
		}
		g.next = tid + 1
	}
	g.last = now
	return nil
}

// maxBelow bounds the groups below one whose threads are taken in.
const maxBelow = 128

// update lists the threads.
func (g *Group) update() error {
	g.turn = g.turn[:0]
	err := g.listIn(&g.list)
	if errors.Is(err, syscall.ENODEV) {
		return watch.ErrGone
	}
	if left := maxBelow; err == nil && g.config.Below {
		err = g.listBelow(g.config.Dir, &left)
	}
	if err != nil {
		return err
	}
	slices.Sort(g.turn)
	for tid, t := range g.threads {
		if t.listed != g.round {
			delete(g.threads, tid)
		}
	}
	return nil
}

// listBelow lists the threads of the groups below a directory. Those that go meanwhile are
// left out.
func (g *Group) listBelow(dir string, left *int) error {
	names, err := kernel.Subdirectories(dir, *left)
	if err != nil {
		return kernel.IgnoreAbsent(err)
	}
	for _, name := range names {
		if *left == 0 {
			break
		}
		*left--
		below := filepath.Join(dir, name)
		f, err := kernel.OpenFile(filepath.Join(below, filepath.Base(g.list.Path())))
		if err == nil {
			err = errors.Join(g.listIn(&f), f.Close())
		}
		if err = kernel.IgnoreAbsent(err); err == nil {
			err = g.listBelow(below, left)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// listIn lists the threads that a file names.
func (g *Group) listIn(list *kernel.File) error {
	text, buf, err := list.ReadAll(g.buf)
	g.buf = buf
	if err != nil {
		return err
	}
	for {
		var word []byte
		if word, text = kernel.Word(text); len(word) == 0 {
			return nil
		}
		tid, err := strconv.ParseUint(string(word), 10, 31)
		if err != nil {
			return fmt.Errorf("%s: %w", list.Path(), err)
		}
		if tid > 0 { // 0 is one of another pid namespace
			g.listed(int(tid))
		}
	}
}

func (g *Group) listed(tid int) {
	t := g.threads[tid]
	if t == nil {
		t = &thread{since: g.last, old: g.round == 1}
		g.threads[tid] = t
	}
	if t.listed != g.round { // the kernel may list one twice
		g.turn = append(g.turn, tid)
	}
	t.listed = g.round
}

// visit adds what a thread gained, if it has not ended.
func (g *Group) visit(tid int, now watch.Time) error {
	counted, err := g.count(tid)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		delete(g.threads, tid)
		return nil
	}
	if err != nil {
		return err
	}
	t := g.threads[tid]
	gain := counted
	switch {
	case t.known && counted.notBefore(t.counts):
		gain = counts{counted.ran - t.ran, counted.waited - t.waited, counted.switches - t.switches}
	case t.old && !t.known || counted.ran+counted.waited > uint64(max(now-t.since, 0)):
		gain = counts{} // it has a past elsewhere
	}
	g.sum.waited += gain.waited
	g.sum.switches += gain.switches
	t.counts, t.since, t.known = counted, now, true
	return nil
}

// notBefore is false if a count went back: the number is another thread's now.
func (c counts) notBefore(old counts) bool {
	return c.ran >= old.ran && c.waited >= old.waited && c.switches >= old.switches
}

func (g *Group) count(tid int) (counts, error) {
	dir := strconv.Itoa(tid)
	text, err := g.readProc(dir + "/schedstat")
	if err != nil {
		return counts{}, err
	}
	times, err := ParseTask(text)
	if err != nil {
		return counts{}, fmt.Errorf("parse %s/schedstat: %w", dir, err)
	}
	c := counts{ran: uint64(times.Ran), waited: uint64(times.Waited)}
	if !g.config.Switches {
		return c, nil
	}
	if text, err = g.readProc(dir + "/status"); err != nil {
		return counts{}, err
	}
	var ok bool
	if c.switches, ok, err = parseStatus(text); err == nil && !ok {
		err = errors.New("no nonvoluntary_ctxt_switches")
	}
	if err != nil {
		return counts{}, fmt.Errorf("parse %s/status: %w", dir, err)
	}
	return c, nil
}

func (g *Group) readProc(name string) ([]byte, error) {
	f, err := g.proc.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, buf, err := f.Read(g.buf)
	g.buf = buf
	return text, err
}

// Close closes what is open.
func (g *Group) Close() error { return errors.Join(g.list.Close(), g.dir.Close(), g.proc.Close()) }
