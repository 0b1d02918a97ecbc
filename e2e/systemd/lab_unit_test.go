package systemd

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab"
)

// TestLabUnit measures a service of systemd that runs: it is as it was then, and nothing is left.
func TestLabUnit(t *testing.T) {
	if _, err := exec.LookPath("nginx"); err != nil {
		t.Fatalf("the disk has no nginx: make e2e-systemd-fetch makes it anew (%v)", err)
	}
	run(t, "systemctl", "start", "nginx.service")
	t.Cleanup(func() { run(t, "systemctl", "stop", "nginx.service") })
	await(t, "nginx answers", func() bool {
		answer, err := http.Get("http://127.0.0.1/")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
	state := func() map[string]string {
		all := map[string]string{"main": run(t, "systemctl", "show", "--property=MainPID", "nginx.service")}
		files, _ := filepath.Glob("/sys/fs/cgroup/system.slice/nginx.service/cpu*")
		for _, file := range files {
			if name := filepath.Base(file); !strings.Contains(name, "stat") && !strings.Contains(name, "pressure") {
				if text, err := os.ReadFile(file); err == nil {
					all[name] = string(text)
				}
			}
		}
		return all
	}
	before, results := state(), t.TempDir()
	said := run(t, "berth", "lab", "--unit", "nginx.service", "--probe", "http://127.0.0.1/", "--rounds", "1", "--duration", "1s", "--settle", "100ms",
		"--scenario", "idle", "--neighbour-threads", "1", "--rate", "20", "--results", results)
	t.Log(said)
	files, err := filepath.Glob(filepath.Join(results, "*", lab.ResultFile))
	if err != nil || len(files) != 1 {
		t.Fatalf("result files %v, %v", files, err)
	}
	r, err := lab.ReadFile(files[0])
	if err != nil || !r.Complete || r.Experiment.Tenant.Group != "/system.slice/nginx.service" || !slices.ContainsFunc(r.Rounds, func(r lab.Round) bool { return r.Load.Done > 0 && r.Load.Failed == 0 }) {
		t.Errorf("%v: %+v", err, r)
	}
	if diff := cmp.Diff(before, state()); diff != "" {
		t.Errorf("nginx.service after the lab (-before +after):\n%s", diff)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/berth-lab-*"); left != nil {
		t.Errorf("left: %q", left)
	}
}
