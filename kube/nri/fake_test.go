package nri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
)

// box is a container that the fake runtime has.
type box struct {
	pod      *api.PodSandbox
	c        *api.Container
	cpus     cpuset.Set // in force; empty is all
	spec     cpuset.Set // what the runtime believes to be in force
	running  bool
	own      int  // how many CPUs of its own it asks for, by a word: it gets them or is refused
	refusing bool // the runtime fails to update it
	unknown  bool // it runs, and the runtime does not know its state: it neither lists nor updates it
}

// runtime is a fake container runtime: containers that are numbers, with containerd's own
// adaptation in front of them. After each single change it checks that nobody runs on
// CPUs of a container that has its own.
type runtime struct {
	t       testing.TB
	online  cpuset.Set
	socket  string
	nri     *adaptation.Adaptation
	synced  chan int   // containers listed
	serial  sync.Mutex // held by whoever calls the runtime, from the question to plugins until all is applied
	mu      sync.Mutex
	conn    net.Conn
	boxes   map[string]*box
	updates int
	plugin  atomic.Pointer[Plugin]

	required []string // plugins without which no container is created
	files    string   // a directory for the CPUs of what runs, "" for none
}

func newRuntime(t testing.TB, online cpuset.Set) *runtime {
	dir, err := os.MkdirTemp("", "nri") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &runtime{t: t, online: online, socket: filepath.Join(dir, "s"), boxes: map[string]*box{}, synced: make(chan int, 100)}
}

func init() {
	if os.Getenv("NRI_LOG") == "" {
		nrilog.Set(quiet{}) // the adaptation is a library with a log
	}
	// Of all runtimes of this process: tests are of what is answered, not of how soon.
	adaptation.SetPluginRegistrationTimeout(2 * time.Minute)
	adaptation.SetPluginRequestTimeout(2 * time.Minute)
	if os.Getenv(timeoutEnv) != "" {
		adaptation.SetPluginRequestTimeout(requestTimeout)
	}
}

// start has the runtime listen for plugins.
func (r *runtime) start() {
	r.t.Helper()
	var err error
	r.nri, err = adaptation.New("fake", "2.4", r.list, r.unsolicited, adaptation.WithSocketPath(r.socket),
		adaptation.WithDefaultValidator(&validator.DefaultValidatorConfig{Enable: true, RequiredPlugins: r.required}), adaptation.WithPluginPath(r.socket+".none"), adaptation.WithPluginConfigPath(r.socket+".none"))
	if err == nil {
		err = r.nri.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	<-r.synced // with the plugins that it starts itself, of which there are none
	r.t.Cleanup(r.nri.Stop)
}

func (r *runtime) dial() (net.Conn, error) {
	conn, err := net.Dial("unix", r.socket)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn = conn
	return conn, err
}

// crash ends the runtime, as an ending containerd does: its containers run on.
func (r *runtime) crash() {
	r.nri.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conn.Close()
}

// list tells a new plugin what there is, and applies its answer.
func (r *runtime) list(ctx context.Context, plugin adaptation.SyncCB) error {
	r.mu.Lock()
	var pods []*api.PodSandbox
	var containers []*api.Container
	for _, id := range slices.Sorted(maps.Keys(r.boxes)) {
		b := r.boxes[id]
		pods = append(pods, b.pod)
		if !b.unknown {
			containers = append(containers, b.listed())
		}
	}
	r.mu.Unlock()
	updates, err := plugin(ctx, pods, containers)
	if err == nil {
		_, _ = r.updateAll(ctx, updates)
		r.synced <- len(containers)
	}
	return err
}

// listed is a container with the resources in force.
func (b *box) listed() *api.Container {
	c := withResources(b.c, &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: b.spec.String()}})
	if c.State = api.ContainerState_CONTAINER_CREATED; b.running {
		c.State = api.ContainerState_CONTAINER_RUNNING
	}
	return c
}

// updateAll applies updates one after the other, as containerd does: what fails is told of
// nobody, and the rest is applied.
func (r *runtime) updateAll(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	var failed error
	for _, u := range updates {
		if err := r.set(u.GetContainerId(), u.GetLinux().GetResources().GetCpu().GetCpus()); err != nil {
			failed = errors.New("NRI update of some containers failed")
		}
	}
	return nil, failed
}

