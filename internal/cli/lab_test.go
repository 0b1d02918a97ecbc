package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/lab"
)

// runsBerth makes the test binary be berth: BERTH_RUN=1 binary ARG...
const runsBerth = "BERTH_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runsBerth) != "" {
		Main()
	}
	if part := os.Getenv(livePart); part != "" {
		playPart(part)
	}
	os.Exit(m.Run())
}

func TestLabRefuses(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "experiment.yaml")
	if err := os.WriteFile(bad, []byte("name: mine\nblox: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--scenario", "pined"}, "pinned"},
		{[]string{"--preset", "huge"}, "quick"},
		{[]string{"--rounds", "-1"}, "rounds"},
		{[]string{"--duration", "1ms"}, "duration"},
		{[]string{"--neighbour", "mine"}, "spin"},
		{[]string{"--cpus", "7-3"}, "backwards"},
		{[]string{"--output", "xml"}, "it is one of text, json"},
		{[]string{"--nonsense"}, "--help"},
		{[]string{"noise"}, "'berth lab list' has the experiments"},
		{[]string{"quick"}, "'berth lab run quick'"},
		{[]string{"gard"}, `did you mean "guard"?`},
		{[]string{"guard", "--faults", "earthquake"}, "hog"},
		{[]string{"guard", "--probe", "maybe"}, "needed"},
		{[]string{"guard", "--window", "1ms"}, "100ms"},
		{[]string{"guard", "--faults", "none", "--blocks", "0"}, "nothing to do"},
		{[]string{"guard", "-o", "xml"}, "it is one of text, json"},
		{[]string{"guard", "extra"}, "accepts 0"},
		{[]string{"isolation", "extra"}, "at most 1"},
		{[]string{"--root", "/nonexistent"}, "live host"},
		{[]string{"--resume", "x", "--rounds", "3"}, "--rounds: a run is resumed as it was begun"},
		{[]string{"guard", "--resume", "x", "--seed", "3"}, "--seed"},
		{[]string{"--continue", "x", "--seed", "3"}, "--seed: a run is continued as it was begun"},
		{[]string{"--continue", "x", "--resume", "x"}, "want one of the two"},
		{[]string{"--until", "narrow"}, "want a percentage such as ±10%"},
		{[]string{"--until", "0%"}, "want a percentage"},
		{[]string{"--for", "-2m"}, "want a time such as 2m"},
		{[]string{"--experiment", bad}, "blox"},
		{[]string{"--experiment", bad + ".missing"}, "no such file"},
	} {
		_, stderr, code := berth(t, append([]string{"lab"}, tc.args...)...)
		if code != exitUsage || !strings.Contains(stderr, tc.want) {
			t.Errorf("berth lab %q: exit %d, %q; want %d and %q", tc.args, code, stderr, exitUsage, tc.want)
		}
	}
}

// How long a run goes on is asked for in blocks, in time, or in how narrow its intervals are.
func TestLengthOfARun(t *testing.T) {
	t.Parallel()
	preview := func(args ...string) lab.Spec {
		t.Helper()
		stdout, stderr, code := berth(t, append([]string{"lab", "--dry-run", "--unprivileged", "-o", "json"}, args...)...)
		var p lab.Preview
		if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != exitOK {
			t.Fatalf("exit %d, %v, %s", code, err, stderr)
		}
		return p.Experiment
	}
	for _, tc := range []struct {
		args   []string
		blocks int
		limit  time.Duration
		until  float64
	}{
		{nil, 25, 2 * time.Minute, 0},
		{[]string{"--preset", "standard"}, 175, 15 * time.Minute, 0},
		{[]string{"--for", "4m"}, 57, 4 * time.Minute, 0},
		{[]string{"--for", "4m", "--rounds", "9"}, 9, 4 * time.Minute, 0},
		{[]string{"--rounds", "9"}, 9, 0, 0},
		{[]string{"--until", "±10%"}, 214, 15 * time.Minute, 0.1},
		{[]string{"--until", "5%", "--for", "42s"}, 10, 42 * time.Second, 0.05},
	} {
		e := preview(tc.args...)
		if e.Blocks != tc.blocks || time.Duration(e.For) != tc.limit || e.Until != tc.until {
			t.Errorf("%q: %d blocks, for %s, until %g; want %d, %s, %g", tc.args, e.Blocks, e.For, e.Until, tc.blocks, tc.limit, tc.until)
		}
		if quick := len(tc.args) == 0; (e.Preset == "quick") != quick && e.Preset != "standard" {
			t.Errorf("%q: preset %q", tc.args, e.Preset)
		}
	}
}

