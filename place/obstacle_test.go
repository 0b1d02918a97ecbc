package place_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// Each reason for which a CPU cannot become a workload's own has a text of its own, which
// names the owner or the setting.
func TestObstacles(t *testing.T) {
	t.Parallel()
	set := cpuset.MustParse
	own := func(id, cpus, fence string) *place.Grant {
		return &place.Grant{ID: id, Own: set(cpus), Fence: set(fence), Request: place.Request{ID: id, Class: place.LSE}}
	}
	shared := func(id string, milli int) *place.Grant {
		return &place.Grant{ID: id, Share: place.Share{Within: set("0-15"), Milli: milli}, Request: place.Request{ID: id, Class: place.LS}}
	}
	for name, c := range map[string]struct {
		conf   place.Config
		grants []*place.Grant
		r      place.Request
		want   string
	}{
		"nothing":    {place.Config{NoFloor: true}, nil, place.Request{}, ""},
		"floor":      {place.Config{}, nil, place.Request{}, "CPU 0 stays shared, for workloads without CPUs of their own (floor, noFloor)"},
		"reserved":   {place.Config{Reserved: set("0-1")}, nil, place.Request{}, "CPUs 0-1 are reserved for the host (reserved)"},
		"system":     {place.Config{Reserved: set("0-1"), NoFloor: true}, nil, place.Request{Class: place.System}, ""},
		"allowed":    {place.Config{Allowed: set("0-13"), NoFloor: true}, nil, place.Request{}, "CPUs 14-15 are not for workloads (allowed)"},
		"exclusive":  {place.Config{NoFloor: true}, []*place.Grant{own("web", "4-5", "")}, place.Request{}, "CPUs 4-5 are exclusive to web"},
		"its own":    {place.Config{NoFloor: true}, []*place.Grant{own("web", "4-5", "")}, place.Request{ID: "web"}, ""},
		"fence":      {place.Config{NoFloor: true}, []*place.Grant{own("web", "4", "12")}, place.Request{}, "CPU 4 is exclusive to web; CPU 12 is kept idle beside the CPUs of web"},
		"counted":    {place.Config{NoFloor: true}, []*place.Grant{{ID: "kv", Share: place.Share{Within: set("4-5"), Milli: 1000, Counted: true}, Request: place.Request{ID: "kv", Class: place.LSR}}}, place.Request{}, "CPUs 4-5 are held by kv"},
		"one shared": {place.Config{NoFloor: true}, []*place.Grant{shared("db", 0)}, place.Request{}, "CPUs 0-15 are shared by db, which needs 1 CPU"},
		"shared": {
			place.Config{},
			[]*place.Grant{own("web", "4-5", ""), shared("a", 1500), shared("b", 600), shared("c", 0), shared("d", 0), shared("e", 0), shared("f", 0)},
			place.Request{},
			"CPU 0 stays shared, for workloads without CPUs of their own (floor, noFloor); CPUs 4-5 are exclusive to web; " +
				"CPUs 1-3,6-15 are shared by a, b, c, d and 2 more, which need 3 CPUs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := give(t, start(t, c.conf), c.grants...)
			var clauses []string
			var seen cpuset.Set
			for _, o := range s.Obstacles(&c.r) {
				if seen.Overlaps(o.CPUs) {
					t.Errorf("CPUs %s are named twice", seen.Intersect(o.CPUs))
				}
				seen = seen.Union(o.CPUs)
				clauses = append(clauses, o.String())
			}
			if diff := cmp.Diff(c.want, strings.Join(clauses, "; ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBlame(t *testing.T) {
	t.Parallel()
	s := start(t, place.Config{})
	floor := "CPU 0 stays shared, for workloads without CPUs of their own (floor, noFloor)"
	for _, c := range []struct {
		err   error
		milli int
		want  string
	}{
		{&place.CPUsError{Asked: 40, Available: 15}, 40_000, "not enough CPUs: 40 asked, 15 available: the host has 16 CPUs; " + floor},
		{&place.CPUsError{Asked: 16, Available: 15}, 15_500, "not enough CPUs: 16 asked, 15 available (15500m is rounded up to whole CPUs): " + floor},
		{&place.SMTError{Asked: 16, PerCore: 2, Available: 14}, 16_000, "SMT alignment: 16 CPUs asked, 14 available in whole cores: " + floor},
		{&place.FloorError{CPUs: cpuset.MustOf(0)}, 0, "not enough CPUs are left to share: " + floor},
		{&place.CPUsError{Asked: 17000, Available: 16000, Milli: true}, 17_000, "not enough CPUs: 17 asked, 16 available: the host has 16 CPUs"},
		{&place.HeldError{ID: "web"}, 1000, `workload "web": already holds a grant`},
	} {
		got := s.Blame(&place.Request{Milli: c.milli}, c.err)
		if got.Error() != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if !errors.Is(got, c.err) {
			t.Errorf("%v does not unwrap to the refusal", got)
		}
	}
}

// A refusal says once what stands in the way, and of CPUs that others hold who that is.
func TestBlameNamesOwnersOnce(t *testing.T) {
	t.Parallel()
	web := &place.Grant{ID: "web", Own: cpuset.MustParse("4-5"), Request: place.Request{ID: "web", Class: place.LSE}}
	s := give(t, start(t, place.Config{}), web)
	r := &place.Request{ID: "db", Class: place.LSE, Milli: 1000}
	err := s.Blame(r, &place.CPUsError{Asked: 16, Available: 13})
	if again := s.Blame(r, err); again != err {
		t.Errorf("blamed again: %v", again)
	}
	err = s.Blame(r, &place.ConflictError{ID: "db", CPUs: cpuset.MustParse("5"), Reason: "held by others"})
	if want := `grant "db": CPUs 5: held by others: CPUs 4-5 are exclusive to web`; err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
