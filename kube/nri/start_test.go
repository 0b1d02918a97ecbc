package nri

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
)

// sends is what is sent outside of answers, until nothing is left.
func sends(p *Plugin) (told []string) {
	for range 4 {
		for _, lose := range []bool{true, false} {
			some := p.table.outgoing(lose, p.online)
			for _, m := range some {
				told = append(told, m.id+" "+m.to.cpus.String())
			}
			p.table.sendDone(some)
		}
	}
	return told
}

// A container that the runtime is starting may begin on what it was told before: CPUs that are
// taken from it meanwhile are had when it is known on which it runs, or after a while.
func TestTakenWhileStarting(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		begins   string // what the kernel shows after the start
		meantime func(p *Plugin)
		moved    bool // the starting container is told once more
		created  bool // the runtime tells only then that it starts it
	}{
		{name: "it began before", begins: "0-7", moved: true},
		{name: "before the start was told", begins: "0-7", moved: true, created: true},
		{name: "it began after", begins: ""}, // as it was told
		{name: "it never began", meantime: func(p *Plugin) { p.table.containers["web.a"].startingSince = time.Now().Add(-startTimeout) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var is cpuset.Set
			opt, _ := options(t, "1s1n4c2t")
			opt.Effective = func(group string) (cpuset.Set, bool) {
				return is, strings.HasSuffix(group, "web.a") && !is.IsEmpty()
			}
			opt.Busy = func(group string) bool { return strings.HasSuffix(group, "web.a") } // its process has not begun
			p := open(t, opt)
			ctx := context.Background()
			p.table.synced = true
			web, db := pod("web", nil), pod("db", exclusive)
			_, _, err := p.CreateContainer(ctx, web, container(web, "a", 100))
			must(t, err)
			if c.created { // longer ago than a start takes
				p.table.containers["web.a"].startingSince = time.Now().Add(-startTimeout)
			} else {
				must(t, p.StartContainer(ctx, web, container(web, "a", 100)))
			}
			adjust, updates, err := p.CreateContainer(ctx, db, container(db, "a", 2000))
			must(t, err)
			own := p.table.containers["db.a"].want.cpus
			first := cpuset.MustParse(adjust.GetLinux().GetResources().GetCpu().GetCpus())
			if own.Len() != 2 || first.IsEmpty() || first.Overlaps(own) {
				t.Errorf("it begins on %s beside one that may begin on %s", first, own)
			}
			rest := cpusOf(updates, "web.a")
			if c.created {
				must(t, p.RemovePodSandbox(ctx, pod("other", nil)))
				if got := sends(p); len(got) > 0 {
					t.Errorf("sent before the start is told: %q", got)
				}
				must(t, p.StartContainer(ctx, web, container(web, "a", 100)))
			}
			if got := sends(p); len(got) > 0 {
				t.Errorf("sent before the start is over: %q", got)
			}
			if c.meantime != nil {
				c.meantime(p)
			} else {
				if is = cpuset.MustParse(rest); c.begins != "" {
					is = cpuset.MustParse(c.begins)
				}
				must(t, p.PostStartContainer(ctx, web, container(web, "a", 100)))
			}
			want := []string{"db.a " + own.String()}
			if c.moved {
				want = append([]string{"web.a " + rest}, want...)
			}
			if got := sends(p); !cmp.Equal(got, want) {
				t.Errorf("sent %q, want %q", got, want)
			}
		})
	}
}

// A container that is listed as created and has a process has not started: an update of it may come too late.
func TestCreatedWithAProcess(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "1s1n4c2t")
	opt.Effective = func(group string) (cpuset.Set, bool) {
		return cpuset.MustParse("0-7"), strings.HasSuffix(group, "web.a")
	}
	p := open(t, opt)
	ctx := context.Background()
	web, db := pod("web", nil), pod("db", exclusive)
	c := container(web, "a", 100)
	c.State, c.Linux.Resources.Cpu.Cpus = api.ContainerState_CONTAINER_CREATED, "0-7"
	_, err := p.Synchronize(ctx, []*api.PodSandbox{web}, []*api.Container{c})
	must(t, err)
	adjust, updates, err := p.CreateContainer(ctx, db, container(db, "a", 2000))
	must(t, err)
	own, rest := p.table.containers["db.a"].want.cpus, cpusOf(updates, "web.a")
	first := cpuset.MustParse(adjust.GetLinux().GetResources().GetCpu().GetCpus())
	if own.Len() != 2 || first.IsEmpty() || first.Overlaps(own) {
		t.Errorf("it begins on %s, and its own are %s", first, own)
	}
	must(t, p.PostStartContainer(ctx, web, c))
	if got, want := sends(p), []string{"web.a " + rest, "db.a " + own.String()}; !cmp.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// A runtime that was killed amid an update lists what it wanted to write: what the kernel has
