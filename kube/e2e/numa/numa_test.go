// Package numa runs containerd, runc and Berth's plugin in a guest with cgroup v2, 8 CPUs
// and 4 memory nodes, without an API server: pods come over the runtime's own interface.
// It has tests only. TestGuest boots; the others run in the guest.
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

// release is that of the kernel of the kit that the guest runs.
const release = "6.12"

func TestGuest(t *testing.T) {
	if inside() {
		t.Skip("it boots the guest")
	}
	if os.Getenv("BERTH_TEST_E2E") == "" {
		t.Skip("a guest runs where BERTH_TEST_E2E is set: make e2e-kube")
	}
	kit, err := vmtest.Open(cmp.Or(os.Getenv("BERTH_E2E_KIT"), "../../../.cache/e2e"))
	if err != nil {
		t.Skipf("no QEMU and kernels: make e2e-fetch (%v)", err)
	}
	node, err := nodekit.Open(nodekit.Dir("../../.."), "containerd", "containerd-shim-runc-v2", "runc")
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
		Kernel: k, Files: map[string]string{}, Modules: []string{"overlay", "veth"},
		Args: []string{"/bin/numa", "-test.v=test2json", "-test.skip=TestGuest", "-test.timeout=20m"},
		CPU:  10 * time.Minute,
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
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		job.Files["/bin/"+name] = node.Program(name)
	}
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
	var output bytes.Buffer
	job.Output = &output
	result, err := kit.Run(t.Context(), machine, job)
	if err != nil {
		t.Fatalf("%v\n%s", err, output.Bytes())
	}
	report(t, &output)
	t.Log(result)
	for _, line := range result.Memory.Shortages {
		t.Errorf("the guest had no memory left: %s", line)
	}
	if result.Exit != 0 && !t.Failed() {
		t.Errorf("tests ended with status %d\n%s", result.Exit, result.Console)
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
		if e.Test == "" || e.Test == "TestGuest" {
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
	delete(logs, "TestGuest")
	delete(logs, "")
	for name, log := range logs {
		t.Errorf("%s did not end:\n%s", name, log)
	}
}
