// Package systemd holds the tests that run as root in a guest whose PID 1 is
// systemd: see docs/testing.md. To add one, add a file.
package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/internal/vmtest"
)

// TestMain refuses to run on anything but a guest: these tests change the machine. It
// installs Berth's package, whose program and unit they test.
func TestMain(m *testing.M) {
	if _, err := os.Stat(vmtest.Marker); err != nil {
		fmt.Println("skipped: these tests run in guests only (make e2e-systemd)")
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "work-in-turns" {
		workInTurns()
	}
	if text, err := exec.Command("dpkg", "--install", "/berth.deb").CombinedOutput(); err != nil {
		fmt.Printf("install Berth's package: %v\n%s", err, text)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// workInTurns works for some milliseconds and sleeps for some. The first one answers on port
// 80, too.
func workInTurns() {
	go func() {
		_ = http.ListenAndServe("127.0.0.1:80", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // another one may listen
	}()
	for {
		for began := time.Now(); time.Since(began) < 4*time.Millisecond; {
		}
		time.Sleep(4 * time.Millisecond)
	}
}

// startService starts a service until leave is called or the test ends.
func startService(t *testing.T, name, settings string) (leave func()) {
	t.Helper()
	unit := name + ".service"
	file := "/run/systemd/system/" + unit
	if err := os.WriteFile(file, []byte("[Service]\n"+settings), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "start", unit)
	leave = sync.OnceFunc(func() {
		run(t, "systemctl", "stop", unit)
		run(t, "systemctl", "revert", unit)
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) { // a unit before a package's is reverted
			t.Error(err)
		}
		run(t, "systemctl", "daemon-reload")
	})
	t.Cleanup(leave)
	return leave
}

// run runs a program to its end and returns what it wrote.
func run(t *testing.T, args ...string) string {
	t.Helper()
	text, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, text)
	}
	return strings.TrimSpace(string(text))
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
