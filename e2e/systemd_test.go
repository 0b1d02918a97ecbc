package e2e

import (
	"os"
	"testing"
	"time"

	"berth.dev/berth/internal/vmtest"
)

// SystemdEnv asks for guests with systemd.
const SystemdEnv = "BERTH_TEST_E2E_SYSTEMD"

// TestSystemd runs the tests of e2e/systemd in a guest whose PID 1 is systemd.
func TestSystemd(t *testing.T) {
	if os.Getenv(SystemdEnv) == "" {
		t.Skipf("guests with systemd run where %s is set: make e2e-systemd", SystemdEnv)
	}
	kit := openKit(t)
	if kit.Disk == "" {
		t.Skip("no root file system: make e2e-systemd-fetch")
	}
	const name = "6.12"
	kernel, ok := kit.Kernel(name)
	if !ok {
		t.Fatalf("the kit has no kernel %s", name)
	}
	programs := build(t)
	tests, err := vmtest.Build(t.Context(), t.TempDir(), "e2e/systemd", true)
	if err != nil {
		t.Fatal(err)
	}
	m := vmtest.Machine{Name: "systemd4", Cores: 4, MiB: 1024}
	job := programs.job(kernel, m)
	job.Files["/bin/guest.test"], job.Files["/bin/busybox"] = tests, kit.Busybox
	job.Modules = []string{"overlay"}
	job.Disk = kit.Disk
	runGuest(t, kit, m, job, newSummary(time.Now()))
}
