package actuate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/kernel"
)

// On v2 the guard's set of a group around others does not show in theirs.
func TestEffectiveBelowTheGuard(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"g/cpuset.cpus": "0-7", "g/cpuset.cpus.effective": "0-7", "g/x/cpuset.cpus": "", "g/x/cpuset.cpus.effective": "0-7",
		"g/y/cpuset.cpus": "2-5", "g/y/cpuset.cpus.effective": "2-5", "g/z/cpuset.cpus": "6-9", "g/z/cpuset.cpus.effective": "6-7",
		"g/w/cpuset.cpus": "8-9", "g/w/cpuset.cpus.effective": "0-7",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]string{"g/cpuset.cpus": "0-7"}
	// What the kernel makes of the guard's write.
	for name, text := range map[string]string{"g/cpuset.cpus": "0-2", "g/cpuset.cpus.effective": "0-2", "g/x/cpuset.cpus.effective": "0-2", "g/y/cpuset.cpus.effective": "2"} {
		if err := root.WriteFile(name, text+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	original := func(name string) (string, bool) { text, ok := before[name]; return text, ok }
	for name, want := range map[string]string{"g/cpuset.cpus.effective": "0-7", "g/x/cpuset.cpus.effective": "0-7", "g/y/cpuset.cpus.effective": "2-5", "g/z/cpuset.cpus.effective": "6-7", "g/w/cpuset.cpus.effective": "0-7"} {
		text, ok := effective(root.FS(), original, name)
		if !ok || strings.TrimSpace(text) != want {
			t.Errorf("the node sees %s: %q, want %s", name, text, want)
		}
	}
	clear(before)
	if text, ok := effective(root.FS(), original, "g/y/cpuset.cpus.effective"); ok {
		t.Errorf("%q, want the file's own at the end", text)
	}
}
