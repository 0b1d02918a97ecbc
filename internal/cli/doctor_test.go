package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/doctor"
	"berth.dev/berth/internal/golden"
)

// TestDoctorText draws the reports that the doctor's own tests keep.
func TestDoctorText(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"systemd-v2", "hybrid-vm", "malformed"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "doctor", "testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var report doctor.Report
		if err := json.Unmarshal(data, &report); err != nil {
			t.Fatal(err)
		}
		for file, s := range map[string]screen{
			name + ".txt":        {width: 100},
			name + "-narrow.txt": {width: 60, all: true},
			name + "-colour.txt": {width: 100, colour: true},
		} {
			s.seen = map[string]string{}
			golden.Check(t, "testdata/doctor/"+file, s.report(&report))
		}
	}
}

func TestDoctorCommand(t *testing.T) {
	t.Parallel()
	root := plant(t, map[string]string{
		"proc/sys/kernel/hostname":           "node\n",
		"sys/devices/system/cpu/smt/control": "on\n",
		"proc/self/mountinfo":                "garbage\n",
	})
	out, _, code := berth(t, "--root", root, "doctor")
	if code != exitOK || !strings.Contains(out, "node, kernel unknown\n") || !strings.Contains(out, "What this host allows:") {
		t.Errorf("status %d, output:\n%s", code, out)
	}
	out, _, code = berth(t, "--root", root, "doctor", "-o", "json")
	var report doctor.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != exitOK {
		t.Fatalf("status %d, %v", code, err)
	}
	smt, _ := report.Get("smt")
	cgroup, _ := report.Get("cgroup")
	if report.Schema != doctor.Schema || smt.State != doctor.OK || cgroup.State != doctor.Unknown {
		t.Errorf("schema %q, smt %s, cgroup %s", report.Schema, smt.State, cgroup.State)
	}
}

// TestDoctorHostileTree has a tree try to steer the terminal.
func TestDoctorHostileTree(t *testing.T) {
	t.Parallel()
	root := plant(t, map[string]string{"proc/sys/kernel/hostname": "a\x1b[2Jb\x07\n", "proc/1/comm": "x\x1b]0;y\n"})
	out, _, _ := berth(t, "--root", root, "doctor", "--all")
	if strings.ContainsAny(out, "\x1b\x07") || !strings.HasPrefix(out, `a\u001b[2Jb\u0007, kernel`) {
		t.Errorf("output %q", out)
	}
}

func TestDoctorWrongUsage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	tests := map[string]struct {
		args []string
		want int
	}{
		"bad output":      {[]string{"doctor", "-o", "yaml"}, exitUsage},
		"bad argument":    {[]string{"doctor", "please"}, exitUsage},
		"bad flag":        {[]string{"doctor", "--what"}, exitUsage},
		"bad verb":        {[]string{"doctor", "delegation", "install"}, exitUsage},
		"check of output": {[]string{"doctor", "delegation", "check", "-o", ""}, exitUsage},
		"verify argument": {[]string{"doctor", "delegation", "verify", "x"}, exitUsage},
		"no such root":    {[]string{"--root", filepath.Join(root, "none"), "doctor"}, exitError},
		"no root, verify": {[]string{"--root", filepath.Join(root, "none"), "doctor", "delegation", "verify"}, exitError},
	}
	for name, test := range tests {
		args := append([]string{"--root", root}, test.args...)
		if _, stderr, code := berth(t, args...); code != test.want || stderr == "" {
			t.Errorf("%s: status %d, want %d; %q", name, code, test.want, stderr)
		}
	}
}

const userUnit = "usr/lib/systemd/system/user@.service"

// systemdHost is a host with cgroup v2 on which one user is logged in.
func systemdHost(controllers string) map[string]string {
	return map[string]string{
		userUnit:                           "[Service]\nDelegate=pids memory cpu\n",
		"proc/1/comm":                      "systemd\n",
		"proc/self/mountinfo":              "31 23 0:29 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"proc/self/cgroup":                 "0::/\n",
		"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
		"sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/cgroup.controllers": controllers + "\n",
	}
}

