package attack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lockAll takes the lock of everything below some directories that may be opened, three
// levels deep, and keeps it.
var lockAll = newTrick("lock-all", func(dirs []string) error {
	var kept []*os.File
	for _, top := range dirs {
		err := filepath.WalkDir(top, func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.Type()&(fs.ModeSocket|fs.ModeNamedPipe|fs.ModeSymlink) != 0 {
				return nil
			}
			if e.IsDir() && strings.Count(strings.TrimPrefix(name, top), "/") > 3 {
				return fs.SkipDir
			}
			f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
			if err == nil && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				kept = append(kept, f)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(kept) == 0 {
		return errors.New("nothing could be locked")
	}
	fmt.Println("has", len(kept), "locks")
	time.Sleep(time.Hour)
	return nil
})

// TestStrangersLocks has a stranger lock whatever can be opened in the trees of control
// groups and in /run/berth, before and after berth has made its files there. Nothing of
// root's waits for that, and nobody is taken for a guard.
func TestStrangersLocks(t *testing.T) {
	boxed(t, func(b *box) {
		if err := os.Mkdir("/run/berth", 0o755); err != nil { // as the unit's RuntimeDirectory
			b.Fatal(err)
		}
		for _, when := range []string{"before", "after"} {
			p := b.start(stranger, lockAll.with("/sys/fs/cgroup", "/run/berth")...)
			p.awaitText("locks")
			b.must(berth, "run", "--", "true")
			b.must(berth, "guard", "off")
			b.must(berth, "restore", "--all")
			web := b.start(root, berth, "run", "--class", "LS", "--", "sh", "-c", "echo placed; sleep 1000")
			web.awaitText("placed")
			guard := b.start(root, berth, "guard", "--mode", "enforce")
			guard.awaitText("guarding ")
			if out := b.must(berth, "restore"); !strings.Contains(out, fmt.Sprintf("alive      the guard (berth guard, process %d, ", guard.Process.Pid)) {
				b.Errorf("%s: restore beside a guard:\n%s", when, out)
			}
			guard.end(syscall.SIGINT)
			web.end(syscall.SIGTERM)
			agent := b.agent("guard: {mode: enforce}\n")
			b.must(berth, "run", "--", "true")
			agent.end(syscall.SIGTERM)
			if code := agent.code(); code != 0 {
				b.Errorf("%s: agent: exit status %d\n%s", when, code, agent.out)
			}
			b.must(berth, "restore", "--all")
			p.kill()
		}
	})
}
