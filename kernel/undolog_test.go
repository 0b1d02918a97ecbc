package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
)

func TestRunDir(t *testing.T) {
	t.Parallel()
	tests := []struct {
		uid  int
		xdg  string
		want string
	}{
		{0, "/run/user/0", "/run/berth"},
		{1000, "/run/user/1000", "/run/user/1000/berth"},
		{1000, "", "/tmp/berth-1000"},
		{1000, "relative", "/tmp/berth-1000"},
	}
	for _, tt := range tests {
		if got := RunDir(tt.uid, tt.xdg); got != tt.want {
			t.Errorf("RunDir(%d, %q) = %q, want %q", tt.uid, tt.xdg, got, tt.want)
		}
	}
}

func TestCreateUndoLogRefuses(t *testing.T) {
	t.Parallel()
	root, _ := fake(t, fakekernel.V1())
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil { // past the umask
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{"open": "chmod go-w", "file": "not a directory", "link": "not a directory"} {
		if j, err := CreateUndoLog(root, filepath.Join(dir, name), "test"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("CreateUndoLog(%s): %v, %v, want %q", name, j, err, says)
		}
		if _, err := Restore(root, filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Restore(%s): %v, want %q", name, err, says)
		}
	}
}

func TestNilUndoLog(t *testing.T) {
	t.Parallel()
	var j *UndoLog
	if j.Path() != "" || j.Close() != nil {
		t.Error("a nil UndoLog is not quiet")
	}
}

// TestUndoLogGivesUp has an undo log that can no longer be written: nothing may
// be changed after that.
func TestUndoLogGivesUp(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	j, _ := undoLog(t, root)
	die(t, j)
	_, err := Apply(root, Plan{{Path: v1cpu + "/cpu.shares", Value: "10"}}, j)
	if !errors.Is(err, os.ErrClosed) || !strings.Contains(err.Error(), "write /"+v1cpu+"/cpu.shares: append to undo log") {
		t.Errorf("Apply: %v", err)
	}
	sameTree(t, k, before)
}

// dead applies a plan and dies, leaving its undo log.
func dead(t *testing.T, root *Root, dir string, plan Plan) string {
	t.Helper()
	j, err := CreateUndoLog(root, dir, "berth test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(root, plan, j); err != nil {
		t.Fatal(err)
	}
	name := j.Path()
	die(t, j)
	return name
}

var oneWrite = Plan{{Path: v1cpu + "/cpu.shares", Value: "10"}}

func TestRestoreNothing(t *testing.T) {
	t.Parallel()
	root, _ := fake(t, fakekernel.V1())
	report, err := Restore(root, filepath.Join(t.TempDir(), "absent"))
	if err != nil || !cmp.Equal(report, Report{Items: []Item{}}) {
		t.Errorf("Restore: %+v, %v", report, err)
	}
}

func TestRestoreReport(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	dir := fakekernel.MemoryDir(t)
	name := dead(t, root, dir, Plan{
		{Path: v1cpu + "/cpu.shares", Value: "10"},
		{Path: v1cpu + "/cpu.cfs_quota_us", Value: "50000"},
		{Op: Mkdir, Path: v1cpu + "/lab"},
	})
	write(t, root, v1cpu+"/cpu.cfs_quota_us", "70000")
	before[v1cpu+"/cpu.cfs_quota_us"] = "70000\n"

	outcomes := func(r Report) (s []string) {
		for _, i := range r.Items {
			s = append(s, i.Outcome.String()+" "+filepath.Base(i.Step.Path)+" "+i.Original)
			if i.Owner.Program != "berth test" || i.Owner.PID != os.Getpid() || i.Owner.Log != name {
				t.Errorf("owner %+v", i.Owner)
			}
		}
		return s
	}
	asLeft := tree(t, k)
	report, err := Preview(root, dir)
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"pending lab ", "pending cpu.cfs_quota_us -1", "pending cpu.shares 1024"}, outcomes(report)); diff != "" {
		t.Errorf("Preview (-want +got):\n%s", diff)
	}
	sameTree(t, k, asLeft)

	report, err = Restore(root, dir)
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"restored lab ", "changed cpu.cfs_quota_us -1", "restored cpu.shares 1024"}, outcomes(report)); diff != "" {
		t.Errorf("Restore (-want +got):\n%s", diff)
	}
	if got := report.Items[1].Error; !strings.Contains(got, `is "70000", not the "50000" that Berth wrote`) {
		t.Errorf("error %q", got)
	}
	sameTree(t, k, before)
	if report, err = Restore(root, dir); err != nil || len(report.Items) > 0 {
		t.Errorf("Restore again: %+v, %v", report, err)
	}
}

