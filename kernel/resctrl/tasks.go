package resctrl

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/kernel"
)

// maxWrite is how many bytes of task ids one write has: the kernel takes less than a page.
const maxWrite = 4000

// Tasks returns the thread ids in a group. One that is not there has none.
func Tasks(fsys fs.FS, dir, group string) ([]int, error) {
	text, err := fs.ReadFile(fsys, path.Join(dir, group, "tasks"))
	if err != nil {
		return nil, kernel.IgnoreAbsent(err)
	}
	all, err := kernel.ParsePIDs(text)
	if err != nil {
		return nil, fmt.Errorf("tasks of resctrl group %q: %w", group, err)
	}
	return all, nil
}

// Assign moves threads to a group, and returns how many are there then. "Multiple tasks can
// be added by separating the task ids with commas", since Linux 6.8; older kernels take one
// per write. Threads that have ended meanwhile are no error. 0, by which the kernel means the
// writer, is left out.
func Assign(root *kernel.Root, dir, group string, tids []int) (moved int, err error) {
	tids = slices.DeleteFunc(slices.Clone(tids), func(tid int) bool { return tid <= 0 })
	file := path.Join(dir, group, "tasks")
	single := false
	for len(tids) > 0 {
		n := 1
		if !single {
			for size := 0; n < len(tids) && size < maxWrite-16; n++ {
				size += len(strconv.Itoa(tids[n-1])) + 1
			}
		}
		words := make([]string, n)
		for i := range words {
			words[i] = strconv.Itoa(tids[i])
		}
		err := root.WriteFile(file, strings.Join(words, ",")+"\n")
		switch {
		case err == nil:
			moved += n
		case errors.Is(err, syscall.ESRCH):
			// Those before the one that failed are in the group.
			if n = min(n, 1+failed(root, dir, tids[:n])); n == 0 {
				single = true // the kernel does not say which
				continue
			}
			moved += n - 1
		case errors.Is(err, syscall.EINVAL) && n > 1:
			single = true
			continue
		default:
			return moved, fmt.Errorf("put %d threads into resctrl group %q: %w", n, group, err)
		}
		tids = tids[n:]
	}
	return moved, nil
}

// failed returns the index of the thread that the kernel could not move, as it says in
// last_cmd_status; -1 if it does not say.
func failed(root *kernel.Root, dir string, tids []int) int {
	if len(tids) == 1 {
		return 0
	}
	text, err := fs.ReadFile(root.FS(), path.Join(dir, "info/last_cmd_status"))
	if err != nil {
		return -1
	}
	words := strings.Fields(string(text))
	return slices.IndexFunc(tids, func(tid int) bool { return slices.Contains(words, strconv.Itoa(tid)) })
}

// Follow brings the threads that list tells into a group, in passes: a thread that is moved
// late may have made others meanwhile, which are where it was. Threads in groups of others
// stay there, and are counted. It gives up where threads come faster than they can be moved.
func Follow(root *kernel.Root, t *Tree, group string, list func() ([]int, error)) (moved, foreign int, err error) {
	theirs := map[int]bool{}
	for i := range t.Groups {
		g := &t.Groups[i]
		if g.Name == "" || g.Own() || g.Name == group {
			continue
		}
		tids, err := Tasks(root.FS(), t.Dir, g.Name)
		if err != nil {
			return 0, 0, err
		}
		for _, tid := range tids {
			theirs[tid] = true
		}
	}
	const most = 10
	for range most {
		tids, err := list()
		if err != nil {
			return moved, foreign, err
		}
		have, err := Tasks(root.FS(), t.Dir, group)
		if err != nil {
			return moved, foreign, err
		}
		in := make(map[int]bool, len(have))
		for _, tid := range have {
			in[tid] = true
		}
		for _, tid := range monitored(root.FS(), t, group) {
			in[tid] = true
		}
		foreign = 0
		var late []int
		for _, tid := range tids {
			switch {
			case theirs[tid]:
				foreign++
			case !in[tid]:
				late = append(late, tid)
			}
		}
		if len(late) == 0 {
			return moved, foreign, nil
		}
		n, err := Assign(root, t.Dir, group, late)
		if moved += n; err != nil {
			return moved, foreign, err
		}
	}
	return moved, foreign, fmt.Errorf("resctrl group %q: threads come faster than they can be moved", group)
}

// monitored are the threads in groups that monitor some of a group's.
func monitored(fsys fs.FS, t *Tree, group string) (all []int) {
	for _, name := range t.Mon {
		if kernel.Within(name, path.Join(group, "mon_groups")) {
			tids, _ := Tasks(fsys, t.Dir, name) // gone meanwhile
			all = append(all, tids...)
		}
	}
	return all
}
