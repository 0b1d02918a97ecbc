package agent

import (
	"errors"
	"fmt"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
	"berth.dev/berth/place/kubelet"
)

// TestGivenMems has memory nodes named, and CPUs chosen by the policy.
func TestGivenMems(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, layout)
			n := h.open()
			for _, class := range []place.Class{place.LS, place.LSE} {
				s := spec(class.String(), class, 1000, 0)
				s.Mems = cpuset.MustParse("1")
				s.Request.Nodes, s.Request.NodesRequired = s.Mems, true
				w := h.place(n, s)
				if w.Mems != s.Mems || !cpuset.MustParse("4-7").Contains(w.CPUs) {
					t.Errorf("%s: memory nodes %s, CPUs %s", class, w.Mems, w.CPUs)
				}
				s.Mems, s.Request.Nodes = cpuset.MustParse("0"), cpuset.MustParse("0")
				w, err := n.Resize(t.Context(), s)
				if err != nil || w.Mems != s.Mems {
					t.Errorf("%s: resized: memory nodes %s, %v", class, w.Mems, err)
				}
			}
		})
	}
}

// TestNearMems has memory come from the nearest nodes of sets, and what is promised with it.
func TestNearMems(t *testing.T) {
	t.Parallel()
	near := func(sets ...string) (all []cpuset.Set) {
		for _, s := range sets {
			all = append(all, cpuset.MustParse(s))
		}
		return all
	}
	h := newHost(t, layouts()["v2"])
	h.opt.Config.Memory = []place.Block{{Node: 0, Resource: place.Memory, Bytes: 10}, {Node: 1, Resource: place.Memory, Bytes: 10}}
	n := h.open()
	s := spec("api", place.LSE, 1000, 0)
	s.Request.Nodes, s.Request.NodesRequired = cpuset.MustParse("1"), true
	s.NearMems = near("0-1")
	if w := h.place(n, s); w.Mems.String() != "1" {
		t.Errorf("memory nodes %s, want the nearest", w.Mems)
	}
	for _, c := range []struct {
		sets  []cpuset.Set
		bytes int64
		want  string // memory nodes, and where bytes are; "" is a refusal
	}{
		{near("0"), 0, "0 []"},
		{near("0", "1"), 0, "0-1 []"},
		{near("0"), 4, "0 [{0 memory 4}]"},
		{near("0-1"), 14, "0-1 [{1 memory 10} {0 memory 4}]"},
		{near("0"), 14, ""},
		{near("0-1"), 4, "1 [{1 memory 4}]"},
	} {
		s.NearMems, s.Request.Memory = c.sets, nil
		if c.bytes > 0 {
			s.Request.Memory = []place.Amount{{Resource: place.Memory, Bytes: c.bytes}}
		}
		w, err := n.Resize(t.Context(), s)
		got := ""
		if err == nil {
			got = fmt.Sprint(w.Mems, " ", w.Grant.Memory)
		} else if _, short := errors.AsType[*place.MemoryError](err); !short {
			t.Errorf("%v, %d bytes: %v", c.sets, c.bytes, err)
		}
		if got != c.want {
			t.Errorf("%v, %d bytes: %s, want %s", c.sets, c.bytes, got, c.want)
		}
	}
	shared := spec("batch", place.LS, 0, 0)
	shared.NearMems = near("0-1")
	if w := h.place(n, shared); w.Mems.String() != "0-1" {
		t.Errorf("of the pool: memory nodes %s", w.Mems)
	}
	if w, err := n.Move(t.Context(), "api", cpuset.MustParse("2"), cpuset.Set{}); err != nil || w.Mems.String() != "0" {
		t.Errorf("moved: memory nodes %s, %v", w.Mems, err)
	}
}

// TestResizeKeepsMemory has a resize leave promised memory where its pages lie, though a nearer node
// is free by then.
func TestResizeKeepsMemory(t *testing.T) {
	t.Parallel()
	memory := func(bytes int64) []place.Amount { return []place.Amount{{Resource: place.Memory, Bytes: bytes}} }
	both := cpuset.MustParse("0-1")
	for name, from := range map[string]Spec{"given": {Mems: both}, "nearest": {NearMems: []cpuset.Set{both}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, layouts()["v2"])
			h.opt.Config.Memory = []place.Block{{Node: 0, Resource: place.Memory, Bytes: 10}, {Node: 1, Resource: place.Memory, Bytes: 10}}
			n := h.open()
			on0 := func(id string, class place.Class, bytes int64) Spec {
				s := spec(id, class, 1000, 0)
				s.Request.Nodes, s.Request.NodesRequired, s.Request.Memory = cpuset.MustParse("0"), true, memory(bytes)
				return s
			}
			h.place(n, on0("neighbour", place.LS, 6))
			s := on0("api", place.LSE, 8)
			s.Mems, s.NearMems = from.Mems, from.NearMems
			const want = "0-1 [{0 memory 4} {1 memory 4}]"
			if w := h.place(n, s); fmt.Sprint(w.Mems, " ", w.Grant.Memory) != want {
				t.Fatalf("placed: %s %v, want %s", w.Mems, w.Grant.Memory, want)
			}
			if err := n.Release(t.Context(), "neighbour", WhenEmpty); err != nil {
				t.Fatal(err)
			}
			s.Request.Milli = 2000
			w, err := n.Resize(t.Context(), s)
			if err != nil || w.Grant.Own.Len() != 2 || fmt.Sprint(w.Mems, " ", w.Grant.Memory) != want {
				t.Errorf("resized: %s %v, %v, want %s", w.Mems, w.Grant, err, want)
			}
		})
	}
}

// TestPodWithMems places a pod as one that names memory nodes: its containers are not placed singly.
func TestPodWithMems(t *testing.T) {
	t.Parallel()
	h := newHost(t, layouts()["v2"])
	h.opt.Policy = kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, TopologyManager: kubelet.TopologyManagerSingle, TopologyManagerScope: kubelet.ScopePod}
	h.opt.Config.Reserved = cpuset.MustParse("0")
	n := h.open()
	var pod []Spec
	for _, id := range []string{"a", "b"} { // singly, a would be on node 0 and b on node 1
		s := spec(id, place.LSR, 2000, 0)
		s.Request.Group, s.Mems = "pod", cpuset.MustParse("0")
		pod = append(pod, s)
	}
	all, err := n.PlaceTogether(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if w := &all[i]; w.Mems.String() != "0" || !cpuset.MustParse("4-7").Contains(w.Grant.Own) {
			t.Errorf("%s: memory nodes %s, CPUs %s", w.ID(), w.Mems, w.Grant.Own)
		}
	}
}