// counts.
func TestKernelCountsAtAdoption(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "1s1n4c2t")
	kernel := map[string]string{"db.a": "2,6", "web.a": "0-7"}
	opt.Effective = func(group string) (cpuset.Set, bool) {
		text, ok := kernel[group[strings.LastIndex(group, "/")+1:]]
		return cpuset.MustParse(text), ok
	}
	p := open(t, opt)
	db, web := pod("db", exclusive), pod("web", nil)
	var containers []*api.Container
	for _, c := range []*api.Container{container(db, "a", 2000), container(web, "a", 100)} {
		c.State, c.Linux.Resources.Cpu.Cpus = api.ContainerState_CONTAINER_RUNNING, "0-1,3-5,7"
		containers = append(containers, c)
	}
	updates, err := p.Synchronize(context.Background(), []*api.PodSandbox{db, web}, containers)
	must(t, err)
	if own := cpusOf(updates, "db.a"); own != "" {
		t.Errorf("the owner is moved from what it has to %s", own)
	}
	if got := cpusOf(updates, "web.a"); got != "0-1,3-5,7" {
		t.Errorf("who has all CPUs in the kernel, and others in the runtime's list, is told %q", got)
	}
}

// An update that a former connection had begun, and that the runtime applies only after the
// adoption, is seen soon, and not at the next look alone.
func TestLateUpdateOfFormerConnection(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", func(o *Options) { o.Every = time.Hour })
	web, db := pod("web", nil), pod("db", exclusive)
	must(t, n.create(web, container(web, "a", 100), 0))
	must(t, n.create(db, container(db, "a", 2000), 2))
	n.end()
	must(t, n.p.Close())
	opt := n.p.opt
	opt.Node.Enforcer, opt.Node.Events = nil, nil
	n.run(open(t, opt))
	time.Sleep(3 * settling)
	n.mu.Lock()
	n.put(n.boxes["web.a"], n.online) // nobody checks
	n.mu.Unlock()
	eventually(t, "it is taken off the other's CPUs", func() bool { return !n.cpus("web.a").Overlaps(n.cpus("db.a")) })
}

// A container that is created and not started gives its CPUs back, and gets CPUs again if it
// starts after all.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", func(o *Options) { o.Unstarted = 500 * time.Millisecond })
	abandoned := func() []Event { // others may be late to start on a busy host
		return slices.DeleteFunc(n.heard.of(Abandoned), func(e Event) bool { return e.Pod != "db" })
	}
	create := func(p *api.PodSandbox) *api.Container {
		c := container(p, "a", 4000)
		n.serial.Lock()
		defer n.serial.Unlock()
		must(t, n.make(p, c, 4))
		return c
	}
	web, db := pod("web", nil), pod("db", exclusive)
	must(t, n.create(web, container(web, "a", 500), 0))
	c := create(db)
	eventually(t, "the others have its CPUs", func() bool { return n.cpus("web.a") == n.online })
	e := abandoned()
	if len(e) != 1 || e[0].UID != "uid-db" || e[0].Container != "a" || e[0].Reason() != "NotStarted" || !strings.Contains(e[0].Text, "not started: it gives CPUs ") {
		t.Errorf("events %+v", e)
	}
	n.serial.Lock()
	must(t, n.runtime.run(db, c))
	n.serial.Unlock()
	eventually(t, "it has CPUs of its own", func() bool { return n.cpus("db.a").Len() == 4 })
	n.asBooks("started")
	time.Sleep(3 * n.p.opt.Unstarted)
	if e := abandoned(); len(e) != 1 {
		t.Errorf("who runs is not abandoned: %+v", e[1:])
	}
}

// One that starts while it is found not to have started keeps its CPUs, or has them again.
func TestStartsWhileAbandoned(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := pod("db", exclusive)
	c := container(db, "a", 4000)
	own := func(t *testing.T, p *Plugin) int {
		t.Helper()
		w, err := p.node.Get(ctx, "default/db/a")
		must(t, err)
		return w.Grant.Own.Len()
	}
	create := func(t *testing.T, change func(*Options)) (*Plugin, *events) {
		t.Helper()
		opt, heard := options(t, "1s1n4c2t")
		opt.Unstarted = time.Nanosecond
		change(&opt)
		p := open(t, opt)
		_, _, err := p.CreateContainer(ctx, db, c)
		must(t, err)
		if got := own(t, p); got != 4 {
			t.Fatalf("it owns %d CPUs", got)
		}
		return p, heard
	}
	t.Run("before it is noted", func(t *testing.T) {
		t.Parallel()
		var start func()
		p, heard := create(t, func(o *Options) { o.Busy = func(string) bool { start(); return false } })
		start = func() { must(t, p.PostStartContainer(ctx, db, c)) }
		p.abandon(ctx)
		if got, told := own(t, p), heard.kinds(Abandoned); got != 4 || len(told) > 0 {
			t.Errorf("it owns %d CPUs, told %q", got, told)
		}
	})
	t.Run("before its CPUs are given back", func(t *testing.T) {
		t.Parallel()
		p, _ := create(t, func(o *Options) { o.Busy = func(string) bool { return false } })
		found := p.abandoned(0)
		if len(found) != 1 || !p.table.setAbandoned(&found[0]) {
			t.Fatalf("found %+v", found)
		}
		must(t, p.PostStartContainer(ctx, db, c))
		_, err := p.giveBack(ctx, c.Id, true)
		must(t, err)
		p.retryAll(ctx)
		if got := own(t, p); got != 4 {
			t.Errorf("it owns %d CPUs", got)
		}
	})
}

