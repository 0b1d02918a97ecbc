package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

// classHost is a played kernel with resctrl, two disks and frequencies, on which a runtime
// makes the groups of containers.
type classHost struct {
	*groups
	opt    Options
	heard  *events
	p      *Plugin
	base   cgroup.Group
	pids   map[string]string // by container id
	before map[string]string
	// unified is where the runtime makes groups of v2 beside those of v1, as runc does.
	unified string
}

const (
	cacheClasses = `
partitions:
  fast: {l3Allocation: "4 ways", classes: {gold: }}
  rest: {l3Allocation: "5 ways", classes: {bulk: {l3Allocation: "50%"}, DEFAULT: }}
service: {BE: bulk}
`
	ioClasses = `
classes:
  slow: [{devices: [vda], readBPS: 1M}, {priority: best-effort/7}]
service: {BE: slow}
`
)

// anyClass lets every pod name classes.
var anyClass = podwords.Rules{{Namespaces: []string{"*"}, Words: []string{"*", "*=*"}}}

func newClassHost(t *testing.T, layout fakekernel.Layout, change func(*Options)) *classHost {
	t.Helper()
	r, p := fakekernel.ResctrlCPUs()["skylake"], fakekernel.PowerHosts()["intel_pstate"]
	p.CPUs = 8
	layout.Resctrl, layout.Power = &r, &p
	h := &classHost{groups: newGroups(t, layout), pids: map[string]string{}}
	if layout.V1 != nil && len(layout.V2Controllers) == 0 {
		h.unified = layout.V2
	}
	must(t, h.k.PlugDisk("vda", "254:0", ""))
	host, err := cgroup.Detect(h.root)
	must(t, err)
	for i := range host.Hierarchies {
		host.Hierarchies[i].Own = ""
	}
	h.base, err = host.Base(cgroup.CPU, cgroup.CPUSet, cgroup.IO)
	must(t, err)
	h.opt, h.heard = options(t, "1s1n4c2t")
	h.opt.Node.Root, h.opt.Effective, h.opt.Rules = h.root, nil, anyClass
	cache, err := resctrl.Parse([]byte(cacheClasses), "cache.yaml")
	must(t, err)
	io, err := blockio.Parse([]byte(ioClasses), "io.yaml")
	must(t, err)
	h.opt.Node.Classes = agent.ClassConfig{Cache: cache, IO: io, Power: &power.Config{}}
	if change != nil {
		change(&h.opt)
	}
	h.before = h.classFiles()
	h.p = open(t, h.opt)
	return h
}

// classFiles are the files that classes change.
func (h *classHost) classFiles() map[string]string {
	h.t.Helper()
	tree, err := h.k.Tree()
	must(h.t, err)
	maps.DeleteFunc(tree, func(file, text string) bool {
		name := path.Base(file)
		return !(strings.HasPrefix(file, fakekernel.ResctrlDir) && name != "tasks" && name != "last_cmd_status" || name == "scaling_governor" || name == "energy_performance_preference") || strings.HasSuffix(file, "/")
	})
	return tree
}

// make has the runtime make the group of a container, with a process that has not begun.
func (h *classHost) make(c *api.Container) {
	h.t.Helper()
	group := h.base.Child(groupName(c))
	plan, err := group.Create()
	must(h.t, err)
	_, err = kernel.Apply(h.root, plan, nil)
	must(h.t, err)
	pid := fmt.Sprint(7000 + len(h.pids))
	h.pids[c.Id] = pid
	must(h.t, h.k.Start(pid))
	if h.unified != "" {
		dir := h.unified
		for name := range strings.SplitSeq(strings.Trim(groupName(c), "/"), "/") {
			dir += "/" + name
			if err := h.k.Mkdir(dir); !errors.Is(err, fs.ErrExist) {
				must(h.t, err)
			}
		}
	}
	for _, dir := range h.dirs(c) {
		must(h.t, h.k.WriteFile(dir+"/cgroup.procs", pid))
	}
}

// dirs are the directories of a container's group, that of v2 last.
func (h *classHost) dirs(c *api.Container) []string {
	dirs := h.base.Child(groupName(c)).Dirs()
	if h.unified != "" {
		dirs = append(dirs, path.Join(h.unified, groupName(c)))
	}
	return dirs
}

func (h *classHost) create(pod *api.PodSandbox, c *api.Container) error {
	_, _, err := h.p.CreateContainer(context.Background(), pod, c)
	return err
}

// begin creates a container and has the runtime begin to start it, as containerd does.
func (h *classHost) begin(pod *api.PodSandbox, c *api.Container) {
	h.t.Helper()
	must(h.t, h.create(pod, c))
	h.make(c)
	must(h.t, h.p.StartContainer(context.Background(), pod, c))
}

func (h *classHost) stop(pod *api.PodSandbox, c *api.Container) {
	h.t.Helper()
	must(h.t, h.k.Exit(h.pids[c.Id]))
	for _, dir := range h.dirs(c) {
		must(h.t, h.k.Rmdir(dir))
	}
	_, err := h.p.StopContainer(context.Background(), pod, c)
	must(h.t, err)
}

func (h *classHost) read(file string) string {
	h.t.Helper()
	tree, err := h.k.Tree()
	must(h.t, err)
	return strings.TrimSpace(tree[file])
}

// tasks are the threads in the group of a cache class.
func (h *classHost) tasks(class string) string {
	return strings.Join(strings.Fields(h.read(fakekernel.ResctrlDir+"/berth-"+class+"/tasks")), " ")
}

