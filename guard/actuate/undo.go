package actuate

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Restore restores all original values, the last change first. A value that another writer has
// changed since stays, and is no error. Lines of the undo log that cannot be read are one
// (*kernel.DamageError): the changes that they note stay active.
func (h *Host) Restore() ([]kernel.Item, error) {
	defer h.enter()()
	return h.restore()
}

func (h *Host) restore() ([]kernel.Item, error) {
	follow := h.followers(slices.Collect(maps.Keys(h.existed))...)
	items, err := h.undo(func(kernel.Step) bool { return true })
	err = errors.Join(err, follow())
	clear(h.divided)
	clear(h.lowered)
	if h.log != nil {
		err = errors.Join(err, h.log.Damage())
	}
	if err != nil {
		err = fmt.Errorf("restore what the guard changed: %w", err)
	}
	return items, err
}

// undo undoes the steps that match. The weight of a group that is still idle looks like one
// that another writer has set, so it is left for the next time.
func (h *Host) undo(match func(kernel.Step) bool) ([]kernel.Item, error) {
	if h.log == nil {
		return nil, nil
	}
	descendants := h.descendants(match)
	idle := func(s kernel.Step) bool { return path.Base(s.Path) == "cpu.idle" }
	items, err := h.log.Undo(func(s kernel.Step) bool { return match(s) && idle(s) })
	stuck := map[string]bool{}
	for _, item := range items {
		if item.Outcome == kernel.Failed {
			stuck[path.Dir(item.Step.Path)] = true
		}
	}
	rest, err2 := h.log.Undo(func(s kernel.Step) bool {
		return match(s) && !idle(s) && !(stuck[path.Dir(s.Path)] && slices.Contains(h.remedy(detect.Weight).Files(), path.Base(s.Path)))
	})
	rest, err2 = h.replace(rest, err2)
	return append(items, rest...), errors.Join(err, err2, descendants())
}

// replace restores v1 sets that could not be undone one by one, as sets within
// each other went different ways: all together, by way of what they have and had.
func (h *Host) replace(items []kernel.Item, failed error) ([]kernel.Item, error) {
	var placements []cgroup.Placement
	var stuck []string
	for _, item := range items {
		dir, file := path.Split(item.Step.Path)
		t := h.trees[cgroup.CPUSet]
		if item.Outcome != kernel.Failed || file != "cpuset.cpus" || t == nil || t.Version != 1 {
			continue
		}
		cpus, err := cpuset.Parse(item.Original)
		cpus = h.root.Online(cpus)
		if err != nil || cpus.IsEmpty() {
			continue
		}
		group := h.base.Child(strings.TrimPrefix(path.Clean(dir), t.Dir+"/"))
		placements, stuck = append(placements, cgroup.Placement{Group: group, CPUs: cpus}), append(stuck, item.Step.Path)
	}
	if len(stuck) == 0 {
		return items, failed
	}
	plan, err := cgroup.Place(placements...)
	if err == nil {
		_, err = kernel.Apply(h.root, plan, h.log)
	}
	if err != nil {
		return items, failed
	}
	again, err := h.log.Undo(func(s kernel.Step) bool { return slices.Contains(stuck, s.Path) })
	for i := range again {
		if again[i].Outcome == kernel.Untouched {
			again[i].Outcome = kernel.Restored
		}
	}
	items = slices.DeleteFunc(items, func(i kernel.Item) bool { return slices.Contains(stuck, i.Step.Path) })
	errs := []error{err}
	for _, item := range items {
		if item.Outcome == kernel.Failed {
			errs = append(errs, errors.New(item.Error))
		}
	}
	return append(items, again...), errors.Join(errs...)
}
