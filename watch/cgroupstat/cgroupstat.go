// Package cgroupstat finds control groups and samples their counters on cgroup v2,
// v1 and hybrid hosts (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/).
//
// A Reader reads the files of one group into one buffer, so that sampling every
// second costs microseconds and allocates nothing; a Sampler does it for many
// groups, in tiers. What this host does not tell gives no sample; Signals says why.
// A group that vanished is watch.ErrGone.
//
// A Watcher tells which groups come and go; List lists a tree once. Both bound how
// many groups another user can make in a subtree of their own, see Bounds. What a
// group is for is left to others.
package cgroupstat

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/proc"
)

// Tree is one mounted hierarchy of groups.
type Tree struct {
	// Version is 1 or 2.
	Version int
	// Controllers are those of the hierarchy by v2 names: "io" is v1's blkio.
	// "cpuacct" is a controller on v1 only.
	Controllers []string
	// Dir is the mount point, as for the operating system.
	Dir string
}

// Status is what a Reader says about one signal of its group.
type Status struct {
	Signal Signal
	// Err is nil if the signal is there, else a kernel.NotSupportedError.
	Err error
}

// Reader reads one group. It is for one goroutine at a time.
type Reader struct {
	subject watch.Subject
	trees   []Tree
	dirs    []groupDir // by tree
	files   []file
	asked   Set      // signals whose files are known
	kept    Set      // those whose files stay open
	signals []Status // of what was asked for, in that order
	sink    *sink    // those of a Sampler share one
	// used is the CPU time of the group by the reading of the round usedIn; NaN before.
	used   float64
	usedIn int
	round  int // of Read
	reads  int // of files
}

// groupDir is the directory of a group in one tree. Its inode is 0 in a tree that does
// not have the group.
type groupDir struct {
	path  string
	inode uint64
}

// file is one of a group.
type file struct {
	kernel.File
	open    bool
	dir     string
	name    string
	parse   parser
	root    string // of the tree, where the file is to tell of a CPU limit; else ""
	limit   limit
	signals Set
	// told is what the last reading told, used the CPU time of the group just before
	// it, and round that in which it was last read or repeated; 0 is never.
	told    []figure
	used    float64
	round   int
	repeats uint8 // of the last reading, 2 stands for more
}

// figure is a sample without what all samples of a group have in common.
type figure struct {
	part     watch.Part
	quantity watch.Quantity
	value    float64
}

// Open opens a group, named by its path below the mount points of the trees, for
// the given signals; for all of them if none is given. A signal that this host or
// group lacks is no error. If no tree has the group, it is watch.ErrGone.
func Open(trees []Tree, group string, want ...Signal) (*Reader, error) {
	if len(want) == 0 {
		want = Signals()
	}
	return open(trees, group, want)
}

func open(trees []Tree, group string, want []Signal) (*Reader, error) {
	r, err := find(trees, group)
	if err == nil {
		err = r.keep(want)
	}
	if err != nil {
		return nil, fmt.Errorf("open statistics of group %q: %w", group, err)
	}
	return r, nil
}

// find finds the directories of a group.
func find(trees []Tree, group string) (*Reader, error) {
	r := &Reader{
		subject: watch.Subject{Scope: watch.Group, Name: group}, trees: trees, dirs: make([]groupDir, len(trees)),
		sink: new(sink), used: math.NaN(),
	}
	there := false
	for i, tree := range trees {
		d := &r.dirs[i]
		d.path = tree.Dir + "/" + group
		var err error
		switch d.inode, err = inode(d.path); {
		case err == nil:
			there = true
		case !kernel.Absent(err):
			return nil, err
		}
	}
	if !there {
		return nil, watch.ErrGone
	}
	return r, nil
}

// inode returns the number of a directory, which no other has at the same time.
func inode(dir string) (uint64, error) {
	var stat unix.Stat_t
	err := unix.Stat(dir, &stat)
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return 0, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return stat.Ino, nil
}

