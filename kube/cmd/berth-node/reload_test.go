package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"
)

func TestMain(m *testing.M) {
	nrilog.Set(quiet{}) // the adaptation is a library with a log
	os.Exit(m.Run())
}

// quiet is a logger that says nothing.
type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host writes the files of a machine with control groups.
func host(t *testing.T, form string) string {
	t.Helper()
	m, err := machine.Short(form)
	must(t, err)
	dir := filepath.Join(t.TempDir(), "root")
	must(t, os.Mkdir(dir, 0o755))
	layout := fakekernel.V2()
	layout.CPUs = m.Online.String()
	_, err = fakekernel.New(dir, layout)
	must(t, err)
	files, err := fakekernel.Sysfs(m)
	must(t, err)
	for name, file := range files {
		must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), file.Data, 0o644))
	}
	return dir
}

// runtime is a container runtime with containerd's own way to plugins, and containers that are
// names.
type runtime struct {
	t      *testing.T
	nri    *adaptation.Adaptation
	socket string
	synced chan struct{}

	mu         sync.Mutex
	pods       []*api.PodSandbox
	containers []*api.Container
}

func newRuntime(t *testing.T) *runtime {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // a socket's path is short
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	adaptation.SetPluginRegistrationTimeout(2 * time.Minute) // how soon it answers is for others to test
	adaptation.SetPluginRequestTimeout(2 * time.Minute)
	r := &runtime{t: t, socket: filepath.Join(dir, "s"), synced: make(chan struct{}, 100)}
	list := func(ctx context.Context, plugin adaptation.SyncCB) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		updates, err := plugin(ctx, r.pods, r.containers)
		if err == nil {
			r.apply(updates)
			r.synced <- struct{}{}
		}
		return err
	}
	update := func(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.apply(updates)
		return nil, nil
	}
	r.nri, err = adaptation.New("fake", "2.4", list, update, adaptation.WithSocketPath(r.socket),
		adaptation.WithPluginPath(r.socket+".none"), adaptation.WithPluginConfigPath(r.socket+".none"))
	must(t, err)
	must(t, r.nri.Start())
	<-r.synced // with the plugins that it starts itself, of which there are none
	t.Cleanup(r.nri.Stop)
	return r
}

// apply is called with mu.
func (r *runtime) apply(updates []*api.ContainerUpdate) {
	for _, u := range updates {
		for _, c := range r.containers {
			if cpus := u.GetLinux().GetResources().GetCpu().GetCpus(); c.Id == u.GetContainerId() && cpus != "" {
				c.Linux.Resources.Cpu.Cpus = cpus
			}
		}
	}
}

func (r *runtime) connected() {
	r.t.Helper()
	select {
	case <-r.synced:
	case <-time.After(2 * time.Minute):
		r.t.Fatal("the plugin does not connect")
	}
	r.nri.BlockPluginSync().Unblock()
}

// create makes a container that asks for two CPUs of its own.
func (r *runtime) create(name string) {
	r.t.Helper()
	pod := &api.PodSandbox{
		Id: "pod-" + name, Uid: "uid-" + name, Namespace: "default", Name: name, Annotations: map[string]string{"berth.dev/class": "LSE"},
		Linux: &api.LinuxPodSandbox{CgroupParent: "/kubepods/burstable/pod" + name},
	}
	c := &api.Container{
		Id: name, PodSandboxId: pod.Id, Name: "c", State: api.ContainerState_CONTAINER_RUNNING,
		Linux: &api.LinuxContainer{
			CgroupsPath: "/kubepods/burstable/pod" + name + "/" + name,
			Resources:   &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(2048))}},
		},
	}
	ctx := context.Background()
	res, err := r.nri.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: c})
	must(r.t, err)
	r.mu.Lock()
	r.pods, r.containers = append(r.pods, pod), append(r.containers, c)
	r.apply(res.GetUpdate())
	c.Linux.Resources.Cpu.Cpus = res.GetAdjust().GetLinux().GetResources().GetCpu().GetCpus()
	r.mu.Unlock()
	must(r.t, r.nri.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: c}))
}

