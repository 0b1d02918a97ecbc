package nri

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place/berth"
)

// Of a pod that was removed while no connection said so nothing stays.
func TestPodRemovedUnseen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	opt, heard := options(t, "1s1n4c2t")
	p := open(t, opt)
	gone, stays := pod("gone", map[string]string{"berth.dev/bind": "Full"}), pod("stays", map[string]string{"berth.dev/bind": "Full"})
	must(t, p.RunPodSandbox(ctx, gone))
	must(t, p.RunPodSandbox(ctx, stays))
	if told := heard.kinds(Word); len(told) != 2 || len(p.reported) != 2 {
		t.Fatalf("told %q", told)
	}
	_, err := p.Synchronize(ctx, []*api.PodSandbox{stays}, nil)
	must(t, err)
	if len(p.reported) != 1 || p.reported[stays.Id] == nil {
		t.Errorf("it knows %v", p.reported)
	}
}

// After a restart of the plugin, of the runtime, or of both, nothing moves without need,
// and what came and went meanwhile is adopted and released.
func TestRestarts(t *testing.T) {
	t.Parallel()
	n := newNode(t, "2s2n4c2t", nil)
	opt := n.p.opt
	opt.Node.Enforcer, opt.Node.Events = nil, nil
	for i := range 12 {
		p, own := pod(name(i), nil), 0
		if i%3 == 0 {
			p.Annotations, own = exclusive, 2
		}
		must(t, n.create(p, container(p, "a", max(300, own*1000)), own))
	}
	was := n.all()
	restart := func() {
		n.end()
		must(t, n.p.Close())
		n.run(open(t, opt))
	}
	restart()
	if diff := cmp.Diff(was, n.all()); diff != "" {
		t.Errorf("a restart of the plugin moves containers:\n%s", diff)
	}
	n.asBooks("plugin")

	n.crash()
	eventually(t, "the connection is lost", func() bool { return len(n.heard.kinds(Lost)) > 0 })
	n.start()
	n.connected()
	if diff := cmp.Diff(was, n.all()); diff != "" {
		t.Errorf("a restart of the runtime moves containers:\n%s", diff)
	}
	n.asBooks("runtime")

	n.end()
	must(t, n.p.Close())
	n.mu.Lock()
	delete(n.boxes, "p003.a") // ended while nobody looked
	late := pod("late", nil)  // and one came, on all CPUs as the kubelet asked
	n.boxes["late.a"] = &box{pod: late, c: container(late, "a", 100), running: true}
	n.mu.Unlock()
	n.run(open(t, opt))
	n.asBooks("both")
	if got := n.cpus("late.a"); got.IsEmpty() || got.Overlaps(n.cpus("p000.a")) {
		t.Errorf("who came meanwhile has %s", got)
	}
	for id, cpus := range n.all() {
		if strings.HasPrefix(id, "p00") && n.boxes[id].own > 0 && cpus != was[id] {
			t.Errorf("%s moved from %s to %s", id, was[id], cpus)
		}
	}
	if _, err := n.p.node.Get(context.Background(), "default/p003/a"); err == nil {
		t.Error("who ended still has a place")
	}
}

// A container that runs keeps its CPUs while the runtime, started anew, does not list it.
func TestRunsUnlisted(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", nil)
	opt := n.p.opt
	opt.Node.Enforcer, opt.Node.Events = nil, nil
	web, db := pod("web", nil), pod("db", exclusive)
	must(t, n.create(web, container(web, "a", 500), 0))
	must(t, n.create(db, container(db, "a", 4000), 4))
	own := n.cpus("db.a")
	n.mu.Lock()
	n.boxes["db.a"].unknown = true
	n.mu.Unlock()
	keeps := func(when string) {
		t.Helper()
		w, err := n.p.node.Get(context.Background(), "default/db/a")
		must(t, err)
		if w.CPUs != own || w.Grant.Own != own {
			t.Errorf("%s: it owns CPUs %s, and runs on %s", when, w.Grant.Own, own)
		}
		n.asBooks(when)
	}
	n.crash()
	eventually(t, "the connection is lost", func() bool { return len(n.heard.kinds(Lost)) > 0 })
	n.start()
	n.connected()
	keeps("the runtime has started anew")
	n.end()
	must(t, n.p.Close())
	n.run(open(t, opt))
	keeps("so has the plugin")
	next := pod("next", exclusive)
	must(t, n.create(next, container(next, "a", 2000), 2))
	keeps("beside a new one")
	if of := n.p.table.identity("db.a"); of.pod != "db" || of.container != "a" || of.uid != "uid-db" {
		t.Errorf("it is known as %+v", of)
	}
}

