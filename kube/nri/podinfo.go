package nri

import (
	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

// Pods knows more of pods than the runtime tells: what the API server has of this node's.
// Its methods never wait, for a handler calls them, and may be called concurrently.
type Pods interface {
	// Pod returns what is known of a pod by its UID; ok is false if nothing is, or not yet.
	// The caller does not change it.
	Pod(uid string) (pod *PodInfo, ok bool)
}

// PodInfo is what the API server knows of a pod.
type PodInfo struct {
	// Resources are the pod's own, of pod-level resources (KEP-2837); zero means none. QoS is
	// the pod's class always.
	podwords.Resources
	// PriorityClass names the pod's priority class, Priority is its value.
	PriorityClass string
	Priority      int32
	// Containers are all of the pod, in the order of their start: first the init containers,
	// restartable ones among them.
	Containers []ContainerInfo
}

// ContainerInfo is what the API server knows of a container.
type ContainerInfo struct {
	Name string
	Role place.Role
	// Resources are its requests and limits, without rounding.
	podwords.Resources
}

// Container returns a container of a pod by its name; nil if it has none, or nothing is
// known of the pod.
func (p *PodInfo) Container(name string) *ContainerInfo {
	if p == nil {
		return nil
	}
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// matches reports whether a container with such shares has what the API server tells. Of one that asks
// for no CPUs these are its pod's limit, if there is one: the kubelet has it request what limits it.
func (p *PodInfo) matches(c *ContainerInfo, shares uint64) bool {
	shares = max(minShares, shares)
	limit := c.Milli == 0 && c.LimitMilli == 0 && p.LimitMilli > 0
	return shares == sharesOf(c.Milli) || limit && shares == sharesOf(p.LimitMilli)
}

// within is what a container may have of its pod's own resources, of which all containers have no
// more together: its own, or where it asks for none, its part of what the others leave. own is
// false if that is time to share: in such a pod only a container has CPUs of its own whose request
// is its limit, as to the kubelet, or that leaves nobody else a part.
func (p *PodInfo) within(c *ContainerInfo, res podwords.Resources) (_ podwords.Resources, own bool) {
	milli, divided := p.part(c, int64(res.Milli), int64(p.Milli), func(c *ContainerInfo) int64 { return int64(c.Milli) })
	own = p.Milli == 0 || res.Milli == 0 && !divided || res.Milli > 0 && res.Milli == res.LimitMilli
	res.Milli = int(milli)
	res.Memory, _ = p.part(c, res.Memory, p.Memory, func(c *ContainerInfo) int64 { return c.Memory })
	if p.LimitMilli > 0 && (res.LimitMilli == 0 || res.LimitMilli > p.LimitMilli) {
		res.LimitMilli = p.LimitMilli
	}
	return res, own
}

// part is how much of what the pod has a container may have that asks for so much. Without asking,
// those that run at a time have equal parts of what the others leave; an init container has all
// that sidecars leave. divided says that others have a part, too, at that time or later.
func (p *PodInfo) part(c *ContainerInfo, asks, has int64, of func(*ContainerInfo) int64) (part int64, divided bool) {
	switch {
	case has == 0:
		return asks, false
	case asks > 0:
		return min(asks, has), false
	}
	left, parts := has, int64(1)
	for i := range p.Containers {
		switch other := &p.Containers[i]; {
		case other.Name == c.Name:
		case c.Role == place.Init && other.Role == place.Sidecar:
			n, _ := p.part(other, of(other), has, of)
			left -= n
		case c.Role == place.Init || other.Role == place.Init: // not at the same time
		case of(other) > 0:
			left -= of(other)
		default:
			parts++
		}
	}
	return max(left, 0) / parts, parts > 1 || c.Role == place.Init
}
