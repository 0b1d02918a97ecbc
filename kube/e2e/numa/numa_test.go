// Package numa runs containerd, runc and Berth's plugin in guests with cgroup v2 and several
// memory nodes, without an API server. It has tests only.
//
// TestGuest boots one with 8 CPUs on 4 nodes, and nothing else: pods come over the runtime's
// own interface. TestKubeletGuest boots one with 4 CPUs on 2 nodes, systemd, and a kubelet whose
// pods come from files. The others run in one of them: those of the second are called TestKubelet.
package numa

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/vmtest"
	"berth.dev/berth/kube/e2e/nodekit"
)

// inside reports whether this is the guest.
func inside() bool { _, err := os.Stat(vmtest.Marker); return err == nil }

// release is the kernel of the kit that guests run.
const release = "6.12"

func TestGuest(t *testing.T) {
	kit, job := prepare(t, "containerd", "containerd-shim-runc-v2", "runc")
	job.Args = append(job.Args, "-test.skip=TestGuest|TestKubelet")
	job.CPU = 10 * time.Minute
	machine := vmtest.Machine{Name: "numa8", Sockets: 2, Dies: 2, Cores: 2, Disk: &vmtest.SlowDisk{MiB: 4, IOPS: 1000, Depth: 4}}
	for range 8 {
		machine.MaxKHz = append(machine.MaxKHz, 4_000_000)
	}
	for i := range 4 {
		cpus, err := cpuset.Range(2*i, 2*i+1)
		if err != nil {
			t.Fatal(err)
		}
		machine.Nodes = append(machine.Nodes, vmtest.Node{CPUs: cpus, MiB: 128})
	}
	machine.Nodes[0].MiB = 640
	boot(t, kit, machine, job)
}

// TestKubeletGuest boots the guest with systemd and a kubelet, which is what nodes have.
func TestKubeletGuest(t *testing.T) {
	kit, job := prepare(t, "containerd", "containerd-shim-runc-v2", "runc", "kubelet")
	if kit.Disk == "" {
		t.Skip("no root file system: make e2e-systemd-fetch")
	}
	job.Disk = kit.Disk
	job.Args = append(job.Args, "-test.run=TestKubelet", "-test.skip=TestKubeletGuest")
	job.CPU = 20 * time.Minute
	boot(t, kit, vmtest.Machine{Name: "kubelet4", Sockets: 2, Cores: 2, Nodes: []vmtest.Node{
		{CPUs: cpuset.MustParse("0-1"), MiB: 1024}, {CPUs: cpuset.MustParse("2-3"), MiB: 1024},
	}}, job)
}

// prepare returns a job for tests of this package, with programs of others, or skips.
func prepare(t *testing.T, others ...string) (*vmtest.Kit, vmtest.Job) {
	t.Helper()
	if inside() {
		t.Skip("it boots a guest")
	}
	if os.Getenv("BERTH_TEST_E2E") == "" {
		t.Skip("a guest runs where BERTH_TEST_E2E is set: make e2e-kube")
	}
	kit, err := vmtest.Open(cmp.Or(os.Getenv("BERTH_E2E_KIT"), "../../../.cache/e2e"))
	if err != nil {
		t.Skipf("no QEMU and kernels: make e2e-fetch (%v)", err)
	}
	node, err := nodekit.Open(nodekit.Dir("../../.."), others...)
	if err != nil {
		t.Skip(err)
	}
	k, ok := kit.Kernel(release)
	if !ok {
		t.Fatalf("the kit has no kernel %s", release)
	}
	programs := filepath.Join(nodekit.Dir("../../.."), "programs/guest")
	if err := os.MkdirAll(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	job := vmtest.Job{
		Kernel: k, Files: map[string]string{}, Modules: []string{"overlay", "veth", "sch_htb"},
		Args: []string{"/bin/numa", "-test.v=test2json", "-test.timeout=20m"},
	}
	for name, pkg := range map[string]string{"": "internal/vmtest/vminit", "berth-node": "kube/cmd/berth-node", "work": "kube/e2e/work", "numa": "kube/e2e/numa"} {
		file, err := vmtest.Build(t.Context(), programs, pkg, name == "numa")
		if err != nil {
			t.Fatal(err)
		}
		if name == "" {
			job.Init = file
		} else {
			job.Files["/bin/"+name] = file
		}
	}
	for _, name := range others {
		job.Files["/bin/"+name] = node.Program(name)
	}
	return kit, job
}

// boot runs a job in a guest, and reports its tests.
func boot(t *testing.T, kit *vmtest.Kit, machine vmtest.Machine, job vmtest.Job) {
	t.Helper()
	var output bytes.Buffer
	job.Output = &output
	result, err := kit.Run(t.Context(), machine, job)
	if err != nil {
		t.Fatalf("%v\n%s", err, output.Bytes())
	}
	report(t, bytes.NewReader(output.Bytes()))
	t.Log(result)
	for _, line := range result.Memory.Shortages {
		t.Errorf("the guest had no memory left: %s", line)
	}
	if result.Exit != 0 && !t.Failed() {
		t.Errorf("tests ended with status %d\n%s\n%s", result.Exit, output.Bytes(), result.Console)
	}
}

// report makes each test of the guest a sub-test.
func report(t *testing.T, output io.Reader) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "go", "tool", "test2json")
	cmd.Stdin = output
	events, err := cmd.Output()
	if err != nil {
		t.Fatalf("go tool test2json: %v", err)
	}
	logs := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(events)); lines.Scan(); {
		var e struct{ Action, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		logs[e.Test] += e.Output
		if e.Test == "" {
			continue
		}
		switch e.Action {
		case "pass", "fail", "skip":
			t.Run(e.Test, func(t *testing.T) {
				t.Log(strings.TrimSpace(logs[e.Test]))
				if e.Action != "pass" {
					t.Errorf("in the guest: %s", e.Action)
				}
			})
			delete(logs, e.Test)
		}
	}
	delete(logs, "")
	for name, log := range logs {
		t.Errorf("%s did not end:\n%s", name, log)
	}
}