// Containers that run before Berth is there keep exclusive CPUs that they have.
func TestAdoptsWhatIsLegal(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "2s1n4c2t")
	p := open(t, opt)
	var pods []*api.PodSandbox
	var containers []*api.Container
	add := func(pod *api.PodSandbox, milli int, cpus string) {
		c := container(pod, "a", milli)
		c.State = api.ContainerState_CONTAINER_RUNNING
		c.Linux.Resources.Cpu.Cpus = cpus
		pods, containers = append(pods, pod), append(containers, c)
	}
	add(guaranteed(pod("keeps", nil)), 2000, "4-5")
	add(guaranteed(pod("overlaps", nil)), 2000, "5-6")
	add(pod("shares", nil), 500, "0-15")
	add(pod("free", nil), 500, "")
	updates, err := p.Synchronize(context.Background(), pods, containers)
	must(t, err)
	if u := cpusOf(updates, "keeps.a"); u != "" {
		t.Errorf("who is where it may be is moved to %s", u)
	}
	all, err := p.node.List(context.Background())
	must(t, err)
	own := cpuset.Set{}
	for _, w := range all {
		if own.Overlaps(w.Grant.Own) {
			t.Errorf("%s: %s", w.ID(), w.Grant.Own)
		}
		own = own.Union(w.Grant.Own)
	}
	if own.Len() != 4 || !own.Contains(cpuset.MustParse("4-5")) {
		t.Errorf("owned: %s", own)
	}
	for _, id := range []string{"shares.a", "free.a"} {
		if u := cpuset.MustParse(cpusOf(updates, id)); u.Overlaps(own) || u.IsEmpty() {
			t.Errorf("%s is told %q", id, u)
		}
	}
}

// A list of containers that is too long for one message comes in pieces.
func TestSynchronizeInPieces(t *testing.T) {
	t.Parallel()
	opt, heard := options(t, "2s4n32c2t")
	n := &node{runtime: newRuntime(t, opt.Node.Machine.Online), heard: heard}
	opt.Effective = n.effective
	for i := range 1000 {
		p := pod(name(i), nil)
		c := container(p, "a", 100)
		c.Env = []string{"PADDING=" + strings.Repeat("x", 8<<10)} // 8 MB in all; a message has 4
		n.boxes[c.Id] = &box{pod: p, c: c, running: true}
	}
	n.start()
	n.run(open(t, opt))
	if all, _ := n.p.node.List(context.Background()); len(all) != 1000 {
		t.Errorf("%d of 1000 adopted", len(all))
	}
	n.asBooks("adopted")
}

// What a container costs in Synchronize does not depend on how many there are.
func TestSynchronizeIsLinear(t *testing.T) {
	took := func(n int) time.Duration {
		best := time.Hour
		pods, containers := many(n)
		for range 3 {
			opt, _ := options(t, "2s4n16c2t")
			p := open(t, opt)
			began := cpuTime(t) // other work on the host makes that little longer
			_, err := p.Synchronize(context.Background(), pods, containers)
			must(t, err)
			best = min(best, cpuTime(t)-began)
		}
		return best
	}
	few, all := took(100), took(1000)
	t.Logf("100 containers in %s, 1000 in %s", few, all)
	if all > 40*few {
		t.Errorf("1000 containers take %s, 100 take %s", all, few)
	}
}