// reads is the limit of reading of a container's group.
func (h *classHost) reads(c *api.Container) string {
	if h.v1 {
		return h.files("blkio.throttle.read_bps_device")[groupName(c)]
	}
	return h.files("io.max")[groupName(c)]
}

func (h *classHost) limit() string {
	if h.v1 {
		return "254:0 1000000"
	}
	return "254:0 rbps=1000000 wbps=max riops=max wiops=max"
}

func (h *classHost) workload(id string) agent.Workload {
	h.t.Helper()
	w, err := h.p.node.Get(context.Background(), id)
	must(h.t, err)
	return w
}

// Every kind of class has a word, and there is no word of another.
func TestEveryKindHasAWord(t *testing.T) {
	t.Parallel()
	var kinds []string
	for _, k := range agent.ClassKinds() {
		kinds = append(kinds, string(k))
	}
	if diff := cmp.Diff(kinds, podwords.ClassKinds()); diff != "" {
		t.Errorf("kinds (-agent +podwords):\n%s", diff)
	}
}

// Containers have their classes before their programs begin: those that pods name, and those of
// their class of service. They are told with their sources, repaired, and given back.
func TestClasses(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newClassHost(t, layout, nil)
			db := guaranteed(pod("db", map[string]string{
				"berth.dev/class": "LSE", "berth.dev/cache": "bulk", "berth.dev/cache.a": "gold", "berth.dev/power": "power",
				"rdtclass.resource-policy.nri.io": "gold", "blockioclass.cri-resource-manager.intel.com/container.a": "slow",
			}))
			job, web := bestEffort(pod("job", nil)), pod("web", nil)
			dbA, jobA, webA := container(db, "a", 2000), container(job, "a", 0), container(web, "a", 100)
			for _, c := range []struct {
				pod *api.PodSandbox
				c   *api.Container
			}{{db, dbA}, {job, jobA}, {web, webA}} {
				h.begin(c.pod, c.c)
			}
			is := func(when string) {
				t.Helper()
				if got := h.tasks("gold"); got != h.pids["db.a"] {
					t.Errorf("%s: in gold are %q, want %s", when, got, h.pids["db.a"])
				}
				if got := h.tasks("bulk"); got != h.pids["job.a"] {
					t.Errorf("%s: in bulk are %q, want %s", when, got, h.pids["job.a"])
				}
				for c, want := range map[*api.Container]string{dbA: h.limit(), jobA: h.limit(), webA: ""} {
					if got := h.reads(c); got != want {
						t.Errorf("%s: %s has limits %q, want %q", when, c.Id, got, want)
					}
					prio := map[bool]string{true: "best-effort/7", false: "none"}[want != ""]
					if got := h.read("proc/" + h.pids[c.Id] + "/ioprio"); got != prio {
						t.Errorf("%s: %s has priority %q, want %q", when, c.Id, got, prio)
					}
				}
			}
			is("begun")
			w := h.workload("default/db/a")
			for cpu := range w.Grant.Own.All() {
				if got := h.read(fmt.Sprintf("sys/devices/system/cpu/cpufreq/policy%d/energy_performance_preference", cpu)); got != "power" {
					t.Errorf("CPU %d has preference %q", cpu, got)
				}
			}
			if diff := cmp.Diff(map[agent.ClassKind]string{"cache": "gold", "io": "slow", "power": "power"}, w.Classes); diff != "" {
				t.Errorf("classes of db (-want +got):\n%s", diff)
			}
			for kind, from := range map[agent.ClassKind]string{
				"cache": "annotation berth.dev/cache.a", "io": "annotation blockioclass.cri-resource-manager.intel.com/container.a", "power": "annotation berth.dev/power",
			} {
				if got := w.Spec.Annotations[sourceOf(kind)]; got != from {
					t.Errorf("%s class from %q, want %q", kind, got, from)
				}
			}
			if words := h.heard.kinds(Word); len(words) != 1 || !strings.Contains(words[0], "contradiction") {
				t.Errorf("words %q", words)
			}
			r, err := h.p.node.ClassReport(context.Background())
			must(t, err)
			var users []string
			for _, s := range r.Kinds {
				for _, c := range s.Classes {
					for _, who := range c.Workloads {
						users = append(users, fmt.Sprintf("%s %s: %s", s.Kind, c.Name, who))
					}
				}
			}
			if diff := cmp.Diff([]string{"cache bulk: default/job/a", "cache gold: default/db/a", "io slow: default/db/a", "io slow: default/job/a", "power power: default/db/a"}, slices.DeleteFunc(users, func(u string) bool { return strings.Contains(u, "DEFAULT") })); diff != "" {
				t.Errorf("users (-want +got):\n%s", diff)
			}

			// Somebody else changes the limit, and a process comes that runc has put into the group.
			file := h.file(groupName(jobA), map[bool]string{true: "blkio.throttle.read_bps_device", false: "io.max"}[h.v1])
			must(t, h.k.WriteFile(file, map[bool]string{true: "254:0 5", false: "254:0 rbps=5"}[h.v1]))
			must(t, h.k.Start("8000"))
			for _, dir := range h.base.Child(groupName(dbA)).Dirs() {
				must(t, h.k.WriteFile(dir+"/cgroup.procs", "8000"))
			}
			if !h.p.hasClasses() {
				t.Error("nothing is to be looked for")
			}
			repairs, err := h.p.node.Reconcile(context.Background())
			if err != nil || len(repairs) != 1 || !strings.Contains(repairs[0].Why, "slow") {
				t.Errorf("repairs %v, %v", repairs, err)
			}
			_, err = h.p.node.Reconcile(context.Background())
			must(t, err)
			if got := h.tasks("gold"); got != h.pids["db.a"]+" 8000" {
				t.Errorf("in gold are %q with one that came", got)
			}
			must(t, h.k.Exit("8000"))
			is("repaired")

			// A plugin that is started anew finds all as it is to be.
			must(t, h.p.Close())
			h.p = open(t, h.opt)
			for _, c := range []*api.Container{dbA, jobA, webA} {
				c.State = api.ContainerState_CONTAINER_RUNNING
			}
			_, err = h.p.Synchronize(context.Background(), []*api.PodSandbox{db, job, web}, []*api.Container{dbA, jobA, webA})
			must(t, err)
			is("after a restart")
			if got := h.heard.kinds(string(agent.Repaired)); len(got) != 1 || !strings.HasPrefix(got[0], "job/a: /"+file+": found ") {
				t.Errorf("repaired %q", got)
			}

			h.stop(db, dbA)
			h.stop(job, jobA)
			h.stop(web, webA)
			if diff := cmp.Diff(h.before, h.classFiles()); diff != "" {
				t.Errorf("at the end (-before +after):\n%s", diff)
			}
		})
	}
}

