package guest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/watch/runq"
)

// TestRunQueueProbe has two groups contend for one CPU: this kernel's verifier
// takes the probe, and the probe blames the right one.
func TestRunQueueProbe(t *testing.T) {
	onlyOn(t, "flat8")
	const root = "/sys/fs/cgroup"
	if err := runq.Available(os.DirFS("/")); err != nil {
		t.Fatal(err)
	}
	victim, culprit := "/runq-victim", "/runq-culprit"
	spin(t, root+victim)
	spin(t, root+culprit)
	// An emulated CPU is slow: no limit that would matter.
	probe, err := runq.Open(runq.Options{Root: root, MaxShare: 100})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if err := errors.Join(probe.Add(victim), probe.Arm()); err != nil {
		t.Fatalf("%+v", err)
	}
	time.Sleep(2 * time.Second)
	var s runq.Snapshot
	if err := probe.Read(&s); err != nil {
		t.Fatal(err)
	}
	g := s.Groups[0]
	t.Logf("%d waits, %v, by %v, cost %+v", g.Waits, g.Wait, g.Shares, s.Cost)
	// Among groups: an emulated CPU is slow to wake up.
	g.Shares = slices.DeleteFunc(g.Shares, func(share runq.Share) bool { _, ok := share.Culprit.Group(); return !ok })
	var all time.Duration
	for _, share := range g.Shares {
		all += share.Wait
	}
	if all < 100*time.Millisecond {
		t.Fatalf("waited %v of 2 s, want more than 100 ms", all)
	}
	id, _ := g.Shares[0].Culprit.Group()
	name, err := probe.Name(id)
	if by := g.Shares[0]; err != nil || name != culprit || float64(by.Wait) <= 0.9*float64(all) || by.Preemptions == 0 {
		t.Errorf("of %v, most by %+v, which is %q (%v), want more than 90 %% by %s", all, by, name, err, culprit)
	}
	if err := probe.Close(); err != nil {
		t.Error(err)
	}
}

// spinnerEnv makes this program spin.
const spinnerEnv = "BERTH_TEST_SPIN"

// TestSpin is a process of TestRunQueueProbe.
func TestSpin(t *testing.T) {
	if os.Getenv(spinnerEnv) == "" {
		t.Skip("a process of another test")
	}
	runtime.LockOSThread() // the runtime's other threads go elsewhere
	var first unix.CPUSet
	first.Set(0)
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); time.Since(begin) < time.Hour; {
	}
}

// spin runs a spinner on CPU 0 in a new group until the test ends.
func spin(t *testing.T, group string) {
	t.Helper()
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Rmdir(group) })
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSpin$")
	cmd.Env = append(os.Environ(), spinnerEnv+"=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	procs := filepath.Join(group, "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond) // until it spins
}
