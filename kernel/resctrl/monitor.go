package resctrl

import (
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
)

// monPrefix is in front of the names of groups that monitor a control group's threads, and
// allocate nothing. Its path follows, so that whoever reads the group knows whose it is.
const monPrefix = "berth-mon."

// maxName is how many bytes the kernel takes in a name.
const maxName = 255

// MonName is the name of the group that monitors a control group; false if that is too long.
func MonName(of string) (name string, ok bool) {
	name = monPrefix + url.PathEscape(of)
	return name, of != "" && len(name) <= maxName
}

// MonOf is the control group that a group monitors; false if it is none of these.
func MonOf(name string) (of string, ok bool) {
	text, ok := strings.CutPrefix(path.Base(name), monPrefix)
	if !ok {
		return "", false
	}
	of, err := url.PathUnescape(text)
	return of, err == nil && of != ""
}

// Slots is how many groups can monitor at a time. Each class needs a number (RMID), too, so those
// that can still be made keep theirs; other programs' groups have theirs already.
func (t *Tree) Slots() int {
	m := t.Monitoring
	if m == nil {
		return 0
	}
	others := 0
	for _, name := range t.Mon {
		if _, own := MonOf(name); !own {
			others++
		}
	}
	n := m.RMIDs - max(t.CLOSIDs(), len(t.Groups)) - others
	if m.Assigned { // each event of a group takes a counter of each cache
		events := 0
		for _, e := range m.Events {
			if strings.HasPrefix(e, "mbm_") {
				events++
			}
		}
		for _, counters := range m.Counters {
			n = min(n, counters/max(events, 1))
		}
	}
	return max(n, 0)
}

// Turn chooses the groups that are monitored in a turn: those that always are, as far as there
// is room, and of the others in order as many as fit, other ones each time. All have had a turn
// after as many as it takes.
func Turn(all, always []string, slots, turn int) []string {
	var chosen, rest []string
	for _, group := range all {
		if slices.Contains(always, group) && len(chosen) < slots {
			chosen = append(chosen, group)
		} else {
			rest = append(rest, group)
		}
	}
	room := min(slots-len(chosen), len(rest))
	for i := range room {
		chosen = append(chosen, rest[(turn*room+i)%len(rest)])
	}
	slices.Sort(chosen)
	return chosen
}

// Monitor plans a group that monitors, within the one that allocates to its threads.
func (t *Tree) Monitor(in *Group, name string) kernel.Plan {
	return kernel.Plan{{Op: kernel.Mkdir, Path: path.Join(t.Dir, in.Name, "mon_groups", name), Status: path.Join(t.Dir, "info/last_cmd_status"), Why: "monitors"}}
}

// Count has the bandwidth events of a group counted where the CPU has fewer counters than groups
// (mbm_assign_mode mbm_event, AMD ABMC): a group that came when none was free has none
// ("Unassigned"). Elsewhere it is a *kernel.NotSupportedError: there all are counted, or whichever
// the hardware chooses.
func (t *Tree) Count(root *kernel.Root, group string) error {
	m := t.Monitoring
	if m == nil || !m.Assigned {
		return &kernel.NotSupportedError{Feature: "assigning counters of memory bandwidth", Reason: "resctrl has no mbm_assign_mode mbm_event here", Remedy: "an AMD CPU with ABMC and Linux 6.18"}
	}
	file := path.Join(t.Dir, group, "mbm_L3_assignments")
	text, err := fs.ReadFile(root.FS(), file)
	if err != nil {
		return fmt.Errorf("counters of resctrl group %s: %w", group, err)
	}
	for line := range strings.Lines(string(text)) { // "mbm_total_bytes:0=e;1=_"
		event, list, _ := strings.Cut(line, ":")
		if !strings.Contains(list, "=_") {
			continue
		}
		if err := root.WriteFile(file, event+":*=e\n"); err != nil {
			return fmt.Errorf("count %s of resctrl group %s: %w", event, group, err)
		}
	}
	return nil
}
