package place

import (
	"fmt"
	"slices"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// Devices returns all devices by name. The slice is the state's own.
func (s *State) Devices() []Device { return s.devices }

// Device returns a device and the id of its holder, "" if it is free.
func (s *State) Device(name string) (d Device, holder string, ok bool) {
	i, ok := s.device(name)
	if !ok {
		return Device{}, "", false
	}
	return s.devices[i], s.using[i], true
}

// FitDevices chooses free devices for the requests: those named, then of each kind those
// near the NUMA nodes (by number) first, then those without locality, then by name. far
// counts the chosen ones that are near none of the nodes. *DeviceError if there are too
// few, or if one is asked for twice.
func (s *State) FitDevices(nodes cpuset.Set, requests []DeviceRequest) (names []string, far int, err error) {
	for i := range requests {
		for _, name := range requests[i].Names {
			at, ok := s.device(name)
			switch {
			case !ok:
				return nil, 0, &DeviceError{name, "no such device"}
			case s.using[at] != "":
				return nil, 0, &DeviceError{name, "held by " + s.using[at]}
			case slices.Contains(names, name):
				return nil, 0, &DeviceError{name, "asked for twice"}
			}
			names, far = s.pick(at, nodes, names, far)
		}
	}
	for i := range requests {
		r := &requests[i]
		for n := len(r.Names); n < r.Count; n++ {
			at := s.nearestDevice(nodes, r.Kind, names)
			if at < 0 {
				return nil, 0, s.TooFewDevices(r.Kind, r.Count)
			}
			names, far = s.pick(at, nodes, names, far)
		}
	}
	return names, far, nil
}

// Refit adds devices, memory and its nodes to a grant: the devices of its Request and
// the amounts, near the NUMA nodes (by number). old is the grant that the workload held
// before and that s does not have; nil for none. Its devices stay, and may only be given
// up (*RejectedError); its memory stays as RefitMemory says.
func (s *State) Refit(g, old *Grant, nodes cpuset.Set, amounts []Amount) (err error) {
	var had []Block
	if old == nil {
		g.Devices, _, err = s.FitDevices(nodes, g.Request.Devices)
	} else {
		had = old.Memory
		if len(g.Request.Devices) > 0 {
			g.Devices = old.Devices
			if !old.Request.SameDevices(&g.Request) {
				return &RejectedError{ID: g.ID, Reason: "devices cannot change in place"}
			}
		}
	}
	if err == nil {
		g.Mems, g.Memory, err = s.RefitMemory(nodes, had, amounts)
	}
	return err
}

// TooFewDevices is the refusal of so many devices of a kind: how many there are, and who
// holds them.
func (s *State) TooFewDevices(kind string, asked int) *DeviceError {
	there := 0
	var held []string
	for i := range s.devices {
		if s.devices[i].Kind == kind {
			there++
			if by := s.using[i]; by != "" {
				held = append(held, s.devices[i].Name+" by "+by)
			}
		}
	}
	reason := fmt.Sprintf("%d asked, the host has %d", asked, there)
	if len(held) > 0 {
		reason += ", held: " + Names(held)
	}
	return &DeviceError{kind, reason}
}

func (s *State) pick(at int, nodes cpuset.Set, names []string, far int) ([]string, int) {
	if near := s.devices[at].Nodes; !near.IsEmpty() && !near.Overlaps(nodes) {
		far++
	}
	return append(names, s.devices[at].Name), far
}

// nearestDevice returns the nearest free device of a kind, by position; -1 if there is
// none. Those without locality are farther than those near the nodes.
func (s *State) nearestDevice(nodes cpuset.Set, kind string, but []string) int {
	best, least := -1, 3
	for i, d := range s.devices {
		if d.Kind != kind || s.using[i] != "" || slices.Contains(but, d.Name) {
			continue
		}
		far := 2
		switch {
		case d.Nodes.Overlaps(nodes):
			far = 0
		case d.Nodes.IsEmpty():
			far = 1
		}
		if far < least {
			best, least = i, far
		}
	}
	return best
}

// explainDevices adds, for each device of a refused request, the reason against it.
func (s *State) explainDevices(why *Why, r *Request) {
	asked := func(d *Device) bool {
		return slices.ContainsFunc(r.Devices, func(a DeviceRequest) bool { return a.Kind == d.Kind || slices.Contains(a.Names, d.Name) })
	}
	c := Choice{
		Name: "device", Count: len(s.devices),
		Fits: func(i int) string {
			switch {
			case !asked(&s.devices[i]):
				return "not asked for"
			case s.using[i] != "":
				return "held by " + s.using[i]
			}
			return "free, but not enough"
		},
		Label: func(i int) string { return s.devices[i].Name },
	}
	c.Best(why)
}

// Attraction returns, by NUMA node position, the sum of the weights of r's
// affinities to workloads with CPUs of their own, counted CPUs or a bound on that
// node; nil if r has no affinities.
func (s *State) Attraction(r *Request) []int {
	if len(r.Affinity) == 0 {
		return nil
	}
	pull := make([]int, len(s.t.units[machine.Node]))
	for g := range s.grants.all() {
		weight := 0
		for i := range r.Affinity {
			if r.Affinity[i].Matches(&g.Request) {
				weight += r.Affinity[i].Weight
			}
		}
		if weight == 0 {
			continue
		}
		cpus := g.Own
		if cpus.IsEmpty() {
			cpus = s.Effective(g)
		}
		for i := range pull {
			if u := &s.t.units[machine.Node][i]; u.CPUs.Overlap(&cpus) > 0 {
				pull[i] += weight
			}
		}
	}
	return pull
}