// A file's scenarios are its own: nothing of the built-in ones is mixed in.
func TestExperimentFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "experiment.yaml")
	text := "name: mine\nblocks: 3\nscenarios:\n- {name: baseline}\n- {name: baseline'}\n- {name: unisolated, neighbour: true}\n- {name: calm, neighbour: true, isolation: {idle: true}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e := lab.IsolationSpec()
	if err := readExperiment(path, &e); err != nil {
		t.Fatal(err)
	}
	calm := e.Scenarios[3]
	if calm.Isolation.Weight != 0 || !calm.Isolation.Idle || calm.Means != "" || e.Neighbour.Kernel != "spin" || e.Blocks != 3 {
		t.Errorf("got %+v of %+v", calm, e)
	}
	if err := os.WriteFile(path, []byte("blocks: 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := readExperiment(path, &e); err != nil || len(e.Scenarios) != 4 {
		t.Errorf("a file without scenarios: %d, %v; want those there were", len(e.Scenarios), err)
	}
}

func TestDryRunLeavesTheFolderAlone(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	stdout, stderr, code := berth(t, "lab", "--dry-run", "--unprivileged")
	if code != exitOK || !strings.Contains(stdout, "SCHED_IDLE") {
		t.Errorf("exit %d, %q, %s", code, stdout, stderr)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%d files after a dry run", len(left))
	}
}

func TestLabHelpTeaches(t *testing.T) {
	t.Parallel()
	stdout, _, code := berth(t, "lab", "--help")
	for _, want := range []string{"open-loop", "pinned", "idle", "scan", "Exit status", "--dry-run"} {
		if code != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("help (exit %d) lacks %q", code, want)
		}
	}
}

func TestProgressText(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	line := newProgressLine(&out)
	for i, p := range []lab.Progress{
		{Phase: "calibrate", Scenario: "demand"},
		{Phase: "measure", Scenario: "idle", Round: 0, Rounds: 4, Block: 1, Blocks: 2},
		{Phase: "measure", Scenario: "pinned", Round: 1, Rounds: 4, Block: 1, Blocks: 2, Left: 9 * time.Second},
		{Phase: "measure", Scenario: "idle", Round: 2, Rounds: 4, Block: 2, Blocks: 2, Left: 6 * time.Second},
	} {
		line.show(p)
		if i == 0 && out.String() != "calibrating: demand\n" {
			t.Errorf("first line %q", out.String())
		}
	}
	want := "calibrating: demand\nround 1 of 4, block 1 of 2: idle\nround 3 of 4, block 2 of 2: idle; 6s left\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant a line per block:\n%s", out.String(), want)
	}
}

// labRun is a berth lab in a process of its own.
type labRun struct {
	cmd     *exec.Cmd
	results string
	output  bytes.Buffer
}

// startLab starts a short run. It needs BERTH_TEST_LAB, because it takes the
// machine for itself; .ci/run sets it.
func startLab(t *testing.T, args ...string) *labRun {
	t.Helper()
	if os.Getenv("BERTH_TEST_LAB") == "" {
		t.Skip("a real run takes the machine for half a minute: set BERTH_TEST_LAB=1")
	}
	r := &labRun{results: t.TempDir()}
	short := []string{"lab", "--rounds", "2", "--duration", "1s"}
	if len(args) > 0 && args[0] == "guard" {
		short = []string{"lab"}
	}
	r.cmd = exec.Command(os.Args[0], slices.Concat(short, args, []string{"--results", r.results})...)
	r.cmd.Env = append(os.Environ(), runsBerth+"=1")
	r.cmd.Stdout, r.cmd.Stderr = &r.output, &r.output
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLabForReal(t *testing.T) {
	for name, args := range map[string][]string{"privileged": nil, "unprivileged": {"--unprivileged", "--scenario", "idle", "--neighbour", "spin"}} {
		t.Run(name, func(t *testing.T) {
			page := filepath.Join(t.TempDir(), "lab.html")
			r := startLab(t, append(args, "--report", page)...)
			if err := r.cmd.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, &r.output)
			}
			files, _ := filepath.Glob(filepath.Join(r.results, "*", lab.ResultFile))
			if len(files) != 1 {
				t.Fatalf("%d result files\n%s", len(files), &r.output)
			}
			result, err := lab.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			checkRun(t, result)
			stdout, stderr, code := berth(t, "lab", "report", files[0], "-o", "json")
			if code != exitOK || !json.Valid([]byte(stdout)) {
				t.Errorf("report: exit %d, %s", code, stderr)
			}
			if text, err := os.ReadFile(page); err != nil || !bytes.Contains(text, []byte("</html>")) {
				t.Errorf("page: %v", err)
			}
			expectNothingLeft(t, r.cmd.Process.Pid)
		})
	}
}

