package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// Spec is what a workload is to have.
type Spec struct {
	// Request is what it wants of the machine. Its ID names the workload.
	Request place.Request `json:"request"`
	// CPUs, if any, are the very CPUs to have instead of those that the policy
	// would choose: its own if the class or mode asks for own ones, else the part
	// of the shared pool to stay in. Mems likewise.
	CPUs cpuset.Set `json:"cpus,omitzero"`
	Mems cpuset.Set `json:"mems,omitzero"`
	// NearMems are sets of NUMA nodes, such as those with one kind of memory: without Mems its
	// memory comes from those of each set that are nearest to its CPUs.
	NearMems []cpuset.Set `json:"nearMems,omitempty"`
	// Limits are settings beyond placing, over those of the class; CPUs, Mems and
	// Partition stay empty. One that a Resize no longer names goes back to what it was
	// before Berth.
	Limits cgroup.Limits `json:"limits,omitzero"`
	// Classes are classes of other kinds, such as CacheClass, by kind; one that is absent
	// follows from the class of service.
	Classes map[ClassKind]string `json:"classes,omitempty"`
	// Bandwidth is what it may send and receive, beside its network class.
	Bandwidth Bandwidth `json:"bandwidth,omitzero"`
	// P99Seconds is the response time that 99 % of its requests are to keep, as whoever runs it
	// says; 0 is none. Berth times no requests: it tells the limit to whoever does.
	P99Seconds float64 `json:"p99Seconds,omitzero"`
	// Group is an existing control group to place, named from the base on; ""
	// makes one below berth/ or, if Limits.Idle is On, berth-idle/, named after the
	// ID.
	Group string `json:"group,omitempty"`
	// PID is a process to move into the group, with all its threads, or 0.
	PID int `json:"pid,omitempty"`
	// Descendants moves the processes below PID as well: all of them for an admin, those of
	// the same user for others. Those of another workload stay.
	Descendants bool `json:"descendants,omitempty"`
	// Annotations are what whoever asks for the workload wants to be told again.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Prefer are the CPUs to have, if the policy gives as many and they are free: those that
	// an adopted workload runs on. It decides once and is not kept.
	Prefer cpuset.Set `json:"-"`
	// Owner is the process whose end releases the workload; the zero Owner keeps
	// it until it is released.
	Owner Owner `json:"owner,omitzero"`
}

// Owner is a process: its id and when it started, in clock ticks since boot
// (field 22 of /proc/PID/stat), which together name it for as long as the
// kernel runs. Place fills in an empty Start.
type Owner struct {
	PID   int    `json:"pid"`
	Start string `json:"start,omitempty"`
}

// SourcePrefix is in front of a field of the request in the name of an annotation that says
// where the field's value comes from.
const SourcePrefix = "source/"

// maxSpec is how many bytes a spec may have as JSON: it is kept in memory and on disk, and
// events and errors repeat parts of it.
const maxSpec = 16 << 10

