// Package guest holds the tests that run inside guests, against a real kernel
// as root: see docs/testing.md. To add one, add a file.
package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"berth.dev/berth/internal/vmtest"
)

// TestMain refuses to run on anything but a guest: these tests change the machine.
func TestMain(m *testing.M) {
	if _, err := os.Stat(vmtest.Marker); err != nil {
		fmt.Println("skipped: these tests run in guests only (make e2e)")
		return
	}
	os.Exit(m.Run())
}

// asked returns the machine that QEMU was asked for.
func asked(t *testing.T) vmtest.Machine {
	t.Helper()
	text, err := os.ReadFile(vmtest.MachineFile)
	if err != nil {
		t.Fatal(err)
	}
	var m vmtest.Machine
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// kernelName returns the kernel's version, as in "6.12".
func kernelName() string { return os.Getenv("BERTH_KERNEL") }

// onlyOn skips the test on machines other than those named.
func onlyOn(t *testing.T, names ...string) {
	t.Helper()
	if name := asked(t).Name; !slices.Contains(names, name) {
		t.Skipf("for %v, not for %s", names, name)
	}
}

// thorough is true on the one kernel that runs what takes long.
func thorough() bool { return os.Getenv("BERTH_THOROUGH") == "true" }

// onlyThorough skips a test that takes long and depends little on the kernel.
func onlyThorough(t *testing.T) {
	t.Helper()
	if !thorough() {
		t.Skipf("takes long: on one kernel, not on %s", kernelName())
	}
}