// unsolicited waits for its turn, as in containerd.
func (r *runtime) unsolicited(ctx context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	r.serial.Lock()
	defer r.serial.Unlock()
	return r.updateAll(ctx, updates)
}

func (r *runtime) set(id, cpus string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.updates++
	b := r.boxes[id]
	switch {
	case b == nil || cpus == "":
		return nil
	case b.refusing:
		return errors.New("refused")
	}
	if b.spec = cpuset.MustParse(cpus); b.running && !b.unknown {
		r.put(b, b.spec)
	}
	r.check("update of " + id)
	return nil
}

// put has a container run on CPUs. It is called with mu.
func (r *runtime) put(b *box, cpus cpuset.Set) {
	b.cpus, b.running = cpus, true
	if r.files != "" {
		must(r.t, os.WriteFile(filepath.Join(r.files, b.c.GetId()), []byte(b.has(r.online).String()), 0o644))
	}
}

// check is called with mu.
func (r *runtime) check(when string) {
	for id, b := range r.boxes {
		if b.own == 0 || !b.running {
			continue
		}
		if b.cpus.Len() != b.own || !r.owns(id, b.cpus) {
			continue // it has to wait for others to leave: asBooks looks whether it gets them
		}
		for other, o := range r.boxes {
			if o.cpus.IsEmpty() && r.required != nil {
				continue // the plugin was killed in its creation, which the runtime lets pass: adopted next
			}
			if has := o.has(r.online); other != id && o.running && has.Overlaps(b.cpus) {
				r.t.Errorf("%s: %s has CPUs %s, and %s of them are those of %s", when, other, has, has.Intersect(b.cpus), id)
			}
		}
	}
}

// owns reports whether CPUs are those that a container is to have: while it waits for others
// to leave it has the shared pool, which may be as many.
func (r *runtime) owns(id string, cpus cpuset.Set) bool {
	p := r.plugin.Load()
	if p == nil {
		return true
	}
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	s := p.table.containers[id]
	return s == nil || s.want.cpus == cpus
}

func (b *box) has(online cpuset.Set) cpuset.Set {
	if b.cpus.IsEmpty() {
		return online
	}
	return b.cpus
}

// create makes and starts a container.
func (r *runtime) create(pod *api.PodSandbox, c *api.Container, own int) error {
	defer r.nri.BlockPluginSync().Unblock() // or a plugin that is adopting would not be told
	r.serial.Lock()
	defer r.serial.Unlock()
	if err := r.make(pod, c, own); err != nil {
		return err
	}
	return r.run(pod, c)
}

// run starts a container, as containerd does: on what it was to have when that began, before plugins are told.
// What the runtime is told meanwhile it only believes.
func (r *runtime) run(pod *api.PodSandbox, c *api.Container) error {
	ctx := context.Background()
	r.mu.Lock()
	b := r.boxes[c.GetId()]
	begins := b.spec
	r.mu.Unlock()
	r.yield()
	if err := r.nri.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: c}); err != nil {
		return err
	}
	r.yield()
	r.mu.Lock()
	r.put(b, begins)
	r.check("start of " + c.GetId())
	r.mu.Unlock()
	return r.nri.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: c})
}

// yield lets others call the runtime.
func (r *runtime) yield() { r.serial.Unlock(); goruntime.Gosched(); r.serial.Lock() }

// make makes a container: updates of others first, as containerd has it. What it is told of the new one before that
// is made it leaves out.
func (r *runtime) make(pod *api.PodSandbox, c *api.Container, own int) error {
	ctx := context.Background()
	_ = r.nri.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod})
	res, err := r.nri.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: c})
	if err != nil {
		return err
	}
	_, _ = r.updateAll(ctx, res.GetUpdate())
	r.yield()
	r.mu.Lock()
	b := &box{pod: pod, c: c, own: own}
	if cpus := res.GetAdjust().GetLinux().GetResources().GetCpu().GetCpus(); cpus != "" {
		b.spec = cpuset.MustParse(cpus)
	}
	r.boxes[c.GetId()] = b
	r.mu.Unlock()
	return nil
}

