package metrics

import (
	"errors"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// eventKinds are the kinds that are counted from zero.
func eventKinds() []agent.EventKind {
	return []agent.EventKind{
		agent.Placed, agent.Changed, agent.Released, agent.Refused, agent.Repaired, agent.Yielded, agent.Dropped, agent.Restored, agent.Failed,
		api.Started, api.Stopping, api.Reloaded, api.Kept, api.Lost, api.Slow,
	}
}

// otherReason is a refusal for none of reasons.
const otherReason = "other"

// reason is why a placement was refused, by the type of the error.
type reason struct {
	name string
	is   func(error) bool
}

func of[E error](name string) reason {
	return reason{name, func(err error) bool {
		var e E
		return errors.As(err, &e)
	}}
}

// reasons are those that the API's problems name, too.
func reasons() []reason {
	return []reason{
		of[*place.NotHeldError]("not-held"),
		of[*place.HeldError]("held"),
		of[*place.InvalidError]("invalid"),
		of[*place.CPUsError]("cpus"),
		of[*place.SMTError]("smt"),
		of[*place.NUMAError]("numa"),
		of[*place.MemoryError]("memory"),
		of[*place.DeviceError]("device"),
		of[*place.FloorError]("floor"),
		of[*place.ConflictError]("conflict"),
		of[*place.RejectedError]("rejected"),
		of[*kernel.NotSupportedError]("not-supported"),
		of[*kernel.StepError]("kernel"),
	}
}

func reasonOf(err error) string {
	for _, r := range reasons() {
		if r.is(err) {
			return r.name
		}
	}
	return otherReason
}
