package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/proc"
)

// programSource is the source of what the processes of the root group do, by program: on a host
// without groups, or in a container, that is everything. Their CPU limit is that of the
// root group, which a container has.
func programSource() Source {
	return Source{"processes in no group", "grows with them; all are read a millisecond for each file later again", OfHost,
		func(s *Site, _ string, _ cpuset.Set) (Reader, error) {
			p, err := proc.OpenPrograms(s.proc(), s.Tree)
			if err != nil {
				return nil, err
			}
			limit, err := cgroupstat.Open(s.Trees, "", cgroupstat.Throttling)
			if err != nil {
				limit = nil
			}
			return &programs{p, limit}, nil
		}}
}

// FocusPrograms has the run-queue probe tell of some programs of the root group from the
// next Focus on, of the first MaxFocus.
func (o *Observer) FocusPrograms(names []string) { o.programs = names[:min(len(names), MaxFocus)] }

type programs struct {
	*proc.Programs
	limit *cgroupstat.Reader // nil where the root group has none
}

// Read appends how the limit throttles all of them to what each program tells. A root
// group that tells nothing of a limit has none.
func (p *programs) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	begin := len(to)
	to, err := p.Programs.Read(now, to)
	if err != nil {
		return to, err
	}
	var limit []watch.Sample
	if p.limit != nil {
		if limit, err = p.limit.Read(now, nil); err != nil {
			return to[:begin], err
		}
		limit = slices.DeleteFunc(limit, func(s watch.Sample) bool { // the file has more
			return s.Quantity != watch.CPUPeriods && s.Quantity != watch.CPUThrottledPeriods && s.Quantity != watch.CPUThrottled
		})
	}
	if len(limit) == 0 {
		limit = []watch.Sample{{Quantity: watch.CPUPeriods}, {Quantity: watch.CPUThrottledPeriods}}
	}
	for _, s := range to[begin:] {
		if s.Quantity != watch.CPUTime || s.Subject.Name == "" {
			continue
		}
		for _, l := range limit {
			to = append(to, watch.Sample{Time: s.Time, Subject: s.Subject, Quantity: l.Quantity, Value: l.Value})
		}
	}
	return to, nil
}

// Close closes what is open.
func (p *programs) Close() error {
	err := p.Programs.Close()
	if p.limit != nil {
		err = errors.Join(err, p.limit.Close())
	}
	return err
}

// Names returns the processes by the name of their program.
func (o *Observer) Names() (map[string][]int, error) { return proc.Names(o.host) }

// Process reads what identifies a process. For one that is gone the error is fs.ErrNotExist.
func (o *Observer) Process(pid int) (kernel.Process, error) {
	p, err := kernel.ReadProcess(o.host, strconv.Itoa(pid))
	if errors.Is(err, syscall.ESRCH) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return p, err
}

// Busiest is the process of a program, in no group of its own, that used most CPU time, or
// one above it that all below it belong to: a supervisor of workers, whose name theirs
// begins with. Among it and those below it are so many processes of the program, of all in
// no group; pid is 0 if there is none.
func (o *Observer) Busiest(name string) (pid, among, all int) {
	names, _ := proc.Names(o.host) // none that can be read
	loose := func(pid int) (p kernel.Process, ok bool) {
		group, err := o.GroupOf(pid)
		if err == nil && group == "" {
			p, err = o.Process(pid)
		}
		return p, err == nil && group == "" && !p.Kernel
	}
	var found kernel.Process
	its := map[int]bool{}
	for _, id := range names[name] {
		p, ok := loose(id)
		if !ok {
			continue
		}
		if its[id], all = true, all+1; pid == 0 || p.Own > found.Own {
			pid, found = id, p
		}
	}
	for {
		parent, ok := loose(found.Parent)
		if pid == 0 || !ok || found.Parent <= 1 || parent.Name == "" || !strings.HasPrefix(name, parent.Name) {
			break
		}
		below, err := kernel.Descendants(o.host, found.Parent)
		if err != nil || slices.ContainsFunc(below[1:], func(id int) bool {
			p, err := o.Process(id)
			return err == nil && !strings.HasPrefix(name, p.Name)
		}) {
			break
		}
		pid, found = found.Parent, parent
	}
	below, err := kernel.Descendants(o.host, pid)
	if err != nil {
		return pid, min(all, 1), all
	}
	for _, id := range below {
		if its[id] {
			among++
		}
	}
	return pid, among, all
}
