package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
	"berth.dev/berth/place"
)

// Caller is the user in whose name a Node is asked to change something.
type Caller struct {
	UID int
	// Admin lets the caller do all that root may.
	Admin bool
}

type callerKey struct{}

// WithCaller returns a context for calls of a Node in the name of a user. In another
// context a call is made in the name of this process, which may do everything.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

func callerOf(ctx context.Context) Caller {
	if c, ok := ctx.Value(callerKey{}).(Caller); ok {
		return c
	}
	return Caller{UID: os.Geteuid(), Admin: true}
}

// DeniedError is a change that its caller may not make.
type DeniedError struct {
	UID    int    `json:"uid"`
	Change string `json:"change"` // as in: release workload "web"
	Rule   string `json:"rule"`
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("%s: user %d may not: %s; ask root, or a user in agent.admins", e.Change, e.UID, e.Rule)
}

// RequireAdmin returns a *DeniedError with a rule unless the caller is an admin.
func RequireAdmin(ctx context.Context, change, rule string) error {
	if c := callerOf(ctx); !c.Admin {
		return &DeniedError{c.UID, change, rule}
	}
	return nil
}

// maxOfUser is how many workloads a user who is no admin may have at once: each costs
// groups, open files and the time to list it.
const maxOfUser = 128

// mayPlace checks what a caller who is no admin asks for with a new workload beside those
// of some records: it is to hold processes of the caller, and to take nothing from others but by way of the policy.
func (t *transaction) mayPlace(records map[string]*record, spec *Spec) error {
	caller := callerOf(t.ctx)
	if caller.Admin {
		return nil
	}
	change := fmt.Sprintf("place workload %q", spec.Request.ID)
	switch {
	case spec.Group != "":
		return &DeniedError{caller.UID, change, "it names a control group"}
	case strings.Contains(spec.Request.ID, ":"):
		return &DeniedError{caller.UID, change, "names with a ':' are for workloads of the configuration"}
	case spec.PID == 0:
		return &DeniedError{caller.UID, change, "it names no process (pid) of the user"}
	}
	if err := t.mayHaveMore(records, change, 1); err != nil {
		return err
	}
	for _, pid := range []int{spec.PID, spec.Owner.PID} {
		if pid == 0 {
			continue
		}
		uids, err := kernel.ReadUIDs(t.n.root.FS(), pid)
		if err != nil {
			return fmt.Errorf("%s: %w", change, &MissingError{fmt.Sprintf("process %d", pid)})
		}
		if slices.ContainsFunc(uids[:], func(uid int) bool { return uid != caller.UID }) {
			return &DeniedError{caller.UID, change, fmt.Sprintf("process %d is not the user's own", pid)}
		}
	}
	return mayHave(t.ctx, change, spec)
}

// mayPlaceTogether checks how many new workloads a caller who is no admin asks for at once, beside those of
// some records, and for how many of them the processes below are to be looked for.
func (t *transaction) mayPlaceTogether(records map[string]*record, specs []Spec) error {
	const change = "place workloads"
	if err := t.mayHaveMore(records, change, len(specs)); err != nil {
		return err
	}
	below := 0
	for i := range specs {
		if specs[i].Descendants {
			below++
		}
	}
	if below < 2 {
		return nil
	}
	return RequireAdmin(t.ctx, change, fmt.Sprintf("%d of them ask for the processes below (descendants), and one of a request may; place the others one by one", below))
}

// mayHaveMore checks that a caller who is no admin may have as many workloads more, beside those of some
// records.
func (t *transaction) mayHaveMore(records map[string]*record, change string, more int) error {
	caller := callerOf(t.ctx)
	if caller.Admin {
		return nil
	}
	has := 0
	for _, b := range records {
		if b.Workload.UID == caller.UID {
			has++
		}
	}
	if has+more <= maxOfUser {
		return nil
	}
	rule := fmt.Sprintf("the user has %d workloads, asks for %d more, and may have %d at once", has, more, maxOfUser)
	if has > 0 {
		rule += "; release one first"
	}
	return &DeniedError{caller.UID, change, rule}
}

// mayHave checks the class and the limits that a caller who is no admin asks for. Those
// that only narrow a group are free; those that take from others are not.
func mayHave(ctx context.Context, change string, spec *Spec) error {
	if spec.Request.Class == place.System {
		return RequireAdmin(ctx, change, "class SYSTEM may take the CPUs that are reserved for the host")
	}
	for kind, name := range spec.Classes {
		return RequireAdmin(ctx, change, fmt.Sprintf("%s class %s takes from others", kind, name))
	}
	if spec.Bandwidth.Around {
		return RequireAdmin(ctx, change, "a limit of the control group around it reaches others")
	}
	settings := spec.Limits.Settings()
	for _, id := range settings.IDs() {
		if !id.Reaches(settings[id]) {
			continue
		}
		name := id.Name
		if id.Type == knob.Share {
			name = id.Words + " above " + id.Default
		}
		return RequireAdmin(ctx, change, "the limit "+name+" reaches others")
	}
	return nil
}

func (t *transaction) mayChange(change, id string) error {
	b, ok := t.records[id]
	if !ok {
		return &place.NotHeldError{ID: id}
	}
	caller := callerOf(t.ctx)
	if caller.Admin || b.Workload.UID == caller.UID {
		return nil
	}
	return &DeniedError{caller.UID, fmt.Sprintf("%s workload %q", change, id), fmt.Sprintf("the workload belongs to user %d", b.Workload.UID)}
}
