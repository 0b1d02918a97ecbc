package agent

import (
	"maps"
	"path"
	"slices"
	"time"

	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
)

// How long a limit that the kernel refused waits before it is written again: as long as comparisons
// of the agent are apart, then twice as long each time.
const (
	firstTry = 30 * time.Second
	lastTry  = time.Hour
)

// refusals are the writes of limits that the kernel refused. Who asks for a limit does not wait.
type refusals struct {
	now func() desired.Instant
	of  map[pathValue]*desired.Retry
}

type pathValue struct{ path, value string }

// failed notes that the kernel refused a step.
func (r *refusals) failed(s kernel.Step) {
	if r == nil {
		return
	}
	if r.of == nil || len(r.of) >= mostOnce {
		r.of = map[pathValue]*desired.Retry{}
	}
	key := pathValue{s.Path, s.Value}
	if r.of[key] == nil {
		r.of[key] = &desired.Retry{First: int64(firstTry), Last: int64(lastTry)}
	}
	r.of[key].Failed(r.now())
}

// written notes that the kernel took the steps of a plan.
func (r *refusals) written(plan kernel.Plan) {
	if r != nil {
		for _, s := range plan {
			delete(r.of, pathValue{s.Path, s.Value})
		}
	}
}

// planned notes all that is to be written of limits in some directories: what is not among it is
// shown already, whoever wrote it.
func (r *refusals) planned(dirs []string, plan kernel.Plan) {
	if r != nil {
		maps.DeleteFunc(r.of, func(of pathValue, _ *desired.Retry) bool {
			return slices.Contains(dirs, path.Dir(of.path)) &&
				!slices.ContainsFunc(plan, func(s kernel.Step) bool { return of == pathValue{s.Path, s.Value} })
		})
	}
}

// wait reports whether the kernel refused a step, and it is too early to try again.
func (r *refusals) wait(s kernel.Step) bool {
	if r == nil {
		return false
	}
	retry := r.of[pathValue{s.Path, s.Value}]
	return retry != nil && !retry.Due(r.now())
}
