// Package knob is the table of settings that Berth knows, one row per setting: which
// subject has it, in which file and spelling, its default, the direction that widens it,
// and the settings that the kernel changes beside it. The room describes and does no I/O:
// kernel and the rooms of its dialects plan, write and read by these rows.
//
// A value is text, in one spelling for all kernels: that of the cgroup v2 file, or of the
// only file. "max" is no limit. A File translates it into the text of its kernel.
package knob

import (
	"cmp"
	"slices"
	"strings"
)

// Kind is the kind of subject that has a knob.
type Kind uint8

// The kinds of subjects.
const (
	Group     Kind = iota // a control group
	Class                 // a group of resctrl: a class of service
	Frequency             // a policy of cpufreq: CPUs that share a clock
	Sender                // a control group by what it sends: a class of HTB
)

// Direction says which values of a knob leave its subject more.
type Direction uint8

// The directions.
const (
	Up      Direction = iota // greater values are wider: a limit, a share
	Down                     // greater values are narrower: cpu.idle
	Neither                  // values are not comparable: a partition's type
)

// Reach says when a setting takes from subjects other than its own.
type Reach uint8

// The reaches.
const (
	Never  Reach = iota // it only narrows its subject
	Wider               // if it is wider than the default: a share, a protection
	Always              // whatever its value is
)

// Knob is a row of the table.
type Knob struct {
	// Name is how the knob is spelled in JSON and YAML: "memoryHigh". Words are for people.
	Name, Words string
	Kind        Kind
	// Controller is the control group controller that has the files, by its v2 name.
	Controller string
	Type       Type
	// Least and Most bound Number and Share; a Most of 0 is no bound.
	Least, Most int64
	// Values are the only ones of a Switch or a Word.
	Values []string
	// Default is the value of a new subject; for a knob with keys, of a key that is not set.
	Default   string
	Direction Direction
	Reach     Reach
	// Key checks the key that tells several settings of one subject apart, such as a block
	// device; nil if a subject has only one.
	Key func(key string) error
	// Locks names knobs that the kernel resets and locks while this one is not at its
	// default: cpu.idle resets the weight.
	Locks []string
	// Bounds names knobs whose values this one bounds: the quota bounds the burst.
	Bounds []string
	// V2 and V1 are the files, in order of preference: a subject has the first one that
	// exists. Kinds other than Group have V2 only.
	V2, V1 []File
	// Process is the file of a process's own setting in its stead (kernel/sched), if there is one.
	Process []File
	// Follows are files for readers that change with the setting.
	Follows []string
	// Property is the property of a systemd unit that owns the setting, "" if none does.
	Property string
	// ReadOnly marks a row whose default Berth knows, and which Berth does not set.
	ReadOnly bool
	// Feature is the name in reports, "" for that of the file. Needs is the remedy for a
	// host that lacks the file; without one, every group with the controller has it.
	Feature, Needs string
	Hint           Hint
}

// Hint explains refusals by the kernel, and says how to avoid them.
type Hint struct {
	Range    string // ERANGE
	Invalid  string // EINVAL
	Busy     string // EBUSY
	NoDevice string // ENODEV
	Locked   string // another setting locks this one: see Knob.Locks
}

// NoScheduler explains EOPNOTSUPP for a line of a block device.
const NoScheduler = "the disk does not share its time by this file: BFQ is to be its scheduler (/sys/block/DISK/queue/scheduler), or io.cost enabled for it"

// File is where a kernel has a setting, and how it spells the value.
type File struct {
	Name string
	// Beside is a second file, whose text follows the first's in the value: a v1 period.
	Beside string
	// Line is the key of the setting's line in a file with many; a knob with keys has
	// a line per key.
	Line string
	// Word is the word before "=" if a line has several settings: "rbps".
	Word string
	// Max is the text of no limit, "" for "max".
	Max string
	// Unset stands, after its key, for a line that is not there.
	Unset string
	// Range is a Hint.Range for this file, where it differs from the row's.
	Range string
	// Encode returns the file's text for a value, Decode the value for a text; nil is the
	// same text. Decode(Encode(v)) is as near to v as the file's scale allows.
	Encode, Decode func(text string) string
}

