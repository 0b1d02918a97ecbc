// Package podwords reads what a pod says about where its containers are to be: labels and
// annotations of Berth, Koordinator, nri-plugins and CRI Resource Manager, over what plain
// Kubernetes says by QoS class and resources. Table lists every word with its meaning;
// docs/pod-words.md has the precedence.
//
// A word chooses among places that the pod's own resources pay for: it never gives more
// CPUs than the container requests, and no text of a pod becomes a path. What cannot be
// followed is a Problem: the caller decides whether that is a warning or a refusal.
package podwords

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Words are the fields of a place.Request that a pod may set; nil or zero is unsaid. The
// names in JSON are those of a workload in a scenario.
type Words struct {
	Class         *place.Class       `json:"class"`
	Mode          *place.Mode        `json:"mode"`
	Shared        *place.Milli       `json:"shared"`
	Bind          *place.Bind        `json:"bind"`
	BindRequired  *bool              `json:"bindRequired"`
	Exclusive     *place.Exclusivity `json:"exclusive"`
	Strategy      *place.Strategy    `json:"strategy"`
	Isolated      *place.Want        `json:"isolated"`
	CoreKind      string             `json:"coreKind"`
	Nodes         cpuset.Set         `json:"nodes"`
	NodesRequired *bool              `json:"nodesRequired"`
	MaxNodes      *int               `json:"maxNodes"`
	Affinity      []Affinity         `json:"affinity"`
	Hints         map[string]string  `json:"hints"`
}

