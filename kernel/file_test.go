package kernel

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// Not parallel: AllocsPerRun counts for the whole program.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	for _, size := range []int{0, 1, 4095, 4096, 4097, 100_000} {
		want := strings.Repeat("x", size)
		if err := os.WriteFile(dir+"/f", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		f, err := d.Open("f")
		if err != nil {
			t.Fatal(err)
		}
		text, buf, err := f.Read(nil)
		if string(text) != want || err != nil || len(buf) <= size {
			t.Errorf("%d bytes: read %d in %d, %v", size, len(text), len(buf), err)
		}
		all, buf, err := f.ReadAll(nil)
		if string(all) != want || err != nil || len(buf) <= size {
			t.Errorf("%d bytes: read all %d in %d, %v", size, len(all), len(buf), err)
		}
		if n := testing.AllocsPerRun(10, func() { _, buf, _ = f.ReadAll(buf) }); n != 0 {
			t.Errorf("%d bytes: %v allocations for all with a buffer that is large enough", size, n)
		}
		if n := testing.AllocsPerRun(10, func() { _, buf, _ = f.Read(buf) }); n != 0 {
			t.Errorf("%d bytes: %v allocations with a buffer that is large enough", size, n)
		}
		if once, _, err := readFile(dir+"/f", nil); string(once) != want || err != nil {
			t.Errorf("%d bytes: read %d once, %v", size, len(once), err)
		}
		if err := errors.Join(f.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := readFile(dir+"/none", nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir+"/none") {
		t.Errorf("no file: %v", err)
	}
}

// Of a list the kernel gives a page at a time.
func TestReadAllOfList(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("/proc/crypto")
	if err != nil || len(want) < 2*os.Getpagesize() {
		t.Skipf("/proc/crypto is no long list here: %d bytes, %v", len(want), err)
	}
	d, err := OpenDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.Open("crypto")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var buf []byte
	for range 2 {
		var text []byte
		if text, buf, err = f.ReadAll(buf); string(text) != string(want) || err != nil {
			t.Errorf("read %d of %d bytes, %v", len(text), len(want), err)
		}
	}
}

func TestDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/d"
	if _, err := OpenDir(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Open("none"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "d/none") {
		t.Errorf("no file: %v", err)
	}
	if !d.Has(".") || d.Has("none") {
		t.Error("Has is wrong")
	}
	// Another directory of the same name is not this one.
	if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o700), os.WriteFile(dir+"/f", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if d.Has("f") {
		t.Error("a directory made anew is taken for the old one")
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, before, after, word, rest string }{
		{"", "", "", "", ""},
		{"a", "a", "", "a", ""},
		{"a b", "a", "b", "a", " b"},
		{" a", "", "a", "a", ""},
		{"\ta\nb", "\ta\nb", "", "a", "\nb"},
		{"  ", "", " ", "", ""},
	} {
		before, after := Cut([]byte(tc.text), ' ')
		word, rest := Word([]byte(tc.text))
		if string(before) != tc.before || string(after) != tc.after || string(word) != tc.word || string(rest) != tc.rest {
			t.Errorf("%q: Cut %q, %q; Word %q, %q", tc.text, before, after, word, rest)
		}
	}
}
