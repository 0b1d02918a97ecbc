package batch

import (
	"encoding/json"
	"strings"
	"testing"
)

const gib = 1 << 30

// node is one of 100 CPUs and 400 GiB with a system that uses 10 CPUs and 20 GiB, of which 4
// CPUs and 8 GiB are reserved, and prod pods that request 40 CPUs and 160 GiB.
func node(change func(*Node)) *Node {
	n := &Node{
		Capacity: Amount{100_000, 400 * gib}, Reserved: Amount{4000, 8 * gib}, System: Amount{10_000, 20 * gib},
		Pods: []Pod{
			{Kind: Prod, Request: Amount{30_000, 100 * gib}, Used: &Amount{20_000, 120 * gib}},
			{Kind: Mid, Request: Amount{10_000, 60 * gib}, Used: &Amount{2000, 10 * gib}},
			{Kind: Batch, Request: Amount{50_000, 50 * gib}, Used: &Amount{30_000, 50 * gib}},
			{Kind: Free, Request: Amount{1000, gib}, Used: &Amount{9000, gib}},
		},
	}
	if change != nil {
		change(n)
	}
	return n
}

func TestBatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		s    Strategy
		n    *Node
		want Amount
	}{
		// 60 % of 100 CPUs - 10 system - 22 used; 65 % of 400 GiB - 20 - 130.
		"usage is the default": {Strategy{}, node(nil), Amount{28_000, 110 * gib}},
		// what is reserved counts if the system uses less
		"reserved": {Strategy{}, node(func(n *Node) { n.System = Amount{1000, gib} }), Amount{34_000, 122 * gib}},
		// 260 GiB - 8 reserved - 160 requested
		"request": {Strategy{Memory: Request}, node(nil), Amount{28_000, 92 * gib}},
		// 60 - 10 - (30 + 10); 260 - 20 - (120 + 60)
		"maxUsageRequest":                     {Strategy{CPU: MaxUsageRequest, Memory: MaxUsageRequest}, node(nil), Amount{10_000, 60 * gib}},
		"no metrics of a pod: its request":    {Strategy{}, node(func(n *Node) { n.Pods[0].Used = nil }), Amount{18_000, 130 * gib}},
		"LSE: CPU by request, memory by use":  {Strategy{}, node(func(n *Node) { n.Pods[0].LSE = true }), Amount{18_000, 110 * gib}},
		"figures of pods that are gone count": {Strategy{}, node(func(n *Node) { n.Gone = Amount{3000, 10 * gib} }), Amount{25_000, 100 * gib}},
		"never below zero":                    {Strategy{}, node(func(n *Node) { n.System = Amount{90_000, 300 * gib} }), Amount{0, 0}},
		"other margins":                       {Strategy{CPUReclaim: 80, MemoryReclaim: 50}, node(nil), Amount{48_000, 50 * gib}},
		"a bound":                             {Strategy{CPUMost: 20, MemoryMost: 10}, node(nil), Amount{20_000, 40 * gib}},
		"a bound that is not reached":         {Strategy{CPUMost: 50, MemoryMost: 90}, node(nil), Amount{28_000, 110 * gib}},
		"nothing":                             {Strategy{}, &Node{}, Amount{}},
		"bytes beyond what a percentage of an int64 holds": {Strategy{}, &Node{Capacity: Amount{1000, 1 << 62}}, Amount{600, 2997595911977802138}},
	} {
		if got := c.s.Batch(c.n); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestMid(t *testing.T) {
	t.Parallel()
	full := func(n *Node) { n.Used, n.Reclaimable = Amount{70_000, 200 * gib}, Amount{8000, 300 * gib} }
	for name, c := range map[string]struct {
		s    Strategy
		n    *Node
		want Amount
	}{
		"no prediction":                   {Strategy{}, node(nil), Amount{}},
		"the smaller of both":             {Strategy{}, node(full), Amount{8000, 200 * gib}},
		"a bound":                         {Strategy{MidCPU: 5, MidMemory: 25}, node(full), Amount{5000, 100 * gib}},
		"a part of what is not requested": {Strategy{MidUnallocated: 50}, node(nil), Amount{30_000, 140 * gib}}, // (100-10-30)/2, (400-20-100)/2
		"static":                          {Strategy{MidStatic: 10}, node(full), Amount{10_000, 40 * gib}},
	} {
		if got := c.s.Mid(c.n); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestKindOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		label    string
		priority int32
		be       bool
		want     Kind
	}{
		{"koord-batch", 9500, false, Batch}, {"", 9000, true, Prod}, {"", 9999, false, Prod}, {"", 7000, false, Mid}, {"", 5999, false, Batch},
		{"", 3500, false, Free}, {"", 0, false, Prod}, {"", 0, true, Batch}, {"odd", 0, false, Prod}, {"", 10_000, false, Prod}, {"koord-free", 0, false, Free},
	} {
		if got := KindOf(c.label, c.priority, c.be); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	s := Strategy{CPU: Request, CPUReclaim: 101, MidStatic: -1, MidMargin: 200, MidColdStart: 10_081}
	err := s.Validate()
	for _, want := range []string{"cpuReclaimPercent 101", "midStaticPercent -1", "midMarginPercent 200", "midColdStartMinutes 10081", "policy of memory only"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := json.Unmarshal([]byte(`{"cpu":"maxUsageRequest","memory":"request"}`), &s); err != nil || s.CPU != MaxUsageRequest || s.Memory != Request {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestWhatMidNeeds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s               Strategy
		tells, predicts bool
	}{
		{Strategy{}, false, false}, {Strategy{MidMargin: 20}, false, false}, {Strategy{MidStatic: 5, MidCPU: 50}, true, false},
		{Strategy{MidMemory: 50}, true, true}, {Strategy{MidUnallocated: 10}, true, true},
	} {
		if c.s.TellsMid() != c.tells || c.s.Predicts() != c.predicts {
			t.Errorf("%+v: %v, %v", c.s, c.s.TellsMid(), c.s.Predicts())
		}
	}
}

// More use never gives more to batch work, and all policies stay within the capacity.
func FuzzBatch(f *testing.F) {
	f.Add(int64(1000), int64(100), int64(50), int64(20), uint8(0), 60)
	f.Fuzz(func(t *testing.T, capacity, request, used, system int64, policy uint8, reclaim int) {
		bound := func(v *int64) { *v = max(0, *v%(1<<50)) }
		for _, v := range []*int64{&capacity, &request, &used, &system} {
			bound(v)
		}
		s := Strategy{Memory: []Policy{Usage, Request, MaxUsageRequest}[policy%3], MemoryReclaim: 1 + max(0, reclaim%100)}
		give := func(used int64) int64 {
			n := Node{Capacity: Amount{0, capacity}, System: Amount{0, system}, Pods: []Pod{{Request: Amount{0, request}, Used: &Amount{0, used}}}}
			return s.Batch(&n).Memory
		}
		little, more := give(used), give(used+1000)
		if little < 0 || little > capacity || more > little {
			t.Errorf("%d of %d, with more use %d", little, capacity, more)
		}
	})
}
