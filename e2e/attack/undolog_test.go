package attack

import (
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
)

// plantedLog is a guard's undo log that would have root put "owned" into a file, for as
// long as that has what it has now.
func plantedLog(b *box, file string) string {
	b.Helper()
	return fmt.Sprintf(`{"berthJournal":1,"root":"/","boot":%q,"pid":1,"program":"berth guard","started":"2026-01-01T00:00:00Z"}
{"seq":1,"do":{"op":"write","path":%q,"value":%q,"original":"owned"}}
`, b.read("/proc/sys/kernel/random/boot_id"), strings.TrimPrefix(file, "/"), b.read(file))
}

// TestPlantedUndoLog has a stranger put a guard's undo log where root's guard would look for
// it: the state directory lies where everybody may make directories. Root's file stays as it
// is, whatever root does.
func TestPlantedUndoLog(t *testing.T) {
	boxed(t, func(b *box) {
		const state, secret = "/var/tmp/berth", "/run/secret"
		b.write(secret, "root's\n")
		if err := os.Chmod(secret, 0o600); err != nil {
			b.Fatal(err)
		}
		b.group(root, "web", "cpu", "cpuset")
		dir := state + "-guard"
		text := plantedLog(b, secret)
		if out, code := b.run(stranger, "sh", "-c", `mkdir -p "$1" && printf %s "$2" >"$1/ledger" && ln -sf "$3" "$1/running.json.new"`, "sh", dir, text, secret); code != 0 {
			b.Fatal(out)
		}
		for _, args := range [][]string{
			{"restore", "--all", "--state", state},
			{"guard", "--state", state, "off"},
			{"guard", "--state", state, "--mode", "enforce", "--sensitive", "web"},
			{"agent", "--config", b.config("agent: {stateDir: " + state + "}\nguard: {mode: enforce}\n")},
		} {
			out, code := b.run(root, append([]string{berth}, args...)...)
			if code == 0 || !strings.Contains(out, dir) || !strings.Contains(out, "belongs to another user") {
				b.Errorf("berth %v: exit status %d\n%s", args, code, out)
			}
			if text := b.read(secret); text != "root's" {
				b.Fatalf("berth %v: the stranger's undo log was followed: %s has %q", args, secret, text)
			}
		}
	})
}

// TestUndoLogIsConfined has such an undo log in root's own directory, however it came there: as
// a file and as links. Root's file stays as it is, and berth says why.
func TestUndoLogIsConfined(t *testing.T) {
	boxed(t, func(b *box) {
		const secret, dir = "/run/secret", "/run/berth/guard"
		b.write(secret, "root's\n")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		name := path.Join(dir, "ledger")
		for what, tt := range map[string]struct {
			plant func() error
			says  string
		}{
			"a file": {func() error { return os.WriteFile(name, []byte(plantedLog(b, secret)), 0o600) }, "is in no mounted tree of control groups"},
			"a symbolic link": {func() error {
				b.write("/var/tmp/ledger", plantedLog(b, secret))
				return os.Symlink("/var/tmp/ledger", name)
			}, "symbolic link"},
		} {
			for _, args := range [][]string{{"restore"}, {"guard", "off"}, {"agent", "--config", b.config("")}} {
				if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
					b.Fatal(err)
				}
				if err := tt.plant(); err != nil {
					b.Fatal(err)
				}
				out, code := b.run(root, append([]string{berth}, args...)...)
				if code == 0 || !strings.Contains(out, tt.says) {
					b.Errorf("%s, berth %v: exit status %d\n%s", what, args, code, out)
				}
			}
			if text := b.read(secret); text != "root's" {
				b.Errorf("%s: %s has %q", what, secret, text)
			}
		}
	})
}
