// Package kernel writes to the kernel's files: a plan is data, applied with
// read-back, undone in reverse, and in an undo log before the first write.
//
// A Plan is a list of Steps and does nothing until Apply. Planners live in
// kernel/cgroup, kernel/sched and so on; they decide, this package writes.
// Everything happens under a Root, a directory that stands for "/": the live
// host, or a tree in a test.
package kernel

import (
	"errors"
	"fmt"
	"strings"

	"berth.dev/berth/internal/plain"
)

// Op is the operation of a Step.
type Op = plain.Enum[ops]

// The operations.
const (
	// Write writes Value to the existing file Path, reads the file back and
	// compares. It never creates a file. A file that shows Value already is left
	// alone.
	Write Op = iota
	// Mkdir creates the directory Path (a cgroup, a resctrl group). Undo removes
	// it. A directory that exists already is an error (EEXIST): Berth does not
	// own it.
	Mkdir
	// Attach writes the process id Value to the cgroup.procs (or tasks) file
	// Path. Undo writes it to Back, if that process is still there.
	Attach
	// Enable writes the words Value ("+cpuset +cpu") to a cgroup.subtree_control
	// file. Undo disables those that were not enabled before.
	Enable
)

// Format says how a file's text is compared after it was written.
type Format = plain.Enum[formats]

// The formats. A value that the kernel shows differently but means the same is equal.
const (
	// Words compares white-space separated words.
	Words Format = iota
	// List compares CPU or node sets.
	List
	// Keyed is one "KEY WORD..." line of a file with many (io.max, io.weight):
	// the line of the same key must have the words written, in any order.
	Keyed
	// State is a word that the kernel may qualify ("root invalid (reason)" in
	// cpuset.cpus.partition) or reach with a delay (FREEZING before FROZEN). A
	// qualified state fails the read-back, but is still recognised as Berth's
	// own when it is undone.
	State
	// Schema is one line of a schemata file of resctrl, "L3:0=f;1=3"
	// (Documentation/filesystems/resctrl.rst): the file's line of the same resource must
	// have these values. A cache that is offline, and so not in the file, makes no
	// difference.
	Schema
	// Threads is the value of a process's first thread, then those of the threads that have
	// another one: "0 4713@8812=5" (kernel/sched). Undoing it leaves the threads alone that
	// somebody else has changed since.
	Threads
)

// Step is one thing to do. It is data: printable and storable.
type Step struct {
	Op     Op     `json:"op"`
	Path   string `json:"path"` // relative to the Root, e.g. "sys/fs/cgroup/x/cpu.weight"
	Value  string `json:"value,omitempty"`
	Format Format `json:"format,omitempty"`
	// Unset is, for Keyed, the line that stands for a key without a line
	// ("8:0 rbps=max wbps=max riops=max wiops=max"); undo writes it where there
	// was none.
	Unset string `json:"unset,omitempty"`
	// Back is, for Attach, the file that the process came from; for Mkdir the file to which
	// what is in a group goes before it is removed: the file of the same name there lists it.
	// "" leaves it in a control group, which then stays, and moves the threads of one of
	// resctrl to the default group.
	Back string `json:"back,omitempty"`
	// Start is, for Attach, when the process started (Process.Start), so that no other
	// one with its number is moved; empty is whichever has it when the step is done.
	Start string `json:"start,omitempty"`
	// Disturbs are files whose value the kernel changes as a side effect
	// (cpu.idle=1 resets cpu.weight). They are saved before and rewritten, in
	// this order, after Path was restored.
	Disturbs []string `json:"disturbs,omitempty"`
	// Status is a file in which the kernel says why it refused the step (info/last_cmd_status
	// of resctrl); "" if there is none.
	Status string `json:"status,omitempty"`
	// Keep is for a value in a directory that an earlier step makes: undo removes
	// the directory and leaves the value alone.
	Keep bool `json:"keep,omitempty"`
	// Why is one short clause for previews: "neighbour keeps off the tenant's cores".
	Why string `json:"why,omitempty"`
}

// Plan is a list of steps in the order in which they must happen.
type Plan []Step

// String returns the plan as one would type it, a line per step:
//
//	mkdir /sys/fs/cgroup/batch
//	echo 10 > /sys/fs/cgroup/batch/cpu.weight  # batch yields to the service
func (p Plan) String() string {
	var b strings.Builder
	for _, s := range p {
		b.WriteString(s.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// String returns the step as one would type it in a shell of POSIX, on one line and
// whatever the names of groups are.
func (s Step) String() string {
	var line string
	switch {
	case s.Op == Mkdir:
		// The output of printf loses newlines at its end: the name does not end in one.
		line = "mkdir " + plain.Shell("/"+s.Path+strings.Repeat("/", len(s.Path)-len(strings.TrimRight(s.Path, "\n"))))
	case s.Value == "":
		line = "echo > " + plain.Shell("/"+s.Path)
	default:
		var words []string
		for _, w := range strings.Split(s.Value, " ") {
			words = append(words, plain.Shell(w))
		}
		line = "echo " + strings.Join(words, " ") + " > " + plain.Shell("/"+s.Path)
	}
	if s.Why != "" {
		line += "  # " + plain.Line(s.Why)
	}
	return line
}

type ops struct{}

var opNames = []string{Write: "write", Mkdir: "mkdir", Attach: "attach", Enable: "enable"}

func (ops) Words() []string { return opNames }

type formats struct{}

var formatNames = []string{Words: "words", List: "list", Keyed: "keyed", State: "state", Schema: "schema", Threads: "threads"}

func (formats) Words() []string { return formatNames }

// ErrNotSupported matches every NotSupportedError (errors.Is).
var ErrNotSupported = errors.New("not supported")

// NotSupportedError names a feature that this host lacks, the reason, and the remedy.
type NotSupportedError struct {
	Feature string // "cpu.idle"
	Reason  string // "the cpu controller is not mounted"
	Remedy  string // "boot a kernel 5.15 or newer"
}

func (e *NotSupportedError) Error() string {
	msg := fmt.Sprintf("%s: not supported: %s", e.Feature, e.Reason)
	if e.Remedy != "" {
		msg += " (" + e.Remedy + ")"
	}
	return msg
}

// Is makes errors.Is(err, ErrNotSupported) true.
func (e *NotSupportedError) Is(target error) bool { return target == ErrNotSupported }
