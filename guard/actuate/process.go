package actuate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
	"berth.dev/berth/kernel/sched"
)

// processPolicy is the file of a process's scheduling policy.
const processPolicy = "sched.policy"

// planProcesses plans what an action does to processes in no group. Those that have ended, or must not
// be acted on by now, are left out; with none left it is fs.ErrNotExist.
func (h *Host) planProcesses(a control.Action) (plan kernel.Plan, err error) {
	for _, p := range a.Processes {
		if h.protects(p) != "" {
			continue
		}
		s := a.Limits.Settings()
		one := sched.Process{PID: p.PID, Start: p.Start}
		if !a.Limits.CPUs.IsEmpty() {
			// What it may use by itself is not widened.
			own, err := h.originalSet(one.Dir() + "/sched.cpus")
			cpus := own.Intersect(a.Limits.CPUs)
			if err != nil || cpus.IsEmpty() {
				continue // it has ended; or its own CPUs, as those of several threads, stay
			}
			s[knob.ID{Knob: knob.Find("cpus")}] = cpus.String()
		}
		steps, err := one.Plan(s)
		if err != nil {
			return nil, err
		}
		plan = append(plan, steps...)
	}
	if len(plan) == 0 {
		return nil, fmt.Errorf("none of %d processes can be acted on: %w", len(a.Processes), fs.ErrNotExist)
	}
	return plan, nil
}

// applyEach applies a plan process by process, and returns the changes to those that took it: one
// that ends, or makes threads faster than they can be set, is not the others' affair. It is an
// error if none did.
func (h *Host) applyEach(plan kernel.Plan, changes []control.Change) ([]control.Change, error) {
	var errs []error
	took := false
	for len(plan) > 0 {
		p, _ := sched.Of(plan[0].Path)
		n := 1
		for n < len(plan) && kernel.Within(plan[n].Path, p.Dir()) {
			n++
		}
		if _, err := kernel.Apply(h.root, plan[:n], h.log); err != nil {
			errs = append(errs, err)
			changes = slices.DeleteFunc(changes, func(c control.Change) bool { return c.Process.PID == p.PID })
		} else {
			took = true
		}
		plan = plan[n:]
	}
	if took {
		return changes, nil
	}
	return nil, errors.Join(errs...)
}

// leave gives back what processes had that an action is about no more.
func (h *Host) leave(a control.Action) ([]control.Change, error) {
	if !h.remedy(a.Remedy).Processes {
		return nil, nil
	}
	of := h.of(a)
	match := func(s kernel.Step) bool {
		p, is := sched.Of(s.Path)
		return is && of(s) && (h.joined(s) || !slices.ContainsFunc(a.Processes, func(o control.Process) bool { return o.PID == p.PID && o.Start == p.Start }))
	}
	if !slices.ContainsFunc(h.notes(), func(i kernel.Item) bool { return match(i.Step) }) {
		return nil, nil
	}
	changes, err := h.revertOf(a, match)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, kernel.ErrChanged) {
		err = nil // it has ended, or is somebody else's
	}
	return changes, err
}

// joined reports whether a step is of a process that has been put into a group since, or has ended.
func (h *Host) joined(s kernel.Step) bool {
	p, is := sched.Of(s.Path)
	return is && h.grouped(strconv.Itoa(p.PID)) != ""
}

// leaveJoined gives processes in a group what they had: there the group's settings count.
func (h *Host) leaveJoined() error {
	if !slices.ContainsFunc(h.notes(), func(i kernel.Item) bool { return h.joined(i.Step) }) {
		return nil
	}
	_, err := h.undo(h.joined)
	return err
}

// processesAvailable says why a remedy has no effect on processes here.
func (h *Host) processesAvailable(r *control.Remedy) error {
	if slices.Contains(r.Knobs, "cpus") {
		return nil
	}
	if text, err := h.read("proc/sys/kernel/sched_autogroup_enabled"); err == nil && text == "1" {
		return &kernel.NotSupportedError{
			Feature: string(r.Name), Reason: "the kernel groups processes by session, and SCHED_IDLE and nice count within one only",
			Remedy: "sysctl kernel.sched_autogroup_enabled=0",
		}
	}
	return nil
}

// Actable returns those of some processes that may be acted on.
func (h *Host) Actable(of []control.Process) []control.Process {
	defer h.enter()()
	return slices.DeleteFunc(slices.Clone(of), func(p control.Process) bool { return h.protects(p) != "" })
}

// programDirs are where the programs of a host are; only root can put one there.
var programDirs = []string{"/bin/", "/sbin/", "/lib/", "/usr/"}

// mostThreads is how many threads a process may have that is acted on.
const mostThreads = 1000

// protects says why a process must not be acted on; "" if it may be. What a user who logs in
// can choose, such as a name or a session, protects none, but for having very many threads.
func (h *Host) protects(p control.Process) string {
	pid := strconv.Itoa(p.PID)
	is, err := kernel.ReadProcess(h.root.FS(), pid)
	switch {
	case err != nil || is.Start != p.Start || is.Ended():
		return "it has ended"
	case is.Kernel:
		return "it is a thread of the kernel"
	case p.PID == 1:
		return "it is the first process"
	case is.Threads > mostThreads:
		return fmt.Sprintf("it has %d threads, which are set one by one: more than %d hold the guard up", is.Threads, mostThreads)
	}
	if why := h.grouped(pid); why != "" {
		return why
	}
	if h.isAbove(p.PID) {
		return "the guard was started by it"
	}
	if why := h.essential("", []int{p.PID}); why != "" {
		return why
	}
	states, err := h.read(path.Join(sched.Process{PID: p.PID, Start: p.Start}.Dir(), processPolicy))
	if err != nil {
		return err.Error()
	}
	for _, word := range strings.Fields(states) {
		if _, policy, listed := strings.Cut(word, "="); listed {
			word = policy
		}
		if !slices.Contains([]string{sched.Other.String(), sched.Batch.String(), sched.Idle.String()}, word) {
			return "it has threads with " + word
		}
	}
	return h.essentialProgram(p.PID, is)
}