// TestRestoreOthersGroup has a group that someone else made in the place of ours.
func TestRestoreOthersGroup(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	dir := fakekernel.MemoryDir(t)
	const lab = v1cpu + "/lab"
	dead(t, root, dir, Plan{{Op: Mkdir, Path: lab}, {Path: lab + "/cpu.shares", Value: "10"}})
	if err := errors.Join(k.Rmdir(lab), k.Mkdir(v1cpu+"/other"), k.Mkdir(lab)); err != nil { // other takes the inodes
		t.Fatal(err)
	}
	write(t, root, lab+"/cpu.shares", "10")
	before := tree(t, k)
	report, err := Restore(root, dir)
	if err != nil || len(report.Items) != 1 || report.Items[0].Outcome != Gone { // the value in it has no entry
		t.Errorf("Restore: %+v, %v", report.Items, err)
	}
	sameTree(t, k, before)
}

// TestRestoreNewestFirst has two dead runs that changed the same file.
func TestRestoreNewestFirst(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	dir := fakekernel.MemoryDir(t)
	dead(t, root, dir, oneWrite)
	dead(t, root, dir, Plan{{Path: v1cpu + "/cpu.shares", Value: "20"}})
	if _, err := Restore(root, dir); err != nil {
		t.Error(err)
	}
	sameTree(t, k, before)
}

// TestRestoreByBootTime has two dead runs between which the clock was set back, and a
// version of Berth that noted no other time before them.
func TestRestoreByBootTime(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	dir := fakekernel.MemoryDir(t)
	for i, value := range []string{"10", "20", "30"} {
		name := dead(t, root, dir, Plan{{Path: v1cpu + "/cpu.shares", Value: value}})
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		first, rest, _ := strings.Cut(string(text), "\n")
		var h header
		if err := json.Unmarshal([]byte(first), &h); err != nil {
			t.Fatal(err)
		}
		if h.Since == 0 {
			t.Fatalf("header %s: not since when", first)
		}
		if i == 0 {
			h.Since = 0
		}
		h.Started = h.Started.Add(-time.Duration(i) * time.Hour)
		line, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, append(append(line, '\n'), rest...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	report, err := Restore(root, dir)
	if err != nil || len(report.Items) != 3 {
		t.Errorf("Restore: %+v, %v", report, err)
	}
	sameTree(t, k, before)
}

// TestUnknownBoot is about a /proc without a name for the boot, and notes that have none:
// what may be of an earlier boot is not undone, and nothing is noted.
func TestUnknownBoot(t *testing.T) {
	t.Parallel()
	for what, forget := range map[string]func(root *Root, ofRun, named string) error{
		"of the host": func(root *Root, _, _ string) error {
			return os.Remove(filepath.Join(root.Name(), "proc/sys/kernel/random/boot_id"))
		},
		"of the notes and the host": func(root *Root, ofRun, named string) error {
			return errors.Join(os.Remove(filepath.Join(root.Name(), "proc/sys/kernel/random/boot_id")), noBoot(ofRun), noBoot(named))
		},
		"of the notes": func(_ *Root, ofRun, named string) error { return errors.Join(noBoot(ofRun), noBoot(named)) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			root, k := fake(t, fakekernel.V1())
			dir := fakekernel.MemoryDir(t)
			named := filepath.Join(fakekernel.MemoryDir(t), "log")
			j := openLog(t, root, named)
			if _, err := Apply(root, Plan{{Path: v1cpu + "/cpu.cfs_quota_us", Value: "5000"}}, j); err != nil {
				t.Fatal(err)
			}
			j.Close()
			ofRun := dead(t, root, dir, oneWrite)
			if err := forget(root, ofRun, named); err != nil {
				t.Fatal(err)
			}
			before := tree(t, k)
			if _, err := Restore(root, dir); err == nil || !strings.Contains(err.Error(), ofRun) || !strings.Contains(err.Error(), "boot") {
				t.Errorf("Restore: %v", err)
			}
			if _, err := OpenUndoLog(root, named, "test"); err == nil || !strings.Contains(err.Error(), named) || !strings.Contains(err.Error(), "boot") {
				t.Errorf("OpenUndoLog: %v", err)
			}
			if strings.HasSuffix(what, "host") {
				if _, err := CreateUndoLog(root, dir, "test"); err == nil || !strings.Contains(err.Error(), "boot_id") {
					t.Errorf("CreateUndoLog: %v", err)
				}
				if _, err := OpenUndoLog(root, named+"2", "test"); err == nil || !strings.Contains(err.Error(), "boot_id") {
					t.Errorf("OpenUndoLog of a new one: %v", err)
				}
			}
			sameTree(t, k, before)
			if got := files(t, dir); len(got) != 1 {
				t.Errorf("undo logs %v", got)
			}
		})
	}
}

// noBoot takes the boot out of a header, as it was written where /proc had none.
func noBoot(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(strings.Replace(string(text), `"boot":"b007-1"`, `"boot":""`, 1)), 0o600)
}

