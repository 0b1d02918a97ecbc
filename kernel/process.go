package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Process is who a process or thread is.
type Process struct {
	// State is 'R', 'S' and so on; see Ended.
	State byte
	// Parent is the number of its parent; 0 is none in this namespace.
	Parent int
	// Start is when it started, in clock ticks since boot. Together with its
	// number it names it for as long as the kernel runs.
	Start string
}

// Ended reports whether the process has ended and is there only until its parent
// has waited for it.
func (p Process) Ended() bool { return p.State == 'Z' || p.State == 'X' }

// ReadProcess reads /proc/PID/stat below fsys; pid may be "self". For one that
// is gone the error is fs.ErrNotExist or ESRCH.
func ReadProcess(fsys fs.FS, pid string) (Process, error) {
	text, err := fs.ReadFile(fsys, "proc/"+pid+"/stat")
	if err != nil {
		return Process{}, fmt.Errorf("read process %s: %w", pid, err)
	}
	p, err := parseProcess(string(text))
	if err != nil {
		return Process{}, fmt.Errorf("parse proc/%s/stat: %w", pid, err)
	}
	return p, nil
}

// parseProcess takes fields 3, 4 and 22 of proc_pid_stat(5). The second field,
// the command in brackets, may hold anything; none after it does.
func parseProcess(text string) (Process, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || len(fields[0]) != 1 {
		return Process{}, errors.New("too few fields after the command")
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return Process{}, fmt.Errorf("parent: %w", err)
	}
	if _, err := strconv.ParseUint(fields[19], 10, 64); err != nil {
		return Process{}, fmt.Errorf("start: %w", err)
	}
	return Process{State: fields[0][0], Parent: parent, Start: fields[19]}, nil
}

// Descendants returns a process and those below it, parents before their
// children. One that ends meanwhile may be among them.
func Descendants(fsys fs.FS, pid int) ([]int, error) {
	entries, err := fs.ReadDir(fsys, "proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := ReadProcess(fsys, e.Name()); err == nil {
			children[p.Parent] = append(children[p.Parent], id)
		}
	}
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, nil
}