func (r *runtime) stop(id string) error {
	defer r.nri.BlockPluginSync().Unblock()
	r.serial.Lock()
	defer r.serial.Unlock()
	r.mu.Lock()
	b := r.boxes[id]
	delete(r.boxes, id) // the process is gone when plugins are told
	if r.files != "" {
		_ = os.Remove(filepath.Join(r.files, id))
	}
	r.mu.Unlock()
	ctx := context.Background()
	res, err := r.nri.StopContainer(ctx, &api.StopContainerRequest{Pod: b.pod, Container: b.c})
	if err != nil {
		return err
	}
	_, _ = r.updateAll(ctx, res.GetUpdate())
	return r.nri.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: b.pod, Container: b.c})
}

func (r *runtime) stopPod(pod *api.PodSandbox) error {
	r.serial.Lock()
	defer r.serial.Unlock()
	return r.nri.StopPodSandbox(context.Background(), &api.StopPodSandboxRequest{Pod: pod})
}

func (r *runtime) cpus(id string) cpuset.Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.boxes[id]; b != nil {
		return b.cpus
	}
	return cpuset.Set{}
}

// all is what every container has.
func (r *runtime) all() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]string{}
	for id, b := range r.boxes {
		all[id] = b.cpus.String()
	}
	return all
}

// effective reads a container's CPUs by the name of its group, which ends in its id.
func (r *runtime) effective(group string) (cpuset.Set, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.boxes[filepath.Base(group)]
	if b == nil || !b.running {
		return cpuset.Set{}, false
	}
	return b.has(r.online), true
}

// pod and container make what the kubelet would ask for.
func pod(name string, annotations map[string]string) *api.PodSandbox {
	return &api.PodSandbox{
		Id: "pod-" + name, Uid: "uid-" + name, Namespace: "default", Name: name, Annotations: annotations,
		Linux: &api.LinuxPodSandbox{CgroupParent: "/kubepods/burstable/pod" + name},
	}
}

func guaranteed(p *api.PodSandbox) *api.PodSandbox {
	p.Linux.CgroupParent = "/kubepods/pod" + p.Name
	return p
}

func bestEffort(p *api.PodSandbox) *api.PodSandbox {
	p.Linux.CgroupParent = "/kubepods/besteffort/pod" + p.Name
	return p
}

func container(p *api.PodSandbox, name string, milli int) *api.Container {
	id := p.GetName() + "." + name
	return &api.Container{
		Id: id, PodSandboxId: p.GetId(), Name: name,
		Linux: &api.LinuxContainer{
			CgroupsPath: p.GetLinux().GetCgroupParent() + "/" + id,
			Resources: &api.LinuxResources{Cpu: &api.LinuxCPU{
				Shares: api.UInt64(uint64(max(2, milli*1024/1000))), Quota: api.Int64(int64(milli) * 100), Period: api.UInt64(uint64(100000)),
			}},
		},
	}
}

var exclusive = map[string]string{"berth.dev/class": "LSE"}

// events collects those of a plugin.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (e *events) add(ev Event) { e.mu.Lock(); e.all = append(e.all, ev); e.mu.Unlock() }

func (e *events) kinds(kind string) (some []string) {
	for _, ev := range e.of(kind) {
		some = append(some, ev.Pod+"/"+ev.Container+": "+ev.Text)
	}
	return some
}

func (e *events) of(kind string) (some []Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Kind == kind {
			some = append(some, ev)
		}
	}
	return some
}

// options are those of a plugin on a machine that is played.
func options(t testing.TB, form string) (Options, *events) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth-test-")
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	opt, err := playedOptions(dir, form)
	if err != nil {
		t.Fatal(err)
	}
	heard := &events{}
	opt.Budget, opt.Every, opt.Events, opt.Effective = time.Minute, 20*time.Millisecond, heard.add, func(string) (cpuset.Set, bool) { return cpuset.Set{}, false }
	return opt, heard
}