// What a pod asks for and cannot have is told, and left out or, of a strict pod, refused.
func TestClassesRefused(t *testing.T) {
	t.Parallel()
	noRules := func(o *Options) { o.Rules = nil }
	for name, tc := range map[string]struct {
		change  func(*Options)
		words   map[string]string
		runtime func(*api.Container) // what the runtime does before
		want    string               // of the event
		classes map[agent.ClassKind]string
	}{
		"not defined":      {nil, map[string]string{"berth.dev/cache": "god"}, nil, `did you mean "gold"?`, nil},
		"no such kind":     {func(o *Options) { o.Node.Classes.IO = nil }, map[string]string{"berth.dev/io": "slow"}, nil, "the configuration defines no io classes", nil},
		"no rule":          {noRules, map[string]string{"berth.dev/cache": "gold"}, nil, "one with berth.dev/cache=gold would", nil},
		"no rule for none": {noRules, map[string]string{"berth.dev/cache": "none"}, nil, "one with berth.dev/cache=none would", nil},
		"not that class": {
			func(o *Options) {
				o.Rules = podwords.Rules{{Namespaces: []string{"default"}, Words: []string{"*", "berth.dev/cache=bulk"}}}
			},
			map[string]string{"berth.dev/cache": "gold"}, nil, "not allowed", nil,
		},
		"no CPUs of its own": {nil, map[string]string{"berth.dev/power": "power", "berth.dev/cache": "gold"}, nil, "has no CPUs of its own", map[agent.ClassKind]string{"cache": "gold"}},
		"the runtime's class": {nil, map[string]string{"berth.dev/cache": "gold", "berth.dev/io": "slow"}, func(c *api.Container) {
			c.Linux.Rdt = &api.LinuxRdt{ClosId: api.String("theirs")}
		}, `class "theirs" of its runtime, which stays`, map[agent.ClassKind]string{"io": "slow"}},
		"another plugin's class": {nil, map[string]string{"berth.dev/io": "slow"}, func(c *api.Container) {
			c.Linux.Resources.BlockioClass = api.String("theirs")
		}, `class "theirs" of its runtime, which stays`, nil},
	} {
		for _, strict := range []string{"false", "true"} {
			t.Run(name+", strict "+strict, func(t *testing.T) {
				t.Parallel()
				h := newClassHost(t, fakekernel.V2(), tc.change)
				words := maps.Clone(tc.words)
				words["berth.dev/strict"] = strict
				p := pod("web", words)
				c := container(p, "a", 100)
				if tc.runtime != nil {
					tc.runtime(c)
				}
				err := h.create(p, c)
				if strict == "true" {
					if err == nil || !strings.Contains(err.Error(), tc.want) {
						t.Errorf("%v, want %s", err, tc.want)
					}
					return
				}
				must(t, err)
				if words := h.heard.kinds(Word); len(words) != 1 || !strings.Contains(words[0], tc.want) {
					t.Errorf("words %q, want %s", words, tc.want)
				}
				if diff := cmp.Diff(tc.classes, h.workload("default/web/a").Classes); diff != "" {
					t.Errorf("classes (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// Where a host has no classes of a kind, containers go without those of their class of service,
// and nothing else of them changes.
func TestClassesLack(t *testing.T) {
	t.Parallel()
	h := newClassHost(t, fakekernel.V2(), nil)
	opt := h.opt
	bare, _ := options(t, "1s1n4c2t")
	opt.Node.Root, opt.Node.Dir, opt.Effective, opt.Events = bare.Node.Root, bare.Node.Dir, bare.Effective, h.heard.add
	p := open(t, opt)
	for name, words := range map[string]map[string]string{"job": nil, "asks": {"berth.dev/cache": "gold", "berth.dev/power": "performance"}} {
		q := bestEffort(pod(name, words))
		_, _, err := p.CreateContainer(context.Background(), q, container(q, "a", 0))
		must(t, err)
	}
	for _, want := range []string{"cache classes", "power classes"} {
		if told := strings.Join(h.heard.kinds(string(agent.Failed)), "\n"); !strings.Contains(told, "containers go without: "+want) {
			t.Errorf("told %q, want %s", told, want)
		}
	}
	if words := h.heard.kinds(Word); len(words) != 2 || !strings.Contains(words[0], "not followed") {
		t.Errorf("words %q", words)
	}
	if late := h.heard.kinds(Fallback); len(late) > 0 {
		t.Errorf("fallbacks %q", late)
	}
	w, err := p.node.Get(context.Background(), "default/job/a")
	must(t, err)
	if notes := strings.Join(w.Notes, "\n"); !strings.Contains(notes, `cache class "bulk": the workload goes without`) {
		t.Errorf("notes %q", notes)
	}
}

// broken is a kernel that refuses writes to some files or, with a limit, all from then on,
// as if whoever writes had ended there.
type broken struct {
	*fakekernel.Kernel
	refuses func(file string) bool // nil is none
	limit   int                    // 0 is none
	mu      sync.Mutex
	count   int
}

func (b *broken) do(name string, op func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count++; b.refuses != nil && b.refuses(name) || b.limit > 0 && b.count > b.limit {
		return syscall.EIO
	}
	return op()
}

func (b *broken) WriteFile(name, data string) error {
	return b.do(name, func() error { return b.Kernel.WriteFile(name, data) })
}

func (b *broken) Mkdir(name string) error {
	return b.do(name, func() error { return b.Kernel.Mkdir(name) })
}

func (b *broken) Rmdir(name string) error {
	return b.do(name, func() error { return b.Kernel.Rmdir(name) })
}

// A class of which the kernel refuses what it is, once the container's group is there: the
// container goes without, or is not started if it is strict.
func TestClassesRefusedByKernel(t *testing.T) {
	t.Parallel()
	for _, strict := range []string{"false", "true"} {
		h := newClassHost(t, fakekernel.V2(), nil)
		must(t, h.p.Close())
		h.opt.Node.Root = kernel.NewRoot(h.root.Name(), &broken{Kernel: h.k, refuses: func(file string) bool { return path.Base(file) == "io.max" }})
		h.p = open(t, h.opt)
		p := pod("web", map[string]string{"berth.dev/io": "slow", "berth.dev/cache": "gold", "berth.dev/strict": strict})
		c := container(p, "a", 100)
		must(t, h.create(p, c))
		h.make(c)
		err := h.p.StartContainer(context.Background(), p, c)
		if strict == "true" {
			if err == nil || !strings.Contains(err.Error(), "not started: ") || !strings.Contains(err.Error(), "io.max") {
				t.Errorf("strict: %v", err)
			}
			continue
		}
		must(t, err)
		if words := h.heard.kinds(Word); len(words) == 0 || !strings.Contains(words[0], "io.max") {
			t.Errorf("words %q", words)
		}
		if diff := cmp.Diff(map[agent.ClassKind]string{"cache": "gold"}, h.workload("default/web/a").Classes); diff != "" {
			t.Errorf("classes (-want +got):\n%s", diff)
		}
	}
}

// What the kernel refuses a container that has it already is told once, and the others have theirs.
func TestLimitRefusedToOne(t *testing.T) {
	t.Parallel()
	h := newClassHost(t, fakekernel.V2(), nil)
	must(t, h.p.Close())
	refuses := ""
	h.opt.Node.Root = kernel.NewRoot(h.root.Name(), &broken{Kernel: h.k, refuses: func(file string) bool { return refuses != "" && strings.Contains(file, refuses) }})
	h.p = open(t, h.opt)
	both := map[string]*api.Container{}
	for _, name := range []string{"one", "other"} {
		p := bestEffort(pod(name, nil))
		both[name] = container(p, name, 0)
		h.begin(p, both[name])
	}
	for range 2 {
		refuses = ""
		for _, c := range both {
			must(t, h.k.WriteFile(h.base.Child(groupName(c)).Dirs()[0]+"/io.max", "254:0 rbps=5"))
		}
		refuses = groupName(both["one"])
		for range 3 {
			_, err := h.p.node.Reconcile(context.Background())
			must(t, err)
		}
		if got := h.reads(both["other"]); got != h.limit() {
			t.Fatalf("the other has %q", got)
		}
	}
	told := slices.DeleteFunc(h.heard.kinds(string(agent.Failed)), func(text string) bool { return !strings.Contains(text, "goes without a limit") })
	if len(told) != 1 || !strings.Contains(told[0], "one") {
		t.Errorf("told %q", told)
	}
}

// However far a plugin came that ends while pods come and go, the next one has what its
// containers' classes say, and gives all back when they end.
func TestClassesKilled(t *testing.T) {
	t.Parallel()
	for limit := 1; limit < 40; limit += 3 {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			h := newClassHost(t, fakekernel.V2(), nil)
			must(t, h.p.Close())
			opt, ctx := h.opt, context.Background()
			opt.Node.Root = kernel.NewRoot(h.root.Name(), &broken{Kernel: h.k, limit: limit})
			dying := open(t, opt)
			db, job, end := guaranteed(pod("db", map[string]string{"berth.dev/class": "LSE", "berth.dev/cache": "gold", "berth.dev/power": "power"})), bestEffort(pod("job", nil)), bestEffort(pod("end", nil))
			dbA, jobA, endA := container(db, "a", 2000), container(job, "a", 0), container(end, "a", 0)
			for i, c := range []*api.Container{endA, dbA, jobA} {
				q := []*api.PodSandbox{end, db, job}[i]
				_, _, _ = dying.CreateContainer(ctx, q, c)
				h.make(c)
				_ = dying.StartContainer(ctx, q, c)
				c.State = api.ContainerState_CONTAINER_RUNNING
			}
			must(t, h.k.Exit(h.pids[endA.Id]))
			_, _ = dying.StopContainer(ctx, end, endA)
			for _, dir := range h.base.Child(groupName(endA)).Dirs() {
				must(t, h.k.Rmdir(dir))
			}
			_ = dying.Close()
			h.p = open(t, h.opt)
			_, err := h.p.Synchronize(ctx, []*api.PodSandbox{db, job}, []*api.Container{dbA, jobA})
			must(t, err)
			w := h.workload("default/db/a")
			want := map[string]string{"default/job/a": "bulk"}
			if w.Classes["cache"] != "" { // it goes without one that it was refused
				want["default/db/a"] = w.Classes["cache"]
			}
			for id, class := range want {
				name := strings.ReplaceAll(strings.TrimPrefix(id, "default/"), "/", ".")
				if got := h.tasks(class); got != h.pids[name] {
					t.Errorf("in %s are %q, want %s of %s", class, got, h.pids[name], id)
				}
			}
			if got := h.reads(jobA); got != h.limit() {
				t.Errorf("limits %q", got)
			}
			h.stop(db, dbA)
			h.stop(job, jobA)
			if diff := cmp.Diff(h.before, h.classFiles()); diff != "" {
				t.Errorf("at the end (-before +after):\n%s", diff)
			}
		})
	}
}

// Containers that run when the plugin comes get their classes; one that cannot have its class
// goes without, and the others have theirs.
func TestClassesAdopted(t *testing.T) {
	t.Parallel()
	h := newClassHost(t, fakekernel.V2(), nil)
	good, bad := pod("good", map[string]string{"berth.dev/cache": "gold"}), pod("bad", map[string]string{"berth.dev/power": "power", "berth.dev/io": "slow"})
	a, b := container(good, "a", 100), container(bad, "a", 100)
	for _, c := range []*api.Container{a, b} {
		h.make(c)
		c.State, c.Linux.Resources.Cpu.Cpus = api.ContainerState_CONTAINER_RUNNING, "0-7"
	}
	_, err := h.p.Synchronize(context.Background(), []*api.PodSandbox{good, bad}, []*api.Container{a, b})
	must(t, err)
	if got := h.tasks("gold"); got != h.pids["good.a"] {
		t.Errorf("in gold are %q", got)
	}
	if got := h.reads(b); got != h.limit() {
		t.Errorf("limits %q", got)
	}
	if words := h.heard.kinds(Word); len(words) != 1 || !strings.Contains(words[0], "bad/a: power class") {
		t.Errorf("words %q", words)
	}
}

// wholePod is a pod of containers a and b that is placed as a whole.
func (h *classHost) wholePod(name string, words map[string]string) (p *api.PodSandbox, a, b *api.Container) {
	words = maps.Clone(words)
	words["berth.dev/scope"] = "pod"
	p = pod(name, words)
	h.opt.Pods.(known)[p.Uid] = &PodInfo{Containers: []ContainerInfo{needs("a", place.App, 100), needs("b", place.App, 100)}}
	return p, container(p, "a", 100), container(p, "b", 100)
}

// A container whose place was released while it was to come has its classes still.
func TestClassesOfLostPlace(t *testing.T) {
	t.Parallel()
	h := newClassHost(t, fakekernel.V2(), func(o *Options) { o.Pods = known{} })
	p, a, b := h.wholePod("web", map[string]string{"berth.dev/cache": "gold"})
	must(t, h.create(p, a))
	must(t, h.p.node.Release(context.Background(), "default/web/b", agent.Keep))
	must(t, h.create(p, b))
	if got := h.workload("default/web/b").Classes["cache"]; got != "gold" {
		t.Errorf("class %q", got)
	}
}

// A class that the runtime gives one container of a pod stays, though the pod had its places, and
// their classes, before the container came; that of its pod's others stays, too.
func TestClassesOfRuntimeInWholePod(t *testing.T) {
	t.Parallel()
	h := newClassHost(t, fakekernel.V2(), func(o *Options) { o.Pods = known{} })
	p, a, b := h.wholePod("web", map[string]string{"berth.dev/cache": "gold"})
	b.Linux.Rdt = &api.LinuxRdt{ClosId: api.String("theirs")}
	h.begin(p, a)
	h.begin(p, b)
	if got := h.tasks("gold"); got != h.pids["web.a"] {
		t.Errorf("in gold are %q, want %s", got, h.pids["web.a"])
	}
	w := h.workload("default/web/b")
	if from := w.Spec.Annotations[sourceOf("cache")]; w.Classes["cache"] != "" || !strings.Contains(from, "theirs") {
		t.Errorf("class %q, from %q", w.Classes["cache"], from)
	}
	res := &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(205)}}
	_, err := h.p.UpdateContainer(context.Background(), p, b, res)
	must(t, err)
	if got := h.workload("default/web/b").Classes["cache"]; got != "" {
		t.Errorf("resized it has class %q", got)
	}
}

// A pod that is placed as a whole goes without a class that it cannot have, and keeps its place;
// a strict one is refused.
func TestClassesRefusedInWholePod(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		word, class string
		refuses     func(file string) bool
		lost        []string // containers
	}{
		"before":        {"berth.dev/power", "power", nil, []string{"a", "b"}}, // it has no CPUs of its own
		"when it comes": {"berth.dev/io", "slow", func(file string) bool { return strings.HasSuffix(file, "web.b/io.max") }, []string{"b"}},
	} {
		for _, strict := range []string{"false", "true"} {
			t.Run(name+", strict "+strict, func(t *testing.T) {
				t.Parallel()
				h := newClassHost(t, fakekernel.V2(), func(o *Options) { o.Pods = known{} })
				must(t, h.p.Close())
				h.opt.Node.Root = kernel.NewRoot(h.root.Name(), &broken{Kernel: h.k, refuses: tc.refuses})
				h.p = open(t, h.opt)
				p, a, b := h.wholePod("web", map[string]string{tc.word: tc.class, "berth.dev/cache": "gold", "berth.dev/strict": strict})
				h.make(a)
				h.make(b)
				err := h.create(p, a)
				if err == nil {
					err = h.create(p, b)
				}
				if strict == "true" {
					if err == nil || !strings.Contains(err.Error(), "not placed: ") {
						t.Errorf("strict: %v", err)
					}
					return
				}
				must(t, err)
				if fell := h.heard.kinds(Fallback); len(fell) > 0 {
					t.Errorf("fallbacks %q", fell)
				}
				words := h.heard.kinds(Word)
				for _, c := range tc.lost {
					if !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "web/"+c+": ") && strings.Contains(w, "goes without") }) {
						t.Errorf("of %s is told %q", c, words)
					}
				}
				for _, c := range []string{"a", "b"} {
					w := h.workload("default/web/" + c)
					kind := agent.ClassKind(path.Base(tc.word))
					if lost := slices.Contains(tc.lost, c); (w.Classes[kind] == "") != lost || w.Classes["cache"] != "gold" || w.Spec.Annotations[scopeKey] == "" {
						t.Errorf("%s has classes %v, lost %v, scope %q", c, w.Classes, lost, w.Spec.Annotations[scopeKey])
					}
					if from := w.Spec.Annotations[sourceOf(kind)]; slices.Contains(tc.lost, c) != strings.Contains(from, "not to be had") {
						t.Errorf("%s has its %s class from %q", c, kind, from)
					}
				}
			})
		}
	}
}