// grouped says of a process in a group which that is.
func (h *Host) grouped(pid string) string {
	members, err := cgroup.ReadMembership(h.root.FS(), pid)
	if err != nil {
		return "it has ended"
	}
	v2 := h.trees[cgroup.CPU] != nil && h.trees[cgroup.CPU].Version == 2
	for _, m := range members { // of several trees that counts in which CPUs are shared
		if m.Path != "/" && (v2 && m.ID == 0 || !v2 && slices.Contains(m.Controllers, cgroup.CPU)) {
			return "it is in the group " + m.Path
		}
	}
	return ""
}

// isAbove reports whether a process is this one, or one that it was started by.
func (h *Host) isAbove(pid int) bool {
	self, err := kernel.ReadProcess(h.root.FS(), "self")
	for at := self.Parent; err == nil; {
		if at == pid {
			return true
		}
		if at <= 1 {
			break
		}
		var up kernel.Process
		up, err = kernel.ReadProcess(h.root.FS(), strconv.Itoa(at))
		at = up.Parent
	}
	own, err := fs.ReadLink(h.root.FS(), "proc/self")
	return err == nil && own == strconv.Itoa(pid)
}

// firstUser is the least user id of a person; those below are of root and of services (SYS_UID_MAX of
// login.defs).
const firstUser = 1000

// essentialProgram says why the host depends on the program of a process. Names count only of
// processes of root and of services, as dbus-daemon is, since any other could take them. A shell does only as the first process of a
// session with a terminal: somebody may be working in it.
func (h *Host) essentialProgram(pid int, is kernel.Process) string {
	uids, err := kernel.ReadUIDs(h.root.FS(), pid)
	program, err2 := fs.ReadLink(h.root.FS(), path.Join("proc", strconv.Itoa(pid), "exe"))
	if err != nil || err2 != nil {
		return "" // of another user, or it has ended: no name protects it
	}
	name := path.Base(strings.TrimSuffix(program, " (deleted)"))
	if name == "busybox" { // one program for all
		name = is.Name
	}
	in := slices.ContainsFunc(programDirs, func(dir string) bool { return strings.HasPrefix(program, dir) })
	if !in || !slices.Contains(essentialPrograms, name) && !strings.HasPrefix(name, "systemd-") {
		return ""
	}
	if slices.Max(uids[:]) >= firstUser { // sshd has a process of each user, whose parent is root's
		above, err := kernel.ReadUIDs(h.root.FS(), is.Parent)
		its, err2 := fs.ReadLink(h.root.FS(), path.Join("proc", strconv.Itoa(is.Parent), "exe"))
		if err != nil || err2 != nil || above != [3]int{} || path.Base(its) != name || !strings.HasPrefix(name, "sshd") {
			return ""
		}
	}
	if slices.Contains(strings.Fields(shells), name) && !is.LeadsTerminal {
		return ""
	}
	return name + " is a program that others depend on, or work by"
}

// descendants finds, before steps are undone, the processes that those of the steps have
// started since: they have inherited what was set. The function that it returns gives them
// what their forebears had. Those whose forebears have ended are not found; those that started
// before anything was set have chosen what they have.
func (h *Host) descendants(match func(kernel.Step) bool) func() error {
	type inherited struct {
		file, written, original string
	}
	var all []inherited
	noted := map[string]bool{}
	var changed []kernel.Item
	var pids []int
	for _, item := range h.notes() {
		noted[item.Step.Path] = true
		p, is := sched.Of(item.Step.Path)
		if !is || !match(item.Step) {
			continue
		}
		if now, err := kernel.ReadProcess(h.root.FS(), strconv.Itoa(p.PID)); err == nil && now.Start == p.Start {
			changed, pids = append(changed, item), append(pids, p.PID)
		}
	}
	children := map[int][]sched.Process{}
	if len(pids) > 0 {
		slices.Sort(pids)
		below, _ := kernel.Descendants(h.root.FS(), slices.Compact(pids)...) // without /proc there are none
		for _, pid := range below {
			if now, err := kernel.ReadProcess(h.root.FS(), strconv.Itoa(pid)); err == nil {
				children[now.Parent] = append(children[now.Parent], sched.Process{PID: pid, Start: now.Start})
			}
		}
	}
	for _, item := range changed {
		first, _, _ := strings.Cut(item.Original, " ")
		written, err := h.read(item.Step.Path)
		if err != nil || written == item.Original {
			continue
		}
		p, _ := sched.Of(item.Step.Path)
		for heirs := []int{p.PID}; len(heirs) > 0; heirs = heirs[1:] {
			for _, child := range children[heirs[0]] {
				file := child.Dir() + "/" + path.Base(item.Step.Path)
				ticks, err := strconv.ParseInt(child.Start, 10, 64)
				if err == nil && ticks >= item.Since/int64(time.Second/kernel.UserHZ) && !noted[file] {
					all, heirs = append(all, inherited{file, written, first}), append(heirs, child.PID)
				}
			}
		}
	}
	return func() error {
		var errs []error
		for _, i := range all {
			if text, err := h.read(i.file); err != nil || text != i.written {
				continue // it has ended, or has a value of its own
			}
			_, err := kernel.Apply(h.root, kernel.Plan{{Path: i.file, Value: i.original, Format: kernel.Threads}}, nil)
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
}