// Validate reports what no node could act on.
func (s *Spec) Validate() error {
	var errs []error
	if s.Request.ID == "" {
		errs = append(errs, errors.New("no id"))
	} else if !utf8.ValidString(s.Request.ID) {
		errs = append(errs, errors.New("id: not UTF-8"))
	} else if len(fileName(s.Request.ID)) > maxName {
		errs = append(errs, fmt.Errorf("id of %d bytes: longer than a file's name may be", len(s.Request.ID)))
	}
	if s.Request.ID != "" {
		errs = append(errs, s.Request.Validate())
	}
	errs = append(errs, s.Limits.Validate())
	if err := s.Bandwidth.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("bandwidth: %w", err))
	}
	if !(s.P99Seconds >= 0 && s.P99Seconds <= math.MaxInt32) { // NaN neither
		errs = append(errs, fmt.Errorf("p99: %g s is no response time", s.P99Seconds))
	}
	l := &s.Limits
	if !l.CPUs.IsEmpty() || !l.Mems.IsEmpty() || l.Partition != "" {
		errs = append(errs, errors.New("limits: CPUs, memory nodes and partition follow from placing"))
	}
	if s.Group != "" && (path.IsAbs(s.Group) || path.Clean(s.Group) != s.Group || s.Group == "." || strings.HasPrefix(s.Group, "..")) {
		errs = append(errs, fmt.Errorf("group %q: not a name below the base", s.Group))
	}
	if IsOwn(s.Group) {
		errs = append(errs, fmt.Errorf("group %q: it is Berth's own", s.Group))
	}
	if s.mayBeLong() {
		if text, err := json.Marshal(s); err != nil || len(text) > maxSpec {
			errs = append(errs, errors.Join(err, fmt.Errorf("%d bytes as JSON: more than %d; shorten its labels and names", len(text), maxSpec)))
		}
	}
	for kind, name := range s.Classes {
		if !slices.Contains(ClassKinds(), kind) || name == "" {
			errs = append(errs, fmt.Errorf("class %q of kind %q: there are the kinds %v", name, kind, ClassKinds()))
		}
	}
	if s.PID < 0 || s.Owner.PID < 0 {
		errs = append(errs, errors.New("a negative process id"))
	}
	if s.Descendants && s.PID == 0 {
		errs = append(errs, errors.New("descendants of no process"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("workload %q: %w", s.Request.ID, err)
	}
	return nil
}

// mayBeLong reports whether a spec could have more than maxSpec bytes as JSON, in which one
// byte of a text takes at most six. It counts what has no bound, and is generous with the rest.
func (s *Spec) mayBeLong() bool {
	r := &s.Request
	if r.Memory != nil || r.Devices != nil || r.Affinity != nil || !limitless(s.Limits) {
		return true
	}
	n := len(r.ID) + len(r.Group) + len(r.Namespace) + len(r.CoreKind) + len(s.Group)
	for _, m := range []map[string]string{r.Labels, r.Hints, s.Annotations} {
		for k, v := range m {
			n += len(k) + len(v) + 2
		}
	}
	sets := 5 * (r.Nodes.Len() + s.CPUs.Len() + s.Mems.Len()) // as in "1024,"
	for _, of := range s.NearMems {
		sets += 5*of.Len() + 3
	}
	return 6*n+sets+2<<10 > maxSpec
}

// MissingError is a control group or a process that a workload is to have and that
// is not there.
type MissingError struct {
	Object string // as in: process 12
}

func (e *MissingError) Error() string {
	return e.Object + " is not there"
}

// Unwrap returns fs.ErrNotExist.
func (e *MissingError) Unwrap() error { return fs.ErrNotExist }

// GroupError is a control group that may not be placed.
type GroupError struct {
	Group, Reason string
}

func (e *GroupError) Error() string {
	return fmt.Sprintf("group %q: %s", e.Group, e.Reason)
}

// Workload is a placed workload.
type Workload struct {
	Spec  Spec         `json:"spec"`
	Grant *place.Grant `json:"grant"`
	// CPUs are what it may run on now: its own, and what is left of its pool; where
	// its cpuset is left to someone else, what the kernel has. Mems are its memory
	// nodes; empty is any.
	CPUs cpuset.Set `json:"cpus"`
	Mems cpuset.Set `json:"mems,omitzero"`
	// UID is the user whose workload it is: who placed it. 0, as in records that do not
	// say it, is root.
	UID int `json:"uid,omitempty"`
	// State is where the workload is in its life.
	State State `json:"state,omitempty"`
	// Releasing is true once its processes are being killed for it to be released. It
	// keeps its place until they have ended.
	Releasing bool `json:"releasing,omitempty"`
	// LateNet is true where it got its network class, or its limit, after it was placed.
	LateNet bool `json:"lateNet,omitempty"`
	// Since is when it was placed.
	Since time.Time `json:"since"`
	// Backend is how: "cgroup v2", "cgroup v1", "hybrid" or "affinity".
	Backend string `json:"backend"`
	// Group is its control group, named from the base on, and Dirs are that group's
	// directories, relative to the kernel.Root; empty with affinity.
	Group string   `json:"group,omitempty"`
	Dirs  []string `json:"dirs,omitempty"`
	// Before is, with affinity, what the process had.
	Before *Before `json:"-"`
	// Limits are the settings in force: Spec.Limits and what the class does, as far as
	// the host has it. They are told and not kept.
	Limits cgroup.Limits `json:"limits,omitzero"`
	// Classes are the classes that it has, by kind: those of Spec.Classes, and those that
	// follow from its class of service. They are told and not kept.
	Classes map[ClassKind]string `json:"classes,omitempty"`
	// Notes are plain warnings.
	Notes []string `json:"notes,omitempty"`
}

// dirsIn are the directories of a workload's control group. Those of a group that something
// else makes, such as a container runtime, are not on record: they are below base, those of
// the base (Site.Dirs).
func (w *Workload) dirsIn(base []string) (dirs []string) {
	if len(w.Dirs) > 0 || w.Group == "" {
		return w.Dirs
	}
	for _, dir := range base {
		dirs = append(dirs, path.Join(dir, w.Group))
	}
	return dirs
}

// State says where a workload is in its life.
type State string

// The states.
const (
	Running State = ""
	// Reserved is a workload that has its place before it has its control group.
	Reserved State = "reserved"
	// Orphaned is one whose owner has ended while processes of it are left.
	Orphaned State = "orphaned"
	// Waiting is one that an agent's configuration asks for and that could not be placed
	// yet: its Notes say why, and it has no Grant. No Node has it.
	Waiting State = "waiting"
)

// ID returns the workload's name.
func (w *Workload) ID() string { return w.Spec.Request.ID }

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	Placed   EventKind = "placed"
	Changed  EventKind = "changed"  // resized or moved
	Released EventKind = "released" // on request, or because owner or group is gone
	Refused  EventKind = "refused"  // a change that did not happen
	Repaired EventKind = "repaired" // a value that someone else changed
	Yielded  EventKind = "yielded"  // a value left to someone else
	Dropped  EventKind = "dropped"  // a record that is of no use, or whose place is gone
	Restored EventKind = "restored" // everything was given back
	Scaled   EventKind = "scaled"   // the clock of a pool follows its load
	Failed   EventKind = "failed"   // the kernel could not be told, and will be again
)

// Event is something that happened to a node.
type Event struct {
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`
	// ID names the workload, if the event is about one, and Object a file.
	ID     string `json:"id,omitempty"`
	Object string `json:"object,omitempty"`
	// Text says why.
	Text string `json:"text,omitempty"`
	// Took is how long placing or changing took, waiting for its turn included, and
	// Err the error of a refusal. Both are for who is in the same process.
	Took time.Duration `json:"-"`
	Err  error         `json:"-"`
}