// So it is with one that has no cache class where the plugin starts anew before the container starts.
func TestAbandonedOverARestart(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", func(o *Options) { o.Unstarted = 500 * time.Millisecond })
	opt := n.p.opt
	opt.Node.Enforcer, opt.Node.Events = nil, nil
	db := pod("db", exclusive)
	c := container(db, "a", 4000)
	n.serial.Lock()
	must(t, n.make(db, c, 4))
	n.serial.Unlock()
	eventually(t, "its CPUs are free", func() bool { return n.shared() == n.online })
	n.end()
	must(t, n.p.Close())
	n.run(open(t, opt))
	n.serial.Lock()
	must(t, n.runtime.run(db, c))
	n.serial.Unlock()
	eventually(t, "it has CPUs of its own", func() bool { return n.cpus("db.a").Len() == 4 })
	n.asBooks("started")
}

// A container that ended while nobody was told gives its CPUs back.
func TestGoneWithoutAnEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", func(o *Options) { o.Unstarted = 500 * time.Millisecond })
	db := pod("db", exclusive)
	must(t, n.create(db, container(db, "a", 4000), 4))
	time.Sleep(3 * n.p.opt.Unstarted)
	if n.shared() == n.online {
		t.Fatal("who runs gives its CPUs back")
	}
	n.mu.Lock()
	delete(n.boxes, "db.a")
	n.mu.Unlock()
	eventually(t, "its CPUs are free, and that is told", func() bool { return n.shared() == n.online && len(n.heard.of(Abandoned)) > 0 })
	if e := n.heard.of(Abandoned); len(e) != 1 || !strings.HasPrefix(e[0].Text, "gone for ") {
		t.Errorf("events %+v", e)
	}
}

// Whose group the plugin cannot read is not gone.
func TestUnreadableIsNotGone(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", func(o *Options) {
		o.Unstarted = 500 * time.Millisecond
		o.Effective = func(string) (cpuset.Set, bool) { return cpuset.Set{}, false }
	})
	db := pod("db", exclusive)
	must(t, n.create(db, container(db, "a", 4000), 4))
	time.Sleep(settling + 4*n.p.opt.Unstarted)
	if n.shared() == n.online || len(n.heard.of(Abandoned)) > 0 {
		t.Errorf("events %+v", n.heard.of(Abandoned))
	}
}

// Where the sandbox stops before a container of it was started, its CPUs are free at once. Those
// of the pod's next sandbox are kept, also when the first is removed.
func TestSandboxEndsBeforeStart(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", func(o *Options) { o.Every = time.Hour })
	db := pod("db", exclusive)
	n.serial.Lock()
	must(t, n.make(db, container(db, "a", 4000), 4))
	n.serial.Unlock()
	if n.shared() == n.online {
		t.Fatal("it owns nothing")
	}
	must(t, n.stopPod(db))
	if n.shared() != n.online {
		t.Errorf("the pool is %s after its sandbox stopped", n.shared())
	}
	delete(n.boxes, "db.a")
	next := pod("db", map[string]string{"berth.dev/class": "LSE", "berth.dev/role.b": "init"})
	next.Id = "pod-db-2"
	must(t, n.create(next, container(next, "b", 4000), 4))
	must(t, n.stop("db.b")) // its CPUs are kept for the pod's others
	must(t, n.nri.RemovePodSandbox(context.Background(), &api.RemovePodSandboxRequest{Pod: db}))
	if n.shared() == n.online {
		t.Error("the removal of the former sandbox takes the CPUs of the next")
	}
	must(t, n.stopPod(next))
	if n.shared() != n.online {
		t.Errorf("the pool is %s at the end", n.shared())
	}
}

// What happens to a container is told with its pod's UID.
func TestEventsNamePods(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", nil)
	web := pod("web", nil)
	must(t, n.create(web, container(web, "a", 500), 0))
	n.mu.Lock()
	n.put(n.boxes["web.a"], cpuset.MustOf(1))
	n.mu.Unlock()
	eventually(t, "drift is seen", func() bool { return len(n.heard.of(Drifted)) > 0 })
	want := Event{Kind: Drifted, Namespace: "default", Pod: "web", UID: "uid-web", Container: "a"}
	got := n.heard.of(Drifted)[0]
	got.Text = ""
	if got != want || got.Reason() != "CPUsChanged" {
		t.Errorf("%+v, want %+v", got, want)
	}
	opt, heard := options(t, "1s1n4c2t")
	p := open(t, opt)
	big := guaranteed(pod("big", nil))
	c := container(big, "a", 16000)
	c.State = api.ContainerState_CONTAINER_RUNNING
	_, err := p.Synchronize(context.Background(), []*api.PodSandbox{big}, []*api.Container{c})
	must(t, err)
	if e := heard.of(Fallback); len(e) != 1 || e[0].UID != "uid-big" || e[0].Container != "a" || e[0].Reason() != "SharedPool" {
		t.Errorf("adopted as %+v", e)
	}
}
