package place_test

import (
	"encoding/json"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
)

// Whatever was saved, by whatever machine: what the books take, they balance, and
// giving all of it back leads to the start.
func FuzzReinstate(f *testing.F) {
	for _, seed := range []string{
		`{}`,
		`{"grants":[null]}`,
		`{"grants":[{"id":"a","own":"1-2","fence":"9","request":{"id":"a","class":"LSE","milli":2000}}]}`,
		`{"grants":[{"id":"a","own":"1","lent":true,"request":{"id":"a","class":"LSR","group":"g","role":"init"}},
			{"id":"b","own":"1","devices":["gpu0","gpu0"],"request":{"id":"b","class":"BE","group":"g"}}]}`,
		`{"grants":[{"id":"a","share":{"within":"0-15","milli":5},"memory":[{"node":1,"resource":"memory","bytes":7}],"request":{"id":"a","class":"LS"}}]}`,
		`{"grants":[{"id":"a","share":{"pool":"p"},"request":{"id":"a","class":"LS"}}],"pools":[{"name":"p","cpus":"3","idle":"1-9"}]}`,
		`{"grants":[{"id":"a","share":{"within":"3,2000","counted":true},"request":{"id":"a","class":"LS"}}]}`,
		`{"grants":[{"id":"a","own":"2047","request":{"id":"a","class":"LS"}},{"id":"a","request":{"id":"a","class":"LS"}}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var saved place.Saved
		if json.Unmarshal(text, &saved) != nil {
			return
		}
		start, err := place.New(placetest.Topology(t, "1s2n4c2t"), place.Config{
			Reserved: cpuset.MustParse("0"), MaxRefs: 2, Devices: []place.Device{{Name: "gpu0"}},
			Memory: []place.Block{{Node: 0, Resource: place.Memory, Bytes: 10}, {Node: 1, Resource: place.Memory, Bytes: 10}},
		})
		if err != nil {
			t.Fatal(err)
		}
		s, _ := start.Reinstate(saved)
		if err := s.Audit(); err != nil {
			t.Fatal(err)
		}
		o := s.Offer()
		for g := range s.Grants() {
			o.Drop = append(o.Drop, g.ID)
		}
		for p := range s.Pools() {
			o.Pools = append(o.Pools, place.Pool{Name: p.Name})
		}
		end, err := s.Commit(o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := end.Difference(start); diff != "" {
			t.Fatal(diff)
		}
	})
}
