package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/agent"
)

// A control group that is adopted has the class's limits and CPUs, its process stays, and a
// release gives everything back.
func TestAdoptCgroup(t *testing.T) {
	t.Parallel()
	dir, k, _ := emptyHost(t)
	if err := k.Start("200"); err != nil {
		t.Fatal(err)
	}
	trees := []string{"cpu,cpuacct", "cpuset", "memory", "blkio", "pids", "freezer"}
	for _, tree := range trees {
		group := "sys/fs/cgroup/" + tree + "/jobs/nightly"
		for _, made := range []string{filepath.Dir(group), group} {
			if err := k.Mkdir(made); err != nil && !os.IsExist(err) {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"cpuset/jobs/", "cpuset/jobs/nightly/"} {
		for file, value := range map[string]string{"cpuset.cpus": "0-15", "cpuset.mems": "0-1"} {
			if err := k.WriteFile("sys/fs/cgroup/"+name+file, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tree := range trees {
		if err := k.WriteFile("sys/fs/cgroup/"+tree+"/jobs/nightly/cgroup.procs", "200"); err != nil {
			t.Fatal(err)
		}
	}
	before, err := k.Tree()
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, "sys/fs/cgroup", name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	adopt := func(path string, flags ...string) agent.Workload {
		t.Helper()
		out, errs, code := berth(t, append([]string{"adopt", "--root", dir, "--cgroup", path, "-o", "json"}, flags...)...)
		var w agent.Workload
		if err := json.Unmarshal([]byte(out), &w); err != nil || code != exitOK || w.ID() != "jobs/nightly" {
			t.Fatalf("status %d, %v: %s%s", code, err, out, errs)
		}
		return w
	}
	w := adopt("/jobs/nightly", "--class", "LSR", "--cpus", "2", "--quota", "3")
	if got := read("cpuset/jobs/nightly/cpuset.cpus"); w.Grant.Own.Len() != 2 || got != w.CPUs.String() {
		t.Errorf("owns %s, the kernel has %s", w.Grant.Own, got)
	}
	if got := read("cpu,cpuacct/jobs/nightly/cpu.cfs_quota_us"); got != "300000" {
		t.Errorf("quota: %s", got)
	}
	if got := read("cpuset/jobs/nightly/cgroup.procs"); got != "200" {
		t.Errorf("processes: %q", got)
	}
	if out, _, code := berth(t, "ps", "--root", dir, "--interval", "10ms"); code != exitOK || !strings.Contains(out, "jobs/nightly") {
		t.Errorf("ps: status %d: %s", code, out)
	}
	if _, errs, code := berth(t, "adopt", "--root", dir, "--cgroup", "jobs/nightly"); code != exitError || !strings.Contains(errs, "has a place already: 'berth resize jobs/nightly' changes it") {
		t.Errorf("twice: status %d: %s", code, errs)
	}
	if out, errs, code := berth(t, "release", "--root", dir, "jobs/nightly", "--keep"); code != exitOK || !strings.Contains(out, "released jobs/nightly") {
		t.Fatalf("release: status %d: %s%s", code, out, errs)
	}
	after, err := k.Tree()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range before {
		if after[name] != want {
			t.Errorf("%s: %q, before %q", name, after[name], want)
		}
	}
	adopt("jobs/nightly/", "--class", "be") // the other spelling of the path
	if got := read("cpu,cpuacct/jobs/nightly/cpu.idle"); got != "1" {
		t.Errorf("idle: %s", got)
	}
}
