package koordinator_test

import (
	"fmt"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
	"berth.dev/berth/place/koordinator"
)

// TestOptions has a pair of rows, or more, for each option: the answers differ, so that
// an option that is ignored fails. The machine has 2 sockets of 1 NUMA node of 4
// cores of 2 threads: node 0 is 0-3,8-11, node 1 is 4-7,12-15, core c is c and c+8.
func TestOptions(t *testing.T) {
	t.Parallel()
	set := cpuset.MustParse
	lse := func(cpus int) place.Request { return place.Request{Class: place.LSE, Milli: 1000 * cpus} }
	lsr := func(cpus int) place.Request { return place.Request{Class: place.LSR, Milli: 1000 * cpus} }
	ls := func(milli int) place.Request { return place.Request{Class: place.LS, Milli: milli} }
	be := place.Request{Class: place.BE, Milli: 64000}
	with := func(r place.Request, change func(*place.Request)) place.Request { change(&r); return r }
	spread := func(r *place.Request) { r.Bind = place.SpreadByPCPUs }
	full := func(r *place.Request) { r.Bind, r.BindRequired = place.FullPCPUs, true }
	on := func(nodes string, must bool) func(*place.Request) {
		return func(r *place.Request) { r.Nodes, r.NodesRequired = set(nodes), must }
	}
	prefer := func(cpus string) func(*place.Request) {
		return func(r *place.Request) { r.Hints = map[string]string{koordinator.PreferredCPUs: cpus} }
	}
	level := func(e place.Exclusivity) func(*place.Request) {
		return func(r *place.Request) { r.Bind, r.Exclusivity = place.SpreadByPCPUs, e }
	}
	strategy := func(s place.Strategy) func(*place.Request) { return func(r *place.Request) { r.Strategy = s } }
	memory := func(gib int64) func(*place.Request) {
		return func(r *place.Request) {
			r.Memory = []place.Amount{{Resource: place.Memory, Bytes: gib << 30}}
		}
	}
	group := func(role place.Role) func(*place.Request) {
		return func(r *place.Request) { r.Group, r.Role = "pod", role }
	}
	stock := []place.Block{{Node: 0, Resource: place.Memory, Bytes: 4 << 30}, {Node: 1, Resource: place.Memory, Bytes: 8 << 30}}
	none := place.Config{NoFloor: true}
	type policy = koordinator.Policy
	tests := map[string]struct {
		policy policy
		conf   place.Config
		held   []place.Request
		r      place.Request
		want   string
	}{
		"LSE is not lent":                   {conf: none, r: lse(2), want: "own 0,8"},
		"LSR is lent":                       {conf: none, r: lsr(2), want: "own 0,8 lent"},
		"LSE of a fraction":                 {conf: none, r: with(lse(2), func(r *place.Request) { r.Milli = 1500 }), want: "*place.RejectedError"},
		"LSR of nothing is shared":          {conf: none, r: lsr(0), want: "in 0-15"},
		"LS is not on bound CPUs":           {conf: none, held: []place.Request{lsr(4), lse(2)}, r: ls(500), want: "in 0-15 on 2-3,5-7,10-11,13-15"},
		"BE is on lent CPUs":                {conf: none, held: []place.Request{lsr(4), lse(2)}, r: be, want: "in 0-15 on 0-3,5-11,13-15"},
		"SYSTEM is on reserved CPUs":        {conf: place.Config{Reserved: set("0,8")}, r: place.Request{Class: place.System, Milli: 500}, want: "in 0,8"},
		"SYSTEM without reserved CPUs":      {r: place.Request{Class: place.System, Milli: 500}, want: "in 0-15"},
		"LS is not on reserved CPUs":        {conf: place.Config{Reserved: set("0,8")}, r: ls(500), want: "in 1-7,9-15"},
		"ShareReserved":                     {policy: policy{ShareReserved: true}, conf: place.Config{Reserved: set("0,8")}, r: ls(500), want: "in 0-15"},
		"LSE is not on reserved CPUs":       {conf: place.Config{Reserved: set("0,8")}, r: lse(2), want: "own 4,12"},
		"a floor outside the pool":          {conf: place.Config{Reserved: set("0,8")}, r: lse(14), want: "*place.CPUsError"},
		"all but a floor":                   {conf: place.Config{Reserved: set("0,8")}, r: lse(13), want: "own 2-7,9-15"},
		"mode Exclusive binds LS":           {conf: none, r: with(ls(2000), func(r *place.Request) { r.Mode = place.Exclusive }), want: "own 0,8"},
		"mode Shared does not bind LSE":     {conf: none, r: with(lse(2), func(r *place.Request) { r.Mode = place.Shared }), want: "in 0-15"},
		"mode Mixed":                        {conf: none, r: with(lse(0), func(r *place.Request) { r.Mode, r.Milli = place.Mixed, 2500 }), want: "own 0,8 in 0-15"},
		"LS time that bound CPUs leave":     {conf: none, held: []place.Request{lse(8)}, r: ls(8000), want: "in 0-15 on 4-7,12-15"},
		"LS time that they do not leave":    {conf: none, held: []place.Request{lse(8)}, r: ls(8001), want: "*place.CPUsError"},
		"Amplification of LS":               {policy: policy{Amplification: 150}, conf: none, held: []place.Request{lse(8)}, r: ls(12000), want: "in 0-15 on 4-7,12-15"},
		"CPUs that LS leaves":               {conf: none, held: []place.Request{ls(9000)}, r: lse(8), want: "*place.CPUsError"},
		"Amplification of bound CPUs":       {policy: policy{Amplification: 150}, conf: none, held: []place.Request{ls(9000)}, r: lse(8), want: "own 0-3,8-11"},
		"FullPCPUs by default":              {conf: none, r: lse(4), want: "own 0-1,8-9"},
		"Policy.Bind":                       {policy: policy{Bind: place.SpreadByPCPUs}, conf: none, r: lse(4), want: "own 0-3"},
		"Request.Bind":                      {conf: none, r: with(lse(4), spread), want: "own 0-3"},
		"Request.Bind before Policy.Bind":   {policy: policy{Bind: place.SpreadByPCPUs}, conf: none, r: with(lse(4), full), want: "own 0-1,8-9"},
		"half cores by preference":          {conf: none, r: lse(3), want: "own 0-1,8"},
		"no half cores":                     {conf: none, r: with(lse(3), full), want: "*place.SMTError"},
		"too few whole cores":               {conf: none, held: []place.Request{with(lse(7), spread), with(lse(7), spread)}, r: with(lse(2), full), want: "*place.SMTError"},
		"second threads by preference":      {conf: none, r: with(lse(9), spread), want: "own 0-8"},
		"no second threads":                 {conf: none, r: with(lse(9), func(r *place.Request) { r.Bind, r.BindRequired = place.SpreadByPCPUs, true }), want: "*place.CPUsError"},
		"LeastAllocated by default":         {conf: none, held: []place.Request{lse(2)}, r: lse(2), want: "own 4,12"},
		"Policy.Strategy":                   {policy: policy{Strategy: place.MostAllocated}, conf: none, held: []place.Request{lse(2)}, r: lse(2), want: "own 1,9"},
		"Request.Strategy":                  {conf: none, held: []place.Request{lse(2)}, r: with(lse(2), strategy(place.MostAllocated)), want: "own 1,9"},
		"Request.Strategy before Policy's":  {policy: policy{Strategy: place.MostAllocated}, conf: none, held: []place.Request{lse(2)}, r: with(lse(2), strategy(place.LeastAllocated)), want: "own 4,12"},
		"DistributeEvenly":                  {conf: none, r: with(lse(4), strategy(place.DistributeEvenly)), want: "own 0,4,8,12"},
		"DistributeEvenly by CPU":           {conf: none, r: with(lse(6), func(r *place.Request) { r.Strategy, r.Bind = place.DistributeEvenly, place.SpreadByPCPUs }), want: "own 0-2,4-6"},
		"DistributeEvenly of one core":      {conf: none, held: []place.Request{lse(2)}, r: with(lse(2), strategy(place.DistributeEvenly)), want: "own 4,12"},
		"DistributeEvenly as rooms allow":   {conf: none, held: []place.Request{with(lse(6), on("0", true))}, r: with(lse(8), strategy(place.DistributeEvenly)), want: "own 3-6,11-14"},
		"CPULevel beside a sibling":         {conf: none, held: []place.Request{with(lse(3), on("0", true))}, r: with(lse(4), on("0", true)), want: "own 2-3,10-11"},
		"CPULevel leaves siblings":          {conf: none, r: with(lsr(2), spread), want: "own 0-1 lent"},
		"PCPULevel":                         {conf: none, r: with(lsr(2), level(place.PCPULevel)), want: "own 0-1 fence 8-9"},
		"nobody enters a PCPULevel core":    {conf: none, held: []place.Request{with(lsr(6), level(place.PCPULevel))}, r: with(lse(4), spread), want: "own 4-7"},
		"PCPULevel enters no used core":     {conf: none, held: []place.Request{with(lse(3), spread)}, r: with(lse(2), func(r *place.Request) { level(place.PCPULevel)(r); on("0", true)(r) }), want: "own 3,11"},
		"NUMANodeLevel":                     {conf: none, r: with(lse(2), level(place.NUMANodeLevel)), want: "own 0-1 fence 2-3,8-11"},
		"nobody enters a NUMANodeLevel":     {conf: none, held: []place.Request{with(lse(2), level(place.NUMANodeLevel))}, r: lse(10), want: "*place.CPUsError"},
		"BE neither":                        {conf: none, held: []place.Request{with(lsr(2), level(place.NUMANodeLevel))}, r: be, want: "in 0-15 on 4-7,12-15"},
		"NUMANodeLevel enters no used node": {conf: none, held: []place.Request{lse(2)}, r: with(lse(2), level(place.NUMANodeLevel)), want: "own 4-5 fence 6-7,12-15"},
		"NUMANodeLevel beside LS":           {conf: none, held: []place.Request{with(ls(500), on("0", true))}, r: with(lse(2), level(place.NUMANodeLevel)), want: "own 4-5 fence 6-7,12-15"},
		"Nodes":                             {conf: none, r: with(lse(2), on("1", false)), want: "own 4,12"},
		"Nodes divide":                      {conf: none, r: with(lse(4), on("0-1", true)), want: "own 0,4,8,12"},
		"Nodes by preference":               {conf: none, held: []place.Request{with(lse(8), on("1", true))}, r: with(lse(2), on("1", false)), want: "own 0,8"},
		"Nodes required":                    {conf: none, held: []place.Request{with(lse(8), on("1", true))}, r: with(lse(2), on("1", true)), want: "*place.NUMAError"},
		"LS on nodes":                       {conf: none, r: with(ls(500), on("1", false)), want: "in 4-7,12-15"},
		"LS off full nodes":                 {conf: none, r: with(ls(8500), on("1", false)), want: "in 0-15"},
		"LS on full nodes":                  {conf: none, r: with(ls(8500), on("1", true)), want: "*place.NUMAError"},
		"LS keeps CPUs of its nodes":        {conf: none, held: []place.Request{with(ls(5000), on("1", true))}, r: with(lse(4), on("1", false)), want: "own 0-1,8-9"},
		"without MaxNodes":                  {conf: none, r: with(lse(4), strategy(place.DistributeEvenly)), want: "own 0,4,8,12"},
		"MaxNodes":                          {conf: none, r: with(lse(4), func(r *place.Request) { r.Strategy, r.MaxNodes = place.DistributeEvenly, 1 }), want: "own 0-1,8-9"},
		"more than MaxNodes":                {conf: none, r: with(lse(10), func(r *place.Request) { r.MaxNodes = 1 }), want: "*place.NUMAError"},
		"MaxNodes with memory":              {conf: place.Config{NoFloor: true, Memory: stock}, r: with(lse(2), func(r *place.Request) { memory(6)(r); r.MaxNodes = 1 }), want: "own 4,12 1=6"},
		"memory overflows":                  {conf: place.Config{NoFloor: true, Memory: stock}, r: with(lse(2), memory(6)), want: "own 0,8 0=4 1=2"},
		"memory on required nodes":          {conf: place.Config{NoFloor: true, Memory: stock}, r: with(lse(2), func(r *place.Request) { memory(6)(r); on("0", true)(r) }), want: "*place.NUMAError"},
		"memory that nodes do not count":    {conf: none, r: with(lse(2), func(r *place.Request) { r.Memory = []place.Amount{{Resource: "other", Bytes: 1}} }), want: "own 0,8"},
		"devices": {
			conf: place.Config{NoFloor: true, Devices: []place.Device{{Name: "a", Kind: "gpu", Nodes: set("1")}, {Name: "b", Kind: "gpu", Nodes: set("0")}}},
			r:    with(lse(2), func(r *place.Request) { r.Devices = []place.DeviceRequest{{Kind: "gpu", Count: 1}} }), want: "own 0,8 b",
		},
		"preferred CPUs":               {conf: none, r: with(lse(2), prefer("5-6,13")), want: "own 5,13"},
		"fewer preferred CPUs":         {conf: none, r: with(lse(4), prefer("5,13")), want: "own 0,5,8,13"},
		"preferred CPUs that are held": {conf: none, held: []place.Request{lse(2)}, r: with(lse(2), prefer("0,8")), want: "own 4,12"},
		"preferred CPUs of no list":    {conf: none, r: with(lse(2), prefer("5-")), want: "*place.InvalidError"},
		"CPUs of an initial workload":  {conf: none, held: []place.Request{with(lse(2), group(place.Init))}, r: with(lse(2), group(place.App)), want: "own 0,8"},
		"reserved initial CPUs": {
			conf: place.Config{NoFloor: true, Reserved: set("0,8")},
			held: []place.Request{with(place.Request{Class: place.System, Mode: place.Exclusive, Milli: 2000}, func(r *place.Request) { group(place.Init)(r); prefer("0,8")(r) })},
			r:    with(lse(2), group(place.App)), want: "own 4,12",
		},
		"CPUs of a sidecar":             {conf: none, held: []place.Request{with(lse(2), group(place.Sidecar))}, r: with(lse(2), group(place.App)), want: "own 4,12"},
		"MaxRefs":                       {conf: place.Config{NoFloor: true, MaxRefs: 2}, r: lsr(2), want: "in 0,8 counted"},
		"fewest holders first":          {conf: place.Config{NoFloor: true, MaxRefs: 2}, held: []place.Request{lsr(4)}, r: with(lsr(6), on("0", true)), want: "in 0,2-3,8,10-11 counted"},
		"twice the CPUs":                {conf: place.Config{NoFloor: true, MaxRefs: 2}, held: []place.Request{lsr(16)}, r: lsr(16), want: "in 0-15 counted"},
		"three times the CPUs":          {conf: place.Config{NoFloor: true, MaxRefs: 2}, held: []place.Request{lsr(16), lsr(16)}, r: lsr(1), want: "*place.CPUsError"},
		"LSE is not counted":            {conf: place.Config{NoFloor: true, MaxRefs: 2}, held: []place.Request{lsr(2)}, r: lse(2), want: "own 4,12"},
		"what is exclusive is not":      {conf: place.Config{NoFloor: true, MaxRefs: 2}, r: with(lsr(1), level(place.PCPULevel)), want: "own 0 fence 8"},
		"LS is not on counted CPUs":     {conf: place.Config{NoFloor: true, MaxRefs: 2}, held: []place.Request{lsr(2)}, r: ls(500), want: "in 0-15 on 1-7,9-15"},
		"BE is on counted CPUs":         {conf: place.Config{NoFloor: true, MaxRefs: 2}, held: []place.Request{lsr(2)}, r: be, want: "in 0-15"},
		"isolated CPUs are not known":   {conf: none, r: with(lse(2), func(r *place.Request) { r.Isolated = place.Require }), want: "*place.RejectedError"},
		"a negative amplification":      {policy: policy{Amplification: -1}, r: lse(2), want: "*place.InvalidError"},
		"the last CPU of LS on a node":  {conf: none, held: []place.Request{with(ls(0), on("0", true))}, r: with(lse(8), on("0", true)), want: "*place.NUMAError"},
		"all but the last CPU of LS":    {conf: none, held: []place.Request{with(ls(0), on("0", true))}, r: with(lse(7), on("0", true)), want: "own 0-3,8-10"},
		"what is left when all is held": {conf: none, held: []place.Request{lse(16)}, r: ls(0), want: "*place.CPUsError"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := place.New(placetest.Topology(t, "2s4c2t"), tt.conf)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range tt.held {
				r.ID = fmt.Sprint("held", i)
				s = commit(t, s)(place.Place(tt.policy, s, &r))
			}
			tt.r.ID = "new"
			o, err := place.Place(tt.policy, s, &tt.r)
			if got := describe(t, s, o, err); got != tt.want {
				t.Errorf("got  %s\nwant %s (%v)", got, tt.want, err)
			}
		})
	}
}

