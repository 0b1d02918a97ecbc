package attack

import (
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hostileNames are names of control groups and, cut to 15 bytes, of processes.
func hostileNames() []string {
	return []string{
		"\x1b]0;owned\x07", "\x1b[2J\x1b[31mred", "line\nberth: all is well", "car\rriage", "\u009b31mcsi", "\u202egpj.exe", "\u2066iso\u2069",
		"zero\u200bwidth", "\xff\xfe", "\x9b2J", "$(touch /tmp/owned)", "`touch owned`", "a;b&&c|d", "it's \"quoted\"", "..x", "sp ace", "co:lon,com=ma",
		"%s%n", "\\x1b", "-rf", "*", strings.Repeat("x", 240), "tab\tbed", "\x7fdel", "<script>alert(1)</script>", "{}[]\\", "a.service",
	}
}

// spinAs is a process of that name that uses CPU time.
var spinAs = newTrick("spin-as", func(args []string) error {
	name := append([]byte(args[0]), 0)
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0); err != nil {
		return err
	}
	fmt.Println("spins")
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
	}
	return nil
})

// makeGroups makes groups of any name in directories of the caller's own.
var makeHostileGroups = newTrick("make-groups", func(dirs []string) error {
	for _, dir := range dirs {
		for _, name := range hostileNames() {
			if err := os.Mkdir(path.Join(dir, name), 0o755); err != nil && !os.IsExist(err) {
				// A kernel may refuse a name, as v1 does those with newlines.
				fmt.Printf("refused %q: %v\n", name, err)
			}
		}
	}
	return nil
})

// steers is the first part of a text that could steer a terminal, "" if none does.
func steers(text string) string {
	for i, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd") {
			return fmt.Sprintf("%q in %q", r, text[max(0, i-60):min(len(text), i+60)])
		}
	}
	return ""
}

// TestHostileNames has a stranger call its groups and processes what steers a terminal
// and splits lines and commands. What root's commands print does neither.
func TestHostileNames(t *testing.T) {
	boxed(t, func(b *box) {
		theirs := b.group(stranger, "user", "cpu", "cpuset", "cpuacct")
		if out, code := b.run(stranger, makeHostileGroups.with(theirs...)...); code != 0 {
			b.Fatal(out)
		} else if steers(out) != "" {
			b.Error(out)
		}
		made := 0
		for i, name := range hostileNames() {
			if _, err := os.Stat(path.Join(theirs[0], name)); err != nil {
				continue
			}
			made++
			for _, dir := range theirs {
				for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
					if text, err := os.ReadFile(path.Join(dir, file)); err == nil {
						b.write(path.Join(dir, name, file), string(text))
					}
				}
			}
			if i%3 == 0 {
				p := b.start(stranger, spinAs.with(name[:min(len(name), 15)])...)
				p.awaitText("spins")
				for _, dir := range theirs {
					b.join(p, path.Join(dir, name))
				}
			}
		}
		if made < 10 {
			b.Fatalf("the kernel took %d of the names only", made)
		}
		agent := b.agent("workloads: [{name: any, match: {cgroup: /user/*, delegated: true}, class: BE}]\nconfine: [/user]\nguard: {mode: preview}\n")
		agent.awaitText("msg=placed")
		time.Sleep(3 * time.Second)
		for _, argv := range [][]string{
			{"ps"}, {"ps", "-o", "wide"}, {"ps", "-o", "json"}, {"map"}, {"map", "-o", "json"}, {"guard", "status"}, {"doctor", "--all"},
			{"watch", "--once", "-n", "100"}, {"watch", "--signals"}, {"diagnose", "--for", "2s"}, {"topo"}, {"guard", "--for", "2s"},
			{"run", "--dry-run", "--class", "LSE", "--cpus", "1", "--confine", "/user/*", "--", "true"},
			{"explain", "any:user/\x1b[31m"}, {"release", "any:\x1b]0;x\x07\u202e"}, {"restore", "--dry-run"}, {"restore", "--all"},
		} {
			out, _ := b.run(root, append([]string{berth}, argv...)...)
			if bad := steers(out); bad != "" {
				b.Errorf("berth %s prints %s", strings.Join(argv, " "), bad)
			}
		}
		if bad := steers(agent.out.String()); bad != "" {
			b.Errorf("the agent logs %s", bad)
		}
		for _, line := range strings.Split(agent.out.String(), "\n") {
			if line != "" && !strings.Contains(line, " level=") {
				b.Errorf("a line of the log is not the agent's: %q", line)
			}
		}
	})
}
