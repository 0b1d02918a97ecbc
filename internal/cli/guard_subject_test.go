package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
)

// TestGuardSubjects names the sensitive workloads in all the ways that diagnose knows.
func TestGuardSubjects(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k, err := fakekernel.New(dir, fakekernel.V2())
	if err != nil {
		t.Fatal(err)
	}
	const users = "user.slice/user-1000.slice/user@1000.service"
	for _, group := range []string{"system.slice", "user.slice", "user.slice/user-1000.slice", users, "pool"} {
		if err := k.Mkdir("sys/fs/cgroup/" + group); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	for i, p := range []struct{ group, program string }{
		{"system.slice/nginx.service", "nginx-bin"}, {"pool/a", "worker"}, {"pool/b", "worker"}, {"", "lonely"},
		{users + "/nginx.service", "imitator"}, {users + "/theirs.service", "other"},
	} {
		pid := strconv.Itoa(100 + i)
		err := k.Start(pid)
		if p.group != "" {
			err = errors.Join(err, k.Mkdir("sys/fs/cgroup/"+p.group))
		}
		err = errors.Join(err, k.WriteFile(filepath.Join("sys/fs/cgroup", p.group, "cgroup.procs"), pid))
		if err := errors.Join(err, k.Put("proc/"+pid+"/comm", p.program+"\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "proc/stat"), []byte("cpu 1 2 3 4\ncpu0 1 2 3 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const nginx = "guarding system.slice/nginx.service (observe)"
	for _, c := range []struct {
		name, want string
		code       int
	}{
		{"nginx.service", nginx, exitOK}, // not the user's own unit of that name
		{"nginx", nginx, exitOK},
		{"nginx-bin", nginx, exitOK},
		{"100", nginx, exitOK},
		{"/system.slice/nginx.service", nginx, exitOK},
		{"system.slice/nginx.service", nginx, exitOK},
		{"ngin*.service", nginx, exitOK},
		{"pool/b", "guarding pool/b (observe)", exitOK},
		{"pool/*", "guarding pool/a, pool/b (observe)", exitOK},
		{"lonely", "its processes are in no control group of their own: give them one, with 'berth adopt --pid'", exitUsage},
		{"theirs.service", "--sensitive theirs.service: a user's own unit has that name: if you mean it, name its path, /" + users + "/theirs.service", exitUsage},
		{"/" + users + "/theirs.service", "guarding " + users + "/theirs.service (observe)", exitOK},
		{"ngimx.service", `--sensitive ngimx.service: no such control group, unit, workload or pod, and no process has that name; did you mean "nginx.service"?`, exitUsage},
		{"lonly", `did you mean "lonely"?`, exitUsage},
		{"worker", "no such control group, unit, workload or pod", exitUsage},
	} {
		out, code := runBerth(t, "guard", "--root", dir, "--for", "1ms", "--sensitive", c.name)
		if code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("--sensitive %s: status %d, want %d with %q:\n%s", c.name, code, c.code, c.want, out)
		}
	}
	out, code := runBerth(t, "guard", "--root", dir, "--for", "1ms", "--sensitive", "nginx", "--best-effort", "101", "--protect", "workr")
	for _, want := range []string{
		"--sensitive nginx is the control group /system.slice/nginx.service", "--best-effort 101 is the control group /pool/a",
		`--protect workr: names no control group with processes so far; did you mean "worker"?`,
	} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("status %d, want %q:\n%s", code, want, out)
		}
	}
}
