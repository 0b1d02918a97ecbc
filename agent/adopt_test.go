package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// What runs already keeps its CPUs as long as the policy gives it as many, also against
// those that came before it in the list, and moves like any other later.
func TestAdopt(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, newSite := range sites() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			for group, cpus := range map[string]string{"api": "4-5", "db": "1-3", "web": "0-7", "big": ""} {
				s.group(group, cpus)
			}
			specs := []Spec{
				inGroup("big", place.LSE, 64000), inGroup("db", place.LSE, 2000), inGroup("api", place.LSE, 2000),
				inGroup("web", place.LS, 500), inGroup("later", place.LS, 500),
			}
			specs[2].Prefer = cpuset.MustParse("4-5")
			adopt := func(n *Node) []Refusal {
				t.Helper()
				c, err := n.Adopt(ctx, specs)
				s.must(err)
				s.must(c.Enforce(ctx))
				s.must(c.Commit())
				return c.Refusals()
			}
			n := s.open()
			refused := adopt(n)
			var few *place.CPUsError
			if len(refused) != 1 || refused[0].ID != "big" || !errors.As(refused[0].Err, &few) {
				t.Errorf("refused %v", refused)
			}
			want := map[string]State{"api": Running, "db": Running, "web": Running, "later": Reserved}
			s.same("adopted", s.states(n), want)
			s.same("CPUs of api", s.cpus("api"), "4-5")
			db, err := n.Get(ctx, "db")
			s.must(err)
			if db.Grant.Own.Len() != 2 || s.cpus("db") != db.Grant.Own.String() {
				t.Errorf("db has %s, own %s", s.cpus("db"), db.Grant.Own)
			}
			s.must(n.Close())

			n = s.open()
			s.events = nil
			adopt(n)
			s.same("adopted again", s.states(n), want)
			s.same("events", s.kinds(), []EventKind{Refused})
			specs[2].Request.Milli = 3000
			specs = specs[2:]
			adopt(n)
			api, err := n.Get(ctx, "api")
			s.must(err)
			if api.Grant.Own.Len() != 3 || !api.Spec.CPUs.IsEmpty() {
				t.Errorf("grown, api has %s, given %s", api.Grant.Own, api.Spec.CPUs)
			}
		})
	}
}

// crowd are workloads that run on a machine of 256 CPUs, a tenth of them on CPUs of their own.
func crowd(count int) (specs []Spec, m *memory) {
	m = &memory{groups: map[string]cpuset.Set{}}
	for i := range count {
		s := inGroup(fmt.Sprintf("w%04d", i), place.LS, 10)
		m.groups[s.Group], _ = cpuset.Range(0, 255)
		if i%10 == 0 {
			s.Request.Class, s.Request.Milli, s.Prefer = place.LSE, 1000, cpuset.MustOf(255-2*(i/10))
			m.groups[s.Group] = s.Prefer
		}
		specs = append(specs, s)
	}
	return specs, m
}

func (h *host) adopter(m *memory) *Node {
	h.t.Helper()
	opt := h.options()
	opt.Machine, opt.Enforcer, opt.Events, opt.Keep = wideMachine(), m.open, nil, true
	n, err := Open(context.Background(), opt)
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// A thousand workloads are adopted in one transaction: the Enforcer is asked once, and a
// workload costs one file. It allocates about ten times as much as for a hundred.
func TestAdoptThousand(t *testing.T) {
	ctx := context.Background()
	allocated := map[int]uint64{}
	for _, count := range []int{100, 1000} {
		h := newHost(t, layouts()["v2"])
		specs, m := crowd(count)
		n := h.adopter(m)
		files := 0
		n.touch = func(string) error { files++; return nil }
		m.calls = 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c, err := n.Adopt(ctx, specs)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Enforce(ctx), c.Commit()); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		allocated[count] = after.TotalAlloc - before.TotalAlloc
		for i := 0; i < count; i += 10 {
			if w, err := n.Get(ctx, specs[i].Request.ID); err != nil || w.Grant.Own != specs[i].Prefer {
				t.Fatalf("%s owns %s, ran on %s, %v", specs[i].Request.ID, w.Grant.Own, specs[i].Prefer, err)
			}
		}
		n.Close() // nothing is installed later
		if m.calls != 1 || files > count+10 || len(c.Refusals()) > 0 {
			t.Errorf("%d workloads: %d calls of the Enforcer, %d changes of files, refused %v", count, m.calls, files, c.Refusals())
		}
	}
	if allocated[1000] > 15*allocated[100] {
		t.Errorf("for 1000 workloads it allocates %d bytes, for 100 %d", allocated[1000], allocated[100])
	}
}

func BenchmarkAdoptThousand(b *testing.B) {
	ctx := context.Background()
	specs, _ := crowd(1000)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		_, m := crowd(1000)
		h := newHost(b, layouts()["v2"])
		n := h.adopter(m)
		b.StartTimer()
		c, err := n.Adopt(ctx, specs)
		if err == nil {
			err = errors.Join(c.Enforce(ctx), c.Commit())
		}
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		n.Close()
		b.StartTimer()
	}
}