func TestRestoreLeavesAlone(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		prepare func(t *testing.T, root *Root, dir string)
		root    string // by which Restore goes, "" for the same
		pick    func(Report) []Owner
		remains int
	}{
		"alive": {func(t *testing.T, root *Root, dir string) {
			j, err := CreateUndoLog(root, dir, "berth test")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Apply(root, oneWrite, j); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { j.Close() })
		}, "", func(r Report) []Owner { return r.Alive }, 1},
		"rebooted": {func(t *testing.T, root *Root, dir string) {
			dead(t, root, dir, oneWrite)
			write(t, root, "proc/sys/kernel/random/boot_id", "another")
		}, "", func(r Report) []Owner { return r.Stale }, 0},
		"other root": {func(t *testing.T, root *Root, dir string) {
			dead(t, root, dir, oneWrite)
		}, "/other", func(r Report) []Owner { return r.Foreign }, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, k := fake(t, fakekernel.V1())
			dir := fakekernel.MemoryDir(t)
			tt.prepare(t, root, dir)
			before := tree(t, k)
			if tt.root != "" {
				root = NewRoot(tt.root, k)
			}
			report, err := Restore(root, dir)
			if err != nil || len(report.Items) > 0 {
				t.Errorf("Restore: %+v, %v", report.Items, err)
			}
			if got := tt.pick(report); len(got) != 1 || got[0].Program != "berth test" || got[0].PID != os.Getpid() {
				t.Errorf("report %+v: not named", report)
			}
			if got := files(t, dir); len(got) != tt.remains {
				t.Errorf("undo logs %v, want %d", got, tt.remains)
			}
			sameTree(t, k, before)
		})
	}
}

// TestRestoreDamaged has undo logs whose writing was cut off, and broken ones.
func TestRestoreDamaged(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		damage   func(text string) string
		ok       bool
		restored bool
	}{
		"whole":          {func(s string) string { return s }, true, true},
		"torn last line": {func(s string) string { return s + `{"seq":2,"do":{"op":"wri` }, true, true},
		"only a header":  {func(s string) string { return s[:strings.Index(s, "\n")+1] }, true, false},
		"torn header":    {func(s string) string { return s[:20] }, true, false},
		"empty":          {func(s string) string { return "" }, true, false},
		"zeros":          {func(s string) string { return strings.Repeat("\x00", len(s)) }, true, false},
		"broken line":    {func(s string) string { return s + "nonsense\n" }, false, true},
		"broken header":  {func(s string) string { return "nonsense\n" + s }, false, false},
		"newer format": {func(s string) string {
			return strings.Replace(s, `"berthJournal":1`, `"berthJournal":2`, 1)
		}, false, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, k := fake(t, fakekernel.V1())
			want := tree(t, k)
			dir := fakekernel.MemoryDir(t)
			name := dead(t, root, dir, oneWrite)
			if !tt.restored {
				want = tree(t, k)
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(tt.damage(string(text))), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // again comes to the same
				_, err = Restore(root, dir)
				if (err == nil) != tt.ok || err != nil && !strings.Contains(err.Error(), name) {
					t.Errorf("Restore: %v, want success: %v", err, tt.ok)
				}
				sameTree(t, k, want)
				if got := len(files(t, dir)); (got == 0) != tt.ok {
					t.Errorf("%d undo logs left", got)
				}
			}
		})
	}
}

