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

// The pages whose commands are tried: here those for any host, in a guest (e2e/systemd) those
// for a host with systemd, in a box (e2e/attack) those for one without.
func pages(t *testing.T) (tried []string) {
	t.Helper()
	for _, pattern := range []string{"../../README.md", "../../docs/*.md", "../../docs/experiments/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			first := strings.HasSuffix(name, "README.md") || strings.Contains(name, "quickstart-")
			if first || strings.Contains(string(text), "\n<!-- try: ") {
				tried = append(tried, name)
			}
		}
	}
	return tried
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
			for _, place := range s.Places() {
				if kinds := []string{"host", "systemd", "container"}; !slices.Contains(kinds, place) {
					t.Errorf("%s: line %d is tried on %q: want one of %q, or \"not, \" and why", name, s.Line, place, kinds)
				}
			}
			if !s.On("host") {
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