// checkRun checks what must hold on any machine, however busy.
func checkRun(t *testing.T, r *lab.Result) {
	t.Helper()
	if want := 2 * (len(r.Experiment.Scenarios) - len(r.Skipped)); !r.Complete || len(r.Rounds) != want {
		t.Errorf("complete %v, %d rounds, want %d", r.Complete, len(r.Rounds), want)
	}
	if len(r.Rounds) == 0 || len(r.Rounds[0].Probes) == 0 {
		t.Error("no control probes before the first round")
	}
	done := 0
	for _, round := range r.Rounds {
		l := round.Load
		done += l.Done
		if l.Offered == 0 || l.Done+l.Failed+l.Unfinished != l.Offered {
			t.Errorf("%s: offered %d, done %d, failed %d, unfinished %d", round.Scenario, l.Offered, l.Done, l.Failed, l.Unfinished)
		}
		if l.Failed > 0 {
			t.Errorf("%s: %d failed: %v", round.Scenario, l.Failed, l.Errors)
		}
		if l.Done > 0 && round.Tenant.CPUSeconds <= 0 || len(round.Knobs) == 0 || len(round.Bins) != 20 {
			t.Errorf("%s: tenant %+v, %d knobs, %d bins", round.Scenario, round.Tenant, len(round.Knobs), len(round.Bins))
		}
		if u := round.Undisturbed; u == nil || u.Requests+u.LeftOut != l.Offered || round.Undrained > 0 {
			t.Errorf("%s: undisturbed %+v of %d, %d undrained", round.Scenario, u, l.Offered, round.Undrained)
		}
		if n := round.Neighbour; n != nil && round.Scenario == lab.Unisolated && n.Work <= 0 {
			t.Errorf("%s: neighbour did no work", round.Scenario)
		}
	}
	if done == 0 {
		t.Error("the tenant answered nothing in any round")
	}
}

func TestKilledLabLeavesNothing(t *testing.T) {
	for i, after := range []time.Duration{50 * time.Millisecond, 700 * time.Millisecond, 4 * time.Second, 7 * time.Second} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
			t.Run(fmt.Sprintf("%s after %s", sig, after), func(t *testing.T) {
				r := startLab(t)
				time.Sleep(after + time.Duration(i)*30*time.Millisecond)
				if err := r.cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				_ = r.cmd.Wait()
				// Before it says anything it may end by a signal that it does not yet catch.
				early := r.output.Len() == 0 && r.cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled()
				if sig != syscall.SIGKILL && r.cmd.ProcessState.ExitCode() != exitInterrupted && !early {
					t.Errorf("exit %d, want %d\n%s", r.cmd.ProcessState.ExitCode(), exitInterrupted, &r.output)
				}
				if sig == syscall.SIGKILL {
					if _, stderr, code := berth(t, "restore"); code != exitOK {
						t.Errorf("restore: exit %d, %s", code, stderr)
					}
				}
				expectNothingLeft(t, r.cmd.Process.Pid)
			})
		}
	}
}

// The link of a run, and the network classes on it, go with the run, and it goes on with another.
func TestLabLinkForReal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			r := startLab(t, "--resource", "net", "--scenario", "net-first,unisolated,guarded")
			var dir string
			for deadline := time.Now().Add(2 * time.Minute); dir == ""; time.Sleep(50 * time.Millisecond) {
				if files, _ := filepath.Glob(filepath.Join(r.results, "*", lab.ResultFile)); len(files) == 1 {
					dir = filepath.Dir(files[0])
				} else if time.Now().After(deadline) {
					_, _ = r.cmd.Process.Kill(), r.cmd.Wait()
					if strings.Contains(r.output.String(), "not supported") {
						t.Skip(&r.output)
					}
					t.Fatalf("no round\n%s", &r.output)
				}
			}
			if err := r.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = r.cmd.Wait()
			if sig == syscall.SIGKILL {
				if _, stderr, code := berth(t, "restore"); code != exitOK {
					t.Errorf("restore: exit %d, %s", code, stderr)
				}
			}
			expectNothingLeft(t, r.cmd.Process.Pid)
			cmd := exec.Command(os.Args[0], "lab", "--resume", dir)
			cmd.Env = append(os.Environ(), runsBerth+"=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			result, err := lab.ReadFile(dir)
			if err != nil {
				t.Fatal(err)
			}
			checkRun(t, result)
			use := map[int]map[string]float64{} // by block and scenario
			for _, round := range result.Rounds {
				if use[round.Block] == nil {
					use[round.Block] = map[string]float64{}
				}
				use[round.Block][round.Scenario] = 8 * *round.LinkBytes / round.Seconds / float64(result.Experiment.LinkRate)
			}
			for block, of := range use {
				alone := max(of[lab.Baseline], of[lab.BaselineAgain])
				for scenario, used := range of {
					full := scenario == lab.Unisolated || scenario == "net-first"
					// How much of the link a busy machine fills is not known; the tenant alone takes a twentieth.
					if used > 1.1 || full && used < 3*alone || !full && scenario != "guarded" && used > 0.5 {
						t.Errorf("block %d, %s: %.2f of the link are used, %.2f by the tenant alone", block, scenario, used, alone)
					}
				}
			}
			expectNothingLeft(t, cmd.Process.Pid)
		})
	}
}

