package guest

import (
	"os"
	"strings"
	"testing"
)

// TestKernel checks that the guest runs the kernel that the host names. It is the
// first test, for an early result.
func TestKernel(t *testing.T) {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(release), kernelName()+".") {
		t.Errorf("release %s, want one of %s", release, kernelName())
	}
}
