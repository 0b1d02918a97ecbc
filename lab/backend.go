package lab

import (
	"errors"
	"fmt"
	"os"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// Role is what a process of a round is there for.
type Role string

// The roles. Each has a control group of its own, within one around all.
const (
	Tenant    = "tenant"
	Neighbour = "neighbour"
	Bystander = "bystander" // does no harm; only for experiments that ask for it
	Outsider  = "outsider"  // in no group of the run, but in that of this process; its work is foreign
	// Around stands, in Settings, for the group around those of all roles.
	Around = ""

	generator Role = "generator" // in no group
	self      Role = "self"      // this process, once it has stepped aside
)

// Server is the role of a server, from 1.
func Server(n int) Role { return Role(fmt.Sprintf("server%d", n)) }

// Settings are what the kernel is asked for, by role. A role that is not in it
// keeps what it has.
type Settings map[Role]cgroup.Limits

// backend puts processes into their places and gives roles their settings. There
// are two: control groups, and scheduling attributes.
type backend interface {
	// attach puts a fresh process into the place of its role.
	attach(r Role, pid int) error
	// stands makes a process that lives in the place of a role the one that is meant,
	// and detach forgets it.
	stands(r Role, pid int) error
	detach(r Role)
	// lasting names what a process of a role is given now and cannot lose again. One
	// that was given something else cannot stand for it.
	lasting(r Role) string
	// plan says how settings are applied, and with the neighbour in the tenant's group if
	// they are to be together. A kernel.NotSupportedError means that this host cannot.
	plan(s Settings, together bool) (change, error)
	// group is the control group of a role, the zero value without control groups.
	group(r Role) cgroup.Group
	// knobs reads back the settings of all roles.
	knobs() ([]Knob, error)
	// usage reads what a role has used so far, and used the CPU seconds of all of them.
	usage(r Role) (Usage, error)
	used() (float64, error)
	// statistics are what the kernel tells of the group of a role.
	statistics(r Role, want ...cgroupstat.Signal) (map[watch.Quantity]float64, error)
	// close restores every value.
	close() error
}

// change is settings made ready for the kernel.
type change struct {
	text  string // one write per line
	apply func() (undo func() error, err error)
}

// quotaPeriod is the kernel's default period of CPU bandwidth control, which
// container runtimes leave as it is.
const quotaPeriod = 100 * time.Millisecond

// openBackend opens the best backend that this process may use and enters it into
// setup: control groups, else scheduling attributes with the reason why, unless the
// experiment needs control groups.
func openBackend(opt Options, pl places, setup *Setup) (backend, *kernel.UndoLog, error) {
	attributes := func(note string) backend {
		setup.Backend = schedBackend
		setup.BackendNote = "affinity, nice and SCHED_IDLE of each thread instead of control groups: " + note
		return openAttributes(pl)
	}
	if opt.Unprivileged {
		return attributes("as asked for (--unprivileged)"), nil, nil
	}
	root, err := kernel.Open("/")
	if err != nil {
		return nil, nil, err
	}
	dir := opt.UndoLogDir
	if dir == "" {
		dir = kernel.RunDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
	}
	undoLog, err := kernel.CreateUndoLog(root, dir, ProgramName)
	if err != nil {
		return nil, nil, err
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, nil, errors.Join(err, undoLog.Close())
	}
	g, err := openGroups(root, host, undoLog, pl, opt)
	switch {
	case err == nil:
		setup.Backend = host.Mode()
		return g, undoLog, nil
	case !errors.Is(err, kernel.ErrNotSupported) && !errors.Is(err, os.ErrPermission):
	case opt.Groups:
		err = &kernel.NotSupportedError{
			Feature: "control groups of the lab's own", Reason: err.Error(), Remedy: "run as root, or in a delegated group (berth doctor)",
		}
	default:
		return attributes(err.Error()), undoLog, nil
	}
	return nil, nil, errors.Join(err, undoLog.Close())
}