// A container of a pod that was placed as a whole is resized, and its place stays its pod's.
func TestResizeOfWholePod(t *testing.T) {
	t.Parallel()
	h := newClassHost(t, fakekernel.V2(), func(o *Options) { o.Pods = known{} })
	p, a, _ := h.wholePod("web", map[string]string{"berth.dev/cache": "gold"})
	must(t, h.create(p, a))
	_, err := h.p.UpdateContainer(context.Background(), p, a, container(p, "a", 200).Linux.Resources)
	must(t, err)
	if w := h.workload("default/web/a"); w.Spec.Request.Milli != 200 || w.Classes["cache"] != "gold" || w.Spec.Annotations[scopeKey] == "" {
		t.Errorf("resized to %d, classes %v, scope %q", w.Spec.Request.Milli, w.Classes, w.Spec.Annotations[scopeKey])
	}
}

// A write that fails takes away the class that it is of, and nothing else: not other kinds, and
// no class of another container in the same change.
func TestClassesOfOthersStay(t *testing.T) {
	t.Parallel()
	all := map[agent.ClassKind]string{"cache": "gold", "io": "slow", "power": "power"}
	without := func(kind agent.ClassKind) map[agent.ClassKind]string {
		some := maps.Clone(all)
		delete(some, kind)
		return some
	}
	for name, tc := range map[string]struct {
		fails func(h *classHost, file string) bool
		a, b  map[agent.ClassKind]string
	}{
		"limit of a's group": {func(h *classHost, file string) bool { return strings.HasSuffix(file, "db.a/io.max") }, without("io"), all},
		"priority of a": {func(h *classHost, file string) bool {
			return strings.HasPrefix(file, "proc/"+h.pids["db.a"]+"/ioprio")
		}, without("io"), all},
		"the cache class":       {func(_ *classHost, file string) bool { return strings.HasSuffix(file, "/berth-gold/schemata") }, without("cache"), without("cache")},
		"the other cache class": {func(_ *classHost, file string) bool { return file == fakekernel.ResctrlDir+"/schemata" }, without("cache"), without("cache")},
		"preference of CPU 1, which is b's": {func(_ *classHost, file string) bool {
			return strings.HasSuffix(file, "/policy1/energy_performance_preference")
		}, all, without("power")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newClassHost(t, fakekernel.V2(), nil)
			must(t, h.p.Close())
			h.opt.Node.Root = kernel.NewRoot(h.root.Name(), &broken{Kernel: h.k, refuses: func(file string) bool { return tc.fails(h, file) }})
			h.p = open(t, h.opt)
			p := guaranteed(pod("db", map[string]string{"berth.dev/cache": "gold", "berth.dev/io": "slow", "berth.dev/power": "power"}))
			a, b := container(p, "a", 1000), container(p, "b", 1000)
			for _, c := range []*api.Container{a, b} {
				h.make(c)
				c.State = api.ContainerState_CONTAINER_RUNNING
			}
			_, err := h.p.Synchronize(context.Background(), []*api.PodSandbox{p}, []*api.Container{a, b})
			must(t, err)
			for id, want := range map[string]map[agent.ClassKind]string{"default/db/a": tc.a, "default/db/b": tc.b} {
				if diff := cmp.Diff(want, h.workload(id).Classes); diff != "" {
					t.Errorf("classes of %s (-want +got):\n%s\n%s", id, diff, strings.Join(h.heard.kinds(Word), "\n"))
				}
			}
		})
	}
}

