package nri

import (
	"context"
	"errors"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// groups are control groups of a played kernel.
type groups struct {
	t    *testing.T
	k    *fakekernel.Kernel
	root *kernel.Root
	v1   bool
}

func newGroups(t *testing.T, layout fakekernel.Layout, all ...string) *groups {
	t.Helper()
	layout.CPUs, layout.Version = "0-7", "7.3"
	dir := filepath.Join(t.TempDir(), "root")
	must(t, os.Mkdir(dir, 0o755))
	k, err := fakekernel.New(dir, layout)
	must(t, err)
	g := &groups{t, k, kernel.NewRoot(dir, k), layout.V2 == ""}
	host, err := cgroup.Detect(g.root)
	must(t, err)
	for i := range host.Hierarchies {
		host.Hierarchies[i].Own = ""
	}
	base, err := host.Base(cgroup.CPU, cgroup.CPUSet)
	must(t, err)
	for _, group := range all {
		plan, err := base.Child(group).Create()
		must(t, err)
		_, err = kernel.Apply(g.root, plan, nil)
		must(t, err)
	}
	return g
}

// files are the contents of all files of a name, by group.
func (g *groups) files(name string) map[string]string {
	g.t.Helper()
	tree, err := g.k.Tree()
	must(g.t, err)
	of := map[string]string{}
	for file, text := range tree {
		if path.Base(file) != name {
			continue
		}
		for _, top := range []string{"kubepods", "system.slice", "vip.slice", "berth"} {
			if _, below, ok := strings.Cut(file, "/"+top+"/"); ok {
				of[path.Join(top, path.Dir(below))] = strings.TrimSpace(text)
			}
		}
	}
	return of
}

// idle are the groups that run only when no other wants to.
func (g *groups) idle() []string {
	all := g.files("cpu.idle")
	maps.DeleteFunc(all, func(_, text string) bool { return text != "1" })
	return slices.Sorted(maps.Keys(all))
}

// overlapping are groups that run on some of the CPUs.
func (g *groups) overlapping(cpus cpuset.Set) (all []string) {
	file := "cpuset.cpus.effective"
	if g.v1 {
		file = "cpuset.cpus"
	}
	for group, text := range g.files(file) {
		if cpuset.MustParse(text).Overlaps(cpus) {
			all = append(all, group)
		}
	}
	slices.Sort(all)
	return all
}

const (
	be       = "kubepods/besteffort"
	jobPod   = be + "/podjob"
	mixedPod = be + "/podmixed"
)

// What is written around containers: pods of best effort are idle, never a container's own
// group nor a class, and what is to be confined, sandboxes among it, is kept off exclusive CPUs.
func TestAround(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroups(t, layout, "system.slice/sshd.service", "vip.slice", jobPod+"/job.a", jobPod+"/pause", mixedPod+"/mixed.a", mixedPod+"/mixed.b",
				"kubepods/burstable/podword/word.a", "kubepods/poddb/db.a", "kubepods/poddb/pause")
			before := g.files("cpuset.cpus")
			n := newNode(t, "1s1n4c2t", func(o *Options) {
				o.Node.Root, o.Idle, o.Confine, o.Protected = g.root, true, []string{"*"}, []string{"vip.slice"}
			})
			idle := func(when string, want ...string) {
				t.Helper()
				if got := g.idle(); !slices.Equal(got, want) {
					t.Errorf("%s: idle are %q, want %q", when, got, want)
				}
			}
			job, mixed := bestEffort(pod("job", nil)), bestEffort(pod("mixed", map[string]string{"berth.dev/class.b": "LS"}))
			word := pod("word", map[string]string{"berth.dev/class": "BE"})
			must(t, n.create(job, container(job, "a", 0), 0))
			idle("a pod of best effort", jobPod)
			must(t, n.create(mixed, container(mixed, "a", 0), 0))
			idle("a container of best effort", jobPod, mixedPod)
			must(t, n.create(mixed, container(mixed, "b", 0), 0))
			idle("with one that is not", jobPod)
			must(t, n.create(word, container(word, "a", 100), 0))
			idle("one whose shares the kubelet writes again", jobPod)
			w, err := n.p.node.Get(context.Background(), "default/word/a")
			must(t, err)
			if notes := strings.Join(w.Notes, "; "); !strings.Contains(notes, "cpu.idle is not set") {
				t.Errorf("notes %q", notes)
			}

			db := guaranteed(pod("db", exclusive))
			must(t, n.create(db, container(db, "a", 4000), 4))
			own := n.cpus("db.a")
			want := []string{"vip.slice"}
			for group := range before {
				switch path.Base(group) {
				case "job.a", "mixed.a", "mixed.b", "word.a", "db.a": // the runtime's to write, and what is around them
					for ; group != "."; group = path.Dir(group) {
						want = append(want, group)
					}
				}
			}
			slices.Sort(want)
			want = slices.Compact(want)
			if got := g.overlapping(own); !slices.Equal(got, want) {
				t.Errorf("on CPUs %s of a container are\n%q, want\n%q", own, got, want)
			}
			idle("with exclusive CPUs", jobPod)

			must(t, g.k.WriteFile(g.file(jobPod, "cpu.idle"), "0"))
			must(t, g.k.WriteFile(g.file("system.slice", "cpuset.cpus"), "0-7"))
			eventually(t, "what somebody else writes is repaired", func() bool {
				return slices.Equal(g.idle(), []string{jobPod}) && slices.Equal(g.overlapping(own), want)
			})

			must(t, n.stop("db.a"))
			must(t, n.stop("job.a"))
			idle("without the pod")
			for _, id := range []string{"mixed.a", "mixed.b", "word.a"} {
				must(t, n.stop(id))
			}
			if diff := cmp.Diff(before, g.files("cpuset.cpus")); diff != "" {
				t.Errorf("at the end (-before +after):\n%s", diff)
			}
		})
	}
}

