package placetest

import (
	"fmt"
	"math/rand/v2"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Config returns a random configuration for a machine: all of it or a part,
// reserved CPUs or none, some devices.
func Config(rng *rand.Rand, m *machine.Machine) place.Config {
	var c place.Config
	if rng.IntN(4) == 0 {
		c.Allowed = some(rng, m.Online, 5)
	}
	if rng.IntN(3) == 0 {
		first, _ := m.Online.First()
		if c.Allowed.IsEmpty() || c.Allowed.Has(first) {
			c.Reserved = cpuset.MustOf(first)
		}
	}
	if c.Allowed.IsEmpty() {
		c.Allowed = m.Online
	}
	nodes := m.ByKind(machine.Node)
	for _, n := range nodes {
		if n.Bytes > 0 {
			c.Memory = append(c.Memory,
				place.Block{Node: n.ID, Resource: place.Memory, Bytes: n.Bytes},
				place.Block{Node: n.ID, Resource: "hugepages-2Mi", Bytes: 64 << 20})
		}
	}
	for i := range rng.IntN(4) {
		d := place.Device{Name: fmt.Sprintf("gpu%d", i), Kind: "gpu"}
		if rng.IntN(3) > 0 {
			d.Nodes = cpuset.MustOf(nodes[rng.IntN(len(nodes))].ID)
		}
		c.Devices = append(c.Devices, d)
	}
	return c
}

// some returns a random part of a set that is not empty; each member stays with
// a chance of (n-1)/n.
func some(rng *rand.Rand, s cpuset.Set, n int) cpuset.Set {
	var out cpuset.Set
	for cpu := range s.All() {
		if rng.IntN(n) > 0 {
			out, _ = out.With(cpu)
		}
	}
	if out.IsEmpty() {
		return s
	}
	return out
}

// Request returns a random request that asks for all kinds of things.
func Request(rng *rand.Rand, m *machine.Machine, id string) place.Request {
	classes := []place.Class{place.LS, place.LSE, place.LSR, place.BE, place.System}
	r := place.Request{ID: id, Class: classes[rng.IntN(len(classes))], Namespace: fmt.Sprintf("ns%d", rng.IntN(3))}
	r.Labels = map[string]string{"app": fmt.Sprintf("a%d", rng.IntN(3))}
	most := max(1, m.Online.Len()/2)
	switch rng.IntN(4) {
	case 0:
		r.Milli = rng.IntN(1000 * most)
	case 1, 2:
		r.Milli = 1000 * (1 + rng.IntN(most))
	}
	if rng.IntN(4) == 0 {
		r.LimitMilli = r.Milli * (1 + rng.IntN(3))
	}
	if rng.IntN(6) == 0 {
		r.Mode = place.Mode(rng.IntN(4))
	}
	if rng.IntN(4) == 0 {
		r.Bind, r.BindRequired = place.Bind(rng.IntN(3)), rng.IntN(3) == 0
	}
	if rng.IntN(5) == 0 {
		r.Exclusivity = place.Exclusivity(rng.IntN(3))
	}
	if rng.IntN(4) == 0 {
		r.Strategy = place.Strategy(rng.IntN(4))
	}
	near(rng, m, &r)
	return r
}

func near(rng *rand.Rand, m *machine.Machine, r *place.Request) {
	nodes := m.ByKind(machine.Node)
	if rng.IntN(6) == 0 {
		r.Nodes, r.NodesRequired = cpuset.MustOf(nodes[rng.IntN(len(nodes))].ID), rng.IntN(3) == 0
	}
	if rng.IntN(8) == 0 {
		r.MaxNodes = 1 + rng.IntN(2)
	}
	if rng.IntN(8) == 0 {
		r.Isolated = place.Want(rng.IntN(4))
	}
	if rng.IntN(8) == 0 {
		r.CoreKind = machine.KindP
	}
	if rng.IntN(3) == 0 {
		r.Memory = append(r.Memory, place.Amount{Resource: place.Memory, Bytes: int64(1+rng.IntN(2048)) << 20})
	}
	if rng.IntN(8) == 0 {
		r.Memory = append(r.Memory, place.Amount{Resource: "hugepages-2Mi", Bytes: int64(1+rng.IntN(32)) << 21})
	}
	if rng.IntN(8) == 0 {
		r.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 1}}
	}
	if rng.IntN(6) == 0 {
		r.Affinity = []place.Affinity{{Labels: map[string]string{"app": "a0"}, Weight: rng.IntN(21) - 10}}
	}
	if rng.IntN(5) == 0 {
		r.Group, r.Role = fmt.Sprintf("g%d", rng.IntN(4)), place.Role(rng.IntN(3))
	}
}