// Another plugin that gives a container a class beside Berth's is refused.
func TestClassOfAnotherPlugin(t *testing.T) {
	t.Parallel()
	h := newClassHost(t, fakekernel.V2(), nil)
	p := pod("web", map[string]string{"berth.dev/cache": "gold"})
	c := container(p, "a", 100)
	must(t, h.create(p, c))
	for field, want := range map[api.Field]bool{api.Field_RdtClass: true, api.Field_RdtClosID: true, api.Field_BlockioClass: false} {
		owners := &api.OwningPlugins{Owners: map[string]*api.FieldOwners{c.Id: {Simple: map[int32]string{int32(field): "20-other"}}}}
		err := h.p.ValidateContainerAdjustment(context.Background(), &api.ValidateContainerAdjustmentRequest{Container: c, Owners: owners})
		if (err != nil) != want {
			t.Errorf("%v: %v", field, err)
		}
	}
}

// createIn is create that returns in which group of resctrl the runtime is to start the container.
func (h *classHost) createIn(pod *api.PodSandbox, c *api.Container) string {
	h.t.Helper()
	adjust, _, err := h.p.CreateContainer(context.Background(), pod, c)
	must(h.t, err)
	return adjust.GetLinux().GetRdt().GetClosId().GetValue()
}

// A container begins in the group of its cache class, which is there, with what the class has, before
// the runtime makes the container, as runc does: told the name alone it puts the first process into
// the group, and neither changes nor removes that.
func TestClassFromTheFirstInstruction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := newClassHost(t, fakekernel.V2(), nil)
	_, err := h.p.Configure(ctx, "", "containerd", "v2.4.0")
	must(t, err)
	p := pod("db", map[string]string{"berth.dev/cache": "gold"})
	a := container(p, "a", 100)
	group := h.createIn(p, a)
	if group != "berth-gold" {
		t.Fatalf("it is to start in %q", group)
	}
	dir := fakekernel.ResctrlDir + "/" + group
	has := h.read(dir + "/schemata")
	if !strings.Contains(has, "L3:0=") {
		t.Fatalf("the group has %q", has)
	}
	owners := &api.OwningPlugins{Owners: map[string]*api.FieldOwners{a.Id: {Simple: map[int32]string{int32(api.Field_RdtClosID): "50-berth"}}}}
	must(t, h.p.ValidateContainerAdjustment(ctx, &api.ValidateContainerAdjustmentRequest{Container: a, Owners: owners}))

	h.make(a)
	must(t, h.k.WriteFile(dir+"/tasks", h.pids[a.Id]))
	a.Linux.Rdt = &api.LinuxRdt{ClosId: api.String(group)} // so the runtime tells of it from now on
	must(t, h.p.StartContainer(ctx, p, a))
	must(t, h.k.Start("8000")) // executed in the container
	for _, d := range h.base.Child(groupName(a)).Dirs() {
		must(t, h.k.WriteFile(d+"/cgroup.procs", "8000"))
	}
	must(t, h.k.WriteFile(dir+"/tasks", "8000"))
	for _, when := range []string{"begun", "after a restart"} {
		if _, err := h.p.node.Reconcile(ctx); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if got := h.tasks("gold"); got != h.pids[a.Id]+" 8000" {
			t.Errorf("%s: in gold are %q", when, got)
		}
		if w := h.workload("default/db/a"); w.Classes["cache"] != "gold" || h.read(dir+"/schemata") != has {
			t.Errorf("%s: classes %v, the group has %q", when, w.Classes, h.read(dir+"/schemata"))
		}
		if words := h.heard.kinds(Word); len(words) > 0 {
			t.Errorf("%s: %q", when, words)
		}
		must(t, h.p.Close())
		h.p = open(t, h.opt)
		a.State = api.ContainerState_CONTAINER_RUNNING
		_, err := h.p.Synchronize(ctx, []*api.PodSandbox{p}, []*api.Container{a})
		must(t, err)
	}
	// The group is not taken for a class of the runtime's own.
	_, err = h.p.UpdateContainer(ctx, p, a, &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(205)}})
	must(t, err)
	if w := h.workload("default/db/a"); w.Classes["cache"] != "gold" || w.Spec.Request.Milli != 201 {
		t.Errorf("resized, it has class %q, and asks for %d", w.Classes["cache"], w.Spec.Request.Milli)
	}
	must(t, h.k.Exit("8000"))
	h.stop(p, a)
	if diff := cmp.Diff(h.before, h.classFiles()); diff != "" {
		t.Errorf("at the end (-before +after):\n%s", diff)
	}
	// Each one that is started again begins so, too.
	_, err = h.p.Configure(ctx, "", "containerd", "v2.4.0")
	must(t, err)
	for _, id := range []string{"db.a.2", "db.a.3"} {
		again := container(p, "a", 100)
		again.Id = id
		if got := h.createIn(p, again); got != group {
			t.Errorf("%s is to start in %q", id, got)
		}
		h.make(again)
		must(t, h.p.StartContainer(ctx, p, again))
		h.stop(p, again)
	}
}