// keep makes these the signals whose files stay open, and opens them. After an error
// none is open.
func (r *Reader) keep(want []Signal) error {
	r.kept = SetOf(want...)
	if err := r.ask(want); err != nil {
		return errors.Join(err, r.Close())
	}
	for i := range r.files {
		if f := &r.files[i]; !f.open && f.signals&r.kept != 0 {
			if err := f.reopen(); err != nil && !kernel.Absent(err) { // Read says why it is gone
				return errors.Join(err, r.Close())
			}
		}
	}
	return nil
}

// ask looks for the files of signals that were not asked for before.
func (r *Reader) ask(want []Signal) error {
	for _, signal := range want {
		if r.asked.Has(signal) {
			continue
		}
		status := Status{Signal: signal}
		place, err := signal.find(r.trees, r.dirs)
		if err == nil {
			err = r.add(signal, place)
		}
		if err != nil && !errors.Is(err, kernel.ErrNotSupported) {
			return err
		}
		status.Err = err
		r.signals = append(r.signals, status)
		r.asked |= SetOf(signal)
	}
	return nil
}

// add notes the files of a signal.
func (r *Reader) add(signal Signal, p place) error {
	for n, name := range p.files {
		i := slices.IndexFunc(r.files, func(f file) bool { return f.dir == p.dir && f.name == name })
		if i < 0 {
			err := unix.Access(p.dir+"/"+name, unix.F_OK)
			switch {
			case kernel.Absent(err) && n > 0:
				continue // only the first is there on every kernel
			case kernel.Absent(err) && strings.HasSuffix(name, ".pressure"):
				return proc.PressureNotSupported(name, fs.ErrNotExist)
			case kernel.Absent(err):
				return absent(signal, name, p.version)
			case err != nil:
				return &fs.PathError{Op: "access", Path: p.dir + "/" + name, Err: err}
			}
			i = len(r.files)
			r.files = append(r.files, file{dir: p.dir, name: name, parse: p.parserOf(name), used: math.NaN()})
		}
		r.files[i].signals |= SetOf(signal)
		if p.limit {
			r.files[i].root = p.root
		}
	}
	return nil
}

func (f *file) path() string { return f.dir + "/" + f.name }

func (f *file) reopen() (err error) {
	if f.File, err = kernel.OpenFile(f.path()); err == nil {
		f.open = true
	}
	return err
}

func (f *file) shut() error {
	if !f.open {
		return nil
	}
	f.open = false
	return f.Close()
}

// Signals says for each signal that was asked for whether it is there and why
// not.
func (r *Reader) Signals() []Status {
	return slices.Clone(r.signals)
}

// Read appends a sample of everything that was asked for at Open and that the group
// tells, stamped with now. watch.ErrGone means that the group vanished from a tree;
// nothing is appended then. A controller that was disabled since ends its signals, as
// Signals says.
func (r *Reader) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	r.round++
	return r.read(now, Request{Read: r.asked, Fresh: r.asked}, turn{round: r.round}, to)
}

// turn is a round of readings.
type turn struct {
	round int
	anew  bool // what can be repeated is read again
}

// read appends a sample of all that is asked for. A file that was read in this round
// tells the same again.
func (r *Reader) read(now watch.Time, q Request, t turn, to []watch.Sample) ([]watch.Sample, error) {
	before := len(to)
	fail := func(err error) ([]watch.Sample, error) {
		return r.sink.to[:before], fmt.Errorf("read statistics of group %q: %w", r.subject.Name, err)
	}
	s := r.sink
	s.to, s.sample = to, watch.Sample{Time: now, Subject: r.subject}
	if missing := q.Read &^ r.asked; missing != 0 {
		if err := r.ask(missing.signals()); err != nil {
			return fail(err)
		}
	}
	for i := 0; i < len(r.files); i++ {
		f := &r.files[i]
		if f.signals&q.Read == 0 {
			if f.open && f.signals&r.kept == 0 && f.round < t.round-1 {
				_ = f.shut() // it was only read
			}
			continue
		}
		if r.mayRepeat(f, q, t) {
			if f.round < t.round {
				f.repeats = min(f.repeats+1, 2)
			}
			if f.repeats < 2 || f.signals&q.Read&^q.Quiet != 0 {
				f.repeat(s)
			}
			f.round = t.round
			continue
		}
		err := r.readFile(f, t, s)
		switch {
		case err == nil:
		case kernel.Absent(err) || errors.Is(err, syscall.EOPNOTSUPP):
			if r.vanished(f.dir) {
				return fail(watch.ErrGone)
			}
			r.drop(i, err)
			i--
		case exhausted(err) && f.signals&r.kept == 0: // another time
		default:
			return s.to[:before], fmt.Errorf("read %s: %w", f.path(), err)
		}
	}
	return s.to, nil
}

