package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/internal/fakekernel"
)

func openLog(t *testing.T, root *Root, name string) *UndoLog {
	t.Helper()
	j, err := OpenUndoLog(root, name, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func TestUndoLogOutlivesItsProcesses(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V2())
	before := tree(t, k)
	name := filepath.Join(fakekernel.MemoryDir(t), "log")
	for i, step := range labPlan(2) {
		j := openLog(t, root, name)
		if _, err := Apply(root, Plan{step}, j); err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
		j.Close()
	}
	j := openLog(t, root, name)
	for _, note := range j.Notes() {
		if note.Step.Op == Write {
			t.Errorf("noted although its directory will be removed: %s", note.Step)
		}
	}
	if _, err := j.Undo(func(Step) bool { return true }); err != nil {
		t.Error(err)
	}
	sameTree(t, k, before)
	if left := j.Notes(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestUndoLogHasOneNotePerFile(t *testing.T) {
	t.Parallel()
	root, _ := fake(t, fakekernel.V1())
	file := v1cpu + "/cpu.shares"
	write(t, root, file, "700")
	name := filepath.Join(fakekernel.MemoryDir(t), "log")
	for range 60 {
		for _, value := range []string{"100", "200", "300"} {
			j := openLog(t, root, name)
			if _, err := Apply(root, Plan{{Path: file, Value: value}}, j); err != nil {
				t.Fatal(err)
			}
			if notes := j.Notes(); len(notes) != 1 || notes[0].Original != "700" {
				t.Fatalf("notes %+v", notes)
			}
			j.Close()
		}
	}
	j := openLog(t, root, name)
	refused := Plan{{Path: file, Value: "400"}, {Path: v1cpu + "/no.such", Value: "1"}}
	if _, err := Apply(root, refused, j); err == nil {
		t.Fatal("wrote to a file that is not there")
	}
	if text, _ := root.read(file); text != "300" || len(j.Notes()) != 1 {
		t.Errorf("after a refusal: %s, notes %+v", text, j.Notes())
	}
	if _, err := j.Undo(func(Step) bool { return true }); err != nil {
		t.Error(err)
	}
	if text, _ := root.read(file); text != "700" {
		t.Errorf("undone: %s", text)
	}
}

func TestUndoLogRefuses(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	name := filepath.Join(fakekernel.MemoryDir(t), "log")
	j := openLog(t, root, name)
	if _, err := Apply(root, Plan{{Path: v1cpu + "/cpu.shares", Value: "100"}}, j); err != nil {
		t.Fatal(err)
	}
	j.Close()
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	bad := "x" + string(good)
	for what, text := range map[string]string{"garbage": bad, "another tree": strings.Replace(string(good), root.absolute(), "/elsewhere", 1)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenUndoLog(root, name, "test")
		var header *HeaderError
		if err == nil || errors.As(err, &header) != (what == "garbage") {
			t.Errorf("%s: opened with %v", what, err)
		}
		if now, _ := os.ReadFile(name); string(now) != text {
			t.Errorf("%s: the file is not as it was", what)
		}
	}
	if err := os.WriteFile(name, append(good, `{"seq":2,"do":{"pa`...), 0o600); err != nil {
		t.Fatal(err)
	}
	if notes := openLog(t, root, name).Notes(); len(notes) != 1 {
		t.Errorf("torn last line: notes %+v", notes)
	}
	if err := os.WriteFile(name, make([]byte, len(good)), 0o600); err != nil {
		t.Fatal(err)
	}
	if notes := openLog(t, root, name).Notes(); len(notes) != 0 {
		t.Errorf("not on the disk when the machine went down: notes %+v", notes)
	}
	if err := os.WriteFile(name, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.Put("proc/sys/kernel/random/boot_id", "b007-2"); err != nil {
		t.Fatal(err)
	}
	if notes := openLog(t, root, name).Notes(); len(notes) != 0 {
		t.Errorf("of an earlier boot: notes %+v", notes)
	}
}

// A log that is no file is not waited for.
func TestUndoLogIsAFile(t *testing.T) {
	t.Parallel()
	root, _ := fake(t, fakekernel.V1())
	dir := fakekernel.MemoryDir(t)
	for what, make := range map[string]func(name string) error{
		"pipe":      func(name string) error { return syscall.Mkfifo(name, 0o600) },
		"directory": func(name string) error { return os.Mkdir(name, 0o700) },
		"link":      func(name string) error { return os.Symlink("/dev/null", name) },
	} {
		name := filepath.Join(dir, what)
		if err := make(name); err != nil {
			t.Fatal(err)
		}
		_, err := OpenUndoLog(root, name, "test")
		var header *HeaderError
		if !errors.As(err, &header) || header.File != name {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Where nothing can be appended any more, nothing is done that would have to be noted,
// and what is noted is undone all the same.
func TestFullUndoLog(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	j := openLog(t, root, filepath.Join(fakekernel.MemoryDir(t), "log"))
	if _, err := Apply(root, Plan{{Path: v1cpu + "/cpu.shares", Value: "100"}}, j); err != nil {
		t.Fatal(err)
	}
	applied := tree(t, k)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	file := j.file
	j.file = full
	if _, err := Apply(root, Plan{{Path: v1cpu + "/cpu.cfs_quota_us", Value: "5000"}}, j); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("applied without a note: %v", err)
	}
	sameTree(t, k, applied)
	if _, err := j.Undo(func(Step) bool { return true }); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	sameTree(t, k, before)
	j.file = file
}

// Once there is room again, a process goes on as before: an idle group has its weight back,
// which has to be noted first, and a value that could not be noted is noted now.
func TestUndoLogIsFullNoMore(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	if err := k.Mkdir(v1cpu + "/old"); err != nil {
		t.Fatal(err)
	}
	before := tree(t, k)
	shares, idle := v1cpu+"/cpu.shares", v1cpu+"/old/cpu.idle"
	name := filepath.Join(fakekernel.MemoryDir(t), "log")
	j := openLog(t, root, name)
	if _, err := Apply(root, Plan{{Path: shares, Value: "100"}, {Path: idle, Value: "1", Disturbs: []string{v1cpu + "/old/cpu.shares"}}}, j); err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	again := Plan{{Path: shares, Value: "200"}}
	file := j.file
	j.file = full
	if _, err := Apply(root, again, j); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("applied without a note: %v", err)
	}
	if _, err := j.Undo(func(s Step) bool { return s.Path == idle }); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("undone without a note: %v", err)
	}
	j.file = file
	if _, err := Apply(root, again, j); err != nil {
		t.Fatalf("with room again: %v", err)
	}
	j.Close() // a kill: what is noted is what is on the disk
	j = openLog(t, root, name)
	if _, err := j.Undo(func(Step) bool { return true }); err != nil {
		t.Errorf("with room again: %v", err)
	}
	sameTree(t, k, before)
	if left := j.Notes(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The start of a line whose append failed is taken away before the next one.
func TestUndoLogMendsLine(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	name := filepath.Join(fakekernel.MemoryDir(t), "log")
	j := openLog(t, root, name)
	if _, err := j.file.WriteString(`{"seq":1,"do":{"pa`); err != nil {
		t.Fatal(err)
	}
	j.torn = true
	if _, err := Apply(root, oneWrite, j); err != nil {
		t.Fatal(err)
	}
	j.Close()
	j = openLog(t, root, name)
	if err := j.Damage(); err != nil {
		t.Error(err)
	}
	if _, err := j.Undo(func(Step) bool { return true }); err != nil {
		t.Error(err)
	}
	sameTree(t, k, before)
}

// A disk without room, and a user without any left, are alike.
func TestIsFull(t *testing.T) {
	t.Parallel()
	for err, full := range map[error]bool{syscall.ENOSPC: true, syscall.EDQUOT: true, syscall.EIO: false, syscall.EOPNOTSUPP: false, nil: false} {
		if isFull(err) != full {
			t.Errorf("%v: full %v", err, !full)
		}
	}
}

// Before anything is written, the file has the room on the disk that undoing all of it
// takes, and has it still when it is opened anew.
func TestUndoLogReservesRoom(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	const groups = 120
	var plan Plan
	for i := range groups {
		dir := fmt.Sprintf("%s/g%d", v1cpu, i)
		if err := k.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, Step{Path: dir + "/cpu.idle", Value: "1", Disturbs: []string{dir + "/cpu.shares"}})
	}
	name := filepath.Join(fakekernel.MemoryDir(t), "log")
	j := openLog(t, root, name)
	if err := syscall.Fallocate(int(j.file.Fd()), fallocKeepSize, 0, 4096); err != nil {
		t.Skipf("this file system reserves no room: %v", err)
	}
	if _, err := Apply(root, plan, j); err != nil {
		t.Fatal(err)
	}
	noted := j.size
	room := func() int64 {
		var s syscall.Stat_t
		if err := syscall.Stat(name, &s); err != nil {
			t.Fatal(err)
		}
		return s.Blocks * 512
	}
	reserved := room()
	j.Close()
	j = openLog(t, root, name)
	if room() != reserved {
		t.Errorf("opened anew it has %d bytes on the disk, and had %d", room(), reserved)
	}
	if err := os.Mkdir(name+".new", 0o700); err != nil { // as on a full disk, nothing can take its place
		t.Fatal(err)
	}
	if _, err := j.Undo(func(Step) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if j.size-noted < 4096 {
		t.Fatalf("undoing took %d bytes only: that may have been left of a page", j.size-noted)
	}
	if reserved < j.size {
		t.Errorf("%d bytes were reserved, and undoing all of it took %d", reserved, j.size)
	}
}

// A log that cannot be written anew, as on a full disk, is used as it is.
func TestLongUndoLogStays(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	name := filepath.Join(fakekernel.MemoryDir(t), "log")
	if err := os.Mkdir(name+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenUndoLog(root, name, "test"); err == nil {
		t.Fatal("written where it cannot be")
	}
	if err := os.Remove(name + ".new"); err != nil {
		t.Fatal(err)
	}
	j := openLog(t, root, name)
	for range 40 {
		if _, err := Apply(root, Plan{{Path: v1cpu + "/cpu.shares", Value: "100"}}, j); err != nil {
			t.Fatal(err)
		}
		if _, err := j.Undo(func(Step) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Apply(root, Plan{{Path: v1cpu + "/cpu.shares", Value: "100"}}, j); err != nil {
		t.Fatal(err)
	}
	j.Close()
	if err := os.Mkdir(name+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	j = openLog(t, root, name)
	if _, err := j.Undo(func(Step) bool { return true }); err != nil {
		t.Error(err)
	}
	sameTree(t, k, before)
}

// One bad line costs its own note only, and stays.
func TestDamagedUndoLog(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	before := tree(t, k)
	name := filepath.Join(fakekernel.MemoryDir(t), "log")
	j := openLog(t, root, name)
	if _, err := Apply(root, Plan{{Path: v1cpu + "/cpu.shares", Value: "100"}}, j); err != nil {
		t.Fatal(err)
	}
	j.Close()
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(string(good), "\n")
	const bad = "\x00\x00{\"seq\":\n"
	if err := os.WriteFile(name, []byte(first+"\n"+bad+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	j = openLog(t, root, name)
	if err := j.Damage(); err == nil || !strings.Contains(err.Error(), name+": line 2") {
		t.Errorf("damage: %v", err)
	}
	if _, err := Apply(root, Plan{{Path: v1cpu + "/cpu.cfs_quota_us", Value: "5000"}}, j); err == nil {
		t.Error("noted beside a line that cannot be read")
	}
	if _, err := j.Undo(func(Step) bool { return true }); err != nil {
		t.Error(err)
	}
	sameTree(t, k, before)
	j.Close()
	if text, _ := os.ReadFile(name); !strings.Contains(string(text), bad) {
		t.Errorf("the line is gone: %q", text)
	}
	if err := openLog(t, root, name).Damage(); err == nil {
		t.Error("the damage is forgotten")
	}
}

// A note of a group that was removed is not one of the next of its name.
func TestUndoLogKnowsWhatWasMadeAnew(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	dir := v1cpu + "/other"
	file := dir + "/cpu.shares"
	if err := k.Mkdir(dir); err != nil {
		t.Fatal(err)
	}
	j := openLog(t, root, filepath.Join(fakekernel.MemoryDir(t), "log"))
	if _, err := Apply(root, Plan{{Path: file, Value: "100"}}, j); err != nil {
		t.Fatal(err)
	}
	if _, ok := j.Original(file); !ok || j.Outdated(file) {
		t.Error("its own note is not known")
	}
	if err := k.Rmdir(dir); err != nil {
		t.Fatal(err)
	}
	if err := k.Mkdir(v1cpu + "/between"); err != nil { // takes an inode that may be free
		t.Fatal(err)
	}
	if err := k.Mkdir(dir); err != nil {
		t.Fatal(err)
	}
	if text, ok := j.Original(file); ok || !j.Outdated(file) {
		t.Errorf("what was before is said to have been %q", text)
	}
}
