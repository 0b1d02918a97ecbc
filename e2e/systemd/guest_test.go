// Package systemd holds the tests that run as root in a guest whose PID 1 is
// systemd: see docs/testing.md. To add one, add a file.
package systemd

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"berth.dev/berth/internal/vmtest/guest"
)

// TestMain refuses to run on anything but a guest: these tests change the machine.
func TestMain(m *testing.M) {
	if _, err := os.Stat(guest.Marker); err != nil {
		fmt.Println("skipped: these tests run in guests only (make e2e-systemd)")
		return
	}
	os.Exit(m.Run())
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
