package attack

import (
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"
	"testing"
)

// whoami says who plays it.
var whoami = newTrick("whoami", func([]string) error {
	groups, err := os.Getgroups()
	fmt.Println(os.Getuid(), os.Getgid(), len(groups))
	return err
})

// TestBox shows that a box is one: strangers are strangers, groups are its own, berth
// runs, and nothing of the host's /run is there.
func TestBox(t *testing.T) {
	boxed(t, func(b *box) {
		out, code := b.run(stranger, whoami.with()...)
		if code != 0 || strings.TrimSpace(out) != "65534 65534 0" {
			b.Errorf("whoami of a stranger: %q, exit status %d", out, code)
		}
		if entries, err := os.ReadDir("/run"); err != nil || len(entries) > 0 {
			b.Errorf("/run of a box: %v, %v", entries, err)
		}
		for line := range strings.Lines(b.read("/proc/self/cgroup")) {
			if at := strings.TrimSpace(line[strings.LastIndexByte(line, ':')+1:]); at != "/" && at != "/init" {
				b.Errorf("this process is in %q", line)
			}
		}
		for _, dir := range b.group(stranger, "theirs", "cpu", "cpuset") {
			if out, code := b.run(stranger, "mkdir", path.Join(dir, "child")); code != 0 {
				b.Errorf("a stranger cannot use %s: %s", dir, out)
			}
			if _, code := b.run(stranger, "mkdir", path.Join(path.Dir(dir), "child")); code == 0 {
				b.Errorf("a stranger made a group beside %s", dir)
			}
		}
		b.must(berth, "run", "--", "true")
		p := b.agent("")
		b.ps()
		p.end(syscall.SIGTERM)
		if code := p.code(); code != 0 {
			b.Errorf("agent: exit status %d\n%s", code, p.out)
		}
	})
}
