package systemd

import (
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const (
	user        = "ada"
	userManager = "user@1000.service"
	managerDir  = "/sys/fs/cgroup/user.slice/user-1000.slice/" + userManager
)

// TestDelegation has a user divide what she is given before, while and after
// Berth's drop-in is there.
func TestDelegation(t *testing.T) {
	run(t, "useradd", "--create-home", "--uid", "1000", user)
	makeRootFS(t, "/home/"+user+"/rootfs")

	logout := login(t)
	expectControllers(t, false)
	logout()

	run(t, "berth", "doctor", "delegation", "enable")
	logout = login(t)
	expectControllers(t, true)
	run(t, "berth", "doctor", "delegation", "verify")
	t.Run("session", func(t *testing.T) {
		script := `cd /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup) && cat cpuset.cpus.effective cpu.max`
		text := asUser(t, "systemd-run --user --scope --quiet -p AllowedCPUs=1 -p CPUQuota=20% sh -c '"+script+"'")
		expect(t, text, "1\n20000 100000")
	})
	t.Run("podman", func(t *testing.T) {
		text, err := container()
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		expect(t, text, "1\n20000 100000")
	})
	t.Run("berth", func(t *testing.T) {
		text := asUser(t, "systemd-run --user --scope --quiet -p Delegate=yes berth lab isolation --dry-run")
		for _, want := range []string{"backend    cgroup v2\n", managerDir, "/cpuset.cpus\n", "/cpu.idle\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	})
	logout()

	run(t, "berth", "doctor", "delegation", "disable")
	defer login(t)()
	expectControllers(t, false)
}

// login opens a session, which makes systemd start the user's manager, and
// returns what ends both.
func login(t *testing.T) (logout func()) {
	t.Helper()
	session := exec.Command("su", "--login", user, "--command", "echo; exec sleep infinity")
	output, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		run(t, "loginctl", "terminate-user", user)
		session.Wait()                           // it was killed
		run(t, "systemctl", "stop", userManager) // now, rather than after ten seconds
	}
}

// asUser runs a script in a session of its own.
func asUser(t *testing.T, script string) string {
	t.Helper()
	return run(t, "su", "--login", user, "--command", busAddress+script)
}

// busAddress is what a session with dbus-user-session has.
const busAddress = "export DBUS_SESSION_BUS_ADDRESS=unix:path=$XDG_RUNTIME_DIR/bus; "

// container runs a rootless container with CPU limits and returns what its own
// group shows of them.
func container() (string, error) {
	script := busAddress + `podman --log-level=error run --rm --network=none --cpuset-cpus=1 --cpus=0.2 --rootfs ~/rootfs ` +
		`/bin/busybox cat /sys/fs/cgroup/cpuset.cpus.effective /sys/fs/cgroup/cpu.max`
	text, err := exec.Command("su", "--login", user, "--command", script).CombinedOutput()
	return strings.TrimSpace(string(text)), err
}

// makeRootFS makes a directory to run containers from.
func makeRootFS(t *testing.T, dir string) {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(path.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path.Join(dir, "bin/busybox"), busybox, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "chown", "-R", user+":", dir)
}

// expectControllers checks whether the user's manager has cpu and cpuset.
func expectControllers(t *testing.T, delegated bool) {
	t.Helper()
	has := strings.Fields(read(t, managerDir+"/cgroup.controllers"))
	if slices.Contains(has, "cpuset") != delegated || delegated && !slices.Contains(has, "cpu") {
		t.Errorf("%s has %v; delegated: %v", userManager, has, delegated)
	}
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
