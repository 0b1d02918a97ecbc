// Package e2e runs a real node of Kubernetes, and Berth on it: etcd, API server, kubelet,
// containerd and runc, in a box of their own (internal/testbox). It has tests only. See
// docs/testing.md.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"berth.dev/berth/internal/testbox"
	"berth.dev/berth/kube/e2e/nodekit"
)

// Env asks for the node: plain go test stays fast where a kit has been fetched.
const Env = "BERTH_TEST_E2E"

// builtEnv names the directory with the programs of this source, in the box.
const builtEnv = "BERTH_TEST_NODE_PROGRAMS"

func TestMain(m *testing.M) {
	testbox.Main()
	if testbox.Inside() || cannot() != "" {
		os.Exit(m.Run())
	}
	code, err := runInBox()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// cannot says why there is no node, "" if there is one.
func cannot() string {
	if os.Getenv(Env) == "" {
		return "a node runs where " + Env + " is set: make e2e-kube"
	}
	if os.Geteuid() != 0 {
		return "a node needs root: it has namespaces, mounts and control groups of its own"
	}
	if _, err := nodekit.Open(nodekit.Dir("../.."), nodekit.Names()...); err != nil {
		return err.Error()
	}
	return ""
}

// runInBox runs this test binary again, in a box. It dies with this thread.
func runInBox() (code int, err error) {
	runtime.LockOSThread()
	ctx := context.Background()
	programs := filepath.Join(nodekit.Dir("../.."), "programs")
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return 0, err
	}
	for _, pkg := range []string{"cmd/berth-node", "e2e/work"} {
		build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", programs+"/", "berth.dev/berth/kube/"+pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	if programs, err = filepath.Abs(programs); err != nil {
		return 0, err
	}
	box, err := testbox.Make(testbox.Spec{
		Group:     fmt.Sprintf("berth-node-%d", os.Getpid()),
		Tmpfs:     map[string]os.FileMode{"/run": 0o755, "/var/lib": 0o755, "/var/log": 0o755},
		Dir:       dir,
		Addresses: []string{nodekit.Address},
	})
	if err != nil {
		return 0, err
	}
	cmd, err := box.Command(ctx, os.Args[1:]...)
	if err != nil {
		return 0, err
	}
	cmd.Env = append(cmd.Env, builtEnv+"="+programs)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	if left := box.Remove(); left != nil {
		return 0, left
	}
	if cmd.ProcessState == nil {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}
