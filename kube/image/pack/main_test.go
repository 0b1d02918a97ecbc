package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An archive takes the place of what is there: a link is not followed, and who has the former file
// open has the former text.
func TestReplaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, to, other := filepath.Join(dir, "work"), filepath.Join(dir, "work.tar"), filepath.Join(dir, "other")
	build := exec.Command("go", "build", "-o", program, "berth.dev/berth/kube/e2e/work")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, make := range map[string]func(former, name string) error{"a link": os.Symlink, "another name": os.Link} {
		if err := os.WriteFile(other, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(to); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := make(other, to); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := run(&out, []string{"-name", "registry.example/work:1", "-o", to, program}); err != nil || !strings.HasPrefix(out.String(), "sha256:") {
			t.Fatalf("%s: %q, %v", name, &out, err)
		}
		if text, err := os.ReadFile(other); err != nil || string(text) != "mine" {
			t.Errorf("%s: the other file has %d bytes, %v", name, len(text), err)
		}
		if info, err := os.Lstat(to); err != nil || info.Mode() != 0o644 || info.Size() < 1<<20 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Errorf("%v, %v", left, err)
	}
	if err := run(&bytes.Buffer{}, []string{"-name", "registry.example/work:1", "-o", filepath.Join(dir, "none", "work.tar"), program}); err == nil {
		t.Error("written into a directory that is not there")
	}
}
