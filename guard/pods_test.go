package guard

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
)

const (
	webUID, hogUID = "8d2c5f4e-1c2b-4a39-9f6d-0a1b2c3d4e5f", "11111111-2222-3333-4444-555555555555"
	webID          = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	hogID          = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
)

// podTree has the groups of a burstable pod that suffers and of a best-effort pod that hogs
// the CPUs, by one of the kubelet's drivers.
type podTree struct{ top, class, pod, web, hog string }

func podTrees() map[string]podTree {
	unit := func(uid string) string { return strings.ReplaceAll(uid, "-", "_") }
	const be, bu = "kubepods.slice/kubepods-besteffort.slice", "kubepods.slice/kubepods-burstable.slice"
	return map[string]podTree{
		"systemd": {
			"kubepods.slice", be, be + "/kubepods-besteffort-pod" + unit(hogUID) + ".slice",
			bu + "/kubepods-burstable-pod" + unit(webUID) + ".slice/cri-containerd-" + webID + ".scope",
			be + "/kubepods-besteffort-pod" + unit(hogUID) + ".slice/cri-containerd-" + hogID + ".scope",
		},
		"cgroupfs": {
			"kubepods", "kubepods/besteffort", "kubepods/besteffort/pod" + hogUID,
			"kubepods/burstable/pod" + webUID + "/" + webID, "kubepods/besteffort/pod" + hogUID + "/" + hogID,
		},
	}
}

// played is a model whose hog is slowed down by what the played kernel has.
type played struct {
	*model
	k    *fakekernel.Kernel
	tree podTree
	cpu  string // directory of the tree
	dir  string // of the kernel
}

func (p *played) read(group, file string) string {
	text, err := fs.ReadFile(p.k.FS(), p.cpu+"/"+group+"/"+file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (p *played) follow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = p.read(p.tree.class, "cpu.idle") == "1"
	for _, quota := range []string{p.read(p.tree.hog, "cpu.max"), p.read(p.tree.hog, "cpu.cfs_quota_us")} {
		p.idle = p.idle || quota != "" && quota != "-1" && !strings.HasPrefix(quota, "max")
	}
}

func (p *played) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	p.follow()
	return p.model.Tick(now, to)
}

func (p *played) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	p.follow()
	return p.model.TickNear(now, to)
}

// kubelet writes the weights of the classes as it does once a minute: with the driver
// systemd, systemd writes cpu.idle 0 before a weight on v2. It returns what it cannot write.
func (p *played) kubelet(v2, systemd bool) error {
	class := p.cpu + "/" + p.tree.class
	if !v2 {
		return p.k.WriteFile(class+"/cpu.shares", "2")
	}
	if systemd {
		if err := p.k.WriteFile(class+"/cpu.idle", "0"); err != nil {
			return err
		}
	}
	return p.k.WriteFile(class+"/cpu.weight", "1")
}

