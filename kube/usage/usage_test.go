package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/batch"
)

const (
	podA = "11111111-2222-3333-4444-555555555555"
	podB = "0123456789abcdef0123456789abcdef" // a static pod's: a hash
)

// tree is a host with cgroup v2 whose files the test writes.
type tree struct {
	t   *testing.T
	dir string
}

func (h *tree) write(name, text string) {
	h.t.Helper()
	name = filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// host sets the CPU time in seconds and the memory in MiB of the node.
func (h *tree) host(cpu, memory int) {
	h.write("proc/stat", fmt.Sprintf("cpu %d 0 0 1000 0 0 0 0 0 0\ncpu0 %d 0 0 1000 0 0 0 0 0 0\n", cpu*100, cpu*100))
	h.write("proc/meminfo", fmt.Sprintf("MemTotal: %d kB\nMemFree: 1 kB\nMemAvailable: %d kB\n", 1000<<10, (1000-memory)<<10))
}

func (h *tree) pod(group string, cpu float64, memory int) {
	h.write(filepath.Join("sys/fs/cgroup", group, "cpu.stat"), fmt.Sprintf("usage_usec %d\nuser_usec 0\nsystem_usec 0\n", int(cpu*1e6)))
	h.write(filepath.Join("sys/fs/cgroup", group, "memory.stat"), fmt.Sprintf("anon %d\nfile 999999999\n", memory<<20))
}

func TestMeter(t *testing.T) {
	t.Parallel()
	h := &tree{t, t.TempDir()}
	h.write("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	h.write("proc/self/cgroup", "0::/\n")
	h.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n")
	a := "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(podA, "-", "_") + ".slice"
	b := "kubepods.slice/kubepods-pod" + podB + ".slice"
	h.host(100, 100)
	h.pod(a, 10, 20)
	root, err := kernel.Open(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(root, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1000, 0)
	sample := func(after time.Duration) {
		t.Helper()
		if err := m.Sample(at.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	sample(0)
	if _, ok := m.Report(time.Minute); ok {
		t.Error("a rate from one sample")
	}
	h.host(130, 200)
	h.pod(a, 25, 40)
	h.pod(b, 3, 10) // new: no rate yet
	sample(30 * time.Second)
	r, ok := m.Report(time.Minute)
	want := Report{At: at.Add(30 * time.Second), For: 30 * time.Second, Node: batch.Amount{Milli: 1000, Memory: 150 << 20}, Pods: map[string]batch.Amount{podA: {Milli: 500, Memory: 30 << 20}}}
	if diff := cmp.Diff(want, r); !ok || diff != "" {
		t.Error(diff)
	}
	if got := r.System(); got != (batch.Amount{Milli: 500, Memory: 120 << 20}) {
		t.Errorf("the system: %+v", got)
	}
	// A pod that ends, one that goes on, and the window moves on.
	if err := os.RemoveAll(filepath.Join(h.dir, "sys/fs/cgroup", a)); err != nil {
		t.Fatal(err)
	}
	h.host(160, 100)
	h.pod(b, 9, 10)
	sample(60 * time.Second)
	h.host(220, 100)
	h.pod(b, 27, 10)
	sample(120 * time.Second)
	r, _ = m.Report(time.Minute)
	want = Report{At: at.Add(120 * time.Second), For: time.Minute, Node: batch.Amount{Milli: 1000, Memory: 100 << 20}, Pods: map[string]batch.Amount{podB: {Milli: 300, Memory: 10 << 20}}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	// Of the window only a part.
	h.host(226, 300)
	h.pod(b, 39, 30)
	sample(150 * time.Second)
	if r, _ = m.Report(30 * time.Second); r.For != 30*time.Second || r.Pods[podB] != (batch.Amount{Milli: 400, Memory: 20 << 20}) || r.Node.Milli != 200 {
		t.Errorf("the last half minute: %+v", r)
	}
	// What cannot be read is an error, and no figure.
	h.write("proc/meminfo", "MemTotal: x kB\n")
	if err := m.Sample(at.Add(3 * time.Minute)); err == nil || !strings.Contains(err.Error(), "MemTotal") {
		t.Errorf("%v", err)
	}
}
