package fakekernel_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
)

// TestParity replays the table of writes and compares with what real kernels
// did. "make e2e ARGS='-run //TestParity -update'" records it anew.
func TestParity(t *testing.T) {
	t.Parallel()
	recorded, err := fakekernel.Recorded()
	if err != nil {
		t.Fatal(err)
	}
	for version, want := range recorded {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			k, err := fakekernel.New(t.TempDir(), fakekernel.ParityLayout(version))
			if err != nil {
				t.Fatal(err)
			}
			if err := k.Start("4242"); err != nil {
				t.Fatal(err)
			}
			if err := k.WriteFile("sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset +io +memory +pids"); err != nil {
				t.Fatal(err)
			}
			got, err := fakekernel.Parity{Tree: k, Dir: "sys/fs/cgroup", PID: "4242", Device: "252:0"}.Record()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-real +fake):\n%s", diff)
			}
		})
	}
}