// Where the runtime may not use the group of a class as it is, or the group is none of Berth's, a
// container is put there once it is there.
func TestClassFromTheFirstInstructionNot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		runtime, handler string
		words            map[string]string
		before           func(*classHost)
		tasks            bool // in gold in the end
	}{
		"another runtime": {"cri-o", "", gold, nil, true},
		"another handler": {"containerd", "crun", gold, nil, true},
		"no class":        {"containerd", "runc", nil, nil, false},
		"switched off":    {"containerd", "runc", gold, nil, true},
		"of others": {"containerd", "runc", map[string]string{"berth.dev/class": "LS"}, func(h *classHost) {
			must(h.t, h.k.Mkdir(fakekernel.ResctrlDir+"/berth-gold"))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newClassHost(t, fakekernel.V2(), func(o *Options) {
				o.CacheAfterStart = name == "switched off"
				if name == "of others" {
					cache, err := resctrl.Parse([]byte(strings.ReplaceAll(cacheClasses, "BE: bulk", "LS: gold")), "cache.yaml")
					must(t, err)
					o.Node.Classes.Cache = cache
				}
			})
			_, err := h.p.Configure(context.Background(), "", tc.runtime, "1")
			must(t, err)
			if tc.before != nil {
				tc.before(h)
			}
			p := pod("web", tc.words)
			p.RuntimeHandler = tc.handler
			a := container(p, "a", 100)
			if got := h.createIn(p, a); got != "" {
				t.Errorf("it is to start in %q", got)
			}
			h.make(a)
			must(t, h.p.StartContainer(context.Background(), p, a))
			if got := h.tasks("gold"); (got == h.pids[a.Id]) != tc.tasks {
				t.Errorf("in gold are %q", got)
			}
		})
	}
}

