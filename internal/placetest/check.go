package placetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// Suite is a policy and what Check needs to know of it.
type Suite struct {
	Policy place.Policy
	// Config and Request make random ones; nil are Config and Request of this package.
	Config  func(rng *rand.Rand, m *machine.Machine) place.Config
	Request func(rng *rand.Rand, m *machine.Machine, id string) place.Request
	// Own returns how many CPUs a grant for r must own; nil or -1 does not check.
	Own func(r *place.Request) int
	// Rank returns the policy's own rank of a grant on the state that it was
	// made on; nil skips the test that renaming CPUs changes nothing but ties.
	Rank func(s *place.State, g *place.Grant) []int
	// Lasting is true for a policy whose pools may outlive their members, so that
	// giving everything back does not lead to the start state.
	Lasting bool
}

// LongEnv is the environment variable that asks for the long mode: at least a
// million operations per policy.
const LongEnv = "BERTH_LONG"

// Check runs random sequences of operations on random machines and checks what
// must hold for every policy: a grant is made of free CPUs and exact in size, no
// CPU is owned twice, the books balance after every step, nobody's set is
// empty, the same question has the same answer, giving back restores, a restart
// reinstates, a stale offer is refused, errors are typed, renaming CPUs changes
// nothing but ties.
func Check(t *testing.T, suite Suite) {
	t.Helper()
	machines, steps := 60, 40
	if os.Getenv(LongEnv) != "" {
		machines, steps = 8500, 120
	}
	if suite.Config == nil {
		suite.Config = Config
	}
	if suite.Request == nil {
		suite.Request = Request
	}
	admitted := 0
	for seed := range uint64(machines) {
		w := &walk{Suite: suite, rng: rand.New(rand.NewPCG(seed, 7))}
		if err := w.run(steps); err != nil {
			t.Fatalf("%s: seed %d: %v", suite.Policy.Name(), seed, err)
		}
		admitted += w.admitted
	}
	if admitted < machines {
		t.Errorf("%s: only %d grants on %d machines: the requests do not fit the policy", suite.Policy.Name(), admitted, machines)
	}
}

// walk is one random sequence.
type walk struct {
	Suite
	rng      *rand.Rand
	m        *machine.Machine
	s, start *place.State
	ids      []string
	next     int
	admitted int
	names    names           // of the CPUs on the other machine
	other    *place.Topology // the machine with other CPU numbers
}

func (w *walk) run(steps int) error {
	w.m = Machine(w.rng, 48)
	t, err := place.NewTopology(w.m)
	if err != nil {
		return err
	}
	conf := w.Config(w.rng, w.m)
	if w.start, err = place.Start(w.Policy, t, conf); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	w.s = w.start
	for step := range steps {
		what, err := w.step()
		if err == nil {
			err = w.s.Audit()
		}
		if err != nil {
			return fmt.Errorf("step %d: %s: %w", step, what, err)
		}
	}
	if err := w.restart(t, conf); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	return w.giveBack()
}

func (w *walk) step() (what string, err error) {
	switch dice := w.rng.IntN(10); {
	case dice < 6 || len(w.ids) == 0:
		w.next++
		r := w.Request(w.rng, w.m, fmt.Sprintf("w%03d", w.next))
		return fmt.Sprintf("place %+v", r), w.place(&r)
	case dice < 8:
		id := w.ids[w.rng.IntN(len(w.ids))]
		return "release " + id, w.release(id)
	default:
		id := w.ids[w.rng.IntN(len(w.ids))]
		g, _ := w.s.Grant(id)
		r := g.Request
		r.Milli = 1000 * w.rng.IntN(1+w.m.Online.Len())
		r.SharedMilli, r.LimitMilli = 0, 0
		return fmt.Sprintf("resize %+v", r), w.resize(&r, g)
	}
}

func (w *walk) place(r *place.Request) error {
	o, err := place.Place(w.Policy, w.s, r)
	o2, err2 := place.Place(w.Policy, w.s, r)
	if err != nil || err2 != nil {
		if fmt.Sprint(err) != fmt.Sprint(err2) {
			return fmt.Errorf("two answers: %v and %v", err, err2)
		}
		return typed(err)
	}
	if !o.Grant.Equal(o2.Grant) {
		return fmt.Errorf("two answers: %+v and %+v", o.Grant, o2.Grant)
	}
	if err := w.fits(r, o.Grant); err != nil {
		return err
	}
	next, err := w.s.Commit(o)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if _, err := next.Commit(o2); !errors.As(err, new(*place.StaleError)) {
		return fmt.Errorf("a stale offer: %v", err)
	}
	if err := w.renamed(r, o.Grant); err != nil {
		return err
	}
	w.admitted++
	w.s, w.ids = next, append(w.ids, r.ID)
	return nil
}

func (w *walk) fits(r *place.Request, g *place.Grant) error {
	if g.ID != r.ID {
		return fmt.Errorf("grant for %q", g.ID)
	}
	free := w.s.Ownable(place.System).Union(w.s.OwnableBy(r))
	for p := range w.s.Pools() {
		free = free.Union(p.CPUs) // a policy may give a pool's CPUs to a member
	}
	if taken := g.Own.Minus(free); !taken.IsEmpty() {
		return fmt.Errorf("own %s: %s are not free", g.Own, taken)
	}
	if w.Own != nil {
		if want := w.Own(r); want >= 0 && g.Own.Len() != want {
			return fmt.Errorf("owns %d CPUs, want %d", g.Own.Len(), want)
		}
	}
	return nil
}

func (w *walk) release(id string) error {
	o, err := place.Release(w.Policy, w.s, id)
	if err != nil {
		return err
	}
	if w.s, err = w.s.Commit(o); err != nil {
		return err
	}
	w.ids = slices.DeleteFunc(w.ids, func(x string) bool { return x == id })
	return nil
}