func (r *runtime) cpus(name string) cpuset.Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.Id == name {
			return cpuset.MustParse(c.Linux.Resources.Cpu.Cpus)
		}
	}
	return cpuset.Set{}
}

// log is what a program writes meanwhile.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.text.Write(p) }

func (l *log) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.text.String() }

// following is a plugin that follows a configuration, on a host of 8 CPUs beside a runtime.
type following struct {
	*runtime
	file  string
	said  log
	end   context.CancelFunc
	ended chan int // its exit status
}

// deaf is a configuration in which no words of pods count.
const deaf = "kubernetes: {words: [{namespaces: ['*'], words: []}]}\n"

func follow(t *testing.T) *following {
	t.Helper()
	f := &following{runtime: newRuntime(t), file: filepath.Join(t.TempDir(), "node.yaml"), ended: make(chan int, 1)}
	f.configure("reserved: 0\n")
	var ctx context.Context
	ctx, f.end = context.WithCancel(context.Background())
	args := []string{"nri", "--root", host(t, "1s1n8c1t"), "--config", f.file, "--nri-socket", f.socket, "--state", filepath.Join(t.TempDir(), "state"), "--metrics", "off", "--guard", "off", "--budget", "1m"}
	go func() { f.ended <- program().Run(ctx, strings.NewReader(""), &f.said, &f.said, args) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("it says:\n%s", &f.said)
		}
	})
	return f
}

func (f *following) configure(more string) {
	f.t.Helper()
	next := f.file + ".next"
	must(f.t, os.WriteFile(next, []byte("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n"+more), 0o600))
	must(f.t, os.Rename(next, f.file))
}

func (f *following) says(text string) {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(f.said.String(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("it never says %q", text)
		}
	}
}

// The plugin follows its configuration while it runs: which words count changes at once, for the
// rest it starts anew inside and containers keep what they have; what is wrong is said, and
// changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	r := follow(t)
	r.connected()
	r.create("first")
	first := r.cpus("first")
	if first.Len() != 2 || first.Contains(cpuset.MustOf(0)) {
		t.Fatalf("the first has CPUs %s", first)
	}

	r.configure("reserved: 0\n" + deaf)
	r.says("kubernetes.words")
	r.create("deaf")
	if got := r.cpus("deaf"); got.Len() != 6 || got.Overlaps(first) {
		t.Errorf("where no words count, one has CPUs %s", got)
	}
	if len(r.synced) != 0 {
		t.Error("it has connected again for words")
	}

	r.configure("reserved: 0\nkubernetes: {word: []}\n")
	r.says("kept")
	if !strings.Contains(r.said.String(), `did you mean \"words\"?`) {
		t.Error("it does not say what is wrong")
	}

	r.configure("reserved: 0,3-4\n")
	r.connected()
	r.create("second")
	if got := r.cpus("second"); r.cpus("first") != first || got.Len() != 2 || got.Overlaps(cpuset.MustParse("0,3-4").Union(first)) {
		t.Errorf("with CPUs 0,3-4 reserved the second has %s, the first %s, before %s", got, r.cpus("first"), first)
	}
	r.configure("reserved: 0-2\n")
	r.connected()
	if got := r.cpus("first"); got.Len() != 2 || got.Overlaps(cpuset.MustParse("0-2").Union(r.cpus("second"))) {
		t.Errorf("with its CPUs %s reserved the first has %s", first, got)
	}
	r.end()
	if code := <-r.ended; code != 0 {
		t.Errorf("status %d", code)
	}
}

// A configuration that fails only when it is tried leaves in force what was, words that changed since the start
// among it.
func TestReloadFails(t *testing.T) {
	t.Parallel()
	r := follow(t)
	r.connected()
	r.configure("reserved: 0\n" + deaf)
	r.says("kubernetes.words")
	r.configure("reserved: 99\n" + deaf)
	r.says("99 are not online")
	var got cpuset.Set
	for end := time.Now().Add(time.Minute); got.IsEmpty() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		r.create("deaf") // it may be tried more than once: between two plugins it has no CPUs
		got = r.cpus("deaf")
		r.stop("deaf")
	}
	if got.Len() != 8 {
		t.Errorf("where no words count, one has CPUs %s", got)
	}
	r.end()
	<-r.ended
}
