package lab

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, ResultFile)
	want := fakeResult(t, map[string]fake{Baseline: {scale: 1}})
	for range 2 { // the second replaces the first
		if err := WriteFile(path, want); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{path, dir} {
		got, err := ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("through %s (-want +got):\n%s", name, diff)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%d files in the folder, want the result alone", len(left))
	}
}

func TestReadFileRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty": "", "cut": `{"schema":"berth.dev/lab/v1","rounds":[{`, "other": `{"schema":"berth.dev/lab/v9"}`, "none": `{}`, "list": `[]`,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want one that names the file", name, err)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "missing")); !os.IsNotExist(unwrapAll(err)) {
		t.Errorf("missing file: %v", err)
	}
	if err := WriteFile(filepath.Join(dir, "no", "folder"), &Result{}); err == nil {
		t.Error("writing into a missing folder: no error")
	}
}

func unwrapAll(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = inner.Unwrap()
	}
}

func TestNewRunDirNeverReuses(t *testing.T) {
	t.Parallel()
	results := filepath.Join(t.TempDir(), "results")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	seen := map[string]bool{}
	for range 3 {
		dir, err := NewRunDir(results, "isolation", now)
		if err != nil {
			t.Fatal(err)
		}
		if seen[dir] || !strings.HasPrefix(filepath.Base(dir), "20260102T030405Z-isolation") {
			t.Errorf("folder %s", dir)
		}
		seen[dir] = true
	}
}

// A stored file is somebody's input: whatever is in it, reading and analysing
// end with a result or an error.
func FuzzDecode(f *testing.F) {
	text, err := json.Marshal(fakeResult(f, map[string]fake{Baseline: {scale: 1}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"schema":"berth.dev/lab/v1","rounds":[{"scenario":"x","load":{"seconds":[{}]}}]}`))
	f.Add([]byte(`{"schema":"berth.dev/lab/v1","experiment":{"scenarios":[{"name":"baseline"}]},"setup":{"cpus":"0-"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := new(Result)
		err := Decode(text, Schema, r)
		if err != nil {
			return
		}
		a, err := Analyse(r)
		if (a == nil) == (err == nil) {
			t.Errorf("analysis %v and error %v", a, err)
		}
	})
}

// A pipe that somebody has put for a result is refused, not waited for.
func TestReadStoredOfAPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, ResultFile)
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/dev/null", pipe, dir} {
		if _, err := ReadStored(name); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
