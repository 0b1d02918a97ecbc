package systemd

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/walkthrough"
)

// TestPages does what the README and the quick-starts tell a reader to do on a host with
// systemd, page by page in the order of their lines, and compares what is printed in shape.
// The scene is set: units of the pages' names that work in turns, and a batch job that takes
// all CPUs. The page of the newcomer is TestNewcomer's.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob("/pages/*.md")
	if err != nil || len(pages) < 4 {
		t.Fatalf("the guest has the pages %q: %v", pages, err)
	}
	for _, name := range pages {
		if name == newcomersPage {
			continue
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			for _, unit := range []string{"nginx", "db"} {
				startService(t, unit, "ExecStart=/bin/guest.test work-in-turns\n")
			}
			startService(t, "batch", "ExecStart=/bin/busybox sh -c 'for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait'\n")
			t.Cleanup(func() {
				_ = exec.Command("systemctl", "stop", agentUnit).Run()
				run(t, "berth", "restore", "--all")
			})
			for _, s := range stepsOf(t, name) {
				if err := s.Compare(typed(t, s)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	expect(t, run(t, "berth", "restore"), "nothing to restore")
}

// stepsOf are the steps of a page that are for a host with systemd.
func stepsOf(t *testing.T, page string) []walkthrough.Step {
	t.Helper()
	steps, err := walkthrough.Steps(read(t, page))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(steps, func(s walkthrough.Step) bool { return !s.On("systemd") })
}

// typed types the command of a step and returns what it printed.
func typed(t *testing.T, s walkthrough.Step) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", strings.ReplaceAll(s.Command, "sudo ", ""))
	out, err := cmd.CombinedOutput()
	t.Logf("$ %s\n%s", s.Command, out)
	// A refusal that the page shows is no failure, nor is a finding: diagnose ends with 3.
	if err != nil && !strings.Contains(strings.Join(s.Output, "\n"), "berth: ") && cmd.ProcessState.ExitCode() != 3 {
		t.Fatalf("line %d: %s: %v\n%s", s.Line, s.Command, err, out)
	}
	return string(out)
}