// Another configuration takes away what the former one's classes gave, of containers that run.
func TestClassesReconfigured(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newClassHost(t, layout, nil)
			job := bestEffort(pod("job", nil))
			a := container(job, "a", 0)
			h.begin(job, a)
			a.State = api.ContainerState_CONTAINER_RUNNING
			for _, text := range []string{"classes: {slow: [{priority: idle}]}\nservice: {BE: slow}", "classes: {other: [{priority: idle}]}"} {
				must(t, h.p.Close())
				var err error
				h.opt.Node.Classes.IO, err = blockio.Parse([]byte(text), "io.yaml")
				must(t, err)
				h.opt.Node.Classes.Cache = nil
				h.p = open(t, h.opt)
				_, err = h.p.Synchronize(context.Background(), []*api.PodSandbox{job}, []*api.Container{a})
				must(t, err)
				if got := h.reads(a); got != "" {
					t.Errorf("%s: limits %q", text, got)
				}
				want := map[bool]string{true: "idle", false: "none"}[strings.Contains(text, "service")]
				if got := h.read("proc/" + h.pids[a.Id] + "/ioprio"); got != want {
					t.Errorf("%s: priority %q, want %q", text, got, want)
				}
			}
			if diff := cmp.Diff(h.before, h.classFiles()); diff != "" {
				t.Errorf("without classes (-before +after):\n%s", diff)
			}
		})
	}
}

