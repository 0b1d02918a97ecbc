package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/walkthrough"
)

// The pages whose commands are tried: here those for any host, in a guest with systemd
// (e2e/systemd) the others.
func pages(t *testing.T) []string {
	t.Helper()
	quick, err := filepath.Glob("../../docs/quickstart-*.md")
	if err != nil || len(quick) != 3 {
		t.Fatalf("quick-starts %q: %v", quick, err)
	}
	return append([]string{"../../README.md"}, quick...)
}

// What the pages show of commands that run on any host without privileges is what they
// print, in shape.
func TestPagesOnThisHost(t *testing.T) {
	t.Parallel()
	tried := 0
	for _, name := range pages(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := walkthrough.Steps(string(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, s := range steps {
			if kinds := []string{"host", "systemd"}; !slices.Contains(kinds, s.Where) && !strings.HasPrefix(s.Where, "not, ") {
				t.Errorf("%s: line %d is tried on %q: want one of %q, or \"not, \" and why", name, s.Line, s.Where, kinds)
			}
			if s.Where != "host" {
				continue
			}
			tried++
			cmd := exec.Command("sh", "-c", s.Command)
			cmd.Dir = "../.."
			cmd.Env = append(os.Environ(), runsBerth+"=1", "PATH="+berthOnPath(t)+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if err != nil && cmd.ProcessState.ExitCode() != exitFindings {
				t.Errorf("%s: line %d: %s: %v\n%s", name, s.Line, s.Command, err, out)
			} else if err := s.Compare(string(out)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if tried == 0 {
		t.Error("no command was tried")
	}
}

// berthOnPath is a folder in which this binary is called berth.
func berthOnPath(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "berth")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A page that a new user must read is short, and shows something in its first screen.
func TestPagesForNewUsers(t *testing.T) {
	t.Parallel()
	for _, name := range pages(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		if len(lines) > 150 {
			t.Errorf("%s has %d lines, more than 150", name, len(lines))
		}
		first := lines[:min(24, len(lines))]
		if !slices.ContainsFunc(first, func(line string) bool { return strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "![") }) {
			t.Errorf("%s shows neither picture nor output in its first %d lines", name, len(first))
		}
	}
}
