package attack

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// TestReadingMovesNobody looks at the node of an agent that has ended, in both ways, with every
// command that only reads: what the kernel has stays as the agent left it.
func TestReadingMovesNobody(t *testing.T) {
	boxed(t, func(b *box) {
		web, cache := b.group(root, "web", "cpu", "cpuset"), b.group(root, "cache", "cpu", "cpuset")
		config := "noFloor: true\nworkloads: [{name: web, match: {cgroup: /web}, class: LSE, cpus: 1}, {name: cache, match: {cgroup: /cache}}]\n"
		sets := func() string {
			var all []string
			for _, dir := range append(web, cache...) {
				if names, _ := filepath.Glob(path.Join(dir, "cpuset.cpus")); len(names) == 1 {
					all = append(all, names[0]+" "+b.read(names[0]))
				}
			}
			return strings.Join(all, "\n")
		}
		for what, sig := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "kill -9": syscall.SIGKILL} {
			agent := b.agent(config)
			b.await("place for both", func() bool {
				out, _ := b.run(root, berth, "ps", "--interval", "10ms")
				return strings.Contains(out, "web:web") && strings.Contains(out, "cache:cache")
			}, agent.out)
			agent.end(sig)
			left := sets()
			for _, verb := range [][]string{
				{"ps", "--interval", "10ms"}, {"map"}, {"explain", "web:web"}, {"run", "--dry-run", "--", "true"}, {"guard", "status"},
				{"restore", "--dry-run"}, {"doctor"}, {"__complete", "release", ""}, {"restore"}, {"run", "--", "true"},
			} {
				out, _ := b.run(root, append([]string{berth}, verb...)...)
				if now := sets(); now != left {
					b.Fatalf("after %s, berth %s moved workloads from\n%s\nto\n%s\n%s", what, strings.Join(verb, " "), left, now, out)
				}
			}
		}
	})
}

// markGroup sets the mark of a node on a directory.
var markGroup = newTrick("mark-group", func(args []string) error {
	return syscall.Setxattr(args[0], "user.berth.node", []byte(args[1]), 0)
})

// TestMarkOfStranger has a stranger mark a group of its own as the base of another node, with
// a path that is to be typed. Root places all the same, and prints nothing of it.
func TestMarkOfStranger(t *testing.T) {
	boxed(t, func(b *box) {
		dirs := b.group(stranger, "theirs", "cpu", "cpuset")
		for _, text := range []string{"1:1 0 /var/tmp/berth\x1b[2J", "1:1 65534 /var/tmp/berth\x1b[2J", "\x1b[2J"} {
			for _, dir := range dirs {
				if out, code := b.run(stranger, markGroup.with(dir, text)...); code != 0 {
					b.Skipf("a stranger cannot mark %s: %s", dir, out)
				}
			}
			if out := b.must(berth, "run", "--", "true"); strings.Contains(out, "/var/tmp") || strings.Contains(out, "\x1b") {
				b.Errorf("berth run prints what a stranger says: %q", out)
			}
		}
		b.group(root, "web", "cpu", "cpuset")
		agent := b.agent("workloads: [{name: web, match: {cgroup: /web}}]\n")
		agent.awaitText("workload=web:web")
		if text := agent.out.String(); !strings.Contains(text, "msg=placed") || strings.Contains(text, "/var/tmp") {
			b.Errorf("the agent: %s", text)
		}
	})
}

// TestGuardBelowNode is a guard that is killed while it has a group on one CPU, then a
// command that confines that group, and the guard's end before and after that of the
// command: the group has what it had.
func TestGuardBelowNode(t *testing.T) {
	boxed(t, func(b *box) {
		batch := ""
		for _, dir := range b.group(root, "batch", "cpu", "cpuset") {
			if names, _ := filepath.Glob(path.Join(dir, "cpuset.cpus")); len(names) == 1 {
				batch = names[0]
			}
		}
		if batch == "" || b.read(batch) != "0-1" {
			b.Skip("needs a group with two CPUs")
		}
		for _, guardFirst := range []bool{true, false} {
			if out, code := b.run(root, killedGuard.with(batch)...); code != -1 {
				b.Fatalf("the guard: exit status %d: %s", code, out)
			}
			if now := b.read(batch); now != "1" {
				b.Fatalf("the guard has batch on CPUs %s", now)
			}
			command := b.start(root, berth, "run", "--class", "LSE", "--cpuset", "1", "--confine", "*", "--name", "own", "--", "sleep", "60")
			b.await("command on CPU 1, and batch off it", func() bool { return b.read(batch) == "0" }, command.out)
			if guardFirst {
				b.must(berth, "guard", "off")
			}
			command.kill()
			b.await("end of the place", func() bool { return !strings.Contains(b.ps(), "own") })
			if !guardFirst {
				b.must(berth, "guard", "off")
			}
			b.must(berth, "restore")
			if now := b.read(batch); now != "0-1" {
				b.Errorf("guard off first %v: in the end batch has CPUs %s", guardFirst, now)
			}
		}
	})
}

// killedGuard has a guard narrow a group to CPU 1, and ends as by kill -9.
var killedGuard = newTrick("killed-guard", func(args []string) error {
	r, err := kernel.Open("/")
	if err != nil {
		return err
	}
	g, err := actuate.Open(actuate.Options{Root: r, Dir: "/run/berth/guard"})
	if err != nil {
		return err
	}
	_, err = g.Apply(context.Background(), control.Action{
		Group: path.Base(path.Dir(args[0])), Remedy: detect.ShrinkCPUs, Limits: cgroup.Limits{CPUs: cpuset.MustParse("1")},
	})
	if err != nil {
		return err
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
})