// TestDelegationLife goes through all states on one host.
func TestDelegationLife(t *testing.T) {
	t.Parallel()
	root := plant(t, systemdHost("cpu memory pids"))
	file := filepath.Join(root, doctor.DelegationPath)
	step := func(wantCode int, want string, args ...string) {
		t.Helper()
		out, stderr, code := berth(t, append([]string{"--root", root, "doctor", "delegation"}, args...)...)
		if code != wantCode || !strings.Contains(out+stderr, want) {
			t.Errorf("%v: status %d, want %d with %q:\n%s%s", args, code, wantCode, want, out, stderr)
		}
	}
	step(exitAbsent, "delegation: absent: user@.service delegates cpu memory pids, not cpuset io\n", "verify")
	step(exitOK, "would write /"+doctor.DelegationPath, "enable", "--dry-run")
	if _, err := os.Stat(file); err == nil {
		t.Error("a dry run wrote the drop-in")
	}
	step(exitOK, "wrote /"+doctor.DelegationPath+" and made its directory\nnext: on the running host, systemctl daemon-reload", "enable")
	step(exitNotApplied, "installed but not yet applied: user@1000.service without cpuset io", "verify")
	step(exitOK, "nothing to do", "enable")
	step(exitOK, "/"+doctor.DelegationPath+": Delegate=cpu cpuset io", "check")
	manager := filepath.Join(root, "sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/cgroup.controllers")
	if err := os.WriteFile(manager, []byte("cpuset cpu io memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	step(exitOK, "delegation: applied: ", "verify")
	step(exitOK, "would remove /"+doctor.DelegationPath, "disable", "--dry-run")
	step(exitOK, "removed /"+doctor.DelegationPath, "disable")
	step(exitOK, "nothing to do", "disable")
	step(exitAbsent, "absent", "verify")

	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("[Service]\nDelegate=cpu\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	step(exitCustomised, "delegation: customised: ", "verify")
	step(exitCustomised, "changed by another writer", "enable")
	step(exitCustomised, "changed by another writer", "disable")
	if text, _ := os.ReadFile(file); string(text) != "[Service]\nDelegate=cpu\n" {
		t.Errorf("the customised file is now %q", text)
	}
}

func TestDelegationJSON(t *testing.T) {
	t.Parallel()
	root := plant(t, systemdHost("cpu memory pids"))
	out, _, code := berth(t, "--root", root, "doctor", "delegation", "check", "-o", "json")
	if code != exitOK {
		t.Fatalf("status %d", code)
	}
	golden.Check(t, "testdata/doctor/delegation.json", out)
	out, _, _ = berth(t, "--root", root, "doctor", "delegation", "check")
	golden.Check(t, "testdata/doctor/delegation.txt", out)
}

func TestDelegationNotApplicable(t *testing.T) {
	t.Parallel()
	root := plant(t, map[string]string{"proc/1/comm": "init\n"})
	for _, verb := range []string{"verify", "enable"} {
		out, stderr, code := berth(t, "--root", root, "doctor", "delegation", verb)
		if code != exitNotApplicable || !strings.Contains(out+stderr, "process 1 is init") {
			t.Errorf("%s: status %d: %s%s", verb, code, out, stderr)
		}
	}
}

func TestDelegationWithoutRights(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("needs a user whom file modes bind; root is not")
	}
	root := plant(t, map[string]string{userUnit: ""})
	if err := os.Chmod(root, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(root, 0o755) })
	_, stderr, code := berth(t, "--root", root, "doctor", "delegation", "enable")
	if code != exitError || !strings.Contains(stderr, "sudo") {
		t.Errorf("status %d: %s", code, stderr)
	}
}
