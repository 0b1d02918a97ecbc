package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/kernel"
)

// ProcessMemory returns where the memory of a process is: bytes by NUMA node, of all that it
// has mapped, files too (/proc/PID/numa_maps, proc_pid_numa_maps(5)). Reading it walks the
// process's page tables. A kernel without NUMA has no such file: fs.ErrNotExist.
func ProcessMemory(fsys fs.FS, pid int) (map[int]int64, error) {
	text, err := fs.ReadFile(fsys, "proc/"+strconv.Itoa(pid)+"/numa_maps")
	if err != nil {
		return nil, fmt.Errorf("read memory of process %d: %w", pid, gone(err))
	}
	return parseNUMAMaps(text), nil
}

// parseNUMAMaps sums lines as "7f... default anon=3 N0=2 N1=1 kernelpagesize_kB=4" by node.
func parseNUMAMaps(text []byte) map[int]int64 {
	bytesOf := map[int]int64{}
	for line := range bytes.Lines(text) {
		pages, size := map[int]int64{}, int64(4)
		for _, field := range strings.Fields(string(line)) {
			name, value, _ := strings.Cut(field, "=")
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				continue
			}
			if name == "kernelpagesize_kB" {
				size = n
			} else if node, is := strings.CutPrefix(name, "N"); is {
				if id, err := strconv.Atoi(node); err == nil {
					pages[id] += n
				}
			}
		}
		for id, n := range pages {
			bytesOf[id] += n * size << 10
		}
	}
	return bytesOf
}

// Thread is a living thread of a process.
type Thread struct {
	ID  int
	CPU int // that it is on, or was on last
	// Ran is the time that it has been on any CPU, as the scheduler counts it (schedstat).
	Ran time.Duration
}

// Threads lists the living threads of a process. Without schedstat (CONFIG_SCHED_INFO) there
// are none.
func Threads(fsys fs.FS, pid int) ([]Thread, error) {
	dir := "proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("list threads of process %d: %w", pid, gone(err))
	}
	var all []Thread
	for _, task := range tasks {
		one, err := readThread(fsys, dir, task.Name())
		if errors.Is(gone(err), fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func readThread(fsys fs.FS, dir, name string) (t Thread, err error) {
	if t.ID, err = strconv.Atoi(name); err != nil {
		return t, fmt.Errorf("thread %q: %w", name, err)
	}
	text, err := fs.ReadFile(fsys, dir+"/"+name+"/stat")
	if err != nil {
		return t, fmt.Errorf("read CPU of thread: %w", err)
	}
	if t.CPU, err = parseProcessor(text); err != nil {
		return t, fmt.Errorf("parse %s/%s/stat: %w", dir, name, err)
	}
	if text, err = fs.ReadFile(fsys, dir+"/"+name+"/schedstat"); err != nil {
		return t, fmt.Errorf("read CPU time of thread: %w", err)
	}
	times, err := ParseTask(text)
	if err != nil {
		return t, fmt.Errorf("parse %s/%s/schedstat: %w", dir, name, err)
	}
	t.Ran = times.Ran
	return t, nil
}

// parseProcessor takes the CPU that a task was on last, field 39, from its stat line
// (proc_pid_stat(5)). The name in field 2 may hold anything, ')' too.
func parseProcessor(text []byte) (int, error) {
	const field = 39
	rest := text[bytes.LastIndexByte(text, ')')+1:]
	for range field - 3 {
		_, rest = kernel.Word(rest)
	}
	word, _ := kernel.Word(rest)
	n, err := kernel.Uint(word)
	if err != nil {
		return 0, fmt.Errorf("field %d: %w", field, err)
	}
	return int(n), nil
}
