package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// recordsOf are the records of the two workloads that a version of Berth writes:
// testdata/state/1 as the first one did, 2 as one that is yet to come may.
func recordsOf(t *testing.T, version string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, id := range []string{"api", "cache"} {
		text, err := os.ReadFile(filepath.Join("testdata/state", version, id+recordExt))
		if err != nil {
			t.Fatal(err)
		}
		all[id+recordExt] = string(text)
	}
	return all
}

// recordedHost is a host with the workloads of recordsOf, closed.
func recordedHost(t *testing.T) *host {
	t.Helper()
	h := v2(t)
	n := h.open()
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	h.place(n, spec("cache", place.LS, 500, 9000101))
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) install(records map[string]string) {
	h.t.Helper()
	for name, text := range records {
		if err := os.WriteFile(filepath.Join(h.state, name), []byte(text), 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
}

// TestRollback: what this version writes is what the first one did, which takes nothing
// else.
func TestRollback(t *testing.T) {
	t.Parallel()
	h := recordedHost(t)
	written := map[string]string{}
	for name := range recordsOf(t, "1") {
		written[name] = h.recorded()[name]
	}
	if diff := cmp.Diff(recordsOf(t, "1"), written); diff != "" {
		t.Errorf("the records of the first version cannot be read by it any more (-first +now):\n%s", diff)
	}
}

// TestUpgrade goes on with the records of the first version, and with those of a later one
// after a rollback: nobody moves, and no record is lost.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, version := range []string{"1", "2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			h := recordedHost(t)
			if err := os.Remove(filepath.Join(h.state, settingsFile)); err != nil { // the first version had none
				t.Fatal(err)
			}
			records := recordsOf(t, version)
			h.install(records)
			tree := h.tree()
			read, err := h.reader().List(ctx)
			if err != nil || len(read) != 2 || read[0].CPUs != cpuset.MustParse("2-3") {
				t.Errorf("read: %v, %v", read, err)
			}
			n := h.open()
			all, err := n.List(ctx)
			if err != nil || len(all) != 2 {
				t.Errorf("opened: %v, %v", all, err)
			}
			h.sameTree(tree)
			w := h.place(n, spec("new", place.LSE, 2000, 9000102))
			if w.CPUs.Overlaps(cpuset.MustParse("2-3")) {
				t.Errorf("new got the CPUs of api: %s", w.CPUs)
			}
			if err := n.Release(ctx, "new", Kill); err != nil {
				t.Error(err)
			}
			for name, text := range records {
				if now := h.recorded()[name]; now != text {
					t.Errorf("%s has changed: %s", name, now)
				}
			}
			if _, err := n.Move(ctx, "api", cpuset.MustParse("6-7"), cpuset.Set{}); (err == nil) != (version == "1") {
				t.Errorf("moved: %v", err)
			}
		})
	}
}
