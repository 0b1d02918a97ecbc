package fakekernel

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// assignment is a line of mbm_L3_assignments: "e" for an exclusive counter, "_" for none.
func (k *Kernel) assignment(event string, on bool) string {
	var items []string
	for _, id := range k.layout.Resctrl.Domains {
		items = append(items, fmt.Sprintf("%d=%s", id, map[bool]string{true: "e", false: "_"}[on]))
	}
	return event + ":" + strings.Join(items, ";")
}

// counted is how many groups have a counter for an event; half of the counters are for either.
func (k *Kernel) counted(event string) (n int) {
	for _, g := range k.allResctrlGroups() {
		if strings.Contains(k.get(g, "mbm_L3_assignments"), event+":"+"0=e") {
			n++
		}
	}
	return n
}

// writeAssignments: "echo "mbm_total_bytes:*=e" > mbm_L3_assignments", and "_" gives the counter
// back. Here it is of all domains at once.
func (k *Kernel) writeAssignments(dir, data string) error {
	event, how, ok := strings.Cut(data, ":*=")
	if !ok || how != "e" && how != "_" {
		return k.status(syscall.EINVAL, "Invalid assign state")
	}
	lines := strings.Split(k.get(dir, "mbm_L3_assignments"), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, event+":") })
	switch {
	case i < 0:
		return k.status(syscall.EINVAL, "Event %s not found", event)
	case how == "e" && lines[i] != k.assignment(event, true) && k.counted(event) >= k.layout.Resctrl.Counters/2:
		return k.status(syscall.ENOSPC, "Failed to allocate counter for %s", event)
	}
	lines[i] = k.assignment(event, how == "e")
	return k.put(dir+"/mbm_L3_assignments", strings.Join(lines, "\n"))
}
