package cgroup

import (
	"math/rand/v2"
	"testing"

	"berth.dev/berth/cpuset"
)

func TestOrder(t *testing.T) {
	t.Parallel()
	set := cpuset.MustParse
	for name, tc := range map[string]struct {
		assignments       []Assignment
		contested, shared string
		want              []Move
		err               bool
	}{
		"nothing to do": {assignments: []Assignment{{"a", set("0"), set("0")}}, shared: "0-3"},
		"the loser first, whatever the order of the assignments": {
			assignments: []Assignment{{"winner", set("0"), set("0,2-3")}, {"loser", set("1-3"), set("1")}},
			contested:   "0,2-3", shared: "0-3",
			want: []Move{{1, set("1")}, {0, set("0,2-3")}},
		},
		"a chain": {
			assignments: []Assignment{{"a", set("0"), set("1")}, {"b", set("1"), set("2")}},
			contested:   "0-2", shared: "0-3",
			want: []Move{{1, set("2")}, {0, set("1")}},
		},
		"an exchange goes by way of the shared CPUs": {
			assignments: []Assignment{{"a", set("0"), set("1")}, {"b", set("1"), set("0")}},
			contested:   "0-1", shared: "0-3",
			want: []Move{{0, set("2-3")}, {1, set("0")}, {0, set("1")}},
		},
		"an exchange without shared CPUs": {
			assignments: []Assignment{{"a", set("0"), set("1")}, {"b", set("1"), set("0")}},
			contested:   "0-1", shared: "0-1", err: true,
		},
		"somebody stays on the CPUs": {
			assignments: []Assignment{{"a", set("0"), set("1")}, {"b", set("1"), set("1")}, {"c", set("2"), set("2")}},
			contested:   "1", shared: "0-3",
			want: []Move{{0, set("1")}},
		},
		"a yielded one is in the way": {
			assignments: []Assignment{{"a", set("0"), set("1-2")}, {"b", set("1"), set("0,2")}, {"c", set("0,2"), set("0,2")}},
			contested:   "0-2", shared: "0-2", err: true,
		},
	} {
		got, err := Order(tc.assignments, set(tc.contested), set(tc.shared))
		if (err != nil) != tc.err {
			t.Errorf("%s: error %v", name, err)
			continue
		}
		if err == nil && !equalMoves(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func equalMoves(a, b []Move) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// division gives every assignment own CPUs or the shared rest, as places do.
func division(rng *rand.Rand, assignments, cpus int) (sets []cpuset.Set, owned cpuset.Set) {
	owner := make([]int, cpus)
	for cpu := 1; cpu < cpus; cpu++ {
		owner[cpu] = rng.IntN(2*assignments) - assignments // below 0 is nobody's
	}
	own := make([]cpuset.Set, assignments)
	for cpu := 1; cpu < cpus; cpu++ {
		if i := owner[cpu]; i >= 0 {
			own[i] = own[i].Union(cpuset.MustOf(cpu))
			owned = owned.Union(cpuset.MustOf(cpu))
		}
	}
	all, _ := cpuset.Range(0, cpus-1)
	for i := range own {
		if own[i].IsEmpty() {
			own[i] = all.Minus(owned)
		}
	}
	return own, owned
}

// From any division of the CPUs to any other, the moves end where they should,
// no set is ever empty, and no owned CPU ever has two assignments.
func TestOrderKeepsExclusive(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 1))
	for range 500 {
		n, cpus := 1+rng.IntN(6), 2+rng.IntN(12)
		from, ownedBefore := division(rng, n, cpus)
		to, ownedAfter := division(rng, n, cpus)
		contested := ownedBefore.Union(ownedAfter)
		var assignments []Assignment
		for i := range from {
			assignments = append(assignments, Assignment{"x", from[i], to[i]})
		}
		all, _ := cpuset.Range(0, cpus-1)
		moves, err := Order(assignments, contested, all)
		if contested.Len() == cpus && err != nil {
			continue
		}
		if err != nil {
			t.Fatalf("%v: %v", assignments, err)
		}
		now := append([]cpuset.Set(nil), from...)
		for _, m := range moves {
			now[m.Assignment] = m.CPUs
			if m.CPUs.IsEmpty() {
				t.Fatalf("%v: %v: an empty set", assignments, moves)
			}
			for i := range now {
				for j := range i {
					allowed := from[i].Intersect(from[j]).Union(to[i].Intersect(to[j]))
					if both := now[i].Intersect(now[j]).Intersect(contested).Minus(allowed); !both.IsEmpty() {
						t.Fatalf("%v: %v: both on %s", assignments, moves, both)
					}
				}
			}
		}
		for i := range now {
			if now[i] != to[i] {
				t.Fatalf("%v: assignment %d ends on %s", assignments, i, now[i])
			}
		}
	}
}
