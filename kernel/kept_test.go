package kernel

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

func TestKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var k Kept
	if _, err := k.Read(dir + "/a"); !errors.Is(err, fs.ErrNotExist) || k.Len() != 0 {
		t.Errorf("no file: %v, %d are open", err, k.Len())
	}
	for _, name := range []string{"a", "b"} {
		for _, text := range []string{"0-1\n", "1\n"} {
			if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := k.Read(dir + "/" + name); got != text || err != nil {
				t.Errorf("%s: %q, %v, want %q", name, got, err, text)
			}
		}
	}
	unreadable, err := OpenFile(dir) // as the file of a control group that was removed
	if err != nil {
		t.Fatal(err)
	}
	k.files[dir+"/a"] = unreadable
	if got, err := k.Read(dir + "/a"); got != "1\n" || err != nil {
		t.Errorf("opened anew: %q, %v", got, err)
	}
	if err := k.Close(func(name string) bool { return name == dir+"/a" }); err != nil || k.Len() != 1 {
		t.Errorf("%v, %d are open, want b alone", err, k.Len())
	}
	if err := k.Close(func(string) bool { return true }); err != nil || k.Len() != 0 {
		t.Errorf("%v, %d are open", err, k.Len())
	}
}

// BenchmarkKept compares reading a file of the kernel that stays open with opening it each time.
func BenchmarkKept(b *testing.B) {
	const name = "/proc/self/cgroup"
	b.Run("kept", func(b *testing.B) {
		var k Kept
		for b.Loop() {
			if _, err := k.Read(name); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("opened", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := readFile(name, make([]byte, 512)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