// Text returns the text to write to the file for a value and, if the knob has keys, a key.
func (f *File) Text(key, value string) string {
	switch {
	case value == Max && f.Max != "":
		value = f.Max
	case f.Encode != nil:
		value = f.Encode(value)
	}
	if f.Word != "" {
		value = f.Word + "=" + value
	}
	if line := cmp.Or(key, f.Line); line != "" {
		return line + " " + value
	}
	return value
}

// Value returns the value that a text of the file stands for; ok is false if the text has
// none, as it lacks the line.
func (f *File) Value(key, text string) (value string, ok bool) {
	value = strings.TrimSpace(text)
	if line := cmp.Or(key, f.Line); line != "" {
		value, ok = lineOf(value, line)
		if !ok {
			return "", false
		}
	}
	if f.Word != "" {
		words := strings.Fields(value)
		i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, f.Word+"=") })
		if i < 0 {
			return "", false
		}
		value = words[i][len(f.Word)+1:]
	}
	switch {
	case f.Max != "" && value == f.Max:
		value = Max
	case f.Decode != nil:
		value = f.Decode(value)
	}
	return value, value != ""
}

func lineOf(text, key string) (rest string, ok bool) {
	for line := range strings.Lines(text) {
		if rest, ok = strings.CutPrefix(strings.TrimSpace(line), key+" "); ok {
			return rest, true
		}
	}
	return "", false
}

// FilesOf returns the files of a version of cgroups, 1 or 2; 0 stands for a process's own.
func (k *Knob) FilesOf(version int) []File {
	switch version {
	case 0:
		return k.Process
	case 1:
		return k.V1
	}
	return k.V2
}

func (k *Knob) files() []File { return append(slices.Clone(k.V2), k.V1...) }

// Files returns the names of all files of the setting, v2's first.
func (k *Knob) Files() []string {
	var names []string
	for _, f := range k.files() {
		names = append(names, f.Name)
		if f.Beside != "" {
			names = append(names, f.Beside)
		}
	}
	return names
}

// Besides returns the files of other settings and for readers that may change when the
// setting does.
func (k *Knob) Besides() []string {
	names := slices.Clone(k.Follows)
	for _, locked := range k.Locks {
		other := Find(locked)
		names = append(append(names, other.Files()...), other.Besides()...)
	}
	return names
}

// Read returns the value that a subject has. The function get returns the text of a file
// of it, and false if the subject has no such file.
func (k *Knob) Read(key string, get func(file string) (string, bool)) (value string, ok bool) {
	for _, f := range k.files() {
		text, there := get(f.Name)
		if !there {
			continue
		}
		if f.Beside != "" {
			more, _ := get(f.Beside)
			text = strings.TrimSpace(text) + " " + strings.TrimSpace(more)
		}
		return f.Value(key, text)
	}
	return "", false
}

// All returns the rows of the table, in the order in which settings are written.
func All() []*Knob { return slices.Clone(table) }

// Find returns the row of a name, or nil.
func Find(name string) *Knob {
	for _, k := range table {
		if k.Name == name {
			return k
		}
	}
	return nil
}

// OfFile returns the row that has a file, given by its base name, and which of its files
// that is: nil if there is none. A file of several rows is the first one's.
func OfFile(name string) (*Knob, *File) {
	for _, k := range table {
		for _, files := range [][]File{k.V2, k.V1} {
			for i := range files {
				if f := &files[i]; f.Name == name || f.Beside == name {
					return k, f
				}
			}
		}
	}
	return nil, nil
}

// Fresh returns the texts of the v2 files of a controller in a new group.
func Fresh(controller string) map[string]string {
	files := map[string]string{}
	for _, k := range table {
		if k.Controller != controller {
			continue
		}
		for i := range k.V2 {
			f := &k.V2[i]
			if _, there := files[f.Name]; k.Key != nil && !there {
				files[f.Name] = ""
			} else if k.Key == nil {
				files[f.Name] = f.Text("", k.Default)
			}
		}
	}
	return files
}
