package agent

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// memory is an Enforcer without a kernel, as a container runtime would be one: it has
// groups only once the runtime has made them, and may refuse.
type memory struct {
	groups map[string]cpuset.Set // the CPUs of each group that is there
	every  int                   // refuses each so-manieth new update, once; 0 refuses nothing
	never  string                // the group whose updates are all refused
	count  int
	seen   map[string]bool          // updates, by group and CPUs
	calls  int                      // of Enforce
	change func(func() error) error // what each update goes through; nil is nothing
	check  func()                   // after each update
}

func (m *memory) open(*kernel.Root) (Enforcer, Site, error) {
	return m, Site{Backend: "memory"}, nil
}

func (m *memory) Locate(w *Workload, _ iter.Seq[*Workload]) error {
	w.Group = w.Spec.Group
	if _, ok := m.groups[w.Group]; !ok {
		return &MissingError{fmt.Sprintf("group %q", w.Group)}
	}
	return nil
}

var errRefused = errors.New("the runtime refuses")

func (m *memory) Enforce(_ context.Context, c *Transition) (Enforced, error) {
	m.calls++
	before := maps.Clone(m.groups)
	undo := func() error { m.groups = before; return nil }
	for _, u := range c.Updates() {
		if u.Workload.State == Reserved {
			continue
		}
		err, key := error(nil), u.Workload.Group+" "+u.CPUs.String()
		if m.never != "" && u.Workload.Group == m.never {
			err = errRefused
		}
		if m.every > 0 && !m.seen[key] {
			m.seen[key] = true
			if m.count++; m.count%m.every == 0 {
				err = errRefused
			}
		}
		if err == nil {
			err = m.set(u.Workload.Group, u.CPUs)
		}
		if err != nil {
			return Enforced{}, errors.Join(err, undo())
		}
	}
	return Enforced{Undo: undo}, nil
}

func (m *memory) set(group string, cpus cpuset.Set) error {
	do := func() error {
		m.groups[group] = cpus
		if m.check != nil {
			m.check()
		}
		return nil
	}
	if m.change == nil {
		return do()
	}
	return m.change(do)
}

func (m *memory) Observe(w *Workload) Observed {
	_, ok := m.groups[w.Group]
	return Observed{There: ok, Limits: w.Spec.Settings()}
}

func (m *memory) Release(*Workload, bool, *kernel.UndoLog) error { return nil }

func (m *memory) Close() error { return nil }

// site is a host on which a test makes groups that are not Berth's.
type site struct {
	*host
	m    *memory // nil: the groups are the kernel's
	dirs []string
}

// sites are one with each Enforcer that places groups that are not its own.
func sites() map[string]func(testing.TB) *site {
	all := map[string]func(testing.TB) *site{
		"memory": func(t testing.TB) *site {
			s := &site{host: newHost(t, layouts()["v2"]), m: &memory{groups: map[string]cpuset.Set{}}}
			s.opt.Enforcer = s.m.open
			return s
		},
	}
	for name, layout := range layouts() {
		all[name] = func(t testing.TB) *site {
			s := &site{host: newHost(t, layout), dirs: []string{"sys/fs/cgroup"}}
			if len(layout.V1) > 0 {
				s.dirs = []string{"sys/fs/cgroup/cpuset"}
				for _, list := range layout.V1 {
					if list != "cpuset" {
						s.dirs = append(s.dirs, "sys/fs/cgroup/"+list)
					}
				}
			}
			return s
		}
	}
	return all
}

// group makes a group, as a runtime does, with CPUs if it has some.
func (s *site) group(name, cpus string) {
	s.t.Helper()
	if s.m != nil {
		s.m.groups[name] = cpuset.MustParse(cpus)
		return
	}
	var errs []error
	for i, dir := range s.dirs {
		errs = append(errs, s.k.Mkdir(path.Join(dir, name)))
		if i > 0 {
			continue
		}
		if len(s.dirs) > 1 {
			errs = append(errs, s.k.WriteFile(path.Join(dir, name, memsFile), "0-1"), s.k.WriteFile(path.Join(dir, name, cpusFile), "0-7"))
		} else {
			errs = append(errs, s.k.WriteFile(path.Join(dir, "cgroup.subtree_control"), "+cpuset"))
		}
		if cpus != "" {
			errs = append(errs, s.k.WriteFile(path.Join(dir, name, cpusFile), cpus))
		}
	}
	if err := errors.Join(errs...); err != nil {
		s.t.Fatal(err)
	}
}

// cpus are those of a group.
func (s *site) cpus(name string) string {
	s.t.Helper()
	if s.m != nil {
		return s.m.groups[name].String()
	}
	set, err := readSet(kernel.NewRoot("", s.k), path.Join(s.dirs[0], name, cpusFile))
	if err != nil {
		s.t.Fatal(err)
	}
	return set.String()
}

func inGroup(id string, class place.Class, milli int) Spec {
	s := spec(id, class, milli, 0)
	s.Group = id
	return s
}

