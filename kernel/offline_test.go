package kernel

import (
	"path/filepath"
	"testing"

	"berth.dev/berth/internal/fakekernel"
)

// What CPUs that go offline make of a v1 set that Berth wrote is Berth's own: it gets the
// original back, as far as that is online, which is what the kernel would have left of
// it. What somebody else writes meanwhile stays.
func TestUndoOffline(t *testing.T) {
	t.Parallel()
	const dir = "sys/fs/cgroup/cpuset/a"
	for name, test := range map[string]struct {
		original, written string
		online            []string // one after the other; "note" notes what is offline
		other             string   // written by somebody else, in the end
		want              string
		outcome           Outcome
	}{
		"online":                         {"0-3", "0-1", nil, "", "0-3", Restored},
		"a CPU of what was written":      {"0-3", "0-1", []string{"0,2-3"}, "", "0,2-3", Restored},
		"a CPU of the original only":     {"0-3", "0-1", []string{"0-2"}, "", "0-2", Restored},
		"all that differed":              {"0-3", "0-2", []string{"0-2"}, "", "0-2", Untouched},
		"all that was written":           {"0-3", "1", []string{"0,2-3"}, "", "0,2-3", Restored},
		"another of the two":             {"1,3", "1", []string{"0,2-3"}, "", "3", Restored},
		"back again, noted meanwhile":    {"0-3", "0-1", []string{"0,2-3", "note", "0-3"}, "", "0-3", Restored},
		"back again, not noted":          {"0-3", "0-1", []string{"0,2-3", "0-3"}, "", "0", Changed},
		"all of the original is offline": {"1", "0-1", []string{"0,2-3"}, "", "0", Failed},
		"somebody else, less":            {"0-3", "0-2", []string{"0,2-3"}, "2", "2", Changed},
		"somebody else, what is left":    {"0-3", "0-2", []string{"0-2"}, "0", "0", Changed},
	} {
		root, k := fake(t, fakekernel.V1())
		if err := k.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
		write(t, root, dir+"/cpuset.cpus", test.original)
		log, err := OpenUndoLog(root, filepath.Join(fakekernel.MemoryDir(t), "log"), "test")
		if err != nil {
			t.Fatal(err)
		}
		step := Step{Path: dir + "/cpuset.cpus", Value: test.written, Format: List}
		if _, err := Apply(root, Plan{step}, log); err != nil {
			t.Fatal(err)
		}
		for _, online := range test.online {
			if online == "note" {
				err = log.NoteOffline()
			} else if err = k.SetOnline(online); err == nil {
				if text, same, err := root.Shows(step); err != nil || !same && online != "0-3" {
					t.Errorf("%s: with %s online, %q is not what was written: %v", name, online, text, err)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if test.other != "" {
			write(t, root, dir+"/cpuset.cpus", test.other)
		}
		if got := log.Overwritten(step); got != (test.outcome == Changed) {
			t.Errorf("%s: somebody else has written it: %v", name, got)
		}
		items, err := log.Undo(func(Step) bool { return true })
		if len(items) != 1 || items[0].Outcome != test.outcome || (err != nil) != (test.outcome == Failed) {
			t.Errorf("%s: %+v, %v", name, items, err)
		}
		if text, err := root.read(dir + "/cpuset.cpus"); err != nil || text != test.want {
			t.Errorf("%s: is %q, want %q, %v", name, text, test.want, err)
		}
	}
}

// On v2 the kernel leaves sets as they are, so a set without what is offline is
// somebody else's.
func TestUndoOfflineV2(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V2())
	write(t, root, "sys/fs/cgroup/cgroup.subtree_control", "+cpuset")
	const file = "sys/fs/cgroup/user.slice/cpuset.cpus"
	undo, err := Apply(root, Plan{{Path: file, Value: "0-1", Format: List}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.SetOnline("0,2-3"); err != nil {
		t.Fatal(err)
	}
	if text, _ := root.read(file); text != "0-1" {
		t.Errorf("the kernel changed it to %q", text)
	}
	write(t, root, file, "0")
	if err := undo(); err == nil {
		t.Error("somebody else's set was taken for Berth's own")
	}
}
