package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fork"
)

const (
	costGroups = 250
	costSettle = 65 * time.Second // every group's figures have been read by then
	costLength = 30 * time.Second
)

// TestAgentCost measures what programs cost as an agent of this host, as root: 250 groups
// in the trees of cgroup v1, each with a process that sleeps or without. The program's guard
// is off, observes with nobody to look after, or with 125 groups. BERTH_TEST_COST names the
// programs, "old=PATH,new=PATH", BERTH_TEST_COST_RUNS how often. It asserts nothing.
// docs/measurements/agent-cost.md has the protocol.
func TestAgentCost(t *testing.T) {
	programs, runs := measured(t, "BERTH_TEST_COST", 2)
	t.Log("| run | program | processes | guard | looked after | load | of one CPU | resident | descriptors |")
	for run := range runs {
		for _, processes := range []bool{false, true} {
			for _, s := range []costScene{{"off", 0}, {"observe", 0}, {"observe", 125}} {
				for _, program := range programs {
					name, path := program[0], program[1]
					t.Run(fmt.Sprintf("%d/%t/%s-%d/%s", run+1, processes, s.mode, s.sensitive, name), func(t *testing.T) {
						t.Logf("| %d | %s | %t | %s | %d | %s |", run+1, name, processes, s.mode, s.sensitive, runCost(t, path, processes, s))
					})
				}
				slices.Reverse(programs)
			}
		}
	}
}

// measured returns the programs, each a name and a path, and how often each is to be measured:
// by the variables env, "old=PATH,new=PATH", and env_RUNS, as often where there is none. Without
// programs it skips a test that only measures.
func measured(t *testing.T, env string, often int) (programs [][2]string, runs int) {
	t.Helper()
	for text := range strings.SplitSeq(os.Getenv(env), ",") {
		if name, path, ok := strings.Cut(text, "="); ok {
			programs = append(programs, [2]string{name, path})
		}
	}
	if len(programs) == 0 {
		t.Skipf("needs %s, programs to measure, and some minutes", env)
	}
	runs, err := strconv.Atoi(os.Getenv(env + "_RUNS"))
	if err != nil {
		runs = often
	}
	return programs, runs
}

// costScene is what the guard does.
type costScene struct {
	mode      string
	sensitive int
}

// runCost runs one agent, and returns the load and what the agent cost.
func runCost(t *testing.T, program string, processes bool, s costScene) string {
	prefix := fmt.Sprintf("berth-cost-%d-", time.Now().UnixNano()%1e9)
	for i := range costGroups {
		name := prefix + "be-" + strconv.Itoa(i)
		if i < s.sensitive {
			name = prefix + "ls-" + strconv.Itoa(i)
		}
		costGroup(t, name, processes)
	}
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "s")
	text := fmt.Sprintf(`apiVersion: berth.dev/v1alpha1
kind: NodeConfig
workloads:
- {name: ls, match: {cgroup: /%[1]sls-*}, class: LS}
- {name: be, match: {cgroup: /%[1]sbe-*}, class: BE}
guard: {mode: "%[2]s"}
agent: {stateDir: %[3]s/node, socket: %[4]s, metrics: "off"}
`, prefix, s.mode, dir, socket)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := startCost(t, log, program, "agent", "--config", file, "--restore-on-exit")
	time.Sleep(costSettle)
	before, began := costTime(t, cmd.Process.Pid), time.Now()
	time.Sleep(costLength)
	share := (costTime(t, cmd.Process.Pid) - before).Seconds() / time.Since(began).Seconds()
	load, _ := os.ReadFile("/proc/loadavg")
	files, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kib, _ := strconv.Atoi(strings.Fields(rest + " 0")[0])
	_ = cmd.Process.Signal(syscall.SIGTERM)
	waitFor(t, "the agent ends", func() bool { return cmd.Process.Signal(syscall.Signal(0)) != nil })
	said, _ := os.ReadFile(log.Name())
	if placed := strings.Count(string(said), "msg=placed"); placed < costGroups {
		t.Errorf("%d of %d groups were placed\n%.2000s", placed, costGroups, said)
	}
	return fmt.Sprintf("%.4s | %.3f %% | %.1f MiB | %d", load, 100*share, float64(kib)/1024, len(files))
}

// startCost starts an agent, and returns when it has placed the first group. It starts
// another where one ends before that: a guard that may act is running on this host.
func startCost(t *testing.T, log *os.File, program string, args ...string) *exec.Cmd {
	t.Helper()
	for {
		cmd := exec.Command(program, args...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := fork.Start(cmd); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for {
			select {
			case <-ended:
				time.Sleep(time.Second)
			case <-time.After(100 * time.Millisecond):
				said, _ := os.ReadFile(log.Name())
				if strings.Contains(string(said), "msg=placed") {
					return cmd
				}
				continue
			}
			break
		}
	}
}

// costGroup makes a group in each tree of cgroup v1, with a process that sleeps or without.
func costGroup(t *testing.T, name string, process bool) {
	t.Helper()
	var sleeper *exec.Cmd
	if process {
		sleeper = exec.Command("sleep", "600")
		if err := sleeper.Start(); err != nil {
			t.Fatal(err)
		}
	}
	var dirs []string
	t.Cleanup(func() {
		if sleeper != nil {
			_ = sleeper.Process.Kill()
			_ = sleeper.Wait()
		}
		for _, dir := range dirs {
			for range 100 { // the kernel lets go of a process that has ended a little later
				if os.Remove(dir) == nil {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	})
	for _, tree := range []string{"pids", "blkio", "memory", "cpuacct", "cpu", "cpuset"} {
		top := "/sys/fs/cgroup/" + tree
		dir := filepath.Join(top, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no groups of cgroup v1 can be made here: %v", err)
		}
		dirs = append(dirs, dir)
		if tree == "cpuset" {
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				text, err := os.ReadFile(filepath.Join(top, f))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, f), text, 0)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		if sleeper != nil {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(sleeper.Process.Pid)), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// costTime is the CPU time of all threads of a process (clock_getcpuclockid(3)).
func costTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	const cpuclockSched = 2
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|cpuclockSched, &at); err != nil {
		t.Fatal(err)
	}
	return time.Duration(at.Nano())
}
