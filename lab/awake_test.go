package lab

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel"
)

// The request is written, and its file stays open: a request ends with it.
func TestAwake(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "cpu_dma_latency")
	if keptAwake(nil, "KVM", name) {
		t.Error("kept awake by default, without the file")
	}
	if _, err := awake(name); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("without the file: %v, want not supported", err)
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		asked      *bool
		hypervisor string
		want       bool
	}{{nil, "", false}, {nil, "virtual machine", true}, {new(false), "KVM", false}, {new(true), "", true}} {
		if got := keptAwake(tc.asked, tc.hypervisor, name); got != tc.want {
			t.Errorf("asked %v, hypervisor %q: %v", tc.asked, tc.hypervisor, got)
		}
	}
	held, err := awake(name)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]byte{0, 0, 0, 0}, text); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
	if err := held.Close(); err != nil {
		t.Errorf("the file was not held open: %v", err)
	}
}
