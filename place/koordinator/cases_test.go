package koordinator

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// answer is what Berth answers on purpose where upstream has a quirk.
type answer struct {
	Same  bool   `json:"same"`
	CPUs  string `json:"cpus"`
	Error string `json:"error"`
	Fence string `json:"fence"`
	Why   string `json:"why"`
}

type want struct {
	CPUs      string             `json:"cpus"`
	Error     string             `json:"error"`
	Order     []int              `json:"order"`
	Available *string            `json:"available"`
	PerNuma   map[string]float64 `json:"perNuma"`
}

type takeCase struct {
	ID        string      `json:"id"`
	Machine   string      `json:"machine"`
	Allocated []allocated `json:"allocated"`
	Bind      string      `json:"bind"`
	Exclusive string      `json:"exclusive"`
	Strategy  string      `json:"strategy"`
	MaxRef    int         `json:"maxRef"`
	Preferred *string     `json:"preferred"`
	CPUs      int         `json:"cpus"`
	Want      want        `json:"want"`
	Quirk     string      `json:"upstreamQuirk"`
	Note      string      `json:"note"`
	Steps     []struct {
		Bind string `json:"bind"`
		CPUs int    `json:"cpus"`
		Want want   `json:"want"`
	} `json:"steps"`
}

type allocated struct {
	CPUs      string `json:"cpus"`
	Exclusive string `json:"exclusive"`
	Refs      int    `json:"refs"`
}

// notPassed are the cases that Berth answers otherwise without a quirk, and why.
func notPassed() map[string]string { return map[string]string{} }

