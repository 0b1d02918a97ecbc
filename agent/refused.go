package agent

import (
	"maps"
	"slices"
	"time"

	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
)

// How long a limit, or a class, that the kernel refused waits before it is written again: as long as comparisons
// of the agent are apart, then twice as long each time.
const (
	firstTry = 30 * time.Second
	lastTry  = time.Hour
)

// refusals are the writes of limits and classes that the kernel refused. Who asks for one does not wait.
type refusals struct {
	now func() desired.Instant
	of  map[refusedWrite]*desired.Retry
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
		}
	}
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