func (s *site) states(n *Node) map[string]State {
	s.t.Helper()
	all, err := n.List(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	states := map[string]State{}
	for _, w := range all {
		states[w.ID()] = w.State
	}
	return states
}

func (s *site) same(what string, got, want any) {
	s.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// What a change comes to is known, for the new workloads and for all others, before
// anything is written. Workloads have their place before their groups are there.
func TestReserve(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, newSite := range sites() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.group("batch", "")
			n := s.open()
			s.place(n, inGroup("batch", place.BE, 500))
			was := s.cpus("batch")
			pod := []Spec{inGroup("api", place.LSE, 2000), inGroup("web", place.LS, 500)}
			pod[0].Annotations = map[string]string{"note": "first"}

			c, err := n.Reserve(ctx, pod)
			s.must(err)
			updates := map[string]cpuset.Set{}
			for i, u := range c.Updates() {
				updates[u.Workload.ID()] = u.CPUs
				if i == 0 && u.Workload.ID() != "batch" {
					t.Errorf("%s comes before who loses CPUs to it", u.Workload.ID())
				}
			}
			if own := updates["api"]; own.Len() != 2 || own.Overlaps(updates["batch"].Union(updates["web"])) || len(updates) != 3 {
				t.Errorf("updates %v", updates)
			}
			s.same("CPUs before commit", s.cpus("batch"), was)
			s.must(c.Abort())
			s.must(c.Abort())
			if err := c.Commit(); !errors.Is(err, ErrOver) {
				t.Errorf("commit of what was aborted: %v", err)
			}
			s.same("aborted", s.states(n), map[string]State{"batch": Running})

			c, err = n.Reserve(ctx, pod)
			s.must(err)
			s.must(c.Enforce(ctx))
			s.same("CPUs in force", s.cpus("batch"), updates["batch"].String())
			s.must(c.Abort())
			s.same("aborted after it was in force", s.states(n), map[string]State{"batch": Running})
			s.same("CPUs", s.cpus("batch"), was)

			c, err = n.Reserve(ctx, pod)
			s.must(err)
			s.must(c.Enforce(ctx))
			s.must(c.Commit())
			s.must(c.Abort())
			reserved := map[string]State{"batch": Running, "api": Reserved, "web": Reserved}
			s.same("committed", s.states(n), reserved)
			_, err = n.Reconcile(ctx)
			s.must(err)
			s.must(n.Close())
			n = s.open()
			s.same("opened anew", s.states(n), reserved)

			s.events = nil
			s.group("api", "")
			_, err = n.Reconcile(ctx)
			s.must(err)
			reserved["api"] = Running
			s.same("its group came", s.states(n), reserved)
			s.same("its CPUs", s.cpus("api"), updates["api"].String())
			s.same("events", s.kinds(), []EventKind{Changed})
			w, err := n.Get(ctx, "api")
			s.must(err)
			s.same("annotations", w.Spec.Annotations, pod[0].Annotations)

			s.must(n.Release(ctx, "web", WhenEmpty)) // it never came
			s.must(n.Release(ctx, "api", WhenEmpty))
			s.same("released", s.states(n), map[string]State{"batch": Running})
			s.same("CPUs afterwards", s.cpus("batch"), was)
		})
	}
}

// Of reserved workloads whose groups have come, one that is refused does not hold up the others.
func TestArriveOneByOne(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sites()["memory"](t)
	n := s.open()
	c, err := n.Reserve(ctx, []Spec{inGroup("api", place.LSE, 2000), inGroup("db", place.LSE, 2000), inGroup("web", place.LS, 500)})
	s.must(err)
	s.must(c.Commit())
	for _, name := range []string{"api", "db", "web"} {
		s.group(name, "")
	}
	s.m.never, s.events = "db", nil
	_, err = n.Reconcile(ctx)
	s.must(err)
	s.same("db is refused", s.states(n), map[string]State{"api": Running, "db": Reserved, "web": Running})
	var failed []string
	for _, e := range s.events {
		if e.Kind == Failed {
			failed = append(failed, e.ID)
		}
	}
	s.same("told of", failed, []string{"db"})
	s.m.never = "-"
	_, err = n.Reconcile(ctx)
	s.must(err)
	s.same("db is not refused any more", s.states(n), map[string]State{"api": Running, "db": Running, "web": Running})
	s.asBooks("in the end", n)
}

// Workloads are reserved all or none, and what is not reserved is to be there.
func TestReserveAllOrNone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, newSite := range sites() {
		s := newSite(t)
		n := s.open()
		_, err := n.Reserve(ctx, []Spec{inGroup("a", place.LSE, 2000), inGroup("b", place.LSE, 99000)})
		var few *place.CPUsError
		if !errors.As(err, &few) {
			t.Errorf("%s: 99 of 8 CPUs: %v", name, err)
		}
		_, err = n.Reserve(ctx, []Spec{inGroup("a", place.LSE, 2000), inGroup("a", place.LSE, 2000)})
		var held *place.HeldError
		if !errors.As(err, &held) {
			t.Errorf("%s: one id twice: %v", name, err)
		}
		_, err = n.Place(ctx, inGroup("a", place.LSE, 2000))
		var missing *MissingError
		if !errors.As(err, &missing) {
			t.Errorf("%s: placed without a group: %v", name, err)
		}
		s.same(name, s.states(n), map[string]State{})
	}
}

