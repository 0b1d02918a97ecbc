// Package cgroupstat samples the counters of control groups on cgroup v2, v1
// and hybrid hosts (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/).
//
// A Reader keeps the files of one group open and reads them into one buffer, so
// that sampling every second costs microseconds and allocates nothing; a Sampler
// does it for many groups. What this host does not tell gives no sample; Signals
// says why. A group that vanished is watch.ErrGone.
//
// kernel/cgroup's Group.Stat is kept beside it: it reads a group once at either
// end of an experiment through a kernel.Root, which may be a tree or a kernel
// that a test plays, and so has no descriptors to keep.
package cgroupstat

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/internal/kernfile"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/psi"
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
	// Files are those that it is read from.
	Files []string
	// Err is nil if the signal is there, else a kernel.NotSupportedError.
	Err error
}

// Reader reads one group. It is for one goroutine at a time.
type Reader struct {
	subject watch.Subject
	dirs    []kernfile.Dir
	files   []openFile
	signals []Status
	buf     *[]byte // see Use
	sink    sink
}

type openFile struct {
	kernfile.File
	dir     kernfile.Dir
	name    string
	parse   parser
	signals []Signal
}

// Open opens a group, named by its path below the mount points of the trees, for
// the given signals; for all of them if none is given. A signal that this host or
// group lacks is no error. If no tree has the group, it is watch.ErrGone.
func Open(trees []Tree, group string, want ...Signal) (*Reader, error) {
	if len(want) == 0 {
		want = Signals()
	}
	r := &Reader{subject: watch.Subject{Scope: watch.Group, Name: group}, buf: new([]byte)}
	if err := r.open(trees, group, want); err != nil {
		r.Close()
		return nil, fmt.Errorf("open statistics of group %q: %w", group, err)
	}
	return r, nil
}

// Use has the Reader read into a buffer that it shares with others of its goroutine.
func (r *Reader) Use(buf *[]byte) { r.buf = buf }

func (r *Reader) open(trees []Tree, group string, want []Signal) error {
	dirs := make([]*kernfile.Dir, len(trees)) // nil: not in this tree
	for i, tree := range trees {
		dir, err := kernfile.OpenDir(tree.Dir + "/" + group)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		r.dirs = append(r.dirs, dir)
		dirs[i] = &dir
	}
	if len(r.dirs) == 0 {
		return watch.ErrGone
	}
	for _, signal := range want {
		status := Status{Signal: signal}
		place, err := signal.find(trees, dirs)
		if err == nil {
			status.Files, err = r.add(signal, place)
		}
		if err != nil && !errors.Is(err, kernel.ErrNotSupported) {
			return err
		}
		status.Err = err
		r.signals = append(r.signals, status)
	}
	return r.closeUnused()
}

// closeUnused closes the directories of trees that tell none of the signals.
func (r *Reader) closeUnused() error {
	var errs []error
	r.dirs = slices.DeleteFunc(r.dirs, func(d kernfile.Dir) bool {
		if slices.ContainsFunc(r.files, func(f openFile) bool { return f.dir == d }) {
			return false
		}
		errs = append(errs, d.Close())
		return true
	})
	return errors.Join(errs...)
}

// add opens the files of a signal that are not open yet and returns their paths.
func (r *Reader) add(signal Signal, p place) ([]string, error) {
	var paths []string
	for _, name := range p.files {
		i := slices.IndexFunc(r.files, func(f openFile) bool { return f.dir == *p.dir && f.name == name })
		if i < 0 {
			file, err := p.dir.Open(name)
			switch {
			case gone(err) && len(paths) > 0:
				continue // only the first is there on every kernel
			case gone(err) && strings.HasSuffix(name, ".pressure"):
				return nil, psi.NotSupported(name, fs.ErrNotExist)
			case gone(err):
				return nil, absent(signal, name, p.version)
			case err != nil:
				return nil, err
			}
			i = len(r.files)
			r.files = append(r.files, openFile{File: file, dir: *p.dir, name: name, parse: parserOf(name, p.version)})
		}
		r.files[i].signals = append(r.files[i].signals, signal)
		paths = append(paths, r.files[i].Path())
	}
	return paths, nil
}

// Signals says for each signal that was asked for whether it is there and why
// not.
func (r *Reader) Signals() []Status { return slices.Clone(r.signals) }

// Read appends a sample of everything that the group tells, stamped with now.
// watch.ErrGone means that the group vanished from a tree; nothing is appended
// then. A controller that was disabled since ends its signals, as Signals says.
func (r *Reader) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	before := len(to)
	s := &r.sink
	*s = sink{to: to, sample: watch.Sample{Time: now, Subject: r.subject}}
	for i := 0; i < len(r.files); i++ {
		f := &r.files[i]
		text, buf, err := f.Read(*r.buf)
		*r.buf = buf
		if gone(err) || errors.Is(err, syscall.EOPNOTSUPP) {
			if !f.dir.Has("cgroup.procs") {
				return s.to[:before], fmt.Errorf("read statistics of group %q: %w", r.subject.Name, watch.ErrGone)
			}
			r.drop(i, err)
			i--
			continue
		}
		if err == nil {
			err = f.parse(text, s)
		}
		if err != nil {
			return s.to[:before], fmt.Errorf("read %s: %w", f.Path(), err)
		}
	}
	return s.to, nil
}

// drop ends what is read from a file that the kernel took away.
func (r *Reader) drop(i int, cause error) {
	f := r.files[i]
	f.Close()
	r.files = slices.Delete(r.files, i, i+1)
	for j := range r.signals {
		if status := &r.signals[j]; slices.Contains(f.signals, status.Signal) {
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
	for _, f := range r.files {
		errs = append(errs, f.Close())
	}
	for _, d := range r.dirs {
		errs = append(errs, d.Close())
	}
	r.files, r.dirs = nil, nil
	return errors.Join(errs...)
}

// gone reports whether err means that a file is not there: the open files of a
// removed group answer ENODEV.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}
