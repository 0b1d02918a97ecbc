package berth_test

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// Where cores differ in speed, LSE gets the fastest of the nodes chosen and BE the slowest;
// with too few of them, those that come next; LSR takes what its other rules say.
func TestCoresBySpeed(t *testing.T) {
	t.Parallel()
	kinds := func(m *machine.Machine) { // 0-3 are two P cores, 4-7 E cores
		for i := range m.CPUs {
			m.CPUs[i].Kind = machine.KindE
			if i < 4 {
				m.CPUs[i].Kind = machine.KindP
			}
			m.CPUs[i].Capacity = 1000 - i // of boost: no reason to prefer one
		}
	}
	base := func(m *machine.Machine) { // as with SST-BF
		for i := range m.CPUs {
			m.CPUs[i].BaseKHz = 2_100_000
			if i == 5 || i == 6 {
				m.CPUs[i].BaseKHz = 2_700_000
			}
		}
	}
	big := func(m *machine.Machine) {
		for i := range m.CPUs {
			m.CPUs[i].Capacity = 446
			if i >= 6 {
				m.CPUs[i].Capacity = 1024
			}
		}
	}
	of := func(class place.Class, n int) place.Request {
		r := place.Request{ID: "x", Class: class, Milli: 1000 * n}
		if class == place.BE {
			r.Mode = place.Exclusive
		}
		return r
	}
	kindE := of(place.LSE, 1)
	kindE.CoreKind = machine.KindE
	for name, tc := range map[string]struct {
		cores []int
		speed func(*machine.Machine)
		floor string
		r     place.Request
		own   string
	}{
		"LSE on a P core":                {[]int{2, 2, 1, 1, 1, 1}, kinds, "7", of(place.LSE, 1), "0"},
		"BE on an E core":                {[]int{2, 2, 1, 1, 1, 1}, kinds, "7", of(place.BE, 1), "4"},
		"BE on two":                      {[]int{2, 2, 1, 1, 1, 1}, kinds, "0", of(place.BE, 2), "4-5"},
		"LSE asks for an E core":         {[]int{2, 2, 1, 1, 1, 1}, kinds, "7", kindE, "4"},
		"more than there are":            {[]int{2, 2, 1, 1, 1, 1}, kinds, "7", of(place.LSE, 5), "0-4"},
		"LSR as without":                 {[]int{2, 2, 1, 1, 1, 1}, kinds, "7", of(place.LSR, 1), "4"},
		"LSE by base frequency":          {[]int{1, 1, 1, 1, 1, 1, 1, 1}, base, "0", of(place.LSE, 2), "5-6"},
		"LSE asks for a kind of another": {[]int{1, 1, 1, 1, 1, 1, 1, 1}, base, "0", kindE, "5"},
		"LSE by capacity":                {[]int{1, 1, 1, 1, 1, 1, 1, 1}, big, "0", of(place.LSE, 1), "6"},
		"BE by capacity":                 {[]int{1, 1, 1, 1, 1, 1, 1, 1}, big, "7", of(place.BE, 1), "0"},
		"LSE where all cores are alike":  {[]int{1, 1, 1, 1}, func(*machine.Machine) {}, "0", of(place.LSE, 1), "1"},
	} {
		m := hybrid(tc.cores)
		tc.speed(m)
		topology, err := place.NewTopology(m)
		if err != nil {
			t.Fatal(err)
		}
		s, err := place.New(topology, place.Config{Floor: cpuset.MustParse(tc.floor)})
		if err != nil {
			t.Fatal(err)
		}
		offer, err := berth.Policy{}.Place(s, &tc.r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := offer.Grant.Own; got != cpuset.MustParse(tc.own) {
			t.Errorf("%s: own CPUs %s, want %s", name, got, tc.own)
		}
	}
}

// Speed decides on the nodes that were chosen, not which.
func TestSpeedAfterNodes(t *testing.T) {
	t.Parallel()
	m := &machine.Machine{Name: "two nodes", Online: cpuset.MustParse("0-7")}
	for i := range 8 {
		c := machine.CPU{ID: i, BaseKHz: 2_100_000}
		if i%4 > 1 {
			c.BaseKHz = 2_700_000 // two on each node
		}
		m.CPUs = append(m.CPUs, c)
	}
	m.Domains = []machine.Domain{{Kind: machine.Node, CPUs: cpuset.MustParse("0-3")}, {Kind: machine.Node, ID: 1, KernelID: 1, CPUs: cpuset.MustParse("4-7")}}
	topology, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := place.New(topology, place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{2, 3} {
		offer, err := berth.Policy{}.Place(s, &place.Request{ID: "x", Class: place.LSE, Milli: 1000 * n})
		if err != nil {
			t.Fatal(err)
		}
		own := offer.Grant.Own
		if topology.NodesOf(own).Len() != 1 || n == 2 && !topology.Speeds()[0].Contains(own) {
			t.Errorf("%d CPUs: %s, the fastest are %s", n, own, topology.Speeds()[0])
		}
	}
}
