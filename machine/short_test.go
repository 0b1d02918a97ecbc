package machine

import (
	"fmt"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"

	"github.com/google/go-cmp/cmp"
)

func short(t *testing.T, form string) *Machine {
	t.Helper()
	m, err := Short(form)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestShort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		form string
		cpus int
		n    [6]int // sockets, dies, nodes, L3, L2, cores
		// the core and the node of the last CPU
		core, node string
	}{
		{"1c", 1, [...]int{1, 1, 1, 1, 1, 1}, "0", "0"},
		{"4c2t", 8, [...]int{1, 1, 1, 1, 4, 4}, "3,7", "0-7"},
		{"2s4n16c2t", 256, [...]int{2, 2, 8, 2, 128, 128}, "127,255", "112-127,240-255"},
		{"2s4n4l8c2t", 512, [...]int{2, 2, 8, 32, 256, 256}, "255,511", "224-255,480-511"},
		{"2s2d2l3c", 24, [...]int{2, 4, 2, 8, 24, 24}, "23", "12-23"},
		{"1n2s8c", 16, [...]int{2, 2, 1, 2, 16, 16}, "15", "0-15"},
		{"2n2s8c", 32, [...]int{4, 4, 2, 4, 32, 32}, "31", "16-31"},
		{"2l2n4c", 16, [...]int{1, 1, 4, 2, 16, 16}, "15", "12-15"},
		{"2048c", 2048, [...]int{1, 1, 1, 1, 2048, 2048}, "2047", "0-2047"},
		{"1c4t", 4, [...]int{1, 1, 1, 1, 1, 1}, "0-3", "0-3"},
	} {
		m := short(t, c.form)
		if err := m.Validate(); err != nil {
			t.Errorf("%s: %v", c.form, err)
		}
		var n [6]int
		for i, k := range Kinds() {
			n[i] = len(m.ByKind(k))
		}
		if diff := cmp.Diff(c.n, n); diff != "" || m.Online.Len() != c.cpus {
			t.Errorf("%s: %d CPUs, want %d; domains (-want +got):\n%s", c.form, m.Online.Len(), c.cpus, diff)
		}
		core, _ := m.Of(Core, c.cpus-1)
		node, _ := m.Of(Node, c.cpus-1)
		if core.CPUs.String() != c.core || node.CPUs.String() != c.node {
			t.Errorf("%s: last CPU's core %s and node %s, want %s and %s", c.form, core.CPUs, node.CPUs, c.core, c.node)
		}
	}
}

func TestShortDistances(t *testing.T) {
	t.Parallel()
	want := [][]int{{10, 12, 20, 20}, {12, 10, 20, 20}, {20, 20, 10, 12}, {20, 20, 12, 10}}
	if diff := cmp.Diff(want, short(t, "2s2n1c").Distances); diff != "" {
		t.Error(diff)
	}
}

func TestShortKernelIDs(t *testing.T) {
	t.Parallel()
	m := short(t, "2s2d2c")
	for k, want := range map[Kind][]int{
		Socket: {0, 1}, Die: {0, 1, 0, 1}, Core: {0, 1, 2, 3, 0, 1, 2, 3}, L2: {0, 1, 2, 3, 4, 5, 6, 7},
	} {
		var got []int
		for _, d := range m.ByKind(k) {
			got = append(got, d.KernelID)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", k, diff)
		}
	}
}

func TestShortRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ form, want string }{
		{"", "cores (c) are missing"},
		{"2s", "cores (c) are missing"},
		{"2t", "cores (c) are missing"},
		{"c", `a count is missing before "c"`},
		{"2sc", `a count is missing before "c"`},
		{"2s4", "a letter is missing"},
		{"0s4c", `"0s" counts nothing`},
		{"2s4c0t", `"0t" counts nothing`},
		{"2s2s4c", `"s" is there twice`},
		{"2x4c", `"x" is none of the letters`},
		{"2S4C", `"S" is none of the letters`},
		{"4c2s", "come last"},
		{"4c2t2s", "come last"},
		{"2t4c", "come last"},
		{"2049c", "more than 2048 CPUs"},
		{"64s64c", "more than 2048 CPUs"},
		{"99999999999999999999c", "more than 2048 CPUs"},
		{"-2s4c", "a count is missing"},
		{"2s 4c", "a count is missing"},
		{"2s4c ", "a count is missing"},
	} {
		m, err := Short(c.form)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Short(%q) = %v, %v; want an error with %q", c.form, m, err, c.want)
		}
	}
}