func TestLoadUndoLogRefuses(t *testing.T) {
	t.Parallel()
	const head = `{"berthJournal":1}` + "\n"
	const do = `{"seq":1,"do":{"op":"write","path":"a"}}` + "\n"
	for name, text := range map[string]string{
		"no header":         do,
		"unknown operation": head + `{"seq":1,"do":{"op":"burn","path":"a"}}` + "\n",
		"no path":           head + `{"seq":1,"do":{"op":"write"}}` + "\n",
		"number twice":      head + do + do,
		"number zero":       head + `{"seq":0,"do":{"op":"write","path":"a"}}` + "\n",
		"undone unknown":    head + do + `{"seq":2,"undone":true}` + "\n",
		"undone twice":      head + do + strings.Repeat(`{"seq":1,"undone":true}`+"\n", 2),
		"blank line":        head + "\n" + do,
	} {
		l := newUndoLog(nil, name)
		if err := l.load(strings.NewReader(text)); err == nil && l.damage == nil {
			t.Errorf("%s: %+v, want an error", name, l)
		}
	}
}

func FuzzLoadUndoLog(f *testing.F) {
	f.Add([]byte(`{"berthJournal":1,"root":"/","boot":"b","pid":1}` + "\n" +
		`{"seq":1,"do":{"op":"mkdir","path":"a"}}` + "\n" + `{"seq":1,"made":7}` + "\n" +
		`{"seq":2,"do":{"op":"write","path":"a/b","value":"1","format":"list","original":"2","disturbed":[{"path":"a/c","value":"3"}]}}` + "\n" +
		`{"seq":2,"undoing":true}` + "\n" + `{"seq":1,"undone":true}` + "\n" + `{"seq`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l := newUndoLog(nil, "log")
		err := l.load(bytes.NewReader(text))
		if l.size > int64(len(text)) {
			t.Errorf("size %d of %d bytes", l.size, len(text))
		}
		if err != nil {
			return
		}
		last, paths := 0, 0
		for _, e := range l.entries {
			if e.Path == "" || e.seq <= last || e.seq > l.last {
				t.Errorf("entry %+v after %d", e, last)
			}
			last = e.seq
		}
		for _, some := range l.at {
			paths += len(some)
		}
		if paths != len(l.entries) {
			t.Errorf("%d entries, %d by path", len(l.entries), paths)
		}
	})
}

// Crossing out many entries of one file takes about as long for each as crossing out a few, not as long
// as there are entries.
func TestForgetMany(t *testing.T) {
	t.Parallel()
	took := func(n int) time.Duration {
		best := time.Hour
		for range 5 {
			l := newUndoLog(nil, "log")
			var all []*entry
			for i := range n {
				e := &entry{Step: Step{Op: Attach, Path: "cgroup.procs"}, seq: i + 1}
				l.remember(e)
				all = append(all, e)
			}
			begin := time.Now()
			for i := len(all) - 1; i >= 0; i-- {
				l.forget(all[i])
			}
			best = min(best, time.Since(begin))
			if len(l.entries)+len(l.at) > 0 {
				t.Fatalf("%d of %d entries are left", len(l.entries), n)
			}
		}
		return best
	}
	if few, many := took(1000), took(16_000); many > 80*few { // 16 times as many; 256 times if each looks at all
		t.Errorf("%v for 1000, %v for 16000", few, many)
	}
}