// The guard limits the neighbour that fills the link, in its own scenario alone.
func TestLabGuardedLinkForReal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	r := startLab(t, "--resource", "net", "--scenario", "unisolated,guarded", "--rounds", "4")
	if err := r.cmd.Wait(); err != nil {
		if strings.Contains(r.output.String(), "not supported") {
			t.Skip(&r.output)
		}
		t.Fatalf("%v\n%s", err, &r.output)
	}
	expectNothingLeft(t, r.cmd.Process.Pid)
	files, _ := filepath.Glob(filepath.Join(r.results, "*", lab.ResultFile))
	result, err := lab.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Skipped) > 0 {
		t.Skip(result.Skipped)
	}
	limited := 0
	for _, round := range result.Rounds {
		use := 8 * *round.LinkBytes / round.Seconds / float64(result.Experiment.LinkRate)
		applied := slices.ContainsFunc(round.Guard, func(a lab.Act) bool { return a.Applied && strings.Contains(a.What, "send_cap neighbour") })
		switch {
		case round.Scenario != "guarded" && len(round.Guard) > 0:
			t.Errorf("%s: the guard acts: %+v", round.Scenario, round.Guard)
		case round.Scenario == lab.Unisolated && use < 0.5: // a busy machine may send less
			t.Errorf("%s: %.2f of the link are used", round.Scenario, use)
		case applied && use < 0.7:
			limited++
		}
	}
	if limited == 0 {
		t.Errorf("the guard never limited the neighbour\n%s", &r.output)
	}
}

// A run that was killed outright goes on from its folder, with the rounds that it had.
func TestLabResumesForReal(t *testing.T) {
	r := startLab(t, "--scenario", "idle")
	var file string
	var before *lab.Result
	for deadline := time.Now().Add(2 * time.Minute); before == nil || len(before.Rounds) < 2; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no two rounds\n%s", &r.output)
		}
		if files, _ := filepath.Glob(filepath.Join(r.results, "*", lab.ResultFile)); len(files) == 1 {
			file = files[0]
			var err error
			if before, err = lab.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.cmd.Wait()
	cmd := exec.Command(os.Args[0], "lab", "--resume", filepath.Dir(file))
	cmd.Env = append(os.Environ(), runsBerth+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("resumed")) {
		t.Fatalf("%v\n%s", err, out)
	}
	after, err := lab.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	checkRun(t, after)
	for i, round := range before.Rounds {
		if !round.Started.Equal(after.Rounds[i].Started) {
			t.Errorf("round %d was run again", i+1)
		}
	}
	if again, err := lab.Analyse(after); err != nil || len(after.Resumed) != 1 || after.Experiment.Seed != before.Experiment.Seed {
		t.Errorf("%v, %v, resumed %v, seed %d, was %d", again, err, after.Resumed, after.Experiment.Seed, before.Experiment.Seed)
	}
	expectNothingLeft(t, r.cmd.Process.Pid)
	expectNothingLeft(t, cmd.Process.Pid)

	cmd = exec.Command(os.Args[0], "lab", "--continue", file, "--rounds", "1")
	cmd.Env = append(os.Environ(), runsBerth+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	more, err := lab.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(more.Experiment.Scenarios); !more.Complete || more.Experiment.Blocks != 3 || len(more.Rounds) != 3*n || len(more.Resumed) != 2 {
		t.Errorf("continued: complete %v, %d blocks, %d rounds of %d scenarios, resumed %v", more.Complete, more.Experiment.Blocks, len(more.Rounds), n, more.Resumed)
	}
}

// expectNothingLeft looks for processes of this binary and for groups of the
// lab that ran as pid.
func expectNothingLeft(t *testing.T, pid int) {
	t.Helper()
	var left []string
	// The kernel takes a moment to end what was killed.
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if left = leftovers(pid); len(left) == 0 {
			return
		}
	}
	t.Errorf("left behind: %q", left)
}

func leftovers(pid int) []string {
	var left []string
	self, _ := os.Readlink("/proc/self/exe")
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if exe, err := os.Readlink(link); err == nil && exe == self && filepath.Dir(link) != fmt.Sprintf("/proc/%d", os.Getpid()) {
			left = append(left, link)
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // it went away
		}
		if d.IsDir() && d.Name() == fmt.Sprintf("berth-lab-%d", pid) {
			left = append(left, path)
		}
		return nil
	})
	return left
}