// heldFiles call hold before each write to a group.
type heldFiles struct {
	kernel.Files
	group string
	hold  func()
}

func (f *heldFiles) WriteFile(name, data string) error {
	if strings.HasSuffix(path.Dir(name), "/"+f.group) {
		f.hold()
	}
	return f.Files.WriteFile(name, data)
}

// What is undone is undone in the opposite order: the table wants what it did before, and send is woken,
// before the groups around have their CPUs back. Whoever is to follow the shared pool by then follows
// that of before.
func TestUndo(t *testing.T) {
	t.Parallel()
	g := newGroups(t, fakekernel.V2(), "system.slice")
	undoes := false
	var wants, late resources
	var woken bool
	var p *Plugin
	g.root.Files = &heldFiles{g.root.Files, "system.slice", func() {
		if undoes {
			p.table.mu.Lock()
			defer p.table.mu.Unlock()
			wants, late, woken = p.table.containers["db.a"].want, p.table.containers["late.a"].want, len(p.table.wakeup) > 0
		}
	}}
	opt, _ := options(t, "1s1n4c2t")
	opt.Node.Root, opt.Confine = g.root, []string{"system.slice"}
	p = open(t, opt)
	ctx, db, last := context.Background(), guaranteed(pod("db", exclusive)), pod("late", nil)
	c := container(db, "a", 4000)
	p.table.add(db, c, resources{}, true)
	asked, err := p.spec(db, c, cpuset.Set{})
	must(t, err)
	change, err := p.node.Reserve(ctx, []agent.Spec{asked.spec})
	must(t, err)
	must(t, change.Enforce(ctx))
	p.table.add(last, container(last, "a", 100), resources{}, false)
	if pool := p.table.followPool("late.a"); pool.Len() != 4 || p.table.containers["db.a"].want.cpus.Len() != 4 {
		t.Fatalf("the shared pool is %s, db is to have %s", pool, p.table.containers["db.a"].want.cpus)
	}
	<-p.table.wakeup
	undoes = true
	must(t, change.Abort())
	if !wants.cpus.IsEmpty() || late.cpus != p.online || !woken {
		t.Errorf("at the write around containers db is to have CPUs %q, the other one %q, woken: %v", wants.cpus, late.cpus, woken)
	}
}

// A container that comes to follow the shared pool before a change is undone does not get back what it
// had before that.
func TestUndoLeavesFollowers(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "1s1n4c2t")
	p := open(t, opt)
	ctx, db := context.Background(), guaranteed(pod("db", exclusive))
	_, _, err := p.CreateContainer(ctx, db, container(db, "a", 2000))
	must(t, err)
	before := p.table.shared
	asked, err := p.spec(db, container(db, "a", 4000), cpuset.Set{})
	must(t, err)
	change, err := p.node.Adopt(ctx, []agent.Spec{asked.spec})
	must(t, err)
	must(t, change.Enforce(ctx))
	if own := p.table.containers["db.a"].want.cpus; own.Len() != 4 || before.Len() != 6 {
		t.Fatalf("it is to have CPUs %s, the shared pool was %s", own, before)
	}
	p.table.followPool("db.a")
	must(t, change.Abort())
	if is := p.table.containers["db.a"].want.cpus; is != before {
		t.Errorf("it is to have CPUs %s, want the shared pool's %s", is, before)
	}
}