// Affinity is place.Affinity, with the word pod for the group.
type Affinity struct {
	ID        string            `json:"id"`
	Group     string            `json:"pod"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
	Weight    int               `json:"weight"`
	Glob      bool              `json:"glob"`
}

// Pod is what of a pod words are read from.
type Pod struct {
	Namespace, Name     string
	Labels, Annotations map[string]string
	// HostNetwork is true of one that has the host's network.
	HostNetwork bool
}

// Wish is all that a pod says for one container.
type Wish struct {
	Words
	Near
	// Own is how many of its CPUs are to be its own; nil is unsaid.
	Own *int `json:"cpus"`
	// Fewest allows no more NUMA nodes for own CPUs than could hold them, were all free.
	Fewest *bool `json:"fewestNodes"`
	// CPUs are the very CPUs that a scheduler chose; empty is none.
	CPUs cpuset.Set `json:"cpuset"`
	// Memory are the kinds of memory that its may be of; none is unsaid.
	Memory MemoryKinds `json:"memory"`
	// P99 is the response time that 99 % of its requests are to keep, in seconds.
	P99 *Seconds `json:"p99"`
	// CPULimit and MemoryLimit are what a container of class BE may use where its resources do not
	// limit it: by batch resources. MidCPULimit and MidMemoryLimit are that of one of class BE or LS,
	// by mid resources.
	CPULimit       *place.Milli `json:"cpuLimit"`
	MemoryLimit    *place.Bytes `json:"memoryLimit"`
	MidCPULimit    *place.Milli `json:"midCPULimit"`
	MidMemoryLimit *place.Bytes `json:"midMemoryLimit"`
	// Strict makes every Problem a refusal.
	Strict *bool `json:"strict"`
	// Scope says whether the pod's containers are placed together.
	Scope *Scope `json:"scope"`
	// Role is the container's in its pod.
	Role *place.Role `json:"role"`
	// Classes are the classes that it names, by kind (ClassKinds); NoClass is a name.
	Classes map[string]string `json:"classes"`
	// Egress and Ingress are the most that the pod may send and receive, with all its
	// containers, in bits per second.
	Egress  *int64 `json:"egress"`
	Ingress *int64 `json:"ingress"`
}

// MemoryKinds are kinds of memory, each once.
type MemoryKinds []machine.MemoryKind

// String lists them.
func (k MemoryKinds) String() string {
	words := make([]string, len(k))
	for i := range k {
		words[i] = k[i].String()
	}
	return strings.Join(words, ",")
}

// Seconds are a length of time.
type Seconds float64

// String writes them as UnmarshalText reads them.
func (s Seconds) String() string { return strconv.FormatFloat(float64(s), 'g', -1, 64) + "s" }

// UnmarshalText reads a number with one of the units us, ms and s: from a microsecond to an hour.
func (s *Seconds) UnmarshalText(text []byte) error {
	for _, unit := range []struct {
		name string
		of   float64
	}{{"us", 1e6}, {"ms", 1e3}, {"s", 1}} {
		if number, ok := strings.CutSuffix(string(text), unit.name); ok {
			n, err := strconv.ParseFloat(number, 64)
			if n /= unit.of; err == nil && n >= 1e-6 && n <= 3600 {
				*s = Seconds(n)
				return nil
			}
			break
		}
	}
	return fmt.Errorf("%q is no length of time from 1us to 3600s, such as 20ms", plain.Line(string(text)))
}

// Scope is what is placed in one go.
type Scope = plain.Enum[scopeWords]

// The scopes.
const (
	ContainerScope Scope = iota // each container when it comes
	PodScope                    // all of a pod, or nothing of it
)

type scopeWords struct{}

func (scopeWords) Words() []string { return []string{"container", "pod"} }

// Source says where the value of a field comes from, for people.
type Source struct {
	Field, Value string // "class", "LSE"
	From         string // the word: "label koordinator.sh/qosClass"
}

// Reading is what was read for one container.
type Reading struct {
	Container string
	Wish      Wish
	Sources   []Source // by field
	Problems  []Problem
}

// Options say how words are read. The zero value follows all but the Strong ones.
type Options struct {
	// Rules say which words count in which namespaces.
	Rules Rules
	// Hints are the hints that the placement policy knows; nil is all.
	Hints []string
	// Class says why a container cannot have a class of a kind, nil if it can; without it no
	// class can be had.
	Class func(kind, name string) error
	// Bandwidth says why a pod cannot be held to so many bits per second, nil if it can; without
	// it none can.
	Bandwidth func(bits int64) error
	// Memory says why a container's memory cannot be of these kinds only, nil if it can; without it
	// none can.
	Memory func(kinds []machine.MemoryKind) error
	// Node is true where the reader is a node, which knows where the devices and mounts of
	// containers are and how many NUMA nodes can hold their CPUs.
	Node bool
	// ID names a container of the pod as a workload; nil is NAMESPACE/POD/CONTAINER.
	ID func(pod *Pod, container string) string
}

// MaxValue is how long the text of a word may be, in bytes.
const MaxValue = 4096

// Read reads the words of a pod for one of its containers. A stronger system's word beats
// a weaker one's, and within a system the container's own beats the pod's.
func Read(pod *Pod, container string, opt Options) Reading {
	if opt.ID == nil {
		opt.ID = func(p *Pod, c string) string { return p.Namespace + "/" + p.Name + "/" + c }
	}
	r := reading{pod: pod, container: container, opt: &opt, from: map[string]said{}}
	for _, w := range r.words() {
		r.read(w)
	}
	out := Reading{Container: container, Wish: r.wish, Problems: r.problems}
	for _, field := range slices.Sorted(maps.Keys(r.from)) {
		out.Sources = append(out.Sources, r.from[field].Source)
	}
	return out
}

// found is a word that a pod has.
type found struct {
	row   *Row
	key   string // as the pod has it
	text  string
	scope int // 0 bare, 1 the pod, 2 the container
}

type said struct {
	Source
	system System
}

type reading struct {
	pod       *Pod
	container string
	opt       *Options
	wish      Wish
	from      map[string]said // by field
	problems  []Problem
}

// maxUnknown is how many keys that are no words are named each; an author may write thousands.
const maxUnknown = 16

// words returns those that concern the container, the weakest first.
func (r *reading) words() (all []found) {
	var unknown []string // annotations: of labels there are no domains
	for label, texts := range map[bool]map[string]string{true: r.pod.Labels, false: r.pod.Annotations} {
		for key, text := range texts {
			row, scope, container, ok := lookUp(key, label)
			switch {
			case !ok:
				continue
			case scope == 2 && container != r.container:
				continue
			case row == nil:
				unknown = append(unknown, key)
				continue
			}
			all = append(all, found{row, key, text, scope})
		}
	}
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.row.System, b.row.System), cmp.Compare(a.scope, b.scope), strings.Compare(a.key, b.key))
	})
	slices.Sort(unknown)
	named := min(len(unknown), maxUnknown)
	for _, key := range unknown[:named] {
		r.problem(key, r.pod.Annotations[key], Unknown, fmt.Errorf("no word that Berth knows%s", nearest(key)))
	}
	if rest := unknown[named:]; len(rest) > 0 {
		r.problem(rest[0], r.pod.Annotations[rest[0]], Unknown, fmt.Errorf("one of %d more that are no words that Berth knows", len(rest)))
	}
	return all
}

func (r *reading) read(w found) {
	switch {
	case len(w.text) > MaxValue:
		r.problem(w.key, w.text, Invalid, fmt.Errorf("%d bytes are more than %d", len(w.text), MaxValue))
		return
	case w.row.read == nil:
		r.problem(w.key, w.text, NotFollowed, errors.New(w.row.Means))
		return
	}
	wish, err := w.row.read(r, w.text)
	if kind, ok := errors.AsType[*Problem](err); ok {
		r.problem(w.key, w.text, kind.Kind, kind.Err)
	} else if err != nil {
		r.problem(w.key, w.text, Invalid, err)
		return
	}
	if !r.opt.Rules.Allow(r.pod.Namespace, w.row.Word, wish.strength()) {
		r.problem(w.key, w.text, NotAllowed, errors.New("the node's rules do not let this namespace say so"+wish.remedy(w.row)))
		return
	}
	r.merge(&wish, w)
}

func (r *reading) problem(word, value string, kind Kind, err error) {
	if len(value) > 64 {
		value = value[:64] + "…"
	}
	r.problems = append(r.problems, Problem{Word: word, Value: value, Kind: kind, Err: err})
}

// merge sets every field that a word has.
func (r *reading) merge(over *Wish, w found) {
	for _, v := range fields(over) {
		into := fieldOf(&r.wish, v.name)
		if v.name == "classes" {
			if r.wish.Classes == nil {
				r.wish.Classes = map[string]string{}
			}
			for kind, name := range over.Classes {
				r.wish.Classes[kind] = name
				r.note(kind, name, w)
			}
			continue
		}
		if v.name == "hints" {
			hints := maps.Clone(r.wish.Hints)
			if hints == nil {
				hints = map[string]string{}
			}
			for key, text := range over.Hints {
				if r.opt.Hints != nil && !slices.Contains(r.opt.Hints, key) {
					r.problem(w.key, w.text, NotFollowed, errors.New("this node's placement policy does not know it"))
					continue
				}
				hints[key] = text
				r.note("hint "+key, text, w)
			}
			r.wish.Hints = hints
			continue
		}
		into.Set(v.value)
		r.note(v.name, show(v.value), w)
	}
}

func (r *reading) note(field, value string, w found) {
	if was, ok := r.from[field]; ok && was.Value != value && was.system != w.row.System {
		r.problem(w.key, w.text, Contradiction, fmt.Errorf("%s is %s by %s and %s by this; this wins", field, was.Value, was.From, value))
	}
	kind := "annotation "
	if w.row.Label {
		kind = "label "
	}
	r.from[field] = said{Source{field, plain.Line(value), kind + w.key}, w.row.System}
}

type field struct {
	name  string
	value reflect.Value
}

// parts are the structs that hold the fields of a wish.
func (w *Wish) parts() []reflect.Value {
	return []reflect.Value{reflect.ValueOf(&w.Words).Elem(), reflect.ValueOf(&w.Near).Elem(), reflect.ValueOf(w).Elem()}
}

// fields are those of a wish that are set, by their JSON names.
func fields(w *Wish) (all []field) {
	for _, v := range w.parts() {
		for i := range v.NumField() {
			if t := v.Type().Field(i); !t.Anonymous && !v.Field(i).IsZero() {
				all = append(all, field{t.Tag.Get("json"), v.Field(i)})
			}
		}
	}
	return all
}

func fieldOf(w *Wish, name string) reflect.Value {
	for _, v := range w.parts() {
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("json") == name {
				return v.Field(i)
			}
		}
	}
	panic("podwords: no field " + name)
}

func show(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return fmt.Sprint(v.Interface())
}

// Kind says what is wrong with a word.
type Kind = plain.Enum[kindWords]

// The kinds of problems.
const (
	Unknown       Kind = iota // no such word in a domain that Berth reads
	Invalid                   // a word with a value that it cannot have
	Contradiction             // two systems say different things
	Impossible                // more than the container's resources pay for
	NotAllowed                // the operator's rules
	NotFollowed               // known, and not followed here
)

type kindWords struct{}

func (kindWords) Words() []string {
	return []string{"unknown", "invalid", "contradiction", "impossible", "not allowed", "not followed"}
}

// Problem is a word that was not followed, or not as it says.
type Problem struct {
	Word, Value string
	Kind        Kind
	Err         error
}

// Error names the word, its value and what is wrong.
func (p *Problem) Error() string {
	return fmt.Sprintf("%s: %q: %s: %v", plain.Line(p.Word), p.Value, p.Kind, p.Err)
}

// Unwrap returns Err.
func (p *Problem) Unwrap() error { return p.Err }

// Problems joins problems as one error; nil if there are none.
func Problems(all []Problem) error {
	errs := make([]error, len(all))
	for i := range all {
		errs[i] = &all[i]
	}
	return errors.Join(errs...)
}