// What a creation costs beside 250 containers that all have a cache and an I/O class.
func BenchmarkCreateClassed(b *testing.B) {
	opt, _ := options(b, "2s4n16c2t")
	l := fakekernel.V2()
	l.CPUs, l.Version = opt.Node.Machine.Online.String(), "7.3"
	r := fakekernel.ResctrlCPUs()["skylake"]
	l.Resctrl = &r
	dir := b.TempDir()
	k, err := fakekernel.New(dir, l)
	must(b, err)
	must(b, k.PlugDisk("vda", "254:0", ""))
	opt.Node.Root = kernel.NewRoot(dir, k)
	opt.Node.Classes.Cache, err = resctrl.Parse([]byte(strings.Replace(cacheClasses, "BE: bulk", "LS: bulk, LSE: gold", 1)), "cache.yaml")
	must(b, err)
	opt.Node.Classes.IO, err = blockio.Parse([]byte(strings.Replace(ioClasses, "BE: slow", "LS: slow", 1)), "io.yaml")
	must(b, err)
	var tops []string
	host, err := cgroup.Detect(opt.Node.Root)
	must(b, err)
	for i := range host.Hierarchies {
		tops = append(tops, host.Hierarchies[i].Dir)
	}
	p, ctx := open(b, opt), context.Background()
	tasks := "1"
	for i := range 750 {
		tasks += fmt.Sprintf("\n%d", 10000+i)
	}
	must(b, k.Put(fakekernel.ResctrlDir+"/tasks", tasks))
	for i := range 250 {
		q := pod(name(i), nil)
		c := container(q, "a", 100)
		_, _, err := p.CreateContainer(ctx, q, c)
		must(b, err)
		for _, top := range tops {
			group := filepath.Join(dir, top, groupName(c))
			must(b, os.MkdirAll(group, 0o755))
			must(b, os.WriteFile(filepath.Join(group, "cgroup.threads"), fmt.Appendf(nil, "%d\n%d\n%d\n", 10000+3*i, 10001+3*i, 10002+3*i), 0o644))
		}
		must(b, p.PostStartContainer(ctx, q, c))
	}
	_, err = p.node.Reconcile(ctx)
	must(b, err)
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
}
