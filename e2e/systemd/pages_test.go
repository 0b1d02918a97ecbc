package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/internal/walkthrough"
)

// TestPages does what the README and the quick-starts tell a reader to do on a host with
// systemd, page by page in the order of their lines, and compares what is printed in shape.
// The scene is set: units of the pages' names that work in turns, and a batch job that takes
// all CPUs.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob("/pages/*.md")
	if err != nil || len(pages) < 4 {
		t.Fatalf("the guest has the pages %q: %v", pages, err)
	}
	for _, name := range pages {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			steps, err := walkthrough.Steps(string(text))
			if err != nil {
				t.Fatal(err)
			}
			for _, unit := range []string{"nginx", "db"} {
				startService(t, unit, "ExecStart=/bin/guest.test work-in-turns\n")
			}
			startService(t, "batch", "ExecStart=/bin/busybox sh -c 'for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait'\n")
			t.Cleanup(func() {
				_ = exec.Command("systemctl", "stop", agentUnit).Run()
				run(t, "berth", "restore", "--all")
			})
			for _, s := range steps {
				if !s.On("systemd") {
					continue
				}
				cmd := exec.Command("sh", "-c", strings.ReplaceAll(s.Command, "sudo ", ""))
				out, err := cmd.CombinedOutput()
				t.Logf("$ %s\n%s", s.Command, out)
				// A refusal that the page shows is no failure, nor is a finding: diagnose ends with 3.
				if err != nil && !strings.Contains(strings.Join(s.Output, "\n"), "berth: ") && cmd.ProcessState.ExitCode() != 3 {
					t.Fatalf("line %d: %s: %v\n%s", s.Line, s.Command, err, out)
				}
				if err := s.Compare(string(out)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	expect(t, run(t, "berth", "restore"), "nothing to restore")
}
