package kernel

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"berth.dev/berth/internal/fakekernel"
)

// TestSetterOfMark marks directories of root's that others may, or may not, write to: who
// may write to a directory can mark it.
func TestSetterOfMark(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs a directory of root's")
	}
	dir := fakekernel.MemoryDir(t)
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]int{0o755: 0, 0o775: Anyone, 0o757: Anyone} {
		name := mode.String()
		err := errors.Join(root.Mkdir(name), os.Chmod(dir+"/"+name, mode))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Setxattr(dir+"/"+name, userMark, []byte("text"), 0); err != nil {
			t.Skipf("directories of tests cannot be marked: %v", err)
		}
		if all, err := root.MarksOf(name); err != nil || len(all) != 1 || all[0] != (Mark{"text", want}) {
			t.Errorf("%v: %v, %v; want that %d set it", mode, all, err, want)
		}
	}
}