func (w *walk) resize(r *place.Request, old *place.Grant) error {
	o, err := place.Resize(w.Policy, w.s, r)
	if err != nil {
		return typed(err)
	}
	own := o.Grant.Own
	if !old.Own.IsEmpty() && !own.IsEmpty() && !own.Contains(old.Own) && !old.Own.Contains(own) {
		return fmt.Errorf("moved from %s to %s", old.Own, own)
	}
	if w.s, err = w.s.Commit(o); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// restart reinstates everything from what was saved, in random order.
func (w *walk) restart(t *place.Topology, conf place.Config) error {
	fresh, err := place.New(t, conf)
	if err != nil {
		return err
	}
	saved := w.s.Save()
	w.rng.Shuffle(len(saved.Grants), func(i, j int) {
		saved.Grants[i], saved.Grants[j] = saved.Grants[j], saved.Grants[i]
	})
	again, err := fresh.Reinstate(saved)
	if err != nil {
		return err
	}
	if diff := w.s.Difference(again); diff != "" {
		return fmt.Errorf("not the same: %s", diff)
	}
	return nil
}

// giveBack releases everything in random order.
func (w *walk) giveBack() error {
	w.rng.Shuffle(len(w.ids), func(i, j int) { w.ids[i], w.ids[j] = w.ids[j], w.ids[i] })
	for _, id := range slices.Clone(w.ids) {
		if err := w.release(id); err != nil {
			return fmt.Errorf("release %s: %w", id, err)
		}
	}
	if w.s.Len() > 0 {
		return fmt.Errorf("%d grants are left", w.s.Len())
	}
	if diff := w.s.Difference(w.start); diff != "" && !w.Lasting {
		return fmt.Errorf("not the start state: %s", diff)
	}
	return w.s.Audit()
}

// typed returns err itself unless it is of a type of package place.
func typed(err error) error {
	for _, target := range []any{
		new(*place.InvalidError), new(*place.CPUsError), new(*place.SMTError), new(*place.NUMAError), new(*place.MemoryError),
		new(*place.DeviceError), new(*place.FloorError), new(*place.RejectedError), new(*place.HeldError), new(*place.NotHeldError),
	} {
		if errors.As(err, target) {
			return nil
		}
	}
	return fmt.Errorf("an error of no known type: %w", err)
}

// renamed asks the same on a machine whose CPUs have other numbers, one for each walk.
func (w *walk) renamed(r *place.Request, g *place.Grant) error {
	if w.Rank == nil {
		return nil
	}
	if w.other == nil {
		var err error
		w.names = rename(w.rng, w.m.Online.Union(w.m.Offline))
		if w.other, err = place.NewTopology(renamedMachine(w.m, w.names)); err != nil {
			return fmt.Errorf("renamed machine: %w", err)
		}
	}
	names, conf := w.names, *w.s.Config()
	conf.Allowed, conf.Reserved, conf.Floor = names.set(conf.Allowed), names.set(conf.Reserved), names.set(conf.Floor)
	empty, err := place.New(w.other, conf)
	if err != nil {
		return err
	}
	saved := w.s.Save()
	for i, held := range saved.Grants {
		n := *held
		n.Own, n.Fence, n.Share.Within = names.set(n.Own), names.set(n.Fence), names.set(n.Share.Within)
		saved.Grants[i] = &n
	}
	for i := range saved.Pools {
		saved.Pools[i].CPUs, saved.Pools[i].Idle = names.set(saved.Pools[i].CPUs), names.set(saved.Pools[i].Idle)
	}
	s, err := empty.Reinstate(saved)
	if err != nil {
		return fmt.Errorf("renamed state: %w", err)
	}
	o, err := place.Place(w.Policy, s, r)
	if err != nil {
		return fmt.Errorf("refused when renamed: %w", err)
	}
	if a, b := w.Rank(w.s, g), w.Rank(s, o.Grant); !slices.Equal(a, b) {
		return fmt.Errorf("rank %v of %s, when renamed %v of %s", a, g.Own, b, o.Grant.Own)
	}
	return nil
}

type names map[int]int

// rename gives each CPU a new number.
func rename(rng *rand.Rand, cpus cpuset.Set) names {
	n := names{}
	numbers := rng.Perm(2 * cpus.Len())
	for i, cpu := range cpus.Slice() {
		n[cpu] = numbers[i]
	}
	return n
}

func (n names) set(s cpuset.Set) cpuset.Set {
	var out cpuset.Set
	for cpu := range s.All() {
		out, _ = out.With(n[cpu])
	}
	return out
}

func renamedMachine(m *machine.Machine, n names) *machine.Machine {
	out := *m
	out.Online, out.Offline, out.Isolated = n.set(m.Online), n.set(m.Offline), n.set(m.Isolated)
	out.CPUs = slices.Clone(m.CPUs)
	for i := range out.CPUs {
		out.CPUs[i].ID = n[out.CPUs[i].ID]
	}
	slices.SortFunc(out.CPUs, func(a, b machine.CPU) int { return a.ID - b.ID })
	out.Domains = nil
	for _, k := range machine.Kinds() {
		domains := slices.Clone(m.ByKind(k))
		for i := range domains {
			domains[i].CPUs = n.set(domains[i].CPUs)
		}
		if k != machine.Node {
			slices.SortFunc(domains, func(a, b machine.Domain) int {
				x, _ := a.CPUs.First()
				y, _ := b.CPUs.First()
				return x - y
			})
			for i := range domains {
				domains[i].ID = i
			}
		}
		out.Domains = append(out.Domains, domains...)
	}
	return &out
}