func newPlayed(t *testing.T, layout fakekernel.Layout, tree podTree) (*played, *actuate.Host) {
	t.Helper()
	dir := t.TempDir()
	layout.CPUs, layout.Mems, layout.Version = "0-3", "0", "7.3"
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	k, err := fakekernel.New(root, layout)
	if err != nil {
		t.Fatal(err)
	}
	files := kernel.NewRoot(root, k)
	found, err := cgroup.Detect(files)
	if err != nil {
		t.Fatal(err)
	}
	for i := range found.Hierarchies {
		found.Hierarchies[i].Own = ""
	}
	base, err := found.Base(cgroup.CPU, cgroup.CPUSet, cgroup.Memory)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{tree.web, tree.hog} {
		plan, err := base.Child(group).Create()
		if err == nil {
			_, err = kernel.Apply(files, plan, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cpu, _ := found.Hierarchy(cgroup.CPU)
	m := newModel()
	m.web, m.hog, m.hogs = tree.web, tree.hog, 5*time.Second
	p := &played{m, k, tree, cpu.Dir, root}
	if err := p.kubelet(cpu.Version == 2, false); err != nil {
		t.Fatal(err)
	}
	host, err := actuate.Open(actuate.Options{Root: files, Dir: filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	return p, host
}

// names writes the files of the kubelet that say whose the groups are, and returns who reads them.
func (p *played) names(t *testing.T) func(group string) Party {
	t.Helper()
	for _, name := range []string{
		"pods/shop_web-0_" + webUID + "/web/0.log", "containers/web-0_shop_web-" + webID + ".log",
		"pods/batch_hog_" + hogUID + "/main/0.log", "containers/hog_batch_main-" + hogID + ".log",
	} {
		file := filepath.Join(p.dir, "var/log", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	dir := pods.NewDirectory(p.k.FS())
	if err := dir.Refresh(); err != nil {
		t.Fatal(err)
	}
	return func(group string) Party {
		if n, ok := dir.Of(group); ok {
			return Party{Group: group, Name: n.String(), Pod: &n}
		}
		return Party{Group: group, Name: group}
	}
}

// A best-effort pod hogs the CPUs of a burstable one. Where the kubelet can still write its
// weights, its whole class yields, and is left to the kubelet once that has written over it
// three times; elsewhere the container is capped. The kubelet's own writes never fail, and
// at the end everything is as it was.
func TestPods(t *testing.T) {
	t.Parallel()
	for name, tree := range podTrees() {
		for version, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { testPods(t, layout, tree, version == "v2", name == "systemd") })
			})
		}
	}
}

func testPods(t *testing.T, layout fakekernel.Layout, tree podTree, v2, systemd bool) {
	p, host := newPlayed(t, layout, tree)
	before, err := p.k.Tree()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		// Not at the instant of a window: systemd writes two files, and the guard might write between them.
		for wait := time.Minute + 13*time.Millisecond; ; wait = time.Minute {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
				if err := p.kubelet(v2, systemd); err != nil {
					t.Errorf("the kubelet: %v", err)
				}
			}
		}
	}()
	o := Options{
		Sensors: p, Actuator: host, Machine: fourCPUs(), Control: control.Config{Mode: control.Enforce, Hold: time.Hour},
		Workloads: func(context.Context) ([]Workload, error) {
			return []Workload{{Group: tree.web, Class: place.LS, Sensitive: true}}, nil
		},
	}
	events, errs := runFor(t, o, 5*time.Minute)
	if len(errs) > 0 {
		t.Errorf("errors: %v", errs)
	}
	if len(events) == 0 || events[0].Action == nil {
		t.Fatalf("events: %v", events)
	}
	first, yielded := events[0], 0
	who := p.names(t)
	if r := ReportEvent(first, who); r.Victim.Name != "shop/web-0/web" || r.Antagonist.Name != "batch/hog/main" || !strings.Contains(r.Text(), "for shop/web-0/web") {
		t.Errorf("%q is about %+v and %+v", r.Text(), r.Victim, r.Antagonist)
	}
	for _, e := range events {
		if e.Action != nil && e.Action.Limits.Idle == cgroup.On && e.Action.Group == tree.hog {
			t.Errorf("a container's own group: %v", e)
		}
		if e.Outcome == control.Yielded {
			yielded++
			if !strings.Contains(e.Text, "most likely the kubelet, has set") {
				t.Errorf("%v", e)
			}
		}
	}
	if v2 && systemd {
		if first.Action.Group != tree.class || first.Action.Limits.Idle != cgroup.On || yielded != 1 {
			t.Errorf("first %v, yielded %d times", first, yielded)
		}
	} else if first.Action.Group != tree.hog || first.Action.Remedy != detect.HeadroomCap || yielded != 0 {
		t.Errorf("first %v, yielded %d times", first, yielded)
	}
	cancel()
	synctest.Wait() // for the last write of the kubelet
	after, err := p.k.Tree()
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range before {
		if strings.HasPrefix(file, "sys/") && after[file] != text {
			t.Errorf("%s was %q, is %q", file, text, after[file])
		}
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
}
