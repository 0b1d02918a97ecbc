package agent

import (
	"errors"
	"slices"
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

// drain moves the processes of a group that Berth made to where the first one
// came from, or to the base. Those that were moved in are left to the undo log.
func (g *groups) drain(w *Workload, log *kernel.UndoLog) error {
	var errs []error
	for _, dir := range w.Dirs {
		text, err := readText(g.root, dir+"/cgroup.procs")
		if err != nil {
			errs = append(errs, kernel.IgnoreAbsent(err))
			continue
		}
		back, noted := strings.TrimSuffix(dir, "/"+w.Group)+"/cgroup.procs", map[string]bool{}
		for _, note := range log.Notes() {
			if note.Step.Op == kernel.Attach && note.Step.Path == dir+"/cgroup.procs" {
				back, noted[note.Step.Value] = note.Step.Back, true
			}
		}
		starts := map[string]string{}
		for _, pid := range strings.Fields(text) {
			if p, err := kernel.ReadProcess(g.root.FS(), pid); err == nil && !noted[pid] {
				starts[pid] = p.Start
			}
		}
		// Who is listed still had that start while it was in the group.
		text, err = readText(g.root, dir+"/cgroup.procs")
		errs = append(errs, kernel.IgnoreAbsent(err))
		for _, pid := range strings.Fields(text) {
			step := kernel.Step{Op: kernel.Attach, Path: back, Value: pid, Back: dir + "/cgroup.procs", Start: starts[pid]}
			if step.Start == "" {
				continue
			}
			if _, err := kernel.Apply(g.root, kernel.Plan{step}, nil); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