// A decision that fails leaves nobody on CPUs that may become exclusive.
func TestAdoptFails(t *testing.T) {
	t.Parallel()
	opt, heard := options(t, "2s2n4c2t")
	opt.Budget = time.Nanosecond
	answered := make(chan struct{})
	opt.Node.Policy = slow{berth.Policy{}, func() { <-answered }}
	p := open(t, opt)
	pods, containers := many(3)
	_, err := p.Synchronize(context.Background(), pods, containers)
	close(answered)
	must(t, err)
	if len(heard.kinds("failed")) == 0 {
		t.Fatal("nothing failed")
	}
	eventually(t, "they follow the pool", func() bool {
		p.table.mu.Lock()
		defer p.table.mu.Unlock()
		for _, s := range p.table.containers {
			if !s.unplaced {
				return false
			}
		}
		return len(p.table.containers) == 3
	})
	p.opt.Budget = time.Minute
	db := pod("db", exclusive)
	_, updates, err := p.CreateContainer(context.Background(), db, container(db, "a", 2000))
	must(t, err)
	if len(updates) != 3 {
		t.Errorf("%d of 3 are moved out of the way", len(updates))
	}
}

// many are the containers of a node.
func many(n int) (pods []*api.PodSandbox, containers []*api.Container) {
	for i := range n {
		p := pod(name(i), nil)
		c := container(p, "a", 100)
		c.State, c.Linux.Resources.Cpu.Cpus = api.ContainerState_CONTAINER_RUNNING, "0-255"
		pods, containers = append(pods, p), append(containers, c)
	}
	return pods, containers
}

// cpuTime is what this process has used.
func cpuTime(t testing.TB) time.Duration {
	var used syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func BenchmarkSynchronize(b *testing.B) {
	pods, containers := many(1000)
	kernel := b.TempDir() // a file is read of each container
	for _, c := range containers {
		must(b, os.WriteFile(filepath.Join(kernel, c.Id), []byte("0-127\n"), 0o644))
	}
	effective := func(group string) (cpuset.Set, bool) {
		text, err := os.ReadFile(filepath.Join(kernel, path.Base(group)))
		must(b, err)
		cpus, err := cpuset.Parse(strings.TrimSpace(string(text)))
		return cpus, err == nil
	}
	for _, known := range []bool{false, true} {
		b.Run(fmt.Sprintf("known=%v", known), func(b *testing.B) {
			var took time.Duration // of CPU time, which other work on the host makes little longer
			for b.Loop() {
				b.StopTimer()
				opt, _ := options(b, "2s4n16c2t")
				opt.Effective = effective
				p := open(b, opt)
				if known {
					_, err := p.Synchronize(context.Background(), pods, containers)
					must(b, err)
				}
				began := cpuTime(b)
				b.StartTimer()
				_, err := p.Synchronize(context.Background(), pods, containers)
				b.StopTimer()
				must(b, err)
				took += cpuTime(b) - began
				p.Close()
				b.StartTimer()
			}
			b.ReportMetric(took.Seconds()*1000/float64(b.N), "cpu-ms")
		})
	}
}

func BenchmarkCreateContainer(b *testing.B) {
	for _, others := range []int{0, 250} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			opt, _ := options(b, "2s4n16c2t")
			p := open(b, opt)
			ctx := context.Background()
			for i := range others {
				q := pod(name(i), nil)
				c := container(q, "a", 100)
				_, _, err := p.CreateContainer(ctx, q, c)
				must(b, err)
				must(b, p.PostStartContainer(ctx, q, c))
			}
			q := pod("new", exclusive)
			c := container(q, "a", 2000)
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				_, _, err := p.CreateContainer(ctx, q, c)
				took = append(took, time.Since(began))
				must(b, err)
				b.StopTimer()
				_, err = p.StopContainer(ctx, q, c)
				must(b, err)
				b.StartTimer()
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2].Seconds()*1000, "median-ms")
			b.ReportMetric(took[len(took)*99/100].Seconds()*1000, "p99-ms")
		})
	}
}

// busyNode has a node decide about one container for as long as a test wants, once it is armed.
type busyNode struct {
	armed       atomic.Bool
	busy, ready chan struct{}
}

// newBusyNode gives its policy to a plugin that is to be opened.
func newBusyNode(o *Options) *busyNode {
	b := &busyNode{busy: make(chan struct{}), ready: make(chan struct{})}
	o.Node.Policy = slow{berth.Policy{}, func() {
		if b.armed.CompareAndSwap(true, false) {
			close(b.busy)
			<-b.ready
		}
	}}
	return b
}