// Of entries that are crossed out in any order, the others stay, in order.
func TestForgetInAnyOrder(t *testing.T) {
	t.Parallel()
	l := newUndoLog(nil, "log")
	var all []*entry
	for i := range 9 {
		all = append(all, &entry{Step: Step{Op: Attach, Path: fmt.Sprint("procs", i%2)}, seq: 2*i + 1})
		l.remember(all[i])
	}
	for _, i := range []int{4, 0, 8, 5, 5} {
		l.forget(all[i])
	}
	l.forget(&entry{Step: Step{Path: "procs0"}, seq: 4})
	var left []int
	for _, e := range l.entries {
		left = append(left, e.seq)
	}
	if diff := cmp.Diff([]int{3, 5, 7, 13, 15}, left); diff != "" || len(l.at["procs0"]) != 2 || len(l.at["procs1"]) != 3 {
		t.Errorf("(-want +got):\n%s%d and %d by path", diff, len(l.at["procs0"]), len(l.at["procs1"]))
	}
}

// A log that stays open stays short, also after a time in which it could not be written anew, and
// has the same entries at any time.
func TestUndoLogStaysShort(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V2())
	name := filepath.Join(t.TempDir(), "log")
	l, err := OpenUndoLog(root, name, "test")
	if err != nil {
		t.Fatal(err)
	}
	const group = "sys/fs/cgroup/long"
	if err := k.Mkdir(group); err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(root, Plan{{Op: Mkdir, Path: group + "/stays"}}, l); err != nil {
		t.Fatal(err)
	}
	longest := 0
	for i := range 300 {
		switch i {
		case 100: // nothing can take its place
			err = os.Mkdir(name+".new", 0o700)
		case 200:
			err, longest = os.Remove(name+".new"), 0
		}
		if err != nil {
			t.Fatal(err)
		}
		undo, err := Apply(root, Plan{{Op: Mkdir, Path: group + "/turn"}}, l)
		if err == nil {
			err = undo()
		}
		text, err2 := os.ReadFile(name)
		again, err3 := ReadUndoLog(root, name)
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(l.Notes(), again.Notes()); diff != "" || len(l.Notes()) != 1 {
			t.Fatalf("turn %d: who is killed now leaves (-want +got):\n%s", i, diff)
		}
		longest = max(longest, bytes.Count(text, []byte("\n")))
		if stuck := i >= 100 && i < 200; longest > 64+2*len(l.Notes())+3 && !stuck {
			t.Fatalf("turn %d: %d lines", i, longest)
		}
		if i == 199 && longest < 200 {
			t.Errorf("it was written anew though nothing can take its place: %d lines", longest)
		}
	}
	if _, err := l.Undo(func(Step) bool { return true }); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := fs.Stat(k.FS(), group+"/stays"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("not undone: %v", err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for o := Failed; o <= Pending; o++ {
		text, err := o.MarshalText()
		var back Outcome
		if err != nil || back.UnmarshalText(text) != nil || back != o {
			t.Errorf("%v: %s, %v", o, text, err)
		}
	}
	for f := Words; f <= State; f++ {
		text, err := f.MarshalText()
		var back Format
		if err != nil || back.UnmarshalText(text) != nil || back != f {
			t.Errorf("%v: %s, %v", f, text, err)
		}
	}
	if _, err := Op(9).MarshalText(); err == nil || Op(9).String() != "unknown(9)" {
		t.Error("operation 9 has a name")
	}
}

func TestRoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("longer\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := root.WriteFile("new", "1\n"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("writing a file that is not there: %v", err)
	}
	if err := root.WriteFile("file", "1\n"); err != nil {
		t.Error(err)
	}
	if text, _ := root.read("file"); text != "1" {
		t.Errorf("file %q, want 1", text)
	}
	for _, name := range []string{"../x", "out/x", "/etc/passwd", ""} {
		if err := root.Mkdir(name); err == nil {
			t.Errorf("Mkdir(%q) made something", name)
		}
		if err := root.WriteFile(name, "x"); err == nil {
			t.Errorf("WriteFile(%q) wrote something", name)
		}
	}
	if err := root.Rmdir("file"); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("Rmdir of a file: %v", err)
	}
	if err := errors.Join(root.Mkdir("dir"), root.Rmdir("dir")); err != nil {
		t.Error(err)
	}
	if _, err := Open(filepath.Join(dir, "absent")); err == nil {
		t.Error("opened a root that is not there")
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	tests := []struct {
		format      Format
		text, value string
		same, owns  bool
	}{
		{Words, "10", "10", true, true},
		{Words, "50000\t100000\n", "50000 100000", true, true},
		{Words, "max 100000", "50000 100000", false, false},
		{Words, "", "", true, true},
		{Words, "10", "", false, false},
		{List, "0-3", "0,1,2-3", true, true},
		{List, "0-3", "0-2", false, false},
		{List, "", "", true, true},
		{List, "odd", "odd", true, true},
		{List, "odd", "0", false, false},
		{Keyed, "8:0 rbps=1 wbps=max riops=2 wiops=max", "8:0 riops=2 rbps=1", true, true},
		{Keyed, "8:0 rbps=1 wbps=max riops=2 wiops=max", "8:0 riops=3", false, false},
		{State, "root", "root", true, true},
		{State, "root invalid (Parent is not a partition root)", "root", false, true},
		{State, "member", "root", false, false},
		{State, "FREEZING", "FROZEN", false, true},
		{State, "THAWED", "FROZEN", false, false},
		{State, "", "FROZEN", false, false},
		{State, "", "", true, true},
	}
	for _, tt := range tests {
		if got := same(tt.format, tt.text, tt.value); got != tt.same {
			t.Errorf("%v: same(%q, %q) = %v", tt.format, tt.text, tt.value, got)
		}
		if got := owns(tt.format, tt.text, tt.value); got != tt.owns {
			t.Errorf("%v: owns(%q, %q) = %v", tt.format, tt.text, tt.value, got)
		}
	}
}