// A write around containers that takes long, as systemd's may, holds no answer up: the container runs
// in the shared pool, and has what it asks for once that is done.
func TestSlowAround(t *testing.T) {
	t.Parallel()
	g := newGroups(t, fakekernel.V2(), "system.slice", "kubepods/poddb/db.a")
	free := make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	g.root.Files = &heldFiles{g.root.Files, "system.slice", func() { <-free }}
	n := newNode(t, "1s1n4c2t", func(o *Options) {
		o.Node.Root, o.Confine, o.Budget = g.root, []string{"system.slice"}, 30*time.Millisecond
	})
	db := guaranteed(pod("db", exclusive))
	answered := make(chan error, 1)
	go func() { answered <- n.create(db, container(db, "a", 4000), 0) }()
	select {
	case err := <-answered:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the answer waits for the write")
	}
	if got, late := n.cpus("db.a"), n.heard.kinds(Late); got != n.online || len(late) != 1 {
		t.Errorf("CPUs %s, events %q", got, late)
	}
	wrong := func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.put(n.boxes["db.a"], setOf(0))
	}
	wrong()
	eventually(t, "what is in force is compared meanwhile", func() bool { return n.cpus("db.a") == n.online })
	n.crash()
	n.start()
	n.connected()
	wrong()
	eventually(t, "also over another connection", func() bool { return n.cpus("db.a") == n.online })
	release()
	eventually(t, "it has what it asks for, alone", func() bool {
		own := n.cpus("db.a")
		return own.Len() == 4 && !slices.Contains(g.overlapping(own), "system.slice")
	})
}

// A container that ends while its place is being written leaves nothing behind: not even its name, of
// which the next container may be.
func TestEndsWhilePlaced(t *testing.T) {
	t.Parallel()
	g := newGroups(t, fakekernel.V2(), "system.slice")
	reached, free := make(chan struct{}), make(chan struct{})
	begins, release := sync.OnceFunc(func() { close(reached) }), sync.OnceFunc(func() { close(free) })
	defer release()
	g.root.Files = &heldFiles{g.root.Files, "system.slice", func() { begins(); <-free }}
	opt, _ := options(t, "1s1n4c2t")
	opt.Node.Root, opt.Confine = g.root, []string{"system.slice"}
	p := open(t, opt)
	ctx, db := context.Background(), guaranteed(pod("db", exclusive))
	_, err := p.Synchronize(ctx, nil, nil)
	must(t, err)
	c := container(db, "a", 4000)
	p.table.add(db, c, resources{}, true)
	placed := make(chan error, 1)
	go func() { placed <- p.place(ctx, db, c) }()
	<-reached
	_, err = p.StopContainer(ctx, db, c)
	must(t, err)
	release()
	must(t, <-placed)
	all, err := p.node.List(ctx)
	must(t, err)
	if _, named := p.workload("db.a"); named || p.taken("default/db/a", "") || len(all) > 0 || p.table.shared != p.online {
		t.Errorf("named: %v, %d workloads, the shared pool is %s", named, len(all), p.table.shared)
	}
}

// stuckClock is the clock of a Plugin for which time passes while something is stuck: as much as is
// waited for.
type stuckClock struct {
	mu      sync.Mutex
	spent   time.Duration
	stuck   bool
	waiting map[chan time.Time]time.Duration // by when it is over
}

func (c *stuckClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(0, 0).Add(c.spent)
}

func (c *stuckClock) after(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	over := make(chan time.Time)
	c.waiting[over] = c.spent + d
	c.pass()
	return over
}

// pass is called with mu.
func (c *stuckClock) pass() {
	for over, at := range c.waiting {
		if c.stuck {
			c.spent = max(c.spent, at)
			close(over)
			delete(c.waiting, over)
		}
	}
}

func (c *stuckClock) is(stuck bool) { c.mu.Lock(); c.stuck = stuck; c.pass(); c.mu.Unlock() }

func (c *stuckClock) spend(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spent += d
	return c.spent
}

