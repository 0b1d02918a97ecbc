// Package catalog lists the experiments of the lab by name, and reads and writes the data
// files by which they are copied and changed. What an experiment does is its own room's.
package catalog

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/machine"
)

// Experiment is one with its settings and, once it has run, what it measured. As JSON it is
// the result that is stored; it embeds a lab.Header.
type Experiment interface {
	// Spec is a pointer to what a data file sets: a struct with the names of its fields in
	// its json tags.
	Spec() any
	// Validate says what is wrong with the settings, naming the field.
	Validate() error
	// Length is about how long Run takes on a machine.
	Length(*machine.Machine) time.Duration
	// Run measures, and stores the result in the options' folder as it goes. An experiment
	// that was loaded from there goes on with its run.
	Run(ctx context.Context, opt lab.Options) error
	// Sheet is what the result comes to: first words that a person can act on. It has a
	// Document.
	Sheet() (*report.Sheet, error)
	// Judged are the cells and figures of the result, table by table: what two results are
	// compared by, and a history follows.
	Judged() ([]report.Judged, error)
	// Head is the result's header.
	Head() *lab.Header
}

// Kind is a kind of experiment.
type Kind struct {
	Name string
	// Question is what it answers, and Needs what it takes beyond what berth lab does, in a
	// few words each; "" is nothing.
	Question, Needs string
	// Schema is that of its results. Kinds that share one differ in their settings alone.
	Schema string
	// New makes one with the default settings.
	New func() Experiment
	// Lacks says why a machine can have nothing of it; nil is a kind for every machine.
	Lacks func(*machine.Machine) error
	// Verb is the command with flags of its own that runs it, too; "" for none.
	Verb string
}

// Here says why a machine can have nothing of the kind; nil if it can.
func (k Kind) Here(m *machine.Machine) error {
	if k.Lacks == nil {
		return nil
	}
	return k.Lacks(m)
}

// Find returns the kind of a name.
func Find(name string) (Kind, error) {
	var names []string
	for _, k := range Kinds() {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return Kind{}, fmt.Errorf("no experiment %q%s", name, strictyaml.Nearest(name, names))
}

//go:embed *.yaml
var files embed.FS

// File is the data file that comes with a kind, to copy and change.
func (k Kind) File() ([]byte, error) { return files.ReadFile(k.Name + ".yaml") }

// Parse reads a data file: its kind, and the settings that it changes. All that is wrong is
// reported by line.
func Parse(data []byte, file string) (k Kind, x Experiment, err error) {
	lines, err := strictyaml.DecodeBy(data, file, "kind", func(name string) (any, error) {
		if k, err = Find(name); err != nil {
			return nil, err
		}
		x = k.New()
		return x.Spec(), nil
	})
	if err == nil {
		if err = x.Validate(); err != nil {
			err = &strictyaml.Error{File: file, Line: lines.At("kind"), Err: err}
		}
	}
	return k, x, err
}

// Set changes one setting, as a data file would: the name of a field (nested fields with
// dots between them) and its YAML value.
func Set(x Experiment, field, value string) error {
	var text strings.Builder
	for i, name := range strings.Split(field, ".") {
		fmt.Fprintf(&text, "\n%*s%s:", i, "", name)
	}
	text.WriteString(" " + value)
	if _, err := strictyaml.Decode([]byte(text.String()), "", x.Spec()); err != nil {
		if wrong, ok := errors.AsType[*strictyaml.Error](err); ok && wrong.Field != "" {
			return fmt.Errorf("%s: %w", wrong.Field, wrong.Err)
		}
		return fmt.Errorf("%s: %q is no value", field, value)
	}
	return nil
}

// Side is a stored result to be compared with others.
func Side(path string) (report.Side, error) {
	return SideOf(path, "")
}

// ErrOther is of a result that is of another kind than was asked for.
var ErrOther = errors.New("another experiment")

// SideOf is a stored result to be compared with others, if it is of a kind; "" is any. Else
// the error is ErrOther, and the side has its kind.
func SideOf(path, kind string) (report.Side, error) {
	k, x, err := Load(path)
	if err != nil {
		return report.Side{}, err
	}
	s := report.Side{Name: path, Kind: k.Name, Settings: x.Spec(), Head: x.Head()}
	if isolation, ok := x.(*Isolation); ok {
		s.Kind = isolation.kind()
	}
	if kind != "" && s.Kind != kind {
		return s, fmt.Errorf("%s: %w: %s, not %s", path, ErrOther, s.Kind, kind)
	}
	if s.Judged, err = x.Judged(); err != nil {
		return s, fmt.Errorf("analyse %s: %w", path, err)
	}
	return s, nil
}

// Load reads the stored result of any kind. A folder stands for the result in it, which may
// be compressed by gzip.
func Load(path string) (Kind, Experiment, error) {
	text, err := lab.ReadStored(path)
	if err != nil {
		return Kind{}, nil, err
	}
	schema, err := lab.SchemaOf(text)
	if err != nil {
		return Kind{}, nil, fmt.Errorf("read result %s: %w", path, err)
	}
	for _, k := range Kinds() {
		if k.Schema == schema {
			x := k.New()
			reflect.ValueOf(x.Spec()).Elem().SetZero() // what is stored is all that was set
			if err := json.Unmarshal(text, x); err != nil {
				return k, nil, fmt.Errorf("read result %s: %w", path, err)
			}
			return k, x, nil
		}
	}
	if schema == "" {
		return Kind{}, nil, fmt.Errorf("read result %s: it has no schema: it is no result.json of berth lab", path)
	}
	return Kind{}, nil, fmt.Errorf("read result %s: schema %q is of no experiment that this version of Berth knows", path, schema)
}