// TestShortProduct: the product of all counts is the number of CPUs, each
// level has the product of the counts up to it.
func TestShortProduct(t *testing.T) {
	t.Parallel()
	for s := 1; s <= 3; s++ {
		for n := 1; n <= 3; n++ {
			for c := 1; c <= 3; c++ {
				for th := 1; th <= 2; th++ {
					m := short(t, fmt.Sprintf("%ds%dn%dc%dt", s, n, c, th))
					if m.Online.Len() != s*n*c*th || len(m.ByKind(Node)) != s*n || len(m.ByKind(Core)) != s*n*c {
						t.Errorf("%s: %d CPUs, %d nodes, %d cores", m.Name, m.Online.Len(), len(m.ByKind(Node)), len(m.ByKind(Core)))
					}
					if err := m.Validate(); err != nil {
						t.Errorf("%s: %v", m.Name, err)
					}
				}
			}
		}
	}
}

func FuzzShort(f *testing.F) {
	for _, s := range []string{"2s4n16c2t", "1n2s8c", "2048c", "4c2s", "99999999999c", "2s2d2n2l2c2t"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, form string) {
		m, err := Short(form)
		if err != nil {
			return
		}
		if err := m.Validate(); err != nil {
			t.Fatalf("Short(%q): %v", form, err)
		}
	})
}

func TestQueries(t *testing.T) {
	t.Parallel()
	m := short(t, "2s2n2l2c2t") // 32 CPUs, 16 cores
	inside := m.Inside(L3, cpuset.MustParse("0-3,16-20,22"))
	if len(inside) != 2 || inside[1].ID != 1 {
		t.Errorf("L3 inside 0-3,16-20,22: %v", inside)
	}
	if got := m.Inside(L3, cpuset.Set{}); got != nil {
		t.Errorf("inside the empty set: %v", got)
	}
	if d, ok := m.Of(Node, 19); !ok || d.ID != 0 {
		t.Errorf("node of CPU 19: %v, %v", d, ok)
	}
	if _, ok := m.Of(Node, 32); ok {
		t.Error("CPU 32 has a node")
	}
	if _, ok := m.Of(Kind(9), 0); ok {
		t.Error("there is a domain of kind 9")
	}
	if d, ok := m.Distance(0, 1); !ok || d != 12 {
		t.Errorf("distance 0-1: %d, %v", d, ok)
	}
	if _, ok := m.Distance(0, 4); ok {
		t.Error("there is a distance to node 4")
	}
	if len(m.ByKind(L2)) != 16 || cap(m.ByKind(L2)) != 16 {
		t.Error("appending to ByKind's answer would overwrite the machine")
	}
}

func TestInsideSkipsMemoryOnlyNodes(t *testing.T) {
	t.Parallel()
	m := short(t, "2n1c")
	m.Domains[3].CPUs = cpuset.Set{}
	if got := m.Inside(Node, m.Online); len(got) != 1 || got[0].ID != 0 {
		t.Errorf("nodes inside: %v", got)
	}
}

func TestKindText(t *testing.T) {
	t.Parallel()
	for i, want := range []string{"socket", "die", "node", "l3", "l2", "core"} {
		text, err := Kind(i).MarshalText()
		if err != nil || string(text) != want || Kind(i).String() != want {
			t.Errorf("kind %d: %s, %v; want %s", i, text, err, want)
		}
		var k Kind
		if err := k.UnmarshalText(text); err != nil || k != Kind(i) {
			t.Errorf("%s: %v, %v", text, k, err)
		}
	}
	for _, k := range []Kind{-1, 6} {
		if _, err := k.MarshalText(); err == nil {
			t.Errorf("%s was written", k)
		}
	}
	for _, text := range []string{"", "l1", "core "} {
		var k Kind
		if err := k.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was read as %s", text, k)
		}
	}
}
