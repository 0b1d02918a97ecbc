package agent

import (
	"errors"
	"maps"
	"slices"
	"time"

	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
)

// How long a limit, or a class, that the kernel refused waits before it is written again: as long as comparisons
// of the agent are apart, then twice as long each time.
const (
	firstTry = 30 * time.Second
	lastTry  = time.Hour
)

// How long groups of systemd's units wait to be set again where systemd could not be asked. It is at least
// twice as long as the try took, during which the node is locked: systemd may hang.
const (
	firstAsk = 5 * time.Second
	lastAsk  = 2 * time.Minute
)

// refusals are the writes of limits and classes that the kernel refused, and whether systemd can be
// asked. Who asks for one does not wait.
type refusals struct {
	now    func() desired.Instant
	of     map[refusedWrite]*desired.Retry
	asking desired.Retry
}

// refusedWrite is one for classes of a kind; "" is for limits.
type refusedWrite struct {
	kind        ClassKind
	path, value string
}

// failed notes that the kernel refused a step.
func (r *refusals) failed(kind ClassKind, s kernel.Step) {
	if r == nil {
		return
	}
	if r.of == nil || len(r.of) >= mostOnce {
		r.of = map[refusedWrite]*desired.Retry{}
	}
	key := refusedWrite{kind, s.Path, s.Value}
	if r.of[key] == nil {
		r.of[key] = &desired.Retry{First: int64(firstTry), Last: int64(lastTry)}
	}
	r.of[key].Failed(r.now())
}

// written notes that the kernel took the steps of a plan.
func (r *refusals) written(kind ClassKind, plan kernel.Plan) {
	if r != nil {
		for _, s := range plan {
			delete(r.of, refusedWrite{kind, s.Path, s.Value})
			if s.Op == kernel.Write && systemd.Asks(s.Path) {
				r.asking.Done()
			}
		}
	}
}

// isAway reports whether an error is none about a group: systemd could not be asked.
func isAway(err error) bool {
	_, is := errors.AsType[*systemd.ConnectionError](err)
	return is
}

// besideAway is what an error says beside that systemd could not be asked; nil if that is all.
func besideAway(err error) error {
	if !isAway(err) {
		return err
	}
	all, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var others []error
	for _, e := range all.Unwrap() {
		others = append(others, besideAway(e))
	}
	return errors.Join(others...)
}

// away reports whether an error of a try that began at a time is only that systemd could not be asked.
// Then all groups of its units stay as they are for a while, which is told once until it can be asked again.
func (n *Node) away(err error, since desired.Instant) bool {
	if !isAway(err) {
		return false
	}
	r := &n.refused
	if !r.asking.Failing() {
		text := err.Error()
		n.tell(Failed, "", "", "systemd cannot be asked; groups of its units stay as they are until it can: "+text[:min(len(text), 2*mostShown)])
	}
	now := r.now()
	r.asking.First, r.asking.Last = max(int64(firstAsk), 2*(now-since)), max(int64(lastAsk), 2*(now-since))
	r.asking.Failed(now)
	return true
}

// waits reports whether a file is left as it is until systemd is asked again: by a comparison of all, for
// which nobody waits, once it is time.
func (n *Node) waits(file string, all bool) bool {
	r := &n.refused
	return r.asking.Failing() && !(all && r.asking.Due(r.now())) && systemd.Asks(file)
}

// planned notes all that is to be written of a kind to some files: what is not among it is shown
// already.
func (r *refusals) planned(kind ClassKind, plan kernel.Plan, to func(path string) bool) {
	if r != nil {
		maps.DeleteFunc(r.of, func(of refusedWrite, _ *desired.Retry) bool {
			return of.kind == kind && to(of.path) &&
				!slices.ContainsFunc(plan, func(s kernel.Step) bool { return of == refusedWrite{kind, s.Path, s.Value} })
		})
	}
}

// wait reports whether the kernel refused a step, and it is too early to try again.
func (r *refusals) wait(kind ClassKind, s kernel.Step) bool {
	if r == nil {
		return false
	}
	retry := r.of[refusedWrite{kind, s.Path, s.Value}]
	return retry != nil && !retry.Due(r.now())
}