func playedOptions(dir, form string) (opt Options, err error) {
	m, err := machine.Short(form)
	if err != nil {
		return opt, err
	}
	layout := fakekernel.V2()
	layout.CPUs, layout.Version = m.Online.String(), "7.3"
	root := filepath.Join(dir, "root")
	if err := errors.Join(os.RemoveAll(root), os.MkdirAll(root, 0o755)); err != nil { // that of a process that was killed
		return opt, err
	}
	k, err := fakekernel.New(root, layout)
	opt.Node = agent.Options{Root: kernel.NewRoot(root, k), Dir: filepath.Join(dir, "state"), Machine: m}
	return opt, err
}

func open(t testing.TB, opt Options) *Plugin {
	t.Helper()
	p, err := New(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// node is a plugin that runs, connected to a fake runtime.
type node struct {
	*runtime
	p     *Plugin
	heard *events
	end   func()
}

func newNode(t testing.TB, form string, change func(*Options)) *node {
	t.Helper()
	opt, heard := options(t, form)
	n := &node{runtime: newRuntime(t, opt.Node.Machine.Online), heard: heard}
	opt.Effective = n.effective
	if change != nil {
		change(&opt)
	}
	n.start()
	n.run(open(t, opt))
	return n
}

// run has a plugin run, and waits until it is connected.
func (n *node) run(p *Plugin) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx, n.dial) }()
	n.plugin.Store(p)
	n.p, n.end = p, sync.OnceFunc(func() { cancel(); <-done })
	n.t.Cleanup(n.end)
	n.connected()
}

// connected waits until the runtime calls the plugin.
func (n *node) connected() {
	n.t.Helper()
	select {
	case <-n.synced:
	case <-time.After(2 * time.Minute):
		n.t.Fatal("the plugin does not connect")
	}
	n.nri.BlockPluginSync().Unblock()
}

// eventually waits for something to become true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// asBooks checks that every container comes to have what the node's records say.
func (n *node) asBooks(when string) {
	n.t.Helper()
	var wrong []string
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		all, err := n.p.node.List(context.Background())
		if err != nil {
			n.t.Fatal(err)
		}
		if wrong = n.differs(all); len(wrong) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, text := range wrong {
		n.t.Errorf("%s: %s", when, text)
	}
}

// differs says of whom the runtime has something else than the records.
func (r *runtime) differs(all []agent.Workload) (wrong []string) {
	var owned cpuset.Set
	known := map[string]bool{}
	for i := range all {
		w := &all[i]
		id := containerOf(w)
		known[id] = true
		if has := r.cpus(id); has != w.CPUs && (r.has(id) || !held(w) && w.State != agent.Reserved) {
			wrong = append(wrong, fmt.Sprintf("%s has CPUs %s, want %s", w.ID(), has, w.CPUs))
		}
		if w.Spec.Request.Role == place.Init {
			continue // its pod's others use its CPUs again
		}
		if w.Grant.Own.Overlaps(owned) {
			wrong = append(wrong, fmt.Sprintf("%s owns CPUs %s that another one owns", w.ID(), w.Grant.Own.Intersect(owned)))
		}
		owned = owned.Union(w.Grant.Own)
	}
	for id, b := range r.containers() {
		if b.own > 0 && b.cpus.Len() != b.own || !known[id] {
			wrong = append(wrong, fmt.Sprintf("%s has CPUs %s and asked for %d of its own; on record: %v", id, b.cpus, b.own, known[id]))
		}
	}
	return wrong
}

func (r *runtime) has(id string) bool { _, ok := r.containers()[id]; return ok }

func (r *runtime) containers() map[string]box {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]box{}
	for id, b := range r.boxes {
		all[id] = *b
	}
	return all
}

func (n *node) shared() cpuset.Set {
	s, err := n.p.node.State(context.Background())
	if err != nil {
		n.t.Fatal(err)
	}
	return s.Sharable()
}

// slow is a policy that takes its time.
type slow struct {
	berth.Policy
	wait func()
}

func (s slow) Place(st *place.State, r *place.Request) (place.Offer, error) {
	s.wait()
	return s.Policy.Place(st, r)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func name(i int) string { return fmt.Sprintf("p%03d", i) }
