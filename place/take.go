package place

import (
	"strconv"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// Mode of a Stage.
type StageMode int

// The modes of a Stage.
const (
	// Fill takes units, best rank first, that are wholly free and no larger than
	// what is still needed, until nothing is needed or no such unit is left.
	Fill StageMode = iota
	// Enter looks for the best unit that has all that is still needed and goes on
	// inside it; if there is no such unit, the stage is skipped.
	Enter
	// Spill visits units, best rank first, and does the later stages inside each
	// until nothing is needed. The later stages take the rest from the present scope;
	// where the machine has no such kind, that is all of it.
	Spill
)

// Stage is one step of Take: a choice among the domains of a kind, or CPUs.
type Stage struct {
	Name     string
	Mode     StageMode
	Kind     machine.Kind // of the units; CPU for single CPUs
	Criteria []string     // names of the rank's integers
	// Rank ranks a unit, by position; nil ranks all alike. Ties end in the
	// lowest free CPU.
	Rank func(v *View, pos int) Rank
	// Fits drops a unit by saying why; "" keeps it; nil keeps all.
	Fits func(v *View, pos int) string
	// Limit is the most CPUs that Spill takes from a unit, and the number that Enter
	// counts as free; nil is all free ones.
	Limit func(v *View, pos int) int
	// Again ranks the units again after each one taken.
	Again bool
}

// View is the progress of a Take, for ranks.
type View struct {
	T    *Topology
	Need int // CPUs still to take
	// Free may still be taken in the present scope; Taken was, Near included.
	Free, Taken cpuset.Set

	free []int16 // flat by offset
}

// FreeIn returns the number of free CPUs of a unit in the present scope.
func (v *View) FreeIn(k machine.Kind, pos int) int {
	if k == CPU {
		return one(&v.Free, v.T.units[CPU][pos].ID)
	}
	return int(v.free[v.T.offset[k]+pos])
}

func one(s *cpuset.Set, cpu int) int {
	if s.Has(cpu) {
		return 1
	}
	return 0
}

// WholeIn returns the number of CPUs of a unit in wholly free cores.
func (v *View) WholeIn(k machine.Kind, pos int) int {
	if k == CPU {
		core := int(v.T.at[machine.Core][v.T.units[CPU][pos].ID])
		return min(v.FreeIn(CPU, pos), v.WholeIn(machine.Core, core))
	}
	n := 0
	for _, core := range v.T.cores[k][pos] {
		if v.IsWhole(machine.Core, int(core)) {
			n += v.T.units[machine.Core][core].Size
		}
	}
	return n
}

// TakenIn returns the number of CPUs of a unit taken so far, Near included.
func (v *View) TakenIn(k machine.Kind, pos int) int {
	if k == CPU {
		return one(&v.Taken, v.T.units[CPU][pos].ID)
	}
	return v.Taken.Overlap(&v.T.units[k][pos].CPUs)
}

// IsWhole reports whether all CPUs of a unit are free.
func (v *View) IsWhole(k machine.Kind, pos int) bool {
	size := v.T.units[k][pos].Size
	return size > 0 && v.FreeIn(k, pos) == size
}

// Up returns the position of the domain of kind k around a core or CPU, -1 if none.
func (v *View) Up(k, of machine.Kind, pos int) int {
	first := v.T.units[of][pos].First
	if first < 0 {
		return -1
	}
	return int(v.T.at[k][first])
}

// View counts, for a policy to look at before it takes: from may be taken, near
// is held already and counted by TakenIn.
func (t *Topology) View(from, near cpuset.Set) *View {
	v := &View{T: t, Free: from.Intersect(t.online).Minus(near), Taken: near, free: make([]int16, t.offset[CPU])}
	v.count()
	return v
}

// Narrow restricts the view to a set of CPUs.
func (v *View) Narrow(to cpuset.Set) {
	v.Free = v.Free.Intersect(to)
	v.recount()
}

// Take takes exactly count CPUs by the stages, and uses up the view. Where the stages
// leave something, the lowest free CPUs of the present scope follow. Too few CPUs are a
// *CPUsError. why is nil unless an explanation is wanted.
func (v *View) Take(count int, stages []Stage, why *Why) (cpuset.Set, error) {
	if n := v.Free.Len(); count > n || count < 0 {
		return cpuset.Set{}, &CPUsError{Asked: count, Available: n}
	}
	if count == 0 {
		return cpuset.Set{}, nil
	}
	v.Need = count
	near := v.Taken
	v.run(stages, why)
	return v.Taken.Minus(near), nil
}

// count adds up, for each domain, its members of Free.
func (v *View) count() {
	t := v.T
	cores, at := v.free[t.offset[machine.Core]:], t.at[machine.Core]
	for cpu := range v.Free.All() {
		cores[at[cpu]]++
	}
	for core, n := range cores {
		if n == 0 {
			continue
		}
		for k := range int(machine.Core) {
			if pos := t.up[k][core]; pos >= 0 {
				v.free[t.offset[k]+int(pos)] += n
			}
		}
	}
}

func (v *View) recount() {
	clear(v.free)
	v.count()
}

// take takes a unit, all of which is free and needed.
func (v *View) take(k machine.Kind, pos int) {
	u := &v.T.units[k][pos]
	v.Free = v.Free.Minus(u.CPUs)
	v.Taken = v.Taken.Union(u.CPUs)
	v.Need -= u.Size
	t := v.T
	for cpu := range u.CPUs.All() {
		for k := range int(CPU) {
			if pos := t.at[k][cpu]; pos >= 0 {
				v.free[t.offset[k]+int(pos)]--
			}
		}
	}
}

func (v *View) run(stages []Stage, why *Why) {
	for i := range stages {
		if v.Need == 0 {
			return
		}
		st := &stages[i]
		switch st.Mode {
		case Fill:
			v.fill(st, why)
		case Enter:
			if pos := v.best(st, nil, why); pos >= 0 {
				v.Narrow(v.T.units[st.Kind][pos].CPUs)
			}
		case Spill:
			v.spill(st, stages[i+1:], why)
			return
		}
	}
	for v.Need > 0 {
		first, ok := v.Free.First()
		if !ok {
			return
		}
		v.take(CPU, int(v.T.at[CPU][first]))
	}
}

func (v *View) fill(st *Stage, why *Why) {
	var lost []string
	switch {
	case st.Again:
	case why == nil:
		v.fillOnce(st)
		return
	default:
		once := *st
		once.Rank, lost = v.frozen(st)
		once.Fits, st = nil, &once
	}
	for v.Need > 0 {
		pos := v.best(st, lost, why)
		if pos < 0 {
			return
		}
		v.take(st.Kind, pos)
		if lost != nil {
			lost[pos] = "taken"
		}
	}
}

// frozen returns the ranks that the units of a stage have now, and why some of them do
// not fit.
func (v *View) frozen(st *Stage) (rank func(*View, int) Rank, lost []string) {
	lost = make([]string, len(v.T.units[st.Kind]))
	ranks := make([]Rank, len(lost))
	for pos := range lost {
		if lost[pos] = v.fits(st, pos); lost[pos] == "" && st.Rank != nil {
			ranks[pos] = st.Rank(v, pos)
		}
	}
	return func(_ *View, pos int) Rank { return ranks[pos] }, lost
}

// fillOnce is fill with units ranked and dropped once, not explained.
func (v *View) fillOnce(st *Stage) {
	units := v.T.units[st.Kind]
	var some [64]int16
	candidates := v.candidates(st.Kind, false, some[:0])
	var few [16]ranked
	line := queue(few[:0])
	if len(candidates) > len(few) {
		line = make(queue, 0, len(candidates))
	}
	for _, at := range candidates {
		pos := int(at)
		if v.fits(st, pos) != "" {
			continue
		}
		one := ranked{tie: units[pos].First, pos: pos}
		if st.Rank != nil {
			one.rank = st.Rank(v, pos)
		}
		line = append(line, one)
	}
	line.init()
	for v.Need > 0 {
		for len(line) > 0 && units[line[0].pos].Size > v.Need {
			line = line.rest() // the need never grows
		}
		if len(line) == 0 {
			return
		}
		v.take(st.Kind, line[0].pos)
		line = line.rest()
	}
}

// candidates appends the positions of the units that have free CPUs; of all units
// if an explanation is asked for.
func (v *View) candidates(k machine.Kind, all bool, to []int16) []int16 {
	switch units := v.T.units[k]; {
	case all:
		for pos := range units {
			to = append(to, int16(pos))
		}
	case k == CPU:
		for cpu := range v.Free.All() {
			to = append(to, v.T.at[CPU][cpu])
		}
	default:
		for pos, free := range v.free[v.T.offset[k]:][:len(units)] {
			if free > 0 {
				to = append(to, int16(pos))
			}
		}
	}
	return to
}

// best returns the best unit that fits, or -1. lost has the reasons against units; it may
// be nil.
func (v *View) best(st *Stage, lost []string, why *Why) int {
	var some [64]int16
	c := Choice{
		Name: st.Name, Criteria: st.Criteria, Among: v.candidates(st.Kind, why != nil, some[:0]),
		Fits: func(pos int) string {
			if lost != nil && lost[pos] != "" {
				return lost[pos]
			}
			return v.fits(st, pos)
		},
		Tie:   func(pos int) int { return v.T.units[st.Kind][pos].First },
		Label: func(pos int) string { return v.T.Label(st.Kind, pos) },
	}
	if st.Rank != nil {
		c.Rank = func(pos int) Rank { return st.Rank(v, pos) }
	}
	return c.Best(why)
}

// Label names a unit, as in "node 1" and "cpu 5".
func (t *Topology) Label(k machine.Kind, pos int) string {
	kind := "cpu"
	if k != CPU {
		kind = k.String()
	}
	return kind + " " + strconv.Itoa(t.units[k][pos].ID)
}

func (v *View) fits(st *Stage, pos int) string {
	free := v.FreeIn(st.Kind, pos)
	if free == 0 {
		return "nothing free"
	}
	switch st.Mode {
	case Fill:
		if size := v.T.units[st.Kind][pos].Size; free != size {
			return "partly held"
		} else if size > v.Need {
			return "larger than needed"
		}
	case Enter:
		if st.Limit != nil {
			free = min(free, st.Limit(v, pos))
		}
		if free < v.Need {
			return "too few free"
		}
	case Spill:
		if st.Limit != nil && st.Limit(v, pos) <= 0 {
			return "at its limit"
		}
	}
	if st.Fits != nil {
		return st.Fits(v, pos)
	}
	return ""
}

func (v *View) spill(st *Stage, rest []Stage, why *Why) {
	outer, need := v.Free, v.Need
	lost := make([]string, len(v.T.units[st.Kind]))
	for need > 0 {
		pos := v.best(st, lost, why)
		if pos < 0 {
			break
		}
		lost[pos] = "done"
		before := v.Taken
		v.Need = min(need, v.FreeIn(st.Kind, pos))
		if st.Limit != nil {
			v.Need = min(v.Need, st.Limit(v, pos))
		}
		want := v.Need
		v.Narrow(v.T.units[st.Kind][pos].CPUs)
		v.run(rest, why)
		need -= want - v.Need
		outer = outer.Minus(v.Taken.Minus(before))
		v.Free, v.Need = outer, need
		v.recount()
	}
	v.run(rest, why)
}