// A further value of an entry that was crossed out since is not noted any more; several goroutines may note
// some of one.
func TestAlsoCrossedOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"proc/sys/kernel/random/boot_id": "b007\n", "a": "0\n"} {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	log, err := CreateUndoLog(root, t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	first := &entry{Step: Step{Op: Write, Path: "a", Value: "1"}}
	if err := log.begin(first); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if err := log.also(first, fmt.Sprint(10+i)); err != nil {
				t.Error(err)
			}
			if err := log.begin(&entry{Step: Step{Op: Write, Path: "a", Value: fmt.Sprint(20 + i)}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(first.Also) != 16 {
		t.Errorf("noted are %q, want 16 values", first.Also)
	}
	second := &entry{Step: Step{Op: Write, Path: "a", Value: "2"}}
	if err := log.begin(second); err != nil || !second.covered {
		t.Fatalf("covered: %v, %v", second.covered, err)
	}
	if err := errors.Join(log.undone(first), log.also(second, "3"), log.Damage()); err != nil {
		t.Error(err)
	}
}

// A file that was changed along with one that is there no more has the original that its own
// entry noted.
func TestOriginalBesideOneMadeAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const governor, preference = "cpu/governor", "cpu/preference"
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/sys/kernel/random/boot_id", "b007")
	write(governor, "powersave")
	write(preference, "balance")
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	log, err := CreateUndoLog(root, t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := Apply(root, Plan{{Path: governor, Value: "performance", Disturbs: []string{preference}}}, log); err != nil {
		t.Fatal(err)
	}
	write(governor+".new", "powersave")
	if err := os.Rename(filepath.Join(dir, governor+".new"), filepath.Join(dir, governor)); err != nil {
		t.Fatal(err)
	}
	write(preference, "default")
	if _, err := Apply(root, Plan{{Path: preference, Value: "power"}}, log); err != nil {
		t.Fatal(err)
	}
	if text, ok := log.Original(preference); text != "default" || !ok {
		t.Errorf("original %q, %v", text, ok)
	}
}
