package fakekernel

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ParityLayout is the machine of the recordings, which hands all its controllers
// on and has one block device.
func ParityLayout(version string) Layout {
	return Layout{
		Version: version,
		V2:      "sys/fs/cgroup", V2Controllers: []string{"cpu", "cpuset", "io", "memory", "pids"},
		Own: "/", CPUs: "0-31", Mems: "0-3", Devices: []string{"252:0"},
	}
}

//go:embed writes.txt
var writes string

//go:embed testdata
var recordings embed.FS

// Recorded returns the recordings by the kernel's version, as in "6.12".
func Recorded() (map[string]string, error) {
	texts := map[string]string{}
	files, err := fs.ReadDir(recordings, "testdata")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := fs.ReadFile(recordings, "testdata/"+file.Name())
		if err != nil {
			return nil, err
		}
		texts[strings.TrimSuffix(file.Name(), ".txt")] = string(text)
	}
	return texts, nil
}

// Tree is a cgroup tree, live or fake: a kernel.Root is one.
type Tree interface {
	FS() fs.FS
	WriteFile(name, data string) error
	Mkdir(name string) error
	Rmdir(name string) error
}

// Parity replays one table of writes to a v2 tree (writes.txt), to compare this
// package with what kernels made of the table (testdata). Guest tests record it
// on real kernels.
//
// A step of the table is "mkdir GROUP", "rmdir GROUP" or "FILE = VALUE". A line
// "# NAME: PREFIX..." starts a scenario, which begins with an empty tree and shows
// the files whose names have one of the prefixes. In values, PID is a process that
// starts in the root and DEV the number of a block device. A recording has the
// same lines, with the error's name after each step that was refused, and below
// each the files that it changed.
type Parity struct {
	Tree
	// Dir is the root of the v2 tree, which hands all controllers on.
	Dir string
	// PID and Device stand for themselves in the table.
	PID, Device string
}

// Record replays the whole table and returns the recording. Each scenario leaves
// the tree as it was.
func (p Parity) Record() (string, error) {
	var b strings.Builder
	for _, text := range strings.Split(strings.TrimPrefix(writes, "# "), "\n\n# ") {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		head, steps, _ := strings.Cut(strings.TrimSpace(text), "\n")
		fmt.Fprintf(&b, "# %s\n", head)
		name, prefixes, _ := strings.Cut(head, ": ")
		s := scenario{Parity: p, prefixes: strings.Fields(prefixes)}
		if err := s.replay(&b, steps); err != nil {
			return "", fmt.Errorf("scenario %q: %w", name, err)
		}
	}
	return b.String(), nil
}

// scenario is one on its way.
type scenario struct {
	Parity
	prefixes []string
	groups   []string // those made, in order
}

func (s *scenario) replay(b *strings.Builder, steps string) (err error) {
	before, err := s.shown()
	if err != nil {
		return err
	}
	empty := before
	defer func() { err = errors.Join(err, s.clean(empty)) }()
	for line := range strings.Lines(steps) {
		line = strings.TrimSuffix(line, "\n")
		errno, err := s.do(line)
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		b.WriteString(line)
		if errno != 0 {
			b.WriteString("  " + unix.ErrnoName(errno))
		}
		b.WriteByte('\n')
		after, err := s.shown()
		if err != nil {
			return err
		}
		s.compare(b, before, after)
		before = after
	}
	return nil
}

// do carries out a step and returns what the kernel said.
func (s *scenario) do(line string) (syscall.Errno, error) {
	var err error
	if group, ok := strings.CutPrefix(line, "mkdir "); ok {
		if err = s.Mkdir(s.Dir + "/" + group); err == nil {
			s.groups = append(s.groups, group)
		}
	} else if group, ok := strings.CutPrefix(line, "rmdir "); ok {
		if err = s.Rmdir(s.Dir + "/" + group); err == nil {
			s.groups = slices.DeleteFunc(s.groups, func(g string) bool { return g == group })
		}
	} else {
		file, value, ok := strings.Cut(line, " =")
		if !ok {
			return 0, errors.New("neither mkdir nor rmdir nor FILE = VALUE")
		}
		value = strings.NewReplacer("PID", s.PID, "DEV", s.Device).Replace(strings.TrimSpace(value))
		err = s.WriteFile(s.Dir+"/"+file, value+"\n")
	}
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		return 0, err
	}
	return errno, nil
}

// watched are the settings that Berth writes, and what follows from them.
var watched = [...]string{
	"cgroup.type", "cgroup.controllers", "cgroup.subtree_control", "cgroup.procs", "cgroup.freeze",
	"cpu.weight", "cpu.idle", "cpu.max", "cpu.max.burst",
	"cpuset.cpus", "cpuset.cpus.effective", "cpuset.cpus.exclusive", "cpuset.cpus.partition", "cpuset.mems", "cpuset.mems.effective",
	"memory.low", "memory.high", "memory.max", "io.weight", "io.max", "pids.max",
}

// shown reads the files that the scenario shows. Of the root it is those that
// groups change.
func (s *scenario) shown() (map[string]string, error) {
	texts := map[string]string{}
	for _, group := range append([]string{"."}, s.groups...) {
		for _, file := range watched {
			if group == "." && file != "cpuset.cpus.effective" || !s.shows(file) {
				continue
			}
			name := path.Join(group, file)
			text, err := fs.ReadFile(s.FS(), s.Dir+"/"+name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			texts[name] = s.symbolic(file, string(text))
		}
	}
	return texts, nil
}

func (s *scenario) shows(file string) bool {
	return slices.ContainsFunc(s.prefixes, func(p string) bool { return p == "all" || strings.HasPrefix(file, p) })
}

// symbolic puts back what stands for the process and the device.
func (s *scenario) symbolic(file, text string) string {
	words := strings.Fields(text)
	for i, word := range words {
		switch {
		case file == "cgroup.procs" && word == s.PID:
			words[i] = "PID"
		case file == "io.max" && word == s.Device:
			words[i] = "DEV"
		}
	}
	return strings.Join(words, " ")
}

func (s *scenario) compare(b *strings.Builder, before, after map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[name]; !ok && slices.Contains(s.groups, path.Dir(name)) {
			fmt.Fprintf(b, "\t%s is gone\n", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if text, ok := before[name]; !ok || text != after[name] {
			fmt.Fprintf(b, "\t%s\n", strings.TrimSpace(name+" = "+after[name]))
		}
	}
}

// clean puts the process back and removes what is left of the groups. The kernel
// may give CPUs back some time after.
func (s *scenario) clean(empty map[string]string) error {
	errs := []error{s.WriteFile(s.Dir+"/cgroup.procs", s.PID+"\n")}
	slices.Sort(s.groups)
	for _, group := range slices.Backward(s.groups) {
		errs = append(errs, s.Rmdir(s.Dir+"/"+group))
	}
	s.groups = nil
	const tries, pause = 1000, 10 * time.Millisecond
	for range tries {
		now, err := s.shown()
		if err != nil || maps.Equal(now, empty) {
			return errors.Join(append(errs, err)...)
		}
		time.Sleep(pause)
	}
	return errors.Join(append(errs, errors.New("the root did not get its CPUs back"))...)
}