// A handler answers within the runtime's 2 s, whatever a write around containers takes and however many
// workloads it is about: all that it does shares one budget.
func TestOneBudget(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	one := guaranteed(pod("db", exclusive))
	apis := known{}
	inits := apis.of("inits", needs("first", place.Init, 4000), needs("second", place.Init, 4000), needs("a", place.App, 2000))
	for name, c := range map[string]struct {
		before func(*Plugin) error
		decide time.Duration // how long the policy takes
		handle func(*Plugin) error
		left   int // places
	}{
		"the end of a pod none of which was started": {
			func(p *Plugin) error {
				var errs []error
				for _, name := range []string{"a", "b", "c"} {
					_, _, err := p.CreateContainer(ctx, one, container(one, name, 2000))
					errs = append(errs, err)
				}
				return errors.Join(errs...)
			}, 0,
			func(p *Plugin) error { return p.StopPodSandbox(ctx, one) }, 0,
		},
		"a container after which others' CPUs are given back": {
			func(p *Plugin) error {
				var errs []error
				for _, name := range []string{"first", "second"} {
					c := container(inits, name, 4000)
					_, _, err := p.CreateContainer(ctx, inits, c)
					_, end := p.StopContainer(ctx, inits, c)
					errs = append(errs, err, end)
				}
				return errors.Join(errs...)
			}, 900 * time.Millisecond,
			func(p *Plugin) error {
				_, _, err := p.CreateContainer(ctx, inits, container(inits, "a", 2000))
				return err
			}, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, clock := newGroups(t, fakekernel.V2(), "system.slice"), &stuckClock{waiting: map[chan time.Time]time.Duration{}}
			var holds atomic.Bool
			free := make(chan struct{})
			release := sync.OnceFunc(func() { clock.is(false); close(free) })
			defer release()
			g.root.Files = &heldFiles{g.root.Files, "system.slice", func() {
				if holds.Load() {
					clock.is(true)
					<-free
				}
			}}
			opt, _ := options(t, "1s1n8c1t")
			opt.Node.Root, opt.Confine, opt.Pods, opt.Budget = g.root, []string{"system.slice"}, apis, time.Second
			opt.Node.Policy = slow{berth.Policy{}, func() {
				if holds.Load() {
					clock.spend(c.decide)
				}
			}}
			p := open(t, opt)
			p.now, p.after = clock.now, clock.after
			must(t, c.before(p))
			holds.Store(true)
			must(t, c.handle(p))
			if spent := clock.spend(0); spent < p.opt.Budget || spent >= 2*time.Second {
				t.Errorf("it is answered after %s", spent)
			}
			release()
			eventually(t, "the places are given back", func() bool {
				all, err := p.node.List(ctx)
				return err == nil && len(all) == c.left
			})
		})
	}
}

// A group that a killed runtime left without processes is none of a container that runs.
func TestReaders(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroups(t, layout, "kubepods/podx/full", "kubepods/podx/empty")
			must(t, g.k.Start("4242"))
			must(t, g.k.WriteFile(g.file("kubepods/podx/full", "cpuset.cpus"), "2-3"))
			must(t, g.k.WriteFile(path.Dir(g.file("kubepods/podx/full", "cpuset.cpus"))+"/cgroup.procs", "4242"))
			effective, busy, trim, err := readersOf(g.root)
			must(t, err)
			defer trim(nil)
			for group, want := range map[string]bool{"full": true, "empty": false, "none": false} {
				if busy("kubepods/podx/"+group) != want {
					t.Errorf("%s: busy is not %v", group, want)
				}
			}
			for _, cpus := range []string{"2-3", "1"} { // the second time from the open file, and then from another one
				must(t, g.k.WriteFile(g.file("kubepods/podx/full", "cpuset.cpus"), cpus))
				for _, used := range []map[string]bool{{"kubepods/podx/full": true}, {}} {
					if is, ok := effective("kubepods/podx/full"); !ok || is != cpuset.MustParse(cpus) {
						t.Errorf("CPUs %s, %v, want %s", is, ok, cpus)
					}
					before := openFiles(t, g.root.Name())
					trim(used)
					if after := openFiles(t, g.root.Name()); after != before-1+len(used) {
						t.Errorf("%d files are open, and %d with %v in use", before, after, used)
					}
				}
			}
			if _, ok := effective("kubepods/podx/none"); ok {
				t.Error("a group that is not there has CPUs")
			}
		})
	}
}

// openFiles is how many files below a directory this process has open.
func openFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, f := range all {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(to, dir+"/") {
			n++
		}
	}
	return n
}

// file is that of a group.
func (g *groups) file(group, name string) string {
	g.t.Helper()
	tree, err := g.k.Tree()
	must(g.t, err)
	for file := range tree {
		if strings.HasSuffix(file, "/"+group+"/"+name) {
			return file
		}
	}
	g.t.Fatalf("no %s of %s", name, group)
	return ""
}