// An Enforcer that refuses an update leaves everything as it was; what is tried until it
// goes well comes to what it would without refusals.
func TestEnforcerRefuses(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := sites()["memory"](t)
	s.m.every, s.m.seen = 10, map[string]bool{}
	n := s.open()
	refused := 0
	for i := range 40 {
		sp := inGroup(fmt.Sprintf("w%02d", i), place.LS, 50)
		if i%20 == 0 {
			sp.Request.Class, sp.Request.Milli = place.LSE, 1000
		}
		s.group(sp.Group, "0-7")
		for {
			before, cpus := s.states(n), maps.Clone(s.m.groups)
			_, err := n.Place(ctx, sp)
			if err == nil {
				break
			}
			refused++
			if !errors.Is(err, errRefused) || refused > 100 {
				t.Fatal(err)
			}
			s.same("refused", s.states(n), before)
			s.same("CPUs", s.m.groups, cpus)
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
	s.m.every = 0
	_, err := n.Reconcile(ctx)
	s.must(err)
	s.asBooks("in the end", n)
}

// asBooks checks that the groups have what the records say.
func (s *site) asBooks(name string, n *Node) map[string]cpuset.Set {
	s.t.Helper()
	all, err := n.List(context.Background())
	s.must(err)
	own := map[string]cpuset.Set{}
	for _, w := range all {
		own[w.ID()] = w.Grant.Own
		if w.State != Reserved && s.m.groups[w.Group] != w.CPUs {
			s.t.Errorf("%s: %s has %s instead of %s", name, w.ID(), s.m.groups[w.Group], w.CPUs)
		}
	}
	for a, cpus := range own {
		for b, others := range own {
			if a < b && cpus.Overlaps(others) {
				s.t.Errorf("%s: %s and %s own %s and %s", name, a, b, cpus, others)
			}
		}
	}
	return own
}

// A process is killed before and after each of its changes, of the records and of what the
// Enforcer has. Opening anew comes to what was before or what was to be.
func TestKilledWithAnyEnforcer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pod := []Spec{inGroup("api", place.LSE, 2000), inGroup("web", place.LS, 500), inGroup("db", place.LSE, 1000)}
	commit := func(c *Change, err error) error {
		if err == nil {
			err = c.Enforce(ctx)
		}
		if err == nil {
			err = c.Commit()
		}
		return err
	}
	steps := []struct {
		name string
		made []string // groups that come before
		do   func(*Node) error
		ids  []string // afterwards
	}{
		{"reserve", nil, func(n *Node) error { return commit(n.Reserve(ctx, pod)) }, []string{"api", "batch", "db", "web"}},
		{"arrive", []string{"api", "web", "db"}, func(n *Node) error { _, err := n.Reconcile(ctx); return err }, []string{"api", "batch", "db", "web"}},
		{"adopt", []string{"more"}, func(n *Node) error {
			return commit(n.Adopt(ctx, append(slices.Clone(pod), inGroup("more", place.LSE, 1000))))
		}, []string{"api", "batch", "db", "more", "web"}},
		{"abort", nil, func(n *Node) error {
			c, err := n.Reserve(ctx, []Spec{inGroup("gone", place.LS, 100)})
			if err != nil {
				return err
			}
			return errors.Join(c.Enforce(ctx), c.Abort())
		}, []string{"api", "batch", "db", "more", "web"}},
		{"release", nil, func(n *Node) error { return n.Release(ctx, "api", WhenEmpty) }, []string{"batch", "db", "more", "web"}},
	}
	killed := 0
	for last := range steps {
		for at := 1; ; at++ {
			died := false
			for _, after := range []bool{false, true} {
				s := sites()["memory"](t)
				s.group("batch", "0-7")
				n := s.open()
				s.place(n, inGroup("batch", place.BE, 500))
				f := &fate{at: at, after: after}
				for i, step := range steps[:last+1] {
					for _, group := range step.made {
						s.group(group, "0-7")
					}
					if i < last {
						s.must(step.do(n))
						continue
					}
					before := s.asBooks(step.name, n)
					n.Close()
					doomed := s.doom(f)
					s.m.change = f.change
					dead := !survives(doomed, func() { s.must(step.do(doomed)) })
					s.m.change = nil
					died = died || dead
					name := fmt.Sprintf("%s, killed at %d, after %v", step.name, at, after)
					n = s.open()
					now := s.asBooks(name, n)
					ids := slices.Sorted(maps.Keys(now))
					if was := slices.Sorted(maps.Keys(before)); !slices.Equal(ids, step.ids) && !slices.Equal(ids, was) {
						t.Errorf("%s: %v, neither %v nor %v", name, ids, was, step.ids)
					}
					for id, own := range before {
						if is, ok := now[id]; ok && is != own {
							t.Errorf("%s: %s owns %s instead of %s", name, id, is, own)
						}
					}
				}
				n.Close()
			}
			if t.Failed() {
				return
			}
			if !died {
				break
			}
			killed++
		}
	}
	if killed < 30 {
		t.Errorf("killed at %d points only", killed)
	}
}