func commit(t *testing.T, s *place.State) func(place.Offer, error) *place.State {
	return func(o place.Offer, err error) *place.State {
		t.Helper()
		if err == nil {
			s, err = s.Commit(o)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// describe says in one line what was offered, and where it runs if that is less
// than its bound.
func describe(t *testing.T, s *place.State, o place.Offer, err error) string {
	t.Helper()
	if err != nil {
		return fmt.Sprintf("%T", err)
	}
	g := o.Grant
	next := commit(t, s)(o, nil)
	var words []string
	say := func(word string, set cpuset.Set) {
		if !set.IsEmpty() {
			words = append(words, word+" "+set.String())
		}
	}
	say("own", g.Own)
	say("fence", g.Fence)
	say("in", g.Share.Within)
	if on := next.Effective(g); on != g.Share.Within && on != g.Own {
		say("on", on)
	}
	if g.Lent {
		words = append(words, "lent")
	}
	if g.Share.Counted {
		words = append(words, "counted")
	}
	for _, b := range g.Memory {
		words = append(words, fmt.Sprintf("%d=%d", b.Node, b.Bytes>>30))
	}
	return strings.Join(append(words, g.Devices...), " ")
}

// TestLoads has LS in the pools of nodes, on a machine of four nodes of 4 CPUs.
func TestLoads(t *testing.T) {
	t.Parallel()
	ls := func(milli int, nodes string) place.Request {
		return place.Request{Class: place.LS, Milli: milli, Nodes: cpuset.MustParse(nodes), NodesRequired: true}
	}
	lse := func(cpus int, nodes string) place.Request {
		return place.Request{Class: place.LSE, Milli: 1000 * cpus, Nodes: cpuset.MustParse(nodes), NodesRequired: true}
	}
	tests := map[string]struct {
		held []place.Request
		r    place.Request
		want string
	}{
		"half on each":                  {held: []place.Request{ls(4000, "0-1")}, r: ls(2000, "1"), want: "in 2-3,10-11"},
		"more than is left on one":      {held: []place.Request{ls(4000, "0-1")}, r: ls(2001, "1"), want: "*place.NUMAError"},
		"the rest on both":              {held: []place.Request{ls(4000, "0-1")}, r: ls(4000, "0-1"), want: "in 0-3,8-11"},
		"more where CPUs are":           {held: []place.Request{lse(3, "0"), ls(4000, "0-1")}, r: ls(1000, "1"), want: "in 2-3,10-11"},
		"not more than that":            {held: []place.Request{lse(3, "0"), ls(4000, "0-1")}, r: ls(1001, "1"), want: "*place.NUMAError"},
		"bound to what LS does not use": {held: []place.Request{ls(4000, "0-1")}, r: lse(2, "1"), want: "own 2,10"},
		"bound to no more":              {held: []place.Request{ls(4000, "0-1")}, r: lse(3, "1"), want: "*place.NUMAError"},
		"other nodes are free of it":    {held: []place.Request{ls(4000, "0-1")}, r: lse(4, "2"), want: "own 4-5,12-13"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := koordinator.Policy{}
			s, err := place.New(placetest.Topology(t, "1s4n2c2t"), place.Config{NoFloor: true})
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range tt.held {
				r.ID = fmt.Sprint("held", i)
				s = commit(t, s)(place.Place(p, s, &r))
			}
			tt.r.ID = "new"
			o, err := place.Place(p, s, &tt.r)
			if got := describe(t, s, o, err); got != tt.want {
				t.Errorf("got  %s\nwant %s (%v)", got, tt.want, err)
			}
		})
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		conf     place.Config
		from, to place.Request
		beside   []place.Request
		want     string
	}{
		"grow":             {from: lseOf(4, 0), to: lseOf(8, 0), want: "own 0-3,8-11"},
		"grow elsewhere":   {from: lseOf(4, 0), to: lseOf(6, 0), beside: []place.Request{lseOf(8, 0), lseOf(4, 0)}, want: "*place.CPUsError"},
		"shrink":           {from: lseOf(4, 0), to: lseOf(2, 0), want: "own 0,8"},
		"to nothing":       {from: lseOf(4, 0), to: lseOf(0, 0), want: "in 0-15"},
		"with other nodes": {from: lseOf(4, 0), to: place.Request{Class: place.LSE, Milli: 6000, Nodes: cpuset.MustOf(1), NodesRequired: true}, want: "*place.RejectedError"},
		"with nodes liked": {from: lseOf(4, 0), to: place.Request{Class: place.LSE, Milli: 6000, Nodes: cpuset.MustOf(1)}, want: "own 0-2,8-10"},
		"memory grows": {
			conf: place.Config{Memory: []place.Block{{Node: 0, Resource: place.Memory, Bytes: 4 << 30}, {Node: 1, Resource: place.Memory, Bytes: 4 << 30}}},
			from: lseOf(4, 3), to: lseOf(4, 5), want: "own 0-1,8-9 0=4 1=1",
		},
		"memory shrinks": {
			conf: place.Config{Memory: []place.Block{{Node: 0, Resource: place.Memory, Bytes: 4 << 30}, {Node: 1, Resource: place.Memory, Bytes: 4 << 30}}},
			from: lseOf(4, 5), to: lseOf(4, 3), want: "own 0-1,8-9 0=3",
		},
		"other devices": {
			conf: place.Config{Devices: []place.Device{{Name: "a", Kind: "gpu"}}},
			from: lseOf(2, 0), to: place.Request{Class: place.LSE, Milli: 2000, Devices: []place.DeviceRequest{{Kind: "gpu", Count: 1}}}, want: "*place.RejectedError",
		},
		"same devices": {
			conf: place.Config{Devices: []place.Device{{Name: "a", Kind: "gpu"}}},
			from: place.Request{Class: place.LSE, Milli: 2000, Devices: []place.DeviceRequest{{Kind: "gpu", Count: 1}}},
			to:   place.Request{Class: place.LSE, Milli: 4000, Devices: []place.DeviceRequest{{Kind: "gpu", Count: 1}}}, want: "own 0-1,8-9 a",
		},
		"counted CPUs grow": {
			conf: place.Config{MaxRefs: 2},
			from: place.Request{Class: place.LSR, Milli: 2000, Nodes: cpuset.MustOf(1)}, to: place.Request{Class: place.LSR, Milli: 4000},
			want: "in 4-5,12-13 counted",
		},
		"grow evenly": {
			from: place.Request{Class: place.LSE, Milli: 4000, Nodes: cpuset.MustOf(0)},
			to:   place.Request{Class: place.LSE, Milli: 6000, Strategy: place.DistributeEvenly}, want: "own 0-2,4,8-9",
		},
		"shrink evenly": {
			from: place.Request{Class: place.LSE, Milli: 4000, Nodes: cpuset.MustOf(0)},
			to:   place.Request{Class: place.LSE, Milli: 2000, Strategy: place.DistributeEvenly}, want: "own 0,8",
		},
		"LS takes time back": {from: place.Request{Milli: 15000}, to: place.Request{Milli: 16000}, want: "in 0-15"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := koordinator.Policy{}
			tt.conf.NoFloor = true
			s, err := place.New(placetest.Topology(t, "2s4c2t"), tt.conf)
			if err != nil {
				t.Fatal(err)
			}
			tt.from.ID, tt.to.ID = "new", "new"
			s = commit(t, s)(place.Place(p, s, &tt.from))
			for i, r := range tt.beside {
				r.ID = fmt.Sprint("beside", i)
				s = commit(t, s)(place.Place(p, s, &r))
			}
			o, err := place.Resize(p, s, &tt.to)
			if got := describe(t, s, o, err); got != tt.want {
				t.Errorf("got  %s\nwant %s (%v)", got, tt.want, err)
			}
		})
	}
}

func lseOf(cpus int, gib int64) place.Request {
	r := place.Request{Class: place.LSE, Milli: 1000 * cpus}
	if gib > 0 {
		r.Memory = []place.Amount{{Resource: place.Memory, Bytes: gib << 30}}
	}
	return r
}
