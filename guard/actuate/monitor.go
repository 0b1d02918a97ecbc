package actuate

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
)

// Monitoring is how what groups have of caches and memory bandwidth is told.
type Monitoring struct {
	// Of is how many groups there are, At how many are monitored at a time: fewer are so in turns.
	Of int `json:"of"`
	At int `json:"at"`
	// Groups are those of this turn.
	Groups []string `json:"groups,omitempty"`
	// Reason says why some that should be are not; "" if all are.
	Reason string `json:"reason,omitempty"`
}

// Monitor has the kernel tell what each of some groups has of caches and bandwidth, by a group of
// resctrl that allocates nothing; always are those that are told in every turn. The CPU has
// fewer numbers than there may be groups: then others have a turn with each call. Lines of a
// group whose turn is over stay in the cache under its number for a time, in which the kernel
// does not give that to another. Of no groups it removes all. Without monitoring, and for a Host
// that can only preview, it is a *kernel.NotSupportedError.
func (h *Host) Monitor(groups, always []string) (m Monitoring, err error) {
	defer h.enter()()
	const feature = "cache occupancy and memory bandwidth by group"
	if h.log == nil {
		return m, &kernel.NotSupportedError{Feature: feature, Reason: "nothing is written here", Remedy: "a guard of mode enforce"}
	}
	t, err := resctrl.Read(h.root.FS())
	if err != nil {
		return m, err
	}
	if t.Monitoring == nil {
		return m, &kernel.NotSupportedError{Feature: feature, Reason: "the CPU does not monitor", Remedy: "see 'berth doctor'"}
	}
	in, err := t.Members(h.root.FS())
	if err != nil {
		return m, err
	}
	threads := map[string][]int{}
	var errs []error
	groups = slices.DeleteFunc(slices.Clone(groups), func(group string) bool { // an empty one needs no number
		tids, err := h.threads(group)
		threads[group], errs = tids, append(errs, err)
		return len(tids) == 0
	})
	slots := t.Slots()
	m = Monitoring{Of: len(groups), At: min(slots, len(groups)), Groups: resctrl.Turn(groups, always, slots, h.turn)}
	h.turn++
	var places []string // of groups of resctrl that are to be
	of := map[string]string{}
	for _, group := range m.Groups {
		place, err := h.monitorAt(t, in, group, threads[group])
		if err != nil {
			m.Reason = fmt.Sprintf("%s: %v", group, err)
			continue
		}
		places, of[place] = append(places, place), group
	}
	_, err = h.undo(func(s kernel.Step) bool {
		_, own := resctrl.MonOf(s.Path)
		return s.Op == kernel.Mkdir && own && !slices.Contains(places, relative(t, s.Path))
	})
	errs = append(errs, err)
	for _, place := range places {
		if !slices.Contains(t.Mon, place) {
			in, name := t.Group(resctrl.Around(place)), path.Base(place)
			_, err := kernel.Apply(h.root, t.Monitor(in, name), h.log)
			if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.ENOSPC) {
				m.Reason = "numbers of groups whose turn is over are not free yet: their lines are in the cache still"
				continue
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if err := t.Count(h.root, place); err != nil && !errors.Is(err, kernel.ErrNotSupported) {
			m.Reason = err.Error()
		}
		errs = append(errs, h.join(t, in, place, threads[of[place]]))
	}
	return m, errors.Join(errs...)
}

func relative(t *resctrl.Tree, name string) string { return name[min(len(name), len(t.Dir)+1):] }

// monitorAt returns where a group is monitored: within the group that allocates to its threads.
func (h *Host) monitorAt(t *resctrl.Tree, in map[int]string, group string, threads []int) (place string, err error) {
	name, ok := resctrl.MonName(group)
	if !ok {
		return "", errors.New("its name is too long for resctrl")
	}
	if d := h.divided[group]; d != nil {
		return path.Join(d.name, "mon_groups", name), nil
	}
	around, err := t.Origin(in, threads)
	if err != nil {
		return "", err
	}
	return path.Join(around.Name, "mon_groups", name), nil
}

// join puts threads into a group that monitors, if they were not in it.
func (h *Host) join(t *resctrl.Tree, in map[int]string, place string, threads []int) error {
	late := slices.DeleteFunc(slices.Clone(threads), func(tid int) bool { return in[tid] == place })
	_, err := resctrl.Assign(h.root, t.Dir, place, late)
	if errors.Is(err, syscall.EINVAL) {
		return nil // it has just moved to another class: the next turn finds it there
	}
	return err
}