// mayRepeat reports whether a file must tell what it told before.
func (r *Reader) mayRepeat(f *file, q Request, t turn) bool {
	asked := f.signals & q.Read
	if f.round == t.round {
		return true
	}
	if f.round == 0 || asked&q.Fresh&^q.Still != 0 {
		return false
	}
	if asked&^q.Still == 0 && f.round == t.round-1 {
		return true
	}
	return asked&q.Fresh == 0 && !t.anew && r.usedIn == t.round && f.used == r.used
}

func (f *file) repeat(s *sink) {
	for i := range f.told {
		s.sample.Subject.Part = f.told[i].part
		s.add(f.told[i].quantity, f.told[i].value)
	}
	s.of(watch.Whole, 0)
}

// readFile reads a file, and leaves it open if it is to be, or was read in the round
// before, too.
func (r *Reader) readFile(f *file, t turn, s *sink) error {
	if !f.open {
		if err := f.reopen(); err != nil {
			return err
		}
	}
	from := len(s.to)
	r.reads++
	text, buf, err := f.Read(s.buf)
	s.buf = buf
	if err == nil {
		err = f.parse(text, s)
	}
	if err == nil && f.root != "" {
		by := f.dir
		if !slices.ContainsFunc(s.to[from:], func(one watch.Sample) bool { return one.Quantity == watch.CPUPeriods }) {
			by, err = f.limitAbove(s, t.round)
		}
		if err == nil {
			f.limit.goOn(by, s.to[from:])
		}
	}
	if f.signals&r.kept == 0 && f.round != t.round-1 {
		err = errors.Join(err, f.shut())
	}
	if err != nil {
		return err
	}
	f.told = f.told[:0]
	for i := from; i < len(s.to); i++ {
		one := &s.to[i]
		f.told = append(f.told, figure{one.Subject.Part, one.Quantity, one.Value})
		if one.Quantity == watch.CPUTime {
			r.used, r.usedIn = one.Value, t.round
		}
	}
	f.used, f.round, f.repeats = r.used, t.round, 0
	return nil
}

// vanished reports whether the group is not in a tree any more, or another one of its
// name is.
func (r *Reader) vanished(dir string) bool {
	i := slices.IndexFunc(r.dirs, func(d groupDir) bool { return d.path == dir })
	now, err := inode(dir)
	return err != nil || now != r.dirs[i].inode || unix.Access(dir+"/cgroup.procs", unix.F_OK) != nil
}

// drop ends what is read from a file that the kernel took away.
func (r *Reader) drop(i int, cause error) {
	f := r.files[i]
	_ = f.shut()
	r.files = slices.Delete(r.files, i, i+1)
	for j := range r.signals {
		if status := &r.signals[j]; f.signals.Has(status.Signal) {
			status.Err = &kernel.NotSupportedError{
				Feature: status.Signal.String() + " of a group",
				Reason:  f.name + ": " + cause.Error(),
				Remedy:  "enable the controller again and open the group anew",
			}
		}
	}
}

// Close closes the group's files.
func (r *Reader) Close() error {
	var errs []error
	for i := range r.files {
		errs = append(errs, r.files[i].shut())
	}
	return errors.Join(errs...)
}

// exhausted reports whether an error means that no more files can be opened.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
