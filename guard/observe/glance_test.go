package observe

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/watch"
)

// A glance reads of each group in focus how long it waits, by its threads or else by its
// pressure, and nothing of other groups.
func TestGlance(t *testing.T) {
	t.Parallel()
	root := plant(t)
	write(t, root, map[string]string{
		cgroupDir + "a.slice/api/cgroup.threads":  "7\n",
		"proc/7/schedstat":                        "1000000000 2500000000 3\n",
		"proc/self/schedstat":                     "0 0 0\n",
		"proc/7/stat":                             "7 (api) S 1 1 1 0 -1 0 0 0 0 0 5 0 0 0 20 0 1 0 5 0 0\n",
		cgroupDir + "a.slice/cpu.pressure":        "some avg10=0 avg60=0 avg300=0 total=9000000\n",
		cgroupDir + "a.slice/api/cpu.pressure":    "some avg10=0 avg60=0 avg300=0 total=9000000\n",
		cgroupDir + "b.slice/cpu.pressure":        "some avg10=0 avg60=0 avg300=0 total=4000000\n",
		cgroupDir + "a.slice/api.d/deep/io.max":   "",
		cgroupDir + "a.slice/api.d/cgroup.procs":  "",
		cgroupDir + "a.slice/api.d/cpu.pressure":  "some avg10=0 avg60=0 avg300=0 total=5000000\n",
		cgroupDir + "b.slice/sub/cgroup.procs":    "",
		cgroupDir + "b.slice/sub/cgroup.threads":  "",
		cgroupDir + "b.slice/sub/cpu.pressure":    "some avg10=0 avg60=0 avg300=0 total=1000000\n",
		cgroupDir + "a.slice/api.d/deep/cpu.stat": "usage_usec 1000000\n",
	})
	o := open(t, root)
	if err := o.Focus([]string{"a.slice/api", "b.slice"}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Glance(watch.Second, nil); err != nil {
		t.Fatal(err)
	}
	write(t, root, map[string]string{"proc/7/schedstat": "1000000000 4000000000 3\n"})
	got, err := o.Glance(2*watch.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	group := func(name string) watch.Subject { return watch.Subject{Scope: watch.Group, Name: name} }
	want := []watch.Sample{
		{Time: 2 * watch.Second, Subject: group("a.slice/api"), Quantity: watch.CPUWait, Value: 1.5},
		{Time: 2 * watch.Second, Subject: group("b.slice"), Quantity: watch.CPUSome, Value: 4},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// A group that is gone is not listed any more.
	if err := o.remove("b.slice"); err != nil {
		t.Fatal(err)
	}
	got, err = o.Glance(3*watch.Second, nil)
	want = []watch.Sample{{Time: 3 * watch.Second, Subject: group("a.slice/api"), Quantity: watch.CPUWait, Value: 1.5}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("a group is gone: %v; -want +got:\n%s", err, diff)
	}
}

// Processes in no group are told by program from the second reading on.
func TestOutsiders(t *testing.T) {
	t.Parallel()
	root := plant(t)
	stat := filepath.Join(root, "proc/9/stat")
	write(t, root, map[string]string{
		cgroupDir + "cgroup.procs": "9\n",
		"proc/9/stat":              "9 (make) S 1 1 1 0 -1 0 0 0 0 0 500 0 0 0 20 0 1 0 5 0 0\n",
	})
	o := open(t, root)
	if _, err := o.Outsiders(watch.Second, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stat, []byte("9 (make) S 1 1 1 0 -1 0 0 0 0 0 650 0 0 0 20 0 1 0 5 0 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := o.Outsiders(2*watch.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	used := 0.0
	for _, s := range got {
		if s.Subject == (watch.Subject{Scope: watch.Process, Name: "make"}) && s.Quantity == watch.CPUTime && s.Time == 2*watch.Second {
			used = s.Value
		}
	}
	if used != 1.5 {
		t.Errorf("make used %v s, want 1.5: %v", used, got)
	}
}
