package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// pods makes a slice with two of four nodes' CPUs, and in it two pods with a container
// each: on v2 without sets of their own.
func pods(s *site) map[string]string {
	s.t.Helper()
	s.group("pods", "0-3")
	if len(s.dirs) == 1 {
		s.must(s.k.WriteFile("sys/fs/cgroup/pods/cgroup.subtree_control", "+cpuset"))
	}
	for _, name := range []string{"pods/a", "pods/b", "pods/a/one", "pods/b/two"} {
		s.nested(name)
	}
	return s.tree()
}

// nested makes a group in one that a test has made.
func (s *site) nested(name string) {
	s.t.Helper()
	for i, dir := range s.dirs {
		s.must(s.k.Mkdir(dir + "/" + name))
		if i == 0 && len(s.dirs) > 1 {
			s.must(errors.Join(s.k.WriteFile(dir+"/"+name+"/"+memsFile, "0-1"), s.k.WriteFile(dir+"/"+name+"/"+cpusFile, "0-3")))
		}
		if i == 0 && len(s.dirs) == 1 {
			err := s.k.WriteFile(dir+"/"+name+"/cgroup.subtree_control", "+cpuset")
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				s.t.Fatal(err)
			}
		}
	}
}

// effective are the CPUs that a group comes to.
func (s *site) effective(name string) cpuset.Set {
	s.t.Helper()
	file := "/cpuset.cpus.effective"
	if len(s.dirs) > 1 {
		file = "/" + cpusFile
	}
	set, err := readSet(kernel.NewRoot("", s.k), s.dirs[0]+"/"+name+file)
	s.must(err)
	return set
}

// The groups around a workload's get room for it, and no more than for what lies in them;
// what lies beside it keeps its CPUs; and all have in the end what they had.
func TestAncestorsArePlannedWithTheirWorkloads(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, newSite := range sites() {
		if name == "memory" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			before := pods(s)
			n := s.open()
			check := func(what, pods, a, one, b string) {
				t.Helper()
				if len(s.dirs) == 1 { // without a set of its own, a has that of pods
					a = pods
				}
				got := fmt.Sprint(s.effective("pods"), " ", s.effective("pods/a"), " ", s.effective("pods/a/one"), " ", s.effective("pods/b"))
				if want := fmt.Sprint(pods, " ", a, " ", one, " ", b); got != want {
					t.Errorf("%s: pods, a, one and b have %s, want %s", what, got, want)
				}
			}
			one := inGroup("one", place.LSE, 2000)
			one.Group, one.CPUs = "pods/a/one", cpuset.MustParse("4-5")
			s.place(n, one)
			check("placed outside", "0-5", "0-5", "4-5", "0-3")
			if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
				t.Errorf("then it repairs %v, %v", repairs, err)
			}
			_, err := n.Move(ctx, "one", cpuset.MustParse("6-7"), cpuset.Set{})
			s.must(err)
			check("moved", "0-3,6-7", "0-3,6-7", "6-7", "0-3")
			two := inGroup("two", place.LSE, 1000)
			two.Group, two.CPUs = "pods/b/two", cpuset.MustParse("5")
			s.place(n, two)
			check("beside another", "0-3,5-7", "0-3,6-7", "6-7", "0-3,5")
			s.must(n.Release(ctx, "one", WhenEmpty))
			check("released", "0-3,5", "0-3", "0-3", "0-3,5")
			s.must(n.Release(ctx, "two", WhenEmpty))
			s.sameTree(before)
		})
	}
}

// Wherever a process is killed that places, moves and releases within a narrow group, all
// comes to what is on record, and to what was before in the end.
func TestKilledAmongAncestors(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	one := inGroup("one", place.LSE, 2000)
	one.Group, one.CPUs = "pods/a/one", cpuset.MustParse("4-5")
	steps := []func(*Node) error{
		func(n *Node) error { _, err := n.Place(ctx, one); return err },
		func(n *Node) error { _, err := n.Move(ctx, "one", cpuset.MustParse("6-7"), cpuset.Set{}); return err },
		func(n *Node) error { return n.Release(ctx, "one", WhenEmpty) },
	}
	for name, newSite := range sites() {
		if name == "memory" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			points := 0
			for last := range steps {
				for at := 1; ; at++ {
					s := newSite(t)
					before := pods(s)
					n := s.open()
					for _, do := range steps[:last] {
						s.must(do(n))
					}
					n.Close()
					doomed := s.doom(&fate{at: at, after: at%2 == 0})
					dead := !survives(doomed, func() { s.must(steps[last](doomed)) })
					n = s.open()
					if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
						t.Errorf("step %d, killed at %d: it repairs %v, %v", last, at, repairs, err)
					}
					err := n.Release(ctx, "one", WhenEmpty)
					var none *place.NotHeldError
					if err != nil && !errors.As(err, &none) {
						t.Errorf("step %d, killed at %d: %v", last, at, err)
					}
					s.sameTree(before)
					n.Close()
					if t.Failed() {
						return
					}
					if !dead {
						break
					}
					points++
				}
			}
			if points < 20 {
				t.Errorf("killed at %d points only", points)
			}
		})
	}
}
