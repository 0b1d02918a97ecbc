package metrics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

const (
	uid   = "8d2c5f4e-1c2b-4a39-9f6d-0a1b2c3d4e5f"
	group = "kubepods/burstable/pod" + uid + "/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// node has one container with a CPU of its own.
type node struct{ state *place.State }

func (n node) ClassReport(context.Context) (agent.ClassReport, error) {
	return agent.ClassReport{}, nil
}
func (n node) Backend() string                             { return "nri" }
func (n node) State(context.Context) (*place.State, error) { return n.state, nil }
func (n node) List(context.Context) (all []agent.Workload, err error) {
	for _, g := range n.state.Save().Grants {
		all = append(all, agent.Workload{Spec: agent.Spec{Request: g.Request}, Grant: g, Group: group})
	}
	return all, nil
}

func newNode(t *testing.T) node {
	t.Helper()
	m := &machine.Machine{Online: cpuset.MustParse("0-3")}
	for i := range 4 {
		m.CPUs = append(m.CPUs, machine.CPU{ID: i})
	}
	top, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := place.New(top, place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	grant := &place.Grant{ID: "shop/db-0/postgres", Own: cpuset.MustOf(2), Request: place.Request{
		ID: "shop/db-0/postgres", Namespace: "shop", Group: uid, Class: place.LSR, Milli: 1000, Mode: place.Exclusive,
	}}
	offer := s.Offer()
	offer.Grant = grant
	if s, err = s.Commit(offer); err != nil {
		t.Fatal(err)
	}
	return node{s}
}

// played is a host with the group of a container.
func played(t *testing.T, layout fakekernel.Layout) *kernel.Root {
	t.Helper()
	dir := t.TempDir()
	k, err := fakekernel.New(dir, layout)
	if err != nil {
		t.Fatal(err)
	}
	trees := []string{layout.V2}
	if layout.V2 == "" {
		trees = nil
		for _, list := range layout.V1 {
			trees = append(trees, "sys/fs/cgroup/"+list)
		}
	}
	for _, tree := range trees {
		at := tree
		for part := range strings.SplitSeq(group, "/") {
			if layout.V2 != "" {
				if err := k.WriteFile(at+"/cgroup.subtree_control", "+cpu +memory"); err != nil {
					t.Fatal(err)
				}
			}
			at += "/" + part
			if err := k.Mkdir(at); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, text := range map[string]string{"cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n", "cpuacct.usage": "1500000000\n", "memory.current": "4096\n", "memory.usage_in_bytes": "4096\n"} {
		for _, tree := range trees {
			file := filepath.Join(dir, tree, group, name)
			if name == "cpu.stat" && layout.V2 == "" {
				continue // it has other lines there
			}
			if layout.V2 != "" || strings.Contains(tree, strings.SplitN(name, ".", 2)[0]) {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return kernel.NewRoot(dir, k)
}

// A scrape says which container of which pod a series is of.
func TestScrape(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := New(Options{Root: played(t, layout), Node: newNode(t), Policy: "berth", Interval: 10 * time.Millisecond, Kinds: []string{"word", "fallback"}, PodEvents: func() map[string]uint64 { return map[string]uint64{"dropped": 7} }, Failed: func(err error) { t.Error(err) }})
			if err != nil {
				t.Fatal(err)
			}
			l, err := Listen("127.0.0.1:0", false)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 2)
			go func() { done <- s.Run(ctx) }()
			go func() { done <- s.Serve(ctx, l, false) }()
			s.Note(api.Event{Event: agent.Event{Kind: "fallback"}})
			of := `class="LSR",container="postgres",namespace="shop",pod="db-0",workload="shop/db-0/postgres"}`
			wants := []string{
				`berth_agent_info{backend="nri",policy="berth"} 1`, `berth_events_total{kind="fallback"} 1`, `berth_events_total{kind="word"} 0`, `berth_pod_events_total{outcome="dropped"} 7`,
				"berth_workload_exclusive_cpus{" + of + " 1", "berth_workload_cpu_seconds_total{" + of + " 1.5", "berth_workload_memory_bytes{" + of + " 4096",
			}
			var text string
			for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
				answer, err := http.Get("http://" + l.Addr().String() + "/metrics")
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(answer.Body)
				answer.Body.Close()
				if text = string(body); has(text, wants) {
					break
				}
			}
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("no %s", want)
				}
			}
			cancel()
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Workloads are listed at the start and after an event, not in each interval.
func TestListsWhenTold(t *testing.T) {
	t.Parallel()
	root := played(t, fakekernel.V2())
	synctest.Test(t, func(t *testing.T) {
		n := &counted{node: newNode(t)}
		s, err := New(Options{Root: root, Node: n})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- s.Run(ctx) }()
		comesTo := func(want int64) { // in five intervals
			t.Helper()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got := n.lists.Load(); got != want {
				t.Errorf("listed %d times, want %d", got, want)
			}
		}
		comesTo(1)
		s.Note(api.Event{Event: agent.Event{Kind: agent.Released}})
		comesTo(2)
		n.fails.Store(true)
		s.Note(api.Event{Event: agent.Event{Kind: agent.Placed}})
		comesTo(7) // one that failed is tried again in each
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// counted counts how often workloads are listed.
type counted struct {
	node
	lists atomic.Int64
	fails atomic.Bool
}

func (c *counted) List(ctx context.Context) ([]agent.Workload, error) {
	c.lists.Add(1)
	if c.fails.Load() {
		return nil, errors.New("no list")
	}
	return c.node.List(ctx)
}

func has(text string, wants []string) bool {
	for _, want := range wants {
		if !strings.Contains(text, want) {
			return false
		}
	}
	return true
}

func TestListen(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"9750", "0.0.0.0:0", "[::]:0", ":0"} {
		if l, err := Listen(address, false); err == nil {
			l.Close()
			t.Errorf("%s is open to others", address)
		}
	}
	l, err := Listen("0.0.0.0:0", true)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
