package runq

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// programPath begins what stands for the path of a program: no path of a group does.
const programPath = "//"

// firstProgram is the least id of a program: those of groups stay below it.
const firstProgram = 1 << 62

// ProgramPath is what stands for the path of a program in Add and Remove.
func ProgramPath(name string) string { return programPath + name }

// addProgram watches the processes of the root group whose program has a name (comm), at
// most 15 bytes, also those that are yet to start. As a culprit it is apart from the root
// group from now on.
func (p *Probe) addProgram(name string) error {
	path := ProgramPath(name)
	if slices.ContainsFunc(p.slots, func(s slot) bool { return s.path == path }) {
		return nil
	}
	var key runqName
	if len(name) == 0 || len(name) >= len(key.Byte) || strings.Contains(name, "\x00") {
		return fmt.Errorf("watch program %q: no name of a process: those have 1 to %d bytes", name, len(key.Byte)-1)
	}
	copy(key.Byte[:], name)
	i := slices.IndexFunc(p.slots, func(s slot) bool { return s.path == "" })
	if i < 0 {
		return fmt.Errorf("watch program %s: already watching %d, which is all there is room for", name, len(p.slots))
	}
	p.made++
	id := uint64(firstProgram + p.made)
	err := p.clear(i, id)
	if err == nil {
		p.slots[i] = slot{path: path, id: id, added: time.Now(), ids: []uint64{id}}
		err = errors.Join(p.objects.Watch.Put(id, runqWatched{Id: id, Group: uint64(i)}), p.objects.Programs.Put(key, id), p.countPrograms())
	}
	if err != nil {
		return fmt.Errorf("watch program %s: %w", name, err)
	}
	return nil
}

// countPrograms tells the programs in the kernel how many there are.
func (p *Probe) countPrograms() error {
	n := uint32(0)
	for _, s := range p.slots {
		if strings.HasPrefix(s.path, programPath) {
			n++
		}
	}
	return p.objects.NumPrograms.Set(n)
}

// removeProgram ends that a program counts as a group.
func (p *Probe) removeProgram(path string) error {
	var key runqName
	copy(key.Byte[:], strings.TrimPrefix(path, programPath))
	return errors.Join(p.objects.Programs.Delete(key), p.countPrograms())
}

// Program is the name of a program, given what stands for its path in a Group; false for
// the path of a group.
func Program(path string) (name string, ok bool) { return strings.CutPrefix(path, programPath) }
