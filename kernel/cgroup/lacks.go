package cgroup

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
)

// Lacks says why groups of the tree do not have a knob; nil if they have it. It looks at the
// files of the groups below the top of the tree and, on v1, of the top; known is false
// where none of them has files of the knob's controller.
func (h *Hierarchy) Lacks(root *kernel.Root, k *knob.Knob) (why *kernel.NotSupportedError, known bool) {
	files := k.FilesOf(h.Version)
	if len(files) == 0 {
		return &kernel.NotSupportedError{Feature: k.Name, Reason: fmt.Sprintf("cgroup v%d has no such setting", h.Version), Remedy: k.Needs}, true
	}
	entries, err := fs.ReadDir(root.FS(), h.Dir)
	if err != nil {
		return nil, false
	}
	var dirs []string
	for _, entry := range entries {
		if entry.IsDir() {
			dirs = append(dirs, path.Join(h.Dir, entry.Name()))
		}
	}
	if h.Version == 1 && len(files) == 1 { // else a weight, of which the top has none
		dirs = append(dirs, h.Dir)
	}
	for _, dir := range dirs {
		has := func(k *knob.Knob) bool {
			return slices.ContainsFunc(k.FilesOf(h.Version), func(f knob.File) bool {
				_, err := fs.Stat(root.FS(), path.Join(dir, f.Name))
				return err == nil
			})
		}
		if has(k) {
			return nil, true
		}
		if slices.ContainsFunc(knob.All(), func(other *knob.Knob) bool { return other.Controller == k.Controller && has(other) }) {
			return &kernel.NotSupportedError{Feature: k.Name, Reason: fmt.Sprintf("/%s has no %s", dir, names(files)), Remedy: k.Needs}, true
		}
	}
	return nil, false
}

// names are the names of files, as for a sentence.
func names(files []knob.File) string {
	var all []string
	for _, f := range files {
		all = append(all, f.Name)
	}
	return strings.Join(all, " or ")
}
