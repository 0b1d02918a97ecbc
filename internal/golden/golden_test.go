package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// told is a test that notes what it is told.
type told struct {
	testing.TB
	errors []string
}

func (*told) Helper() {}

func (t *told) Errorf(format string, args ...any) {
	t.errors = append(t.errors, fmt.Sprintf(format, args...))
}

// A file with another text is an error that names it and both texts; -update writes it.
func TestCheck(t *testing.T) { // not parallel: the flag is the process's
	file := filepath.Join(t.TempDir(), "report.txt")
	if err := os.WriteFile(file, []byte("was\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(got string) []string {
		to := &told{TB: t}
		Check(to, file, got)
		Check(to, file, []byte(got))
		return to.errors
	}
	if all := check("was\n"); len(all) > 0 {
		t.Errorf("equal: %q", all)
	}
	all := check("is\n")
	if len(all) != 2 || !strings.Contains(all[0], file) || !strings.Contains(all[0], "was") || !strings.Contains(all[0], "is") {
		t.Errorf("different: %q", all)
	}
	*update = true
	t.Cleanup(func() { *update = false })
	if all := check("is\n"); len(all) > 0 {
		t.Errorf("updated: %q", all)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "is\n" {
		t.Errorf("updated, it has %q, %v", text, err)
	}
}
