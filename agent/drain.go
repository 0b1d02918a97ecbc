package agent

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/kernel"
)

// Release implements Enforcer. A group that Berth made is removed, with those that the
// workload made in it, or left by its processes.
func (g *groups) Release(w *Workload, leave bool, log *kernel.UndoLog) error {
	if !w.made() {
		return nil
	}
	if leave {
		return g.drain(w, log)
	}
	for _, below := range slices.Backward(g.below(w)) {
		for _, dir := range g.base.Child(below).Dirs() {
			_ = g.root.Rmdir(dir) // if it stays, removing what is around it says so
		}
	}
	_, err := log.Undo(func(s kernel.Step) bool {
		return s.Op == kernel.Mkdir && slices.ContainsFunc(w.Dirs, func(dir string) bool { return kernel.Within(s.Path, dir) })
	})
	return err
}

// drain moves the processes of a group that Berth made, and of those in it, to where the
// first one came from, or to the base if that is gone: systemd removes a scope that has
// none left. Those that can go back to where they came from are left to the undo log.
func (g *groups) drain(w *Workload, log *kernel.UndoLog) error {
	var errs []error
	below := g.below(w)
	for i, dir := range w.Dirs {
		back, noted := strings.TrimSuffix(dir, "/"+w.Group)+"/cgroup.procs", map[string]bool{}
		for _, note := range log.Notes() {
			if note.Step.Op == kernel.Attach && note.Step.Path == dir+"/cgroup.procs" && g.isDir(path.Dir(note.Step.Back)) {
				back, noted[note.Step.Value] = note.Step.Back, true
			}
		}
		err := g.empty(dir, back, noted)
		if errors.Is(err, kernel.ErrNotSupported) {
			err = g.threaded(dir)
		}
		errs = append(errs, err)
		for _, group := range below {
			// Of one that is threaded the processes are listed, and moved, with the group above.
			if err := g.empty(g.base.Dirs()[i]+"/"+group, back, nil); !errors.Is(err, kernel.ErrNotSupported) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// threaded is the error of a workload's own threaded group, unless that is empty: its processes are listed
// in a group above, which is not the workload's and may have others.
func (g *groups) threaded(dir string) error {
	has, err := kernel.HasProcs(g.root.FS(), dir)
	if err != nil || !has {
		return kernel.IgnoreAbsent(err)
	}
	return &kernel.NotSupportedError{
		Feature: "moving processes out of a threaded group", Reason: "/" + dir + " has threads of processes of a group above",
		Remedy: "end them, or move them to a group whose cgroup.type is domain",
	}
}

// empty moves the processes of a group, but for some, to the file back.
func (g *groups) empty(dir, back string, but map[string]bool) error {
	pids, err := kernel.ReadProcs(g.root.FS(), dir)
	if err != nil {
		return kernel.IgnoreAbsent(err)
	}
	starts := startsOf(g.root.FS(), pids)
	// Who is listed still had that start while it was in the group.
	pids, err = kernel.ReadProcs(g.root.FS(), dir)
	errs := []error{kernel.IgnoreAbsent(err)}
	for _, pid := range pids {
		step := kernel.Step{Op: kernel.Attach, Path: back, Value: strconv.Itoa(pid), Back: dir + "/cgroup.procs", Start: starts[pid]}
		if step.Start == "" || but[step.Value] {
			continue
		}
		if _, err := kernel.Apply(g.root, kernel.Plan{step}, nil); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// startsOf are the starts of processes, by number, but of those that have ended.
func startsOf(fsys fs.FS, pids []int) map[int]string {
	starts := make(map[int]string, len(pids))
	for _, pid := range pids {
		if p, err := kernel.ReadProcess(fsys, strconv.Itoa(pid)); err == nil {
			starts[pid] = p.Start
		}
	}
	return starts
}
