package observe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/watch"
)

// plantGroups makes groups, each with these files.
func plantGroups(t testing.TB, dir string, count int, files map[string]string) {
	t.Helper()
	for i := range count {
		group := filepath.Join(dir, fmt.Sprintf("g%04d", i))
		if err := os.MkdirAll(group, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(group, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

const cgroupDir = "sys/fs/cgroup/"

func sampledGroups(got map[watch.Sample]float64) map[string]bool {
	names := map[string]bool{}
	for s := range got {
		if s.Subject.Scope == watch.Group {
			names[s.Subject.Name] = true
		}
	}
	return names
}

// Groups without processes are not read, and none of their files is open; one that gets
// a process is read from the next look on, also when that has ended.
func TestEmptyGroups(t *testing.T) {
	t.Parallel()
	root := plant(t)
	empty := map[string]string{"cpu.stat": "usage_usec 0\n", "cgroup.events": "populated 0\nfrozen 0\n"}
	plantGroups(t, filepath.Join(root, cgroupDir, "idle.slice"), 500, empty)
	o := open(t, root)
	now := watch.Second
	before := sampledGroups(tick(t, o, now))
	if len(before) != 3 || len(o.groups) != 3 {
		t.Errorf("reads %d groups, %v", len(o.groups), before)
	}
	for _, events := range []string{"populated 1\n", "populated 0\n"} {
		write(t, root, map[string]string{cgroupDir + "idle.slice/g0042/cgroup.events": events})
		now += rescan
		if got := sampledGroups(tick(t, o, now)); !got["idle.slice/g0042"] || len(got) != 4 {
			t.Errorf("%s: %d groups are read", strings.TrimSpace(events), len(got))
		}
		if groups, err := o.Groups(); err != nil || !slices.Contains(groups, "idle.slice/g0042") || len(groups) != 4 {
			t.Errorf("%s: groups %q, %v", strings.TrimSpace(events), groups, err)
		}
	}
	if err := o.Closely([]string{"idle.slice/g0007"}); err != nil {
		t.Fatal(err)
	}
	if got := sampledGroups(tick(t, o, now+rescan)); !got["idle.slice/g0007"] {
		t.Error("a group that is looked after is not read as it is empty")
	}
}

// A subtree of another user that has too many groups is read as one, and that is told
// once; groups of others are read as before, and so are those that are looked after.
func TestCrowdedSubtree(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories to other users")
	}
	root := plant(t)
	write(t, root, map[string]string{cgroupDir + "crowd/cpu.stat": "usage_usec 7000000\n"})
	plantGroups(t, filepath.Join(root, cgroupDir, "crowd"), 400, map[string]string{"cpu.stat": "usage_usec 1000\n", "cgroup.events": "populated 1\n"})
	if err := os.Chown(filepath.Join(root, cgroupDir, "crowd"), 65534, -1); err != nil {
		t.Fatal(err)
	}
	o := open(t, root)
	if err := o.Closely([]string{"crowd/g0001"}); err != nil {
		t.Fatal(err)
	}
	o.queue = newQueue(&fakeProbe{}, "")
	now := watch.Second
	samples, err := o.Tick(now, nil)
	want := "subtree crowd of user 65534: 401 groups or more, 1 of them looked at: it is taken as one group"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
	got := map[string]bool{}
	for _, s := range samples {
		if s.Subject.Scope == watch.Group {
			got[s.Subject.Name] = true
		}
		if s.Subject.Name == "crowd" && s.Quantity == watch.CPUTime && s.Value != 7 {
			t.Errorf("the subtree has used %v s, want 7", s.Value)
		}
	}
	if names := sortedKeys(got); !slices.Equal(names, []string{"a.slice/api", "a.slice/api.d/deep", "b.slice", "crowd", "crowd/g0001"}) {
		t.Errorf("reads %q", names)
	}
	if crowds := o.Crowded(); !slices.Equal(crowds, []string{"crowd"}) {
		t.Errorf("crowded: %q", crowds)
	}
	for _, when := range []string{"after a tick", "armed anew"} {
		if !slices.Equal(o.queue.crowded, []string{"crowd"}) {
			t.Errorf("%s: the probe counts as one group %q", when, o.queue.crowded)
		}
		o.queue.crowded = nil
		o.arm(nil)
	}
	for range 3 {
		now += rescan
		if _, err := o.Tick(now, nil); err != nil {
			t.Errorf("told again: %v", err)
		}
	}
	// Once it is small its groups are read one by one.
	for i := range 390 {
		if err := os.RemoveAll(filepath.Join(root, cgroupDir, fmt.Sprintf("crowd/g%04d", i+10))); err != nil {
			t.Fatal(err)
		}
	}
	now += rescan
	if got := sampledGroups(tick(t, o, now)); len(got) != 13 || got["crowd"] || !got["crowd/g0009"] {
		t.Errorf("reads %q", sortedKeys(got))
	}
}

// Groups that came or went are seen by the next listing.
func TestListsWhatChanged(t *testing.T) {
	t.Parallel()
	root := plant(t)
	o := open(t, root)
	groups := func() int {
		t.Helper()
		all, err := o.Groups()
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := groups(); n != 3 {
		t.Fatalf("%d groups, want 3", n)
	}
	plantGroups(t, filepath.Join(root, cgroupDir, "b.slice"), 2, map[string]string{"cpu.stat": "usage_usec 1000\n"})
	if n := groups(); n != 4 {
		t.Errorf("two groups came into one of three: %d, want 4", n)
	}
	if err := os.RemoveAll(filepath.Join(root, cgroupDir, "b.slice/g0001")); err != nil {
		t.Fatal(err)
	}
	if n := groups(); n != 3 {
		t.Errorf("one went: %d, want 3", n)
	}
}

// That the groups cannot be listed does not keep what is known from being read.
func TestListFails(t *testing.T) {
	t.Parallel()
	root := plant(t)
	o := open(t, root)
	tick(t, o, watch.Second)
	if err := os.Rename(filepath.Join(root, "sys/fs/cgroup"), filepath.Join(root, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	samples, err := o.Tick(watch.Second+rescan, nil)
	if err == nil || len(samples) == 0 {
		t.Errorf("%d samples, %v; want those of the host and an error", len(samples), err)
	}
}

// With no descriptors left, what is open is read, what finds none is counted and told
// once, and neither a tick nor the groups that come later fail for it.
func TestLeftOut(t *testing.T) {
	const child = "BERTH_TEST_LEFT_OUT"
	if root := os.Getenv(child); root != "" {
		leftOut(t, root)
		return
	}
	t.Parallel()
	root := plant(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestLeftOut$", "-test.v")
	cmd.Env = append(os.Environ(), child+"="+root)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestLeftOut") {
		t.Errorf("%v\n%s", err, out)
	}
}

// leftOut runs in a process of its own, whose descriptors it uses up.
func leftOut(t *testing.T, root string) {
	o := open(t, root)
	now := watch.Second
	tick(t, o, now)
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = uint64(open()) + 20
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	plantGroups(t, filepath.Join(root, cgroupDir, "new.slice"), 100, map[string]string{"cpu.stat": "usage_usec 1000\n"})
	told := 0
	for range 40 {
		now += rescan
		samples, err := o.Tick(now, nil)
		if errors.Is(err, syscall.EMFILE) {
			told++
		} else if err != nil {
			t.Errorf("an error of another kind: %v", err)
		}
		values := map[watch.Sample]float64{}
		for _, s := range samples {
			values[s] = s.Value
		}
		got := sampledGroups(values)
		if !got["a.slice/api"] || !got["b.slice"] || len(got) < 4 || len(got) > 26 {
			t.Fatalf("reads %q", sortedKeys(got))
		}
		if o.LeftOut() != 103-len(got) {
			t.Errorf("%d groups left out, %d read, of 103", o.LeftOut(), len(got))
		}
	}
	if told != 1 {
		t.Errorf("told %d times in %v, want once", told, 40*rescan)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	now += rescan
	if got := sampledGroups(tick(t, o, now)); len(got) != 103 || o.LeftOut() != 0 {
		t.Errorf("with room again: reads %d groups, %d left out", len(got), o.LeftOut())
	}
}

// What the probe tells of a group in a crowded subtree is the subtree's.
func TestFold(t *testing.T) {
	t.Parallel()
	q := newQueue(&fakeProbe{}, filepath.Join(plant(t), cgroupDir))
	q.crowded = []string{"crowd"}
	for path, want := range map[string]string{"/crowd/g0001": "crowd", "/b.slice": "b.slice", "/crowded/none": Ended} {
		if got := q.culprit(path); got != want {
			t.Errorf("%s counts as %s, want %s", path, got, want)
		}
	}
}