func folder(t *testing.T) *placetest.Folder {
	t.Helper()
	f, err := placetest.ReadFolder("../testdata/cases")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func answers(t *testing.T) map[string]map[string]answer {
	t.Helper()
	data, err := os.ReadFile("testdata/answers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var a map[string]map[string]answer
	if err := yaml.UnmarshalStrict(data, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// suite runs all cases of a suite and keeps the list of those not passed honest.
func suite(t *testing.T, name string, run func(f *placetest.Folder, c *placetest.Case, a *answer) (quirk bool, err error)) {
	f, own := folder(t), answers(t)[name]
	cases := f.Cases("koordinator-" + name)
	if len(cases) == 0 {
		t.Logf("no suite koordinator-%s", name)
		return
	}
	passed, quirks, seen := 0, 0, map[string]bool{}
	for i := range cases {
		c := &cases[i]
		seen[c.ID] = true
		a, has := own[c.ID]
		quirk, err := run(f, c, &a)
		reason, excused := notPassed()[name+"/"+c.ID]
		switch {
		case quirk && !has && os.Getenv(placetest.CasesVariable) == "":
			t.Errorf("%s: a quirk without an answer in testdata/answers.yaml", c.ID)
		case !quirk && has:
			t.Errorf("%s: an answer of Berth's for a row without quirk", c.ID)
		case err != nil && !excused:
			t.Errorf("%s: %v", c.ID, err)
		case err == nil && excused:
			t.Errorf("%s: passes, though listed: %s", c.ID, reason)
		case err == nil:
			passed++
			if quirk {
				quirks++
			}
		}
	}
	for id := range own {
		if !seen[id] && os.Getenv(placetest.CasesVariable) == "" {
			t.Errorf("%s: an answer for a row that does not exist", id)
		}
	}
	t.Logf("koordinator-%s: %d of %d cases passed, %d of them by Berth's answer to a quirk", name, passed, len(cases), quirks)
}

func TestTakeCases(t *testing.T) {
	t.Parallel()
	suite(t, "take", func(f *placetest.Folder, raw *placetest.Case, a *answer) (bool, error) {
		var c takeCase
		if err := raw.Decode(&c); err != nil {
			return false, err
		}
		m, err := f.Machine(c.Machine)
		if err != nil {
			return false, err
		}
		s, err := c.state(m)
		if err != nil {
			return false, err
		}
		if c.Steps == nil {
			return c.Quirk != "", c.one(s, a)
		}
		for i, step := range c.Steps {
			if step.Want.Available != nil {
				k := Policy{}.task(s, &place.Request{ID: "x"})
				if got := k.countable().String(); got != *step.Want.Available {
					return false, fmt.Errorf("step %d: %s are available, want %s", i, got, *step.Want.Available)
				}
				continue
			}
			r := c.request(fmt.Sprint("step", i), place.LSR, step.CPUs, step.Bind)
			cpus, _, next, err := decide(s, &r)
			if err := compare(step.Want.CPUs, step.Want.Error, cpus, err); err != nil {
				return false, fmt.Errorf("step %d: %w", i, err)
			}
			s = next
		}
		return c.Quirk != "", nil
	})
}

// one asks for the CPUs as LSR and, where nothing is counted, as LSE.
func (c *takeCase) one(s *place.State, a *answer) error {
	if c.Want.Order != nil {
		return c.order(s)
	}
	classes := []place.Class{place.LSR, place.LSE}
	if c.MaxRef > 1 {
		classes = classes[:1]
	}
	for _, class := range classes {
		r := c.request("new", class, c.CPUs, c.Bind)
		cpus, fenced, _, err := decide(s, &r)
		expect := c.Want
		if c.Quirk != "" && a.Why != "" && !a.Same {
			expect = want{CPUs: a.CPUs, Error: a.Error}
		}
		known := c.Quirk == "" || a.Why != ""
		if err := compare(expect.CPUs, expect.Error, cpus, err); known && err != nil {
			return fmt.Errorf("%s: %w", class, err)
		}
		if known && a.Fence != "" && fenced.String() != a.Fence {
			return fmt.Errorf("%s: %s stay idle, want %s", class, fenced, a.Fence)
		}
		if err == nil && cpus.Len() != c.CPUs {
			return fmt.Errorf("%s: %d CPUs, want %d", class, cpus.Len(), c.CPUs)
		}
	}
	return nil
}

// order compares the order of all free CPUs.
func (c *takeCase) order(s *place.State) error {
	r := c.request("new", place.LSR, 1, c.Bind)
	free := s.Ownable(place.LSR)
	rank := Policy{}.task(s, &r).scattered(free, cpuset.Set{})
	got := free.Slice()
	slices.SortFunc(got, func(x, y int) int {
		a, b := rank(x), rank(y)
		return cmp.Or(a.Compare(&b), x-y)
	})
	if !slices.Equal(got, c.Want.Order) {
		return fmt.Errorf("order %v, want %v", got, c.Want.Order)
	}
	return nil
}

// state returns a machine on which the allocated CPUs are held.
func (c *takeCase) state(m *machine.Machine) (*place.State, error) {
	topology, err := place.NewTopology(m)
	if err != nil {
		return nil, err
	}
	s, err := place.New(topology, place.Config{NoFloor: true, MaxRefs: c.MaxRef})
	if err != nil {
		return nil, err
	}
	for i, held := range c.Allocated {
		for ref := range max(1, held.Refs) {
			g := &place.Grant{ID: fmt.Sprintf("held%d-%d", i, ref)}
			g.Request = c.request(g.ID, place.LSR, 0, "")
			cpus := cpuset.MustParse(held.CPUs)
			if c.MaxRef > 1 {
				g.Share = place.Share{Within: cpus, Counted: true}
			} else {
				g.Own, g.Fence = cpus, fence(topology, cpus, level(held.Exclusive))
			}
			o := s.Offer()
			o.Grant = g
			if s, err = s.Commit(o); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

func level(name string) (e place.Exclusivity) {
	if name != "None" && name != "" {
		if err := e.UnmarshalText([]byte(name)); err != nil {
			panic(err)
		}
	}
	return e
}

func (c *takeCase) request(id string, class place.Class, cpus int, bind string) place.Request {
	r := place.Request{ID: id, Class: class, Milli: 1000 * cpus, Exclusivity: level(c.Exclusive), Explain: true}
	_ = r.Bind.UnmarshalText([]byte(bind))
	_ = r.Strategy.UnmarshalText([]byte(c.Strategy))
	if c.Preferred != nil {
		r.Hints = map[string]string{PreferredCPUs: *c.Preferred}
	}
	return r
}

// decide places a request, with and without explanation, and commits it.
func decide(s *place.State, r *place.Request) (cpus, fenced cpuset.Set, next *place.State, err error) {
	p := Policy{}
	o, err := place.Place(p, s, r)
	silent := *r
	silent.Explain = false
	o2, err2 := place.Place(p, s, &silent)
	if fmt.Sprint(err) != fmt.Sprint(err2) {
		return cpus, fenced, s, fmt.Errorf("explained %w, silent %w", err, err2)
	}
	if err != nil {
		return cpus, fenced, s, err
	}
	if !o.Grant.Equal(o2.Grant) {
		return cpus, fenced, s, errors.New("another answer when explained")
	}
	next, err = s.Commit(o)
	return bound(o.Grant), o.Grant.Fence, next, err
}

// bound returns the CPUs that a workload is bound to.
func bound(g *place.Grant) cpuset.Set {
	if g.Share.Counted {
		return g.Share.Within
	}
	return g.Own
}

func compare(wantCPUs, wantErr string, cpus cpuset.Set, err error) error {
	switch {
	case wantErr == "not-enough-cpus":
		if !errors.As(err, new(*place.CPUsError)) {
			return fmt.Errorf("%s and error %v, want too few CPUs", cpus, err)
		}
	case wantErr == "rejected":
		if err == nil {
			return fmt.Errorf("%s, want a refusal", cpus)
		}
	case wantErr != "":
		return fmt.Errorf("unknown error %q", wantErr)
	case err != nil:
		return err
	case cpus != cpuset.MustParse(wantCPUs):
		return fmt.Errorf("%s, want %s", cpus, wantCPUs)
	}
	return nil
}

type allocateCase struct {
	ID           string         `json:"id"`
	Machine      string         `json:"machine"`
	NumaCapacity map[string]int `json:"numaCapacity"`
	Ratio        float64        `json:"ratio"`
	Hint         string         `json:"hint"`
	Strategy     string         `json:"strategy"`
	Allocated    string         `json:"allocated"`
	Used         map[string]int `json:"used"`
	Want         want           `json:"want"`
	Quirk        string         `json:"upstreamQuirk"`
	Note         string         `json:"note"`
	Request      struct {
		CPUs      float64 `json:"cpus"`
		Bind      string  `json:"bind"`
		Amplified float64 `json:"amplified"`
		Other     int     `json:"other"`
	} `json:"request"`
}

func TestAllocateCases(t *testing.T) {
	t.Parallel()
	suite(t, "allocate", func(f *placetest.Folder, raw *placetest.Case, a *answer) (bool, error) {
		var c allocateCase
		if err := raw.Decode(&c); err != nil {
			return false, err
		}
		m, err := f.Machine(c.Machine)
		if err != nil {
			return false, err
		}
		return c.Quirk != "", c.run(m, a)
	})
}

func (c *allocateCase) run(m *machine.Machine, a *answer) error {
	topology, err := place.NewTopology(m)
	if err != nil {
		return err
	}
	held := takeCase{Machine: c.Machine, MaxRef: 1}
	if c.Allocated != "" {
		held.Allocated = []allocated{{CPUs: c.Allocated}}
	}
	s, err := held.state(m)
	if err != nil {
		return err
	}
	if err := c.sameUse(topology); err != nil {
		return err
	}
	p := Policy{Amplification: int(100 * c.Ratio)}
	r := place.Request{
		ID: "new", Class: place.LSR, Milli: int(1000 * c.Request.CPUs), BindRequired: true,
		Nodes: cpuset.MustParse(c.Hint), NodesRequired: true,
	}
	if c.Request.Bind == "none" {
		r.Class, r.BindRequired = place.LS, false
	} else if err := r.Bind.UnmarshalText([]byte(c.Request.Bind)); err != nil {
		return err
	}
	if err := r.Strategy.UnmarshalText([]byte(c.Strategy)); err != nil {
		return err
	}
	if c.Request.Other > 0 {
		r.Memory = []place.Amount{{Resource: "other", Bytes: int64(c.Request.Other) << 30}}
	}
	o, err := place.Place(p, s, &r)
	var cpus cpuset.Set
	if err == nil {
		cpus = o.Grant.Own
	}
	expect := c.Want
	if a.Why != "" && !a.Same {
		expect = want{CPUs: a.CPUs, Error: a.Error, PerNuma: c.Want.PerNuma}
	}
	if err := compare(expect.CPUs, expect.Error, cpus, err); err != nil || expect.Error != "" {
		return err
	}
	return c.perNuma(p, s, &r, cpus)
}

// sameUse checks that the CPUs charged per node are those that are allocated, as
// in Berth's books they always are.
func (c *allocateCase) sameUse(t *place.Topology) error {
	held := cpuset.MustParse(c.Allocated)
	for _, u := range t.Units(machine.Node) {
		if got, want := u.CPUs.Overlap(&held), c.Used[fmt.Sprint(u.ID)]; got != want {
			return fmt.Errorf("%d CPUs of node %d are allocated and %d charged", got, u.ID, want)
		}
		if u.Size != c.NumaCapacity[fmt.Sprint(u.ID)] {
			return fmt.Errorf("node %d has %d CPUs", u.ID, u.Size)
		}
	}
	return nil
}

func (c *allocateCase) perNuma(p Policy, s *place.State, r *place.Request, cpus cpuset.Set) error {
	got := map[string]float64{}
	k := p.task(s, r)
	nodes := k.nodes()
	shares := k.perNode(k.t.CPUsOf(r.Nodes), r.Milli)
	for i := range nodes {
		n := float64(nodes[i].CPUs.Overlap(&cpus))
		if cpus.IsEmpty() {
			n = float64(shares[i]) / 1000
		}
		if n > 0 {
			got[fmt.Sprint(nodes[i].ID)] = n
		}
	}
	if !maps.Equal(got, c.Want.PerNuma) {
		return fmt.Errorf("by node %v, want %v", got, c.Want.PerNuma)
	}
	return nil
}
