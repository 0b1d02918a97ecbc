// Package pods tells whose a control group is on a Kubernetes node: the pod, the container
// and the QoS class, from the group's path alone, and their names from files that the
// kubelet and the container runtime keep on the node. No API server, no agent and no
// runtime is asked.
//
// Paths are those below the top of the tree of groups, the same in cgroup v1 and v2. The
// kubelet has two drivers for them (pkg/kubelet/cm/cgroup_manager_linux.go): cgroupfs
// (kubepods/burstable/podUID/ID) and systemd
// (kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/RUNTIME-ID.scope).
package pods

import (
	"path"
	"strings"
)

// QoS is a class of pods; "" is unknown.
type QoS string

// The classes of Kubernetes.
const (
	Guaranteed QoS = "Guaranteed"
	Burstable  QoS = "Burstable"
	BestEffort QoS = "BestEffort"
)

// Level says what a group of the kubelet's tree holds.
type Level uint8

// The levels, the outermost first.
const (
	None        Level = iota // it is none of the kubelet's
	AllPods                  // kubepods
	ClassOfPods              // kubepods/burstable, kubepods-besteffort.slice; guaranteed pods have none
	OnePod
	OneContainer
)

// Group is what a path tells of a group of the kubelet's tree.
type Group struct {
	Level Level
	// QoS is that of the pods in it; "" for AllPods, and where the path does not tell.
	QoS QoS
	// UID is the pod's, with dashes; "" above pods.
	UID string
	// ID is the container's, 64 hexadecimal digits; "" above containers.
	ID string
	// Slice says that the kubelet's driver is systemd: the group, or the one around a
	// container, is a slice.
	Slice bool
}

// Parse reads the path of a group. A group below a container's own is the container's
// business, and one below a service's or a scope's the unit's, such as the manager of a user's units:
// whatever it is called, it is None, as are containers in no pod.
func Parse(group string) Group {
	parts := components(group)
	if isWithin(parts) {
		return Group{}
	}
	if c, ok := ContainerOf(group); ok {
		if c.Pod == "" {
			return Group{}
		}
		return Group{Level: OneContainer, QoS: qosOf(parts), UID: c.Pod, ID: c.ID, Slice: isSlice(parts[max(0, len(parts)-2)])}
	}
	if len(parts) == 0 {
		return Group{}
	}
	last, around := parts[len(parts)-1], ""
	if len(parts) > 1 {
		around = parts[len(parts)-2]
	}
	g := Group{QoS: qosOf(parts), Slice: isSlice(last)}
	name := strings.TrimSuffix(last, ".slice")
	switch {
	case podOf(last) != "" && (g.Slice || isTop(around) || isClass(around)):
		g.Level, g.UID = OnePod, podOf(last)
	case isTop(last):
		g.Level, g.QoS = AllPods, ""
	case g.Slice && (strings.HasSuffix(name, "kubepods-burstable") || strings.HasSuffix(name, "kubepods-besteffort")), isClass(last) && isTop(around):
		g.Level = ClassOfPods
	default:
		return Group{}
	}
	return g
}

// isWithin reports whether a group lies in one whose processes may have made it. It is the runtime's
// where that has no cgroup driver of systemd: system.slice/containerd.service/SLICE:RUNTIME:ID, or in
// another slice of the host's services.
func isWithin(parts []string) bool {
	around := ""
	for i, name := range parts[:max(len(parts)-1, 0)] {
		_, is := containerIn(around, name)
		unit := path.Ext(name)
		runtime := i == 1 && isSlice(around) && around != "user.slice" && around != "machine.slice"
		service := unit == ".service" && !(runtime && i == len(parts)-2 && strings.Contains(parts[i+1], ".slice:"))
		if is || service || unit == ".scope" {
			return true
		}
		around = name
	}
	return false
}

func isSlice(name string) bool { return strings.HasSuffix(name, ".slice") }

// isTop reports whether a name is that of the group of all pods, which lies in the kubelet's
// --cgroup-root: "kubelet-kubepods.slice" below "kubelet.slice".
func isTop(name string) bool {
	slice, ok := strings.CutSuffix(name, ".slice")
	return !ok && name == "kubepods" || ok && (slice == "kubepods" || strings.HasSuffix(slice, "-kubepods"))
}

func isClass(name string) bool { return name == "burstable" || name == "besteffort" }

// qosOf is the class of what lies at a path. Guaranteed pods lie in the group of all pods.
func qosOf(parts []string) QoS {
	for i, name := range parts {
		name, _, _ = strings.Cut(name, ":")
		_, class, found := strings.Cut(strings.TrimSuffix(name, ".slice"), "kubepods")
		if i > 0 && isTop(parts[i-1]) && isClass(name) {
			found, class = true, "-"+name
		}
		if !found {
			continue
		}
		switch {
		case strings.HasPrefix(class, "-burstable"):
			return Burstable
		case strings.HasPrefix(class, "-besteffort"):
			return BestEffort
		case strings.HasPrefix(class, "-pod"), i+1 < len(parts) && podOf(parts[i+1]) != "":
			return Guaranteed
		}
	}
	return ""
}

// components returns the parts of a group's path.
func components(group string) []string {
	return strings.FieldsFunc(group, func(r rune) bool { return r == '/' })
}
