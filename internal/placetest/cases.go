package placetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
)

// CasesVariable is the environment variable that names another folder to read.
const CasesVariable = "BERTH_CASES"

// Folder is a folder of allocation cases: YAML files of suites, whose cases are
// decoded into the caller's types, and of machines. The README.md in the folder
// describes the format.
type Folder struct {
	dir      string
	suites   map[string][]Case
	machines map[string]*machine.Machine
}

// Case is one case of a suite, not yet decoded.
type Case struct {
	ID   string
	File string // its name in the folder
	raw  json.RawMessage
}

// Decode reads the case into the value that into points to. A field that the
// value does not have is an error.
func (c *Case) Decode(into any) error {
	if err := yaml.UnmarshalStrict(c.raw, into); err != nil {
		return fmt.Errorf("read case %s of %s: %w", c.ID, c.File, err)
	}
	return nil
}

type file struct {
	Suite    string                 `json:"suite"`
	About    string                 `json:"about"`
	Cases    []json.RawMessage      `json:"cases"`
	Machines map[string]machineText `json:"machines"`
}

type machineText struct {
	About     string  `json:"about"`
	CPUs      string  `json:"cpus"` // the table of lscpu -p=CPU,CORE,SOCKET,NODE,CACHE
	Distances [][]int `json:"distances"`
}

// ReadFolder reads every *.yaml of dir, or of the folder that CasesVariable names. Several
// files may add to one suite; ids of cases and names of machines must differ.
func ReadFolder(dir string) (*Folder, error) {
	if other := os.Getenv(CasesVariable); other != "" {
		dir = other
	}
	return readAll(dir)
}

func readAll(dir string) (*Folder, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list cases: %w", err)
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("read cases: no *.yaml in %s", dir)
	}
	f := &Folder{dir: dir, suites: map[string][]Case{}, machines: map[string]*machine.Machine{}}
	for _, path := range paths {
		if err := f.read(path); err != nil {
			return nil, fmt.Errorf("read cases: %s: %w", filepath.Base(path), err)
		}
	}
	return f, nil
}

func (f *Folder) read(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var in file
	if err := yaml.UnmarshalStrict(data, &in); err != nil {
		return err
	}
	if in.Suite == "" && len(in.Machines) == 0 {
		return errors.New("neither suite nor machines")
	}
	for name, text := range in.Machines {
		if f.machines[name] != nil {
			return fmt.Errorf("machine %s: told twice", name)
		}
		if f.machines[name], err = text.machine(name); err != nil {
			return fmt.Errorf("machine %s: %w", name, err)
		}
	}
	for _, raw := range in.Cases {
		var head struct{ ID string }
		if err := json.Unmarshal(raw, &head); err != nil {
			return err
		}
		same := func(c Case) bool { return c.ID == head.ID }
		if head.ID == "" || slices.ContainsFunc(f.suites[in.Suite], same) {
			return fmt.Errorf("suite %s: id %q is missing or told twice", in.Suite, head.ID)
		}
		f.suites[in.Suite] = append(f.suites[in.Suite], Case{ID: head.ID, File: filepath.Base(path), raw: raw})
	}
	return nil
}

func (t *machineText) machine(name string) (*machine.Machine, error) {
	m, err := sysfs.Lscpu(t.CPUs)
	if err != nil {
		return nil, err
	}
	m.Name = name
	m.Distances = t.Distances
	return m, m.Validate()
}

// Suites returns the names of the suites that the folder has, sorted.
func (f *Folder) Suites() []string { return slices.Sorted(maps.Keys(f.suites)) }

// Cases returns the cases of a suite in file order; none where the folder has no
// such suite.
func (f *Folder) Cases(suite string) []Case { return f.suites[suite] }

// Machine returns a machine by name. Callers share it and must not change it.
func (f *Folder) Machine(name string) (*machine.Machine, error) {
	m := f.machines[name]
	if m == nil {
		return nil, fmt.Errorf("no machine %q in %s", name, f.dir)
	}
	return m, nil
}
