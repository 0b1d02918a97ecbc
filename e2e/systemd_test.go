package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
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
	programs := build(t, "e2e/systemd")
	m := vmtest.Machine{Name: "systemd4", Cores: 4, MiB: 1024}
	job := programs.job(kernel, m)
	delete(job.Files, "/bin/berth") // it is in the package
	job.Files["/berth.deb"], job.Files["/bin/busybox"] = makePackage(t), kit.Busybox
	for _, page := range userPages(t) {
		job.Files["/pages/"+filepath.Base(page)] = page
	}
	job.CPU = 20 * time.Minute // the pages take most of it
	job.Modules = []string{"overlay"}
	job.Disk = kit.Disk
	runGuest(t, kit, m, job, newSummary(time.Now()))
}

// userPages are those that a new user reads: their commands are tried.
func userPages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../docs/quickstart-*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("quick-starts %q: %v", pages, err)
	}
	return append(pages, "../README.md")
}

// makePackage makes Berth's Debian package.
func makePackage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	make := exec.CommandContext(t.Context(), "make", "--directory=..", "deb", "VERSION=0.0.0", "OUT="+dir)
	if text, err := make.CombinedOutput(); err != nil {
		t.Fatalf("make deb: %v\n%s", err, text)
	}
	files, err := filepath.Glob(dir + "/berth_0.0.0_*.deb")
	if err != nil || len(files) != 1 {
		t.Fatalf("make deb made %v, want one package (%v)", files, err)
	}
	return files[0]
}
