package lab

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRequestLogFollowsNoLink has another user, whose folder the results are in, put a
// link where the requests are to be.
func TestRequestLogFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, RequestsFile)); err != nil {
		t.Fatal(err)
	}
	if l, err := openRequestLog(dir, nil); err == nil {
		_ = l.close()
		t.Error("it was made")
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "kept" {
		t.Errorf("%q, %v", text, err)
	}
}
