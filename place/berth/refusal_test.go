package berth_test

import (
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// A refusal that is to be explained names every candidate and what it lacks.
func TestRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	// node 0 has CPUs 0-3 and 8-11, node 1 4-7 and 12-15; CPU 0 is the floor
	s := placed(t, start(t, "1s2n4c2t", place.Config{
		Devices: []place.Device{{Name: "gpu0", Kind: "gpu"}, {Name: "nic0", Kind: "nic"}},
		Memory:  []place.Block{{Node: 0, Resource: place.Memory, Bytes: 100}, {Node: 1, Resource: place.Memory, Bytes: 50}},
	}),
		place.Request{ID: "db", Class: place.LSE, Milli: 4000, Devices: []place.DeviceRequest{{Kind: "gpu", Count: 1}}},
		place.Request{ID: "web", Milli: 3000, Nodes: cpuset.MustOf(1)},
		place.Request{ID: "batch", Class: place.BE, Memory: []place.Amount{{Resource: place.Memory, Bytes: 60}}})
	for name, tc := range map[string]struct {
		r    place.Request
		want []string
	}{
		"own CPUs":     {lsr("x", 12), []string{"node 0 3 CPUs free", "node 1 room for 5 of 8 free CPUs, the shared pool needs the rest"}},
		"whole cores":  {place.Request{Class: place.LSE, Milli: 8000}, []string{"node 0 2 CPUs free", "node 1 room for 4 of 8"}},
		"a whole node": {place.Request{Class: place.LSR, Milli: 1000, Exclusivity: place.NUMANodeLevel}, []string{"node 0 used by others", "node 1 used by others"}},
		"time":         {place.Request{Milli: 9001}, []string{"node 0 4000m free", "node 1 5000m free"}},
		"memory":       {place.Request{Memory: []place.Amount{{Resource: place.Memory, Bytes: 91}}}, []string{"node 0 40 of 100 bytes free", "node 1 50 of 50 bytes free"}},
		"device":       {place.Request{Devices: []place.DeviceRequest{{Kind: "gpu", Count: 1}}}, []string{"gpu0 held by db", "nic0 not asked for"}},
		"without":      {place.Request{Class: place.LSR, Milli: 9000, Nodes: cpuset.MustOf(0)}, []string{"without the asked nodes: not enough CPUs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.r.ID, tc.r.Explain = "x", true
			o, err := place.Place(berth.Policy{}, s, &tc.r)
			if err == nil {
				t.Fatalf("got %+v", o.Grant)
			}
			for _, want := range tc.want {
				if !strings.Contains(o.Why.String(), want) {
					t.Errorf("%v: no %q in\n%s", err, want, o.Why)
				}
			}
			tc.r.Explain = false
			if o, again := place.Place(berth.Policy{}, s, &tc.r); again == nil || again.Error() != err.Error() || o.Why != nil {
				t.Errorf("unexplained: %v, %v, want %v", again, o.Why, err)
			}
		})
	}
	big := place.Request{ID: "db", Class: place.LSE, Milli: 12000, Explain: true}
	big.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 1}}
	o, err := place.Resize(berth.Policy{}, s, &big)
	if err == nil || !strings.Contains(o.Why.String(), "node 1 room for 4 of 8") {
		t.Errorf("resize: %v\n%s", err, o.Why)
	}
}
