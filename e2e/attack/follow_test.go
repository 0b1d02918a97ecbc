package attack

import (
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// digDeep makes groups within each other, deeper than a path may be long.
var digDeep = newTrick("dig deep", func(args []string) error {
	if err := os.Chdir(args[0]); err != nil {
		return err
	}
	name := strings.Repeat("d", 200)
	for range 30 {
		if err := unix.Mkdir(name, 0o755); err != nil {
			return err
		}
		if err := unix.Chdir(name); err != nil {
			return err
		}
	}
	fmt.Println("deep")
	time.Sleep(time.Hour)
	return nil
})

// widen makes a group and gives it CPUs again and again, as fast as it can.
var widen = newTrick("widen", func(args []string) error {
	dir := args[0] + "/child"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(dir+"/cpuset.mems", []byte("0"), 0); err != nil {
		return err
	}
	fmt.Println("widens")
	for {
		_ = os.WriteFile(dir+"/cpuset.cpus", []byte(args[1]), 0) // refused while the group around it is narrower
	}
})

// crowd makes more groups than follow one around them (maxTheirs of agent). The kernel looks
// at all of them for each that gets CPUs: their number counts squared.
var crowd = newTrick("crowd", func(args []string) error {
	for i := range 1000 {
		dir := fmt.Sprintf("%s/g%d", args[0], i)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		_ = os.WriteFile(dir+"/cpuset.cpus", []byte(args[1]), 0) // as those around them
	}
	fmt.Println("made")
	time.Sleep(time.Hour)
	return nil
})

// TestGroupsThatCannotFollow has a stranger make groups in its own that cannot be kept off
// exclusive CPUs: root gives them away all the same, and says which group is left.
func TestGroupsThatCannotFollow(t *testing.T) {
	boxed(t, func(b *box) {
		theirs := b.group(stranger, "theirs", "cpuset")[0]
		if _, err := os.Stat(path.Join(theirs, "cpuset.mems")); err != nil || !strings.HasSuffix(path.Dir(theirs), "cpuset") {
			b.Skip("on cgroup v2 groups do not have to follow the one around them")
		}
		for _, attack := range []struct {
			play   trick
			always bool // the group is left, and not only if the stranger is fast enough
		}{
			{digDeep, false}, // groups without CPUs, too deep to be read: they follow by themselves
			{crowd, true},
			{widen, false},
		} {
			play := b.start(stranger, attack.play.with(theirs, b.read(path.Join(theirs, "cpuset.cpus")))...)
			play.awaitText("\n")
			for i := range 5 {
				argv := []string{berth, "run", "--class", "LSE", "--cpus", "1", "--confine", "*"}
				if i == 0 {
					argv = append(argv, "--dry-run")
				}
				out, code := b.run(root, append(argv, "--", "true")...)
				if left := strings.Contains(out, theirs+": its CPUs cannot be set"); code != 0 || attack.always && !left {
					b.Errorf("%v beside %v: exit status %d\n%.600s", argv, attack.play, code, out)
				}
				b.await("end of the workload", func() bool { return strings.Contains(b.ps(), "no workloads") })
			}
			play.kill()
			if out, code := b.run(root, "find", theirs, "-mindepth", "1", "-depth", "-type", "d", "-delete"); code != 0 {
				b.Fatal(out)
			}
		}
		b.must(berth, "restore", "--all")
	})
}

// TestWorkloadThatCannotFollow has the stranger's group be a workload by the agent's
// configuration: the agent places, releases, and starts anew after a kill, all the same.
func TestWorkloadThatCannotFollow(t *testing.T) {
	boxed(t, func(b *box) {
		theirs := b.group(stranger, "theirs", "cpuset", "cpu")
		config := "workloads: [{name: their, match: {cgroup: /theirs}, class: LS}]\nagent: {rescan: 1s}\n"
		agent := b.agent(config)
		agent.awaitText("workload=their:theirs")
		for _, dir := range theirs {
			if path.Base(path.Dir(dir)) == "cpuset" {
				b.start(stranger, digDeep.with(dir)...).awaitText("deep")
				defer b.run(root, "find", dir, "-mindepth", "1", "-depth", "-type", "d", "-delete")
			}
		}
		for range 2 {
			if out, code := b.run(root, berth, "run", "--class", "LSE", "--cpus", "1", "--", "true"); code != 0 {
				b.Errorf("exit status %d: %.600s\n%.3000s", code, out, agent.out)
			}
			b.await("end of the workload", func() bool { return !strings.Contains(b.ps(), "true") }, agent.out)
			p := b.start(root, berth, "run", "--class", "LSE", "--cpus", "1", "--name", "stays", "--", "sleep", "1000")
			b.await("workload", func() bool { return strings.Contains(b.ps(), "stays") }, p.out, agent.out)
			agent.kill()
			agent = b.agent(config)
			p.kill()
			b.await("end of the workload", func() bool { return !strings.Contains(b.ps(), "stays") }, agent.out)
		}
		agent.end(syscall.SIGTERM)
		b.must(berth, "restore", "--all")
	})
}
