package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/internal/golden"
)

func TestDiagnoseReplay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"hog.txt", []string{"--replay", recording("hog"), "demo/api"}, exitFindings},
		{"hog.json", []string{"--replay", recording("hog"), "--cgroup", "/demo/api", "-o", "json"}, exitFindings},
		{"all.txt", []string{"--replay", recording("hog")}, exitFindings},
		{"quota.txt", []string{"--replay", recording("quota"), "demo/api"}, exitFindings},
		{"quota.json", []string{"--replay", recording("quota"), "demo/api", "-o", "json"}, exitFindings},
		{"idle.txt", []string{"--replay", recording("idle"), "demo/api"}, exitOK},
		{"idle.json", []string{"--replay", recording("idle"), "-o", "json"}, exitFindings}, // others are short of CPUs
	} {
		out, errs, code := berth(t, append([]string{"diagnose"}, c.args...)...)
		if code != c.code || errs != "" {
			t.Fatalf("%s: status %d, want %d: %s", c.name, code, c.code, errs)
		}
		golden.Check(t, "testdata/diagnose/"+c.name, out)
	}
}

func TestDiagnoseRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	short := filepath.Join(dir, "short")
	text, err := os.ReadFile(recording("hog"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	if err := os.WriteFile(short, []byte(lines[0]+lines[1]), 0o644); err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut")
	if err := os.WriteFile(cut, text[:len(text)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"a", "b"}, exitUsage, "one NAME"},
		{[]string{"a", "--pid", "1"}, exitUsage, "one of them"},
		{[]string{"--for", "1s"}, exitUsage, "--for 1s"},
		{[]string{"-o", "wide"}, exitUsage, "it is one of text, json"},
		{[]string{"--pid", "1", "--cgroup", "x"}, exitUsage, "--pid and --cgroup: only one of them"},
		{[]string{"--pid", "1", "--replay", recording("hog")}, exitUsage, "--pid and --replay: only one of them"},
		{[]string{"--record", "x", "--replay", recording("hog")}, exitUsage, "--record and --replay: only one of them"},
		{[]string{"--replay", recording("hog"), "nobody"}, exitError, "no such control group"},
		{[]string{"--replay", short}, exitError, "fewer than two readings"},
		{[]string{"--replay", cut}, exitError, "line"},
		{[]string{"--root", dir}, exitError, "observe"},
	} {
		out, errs, code := berth(t, append([]string{"diagnose"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.says) || out != "" {
			t.Errorf("%v: status %d, %q, %q; want %d and %q", c.args, code, errs, out, c.code, c.says)
		}
	}
}

// liveGroups are two groups of a test's own, victim and neighbour. Their processes
// run on one CPU.
type liveGroups struct {
	t    *testing.T
	name string
	dirs []string
	cpu  string
}

func newLiveGroups(t *testing.T, cpu string) *liveGroups {
	t.Helper()
	t.Parallel()
	if testing.Short() {
		t.Skip("looks for seconds")
	}
	fakekernel.LockHost(t, fakekernel.Alone)
	g := &liveGroups{t: t, cpu: cpu, name: fmt.Sprintf("berth-diagnose-%d-%s", os.Getpid(), strings.ToLower(t.Name()[len("TestDiagnose"):]))}
	for _, tree := range []string{"cpu", "cpuacct", "memory", "unified"} {
		dir := filepath.Join("/sys/fs/cgroup", tree, g.name)
		for _, dir := range []string{dir, dir + "/victim", dir + "/neighbour"} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Skip("cannot make v1 control groups: ", err)
			}
			t.Cleanup(func() { removeDir(t, dir) })
		}
		g.dirs = append(g.dirs, dir)
	}
	return g
}

// removeDir waits for the kernel to let go of processes that have ended.
func removeDir(t *testing.T, dir string) {
	t.Helper()
	var err error
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if err = os.Remove(dir); err == nil {
			return
		}
	}
	t.Error(err)
}

// write sets a knob of the v1 cpu controller.
func (g *liveGroups) write(file, value string) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dirs[0], file), []byte(value), 0); err != nil {
		g.t.Skip("cannot set up control groups: ", err)
	}
}

// start runs a shell command in a group, on one CPU, until the test ends.
func (g *liveGroups) start(group, script string) (pid int) {
	g.t.Helper()
	cmd := exec.Command("taskset", "-c", g.cpu, "sh", "-c", "read go; "+script)
	hold, err := cmd.StdinPipe()
	if err == nil {
		err = fork.Start(cmd)
	}
	if err != nil {
		g.t.Skip(err)
	}
	g.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, group, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			g.t.Skip(err)
		}
	}
	_, _ = hold.Write([]byte("go\n"))
	return cmd.Process.Pid
}

func (g *liveGroups) diagnose() (d diagnosis, code int) {
	g.t.Helper()
	out, errs, code := berth(g.t, "diagnose", "--for", "5s", "-o", "json", g.name+"/victim")
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		g.t.Fatal(errors.Join(err, errors.New(errs)))
	}
	return d, code
}

// cpuTicks is the CPU time since boot that the hypervisor took from a CPU ("" is all of
// them), and that with what was used, in ticks of 10 ms.
func cpuTicks(t *testing.T, cpu string) (stolen, all float64) {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(text)) {
		figures, ok := strings.CutPrefix(line, "cpu"+cpu+" ")
		if !ok {
			continue
		}
		var user, nice, system, idle, wait, irq, soft float64
		if _, err := fmt.Sscan(figures, &user, &nice, &system, &idle, &wait, &irq, &soft, &stolen); err != nil {
			t.Skip("/proc/stat: ", err)
		}
		return stolen, user + nice + system + irq + soft + stolen
	}
	t.Skip("/proc/stat does not tell of CPU ", cpu)
	return 0, 0
}

// foreign is the time since boot in which the groups' CPU was not idle and not theirs: the
// hypervisor had it, or others on this host.
func (g *liveGroups) foreign() time.Duration {
	g.t.Helper()
	_, all := cpuTicks(g.t, g.cpu)
	text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/cpuacct", g.name, "cpuacct.usage"))
	if err != nil {
		g.t.Fatal(err)
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		g.t.Fatal(err)
	}
	return time.Duration(all)*10*time.Millisecond - time.Duration(used)
}

const spinning = "while :; do :; done"

// The neighbour on the victim's CPU is named, with evidence.
func TestDiagnoseHog(t *testing.T) {
	g := newLiveGroups(t, "0")
	g.write("cpu.shares", "262144") // what else runs here is not to be named
	g.start("victim", spinning)
	g.start("neighbour", spinning)
	g.start("neighbour", spinning)
	stolen, all := cpuTicks(t, "")
	d, code := g.diagnose()
	if now, allNow := cpuTicks(t, ""); now-stolen > 0.025*(allNow-all) {
		t.Skipf("the hypervisor took %.0f ms of %.0f ms of CPU time, which explains the wait", 10*(now-stolen), 10*(allNow-all))
	}
	if code != exitFindings || len(d.Findings) == 0 {
		t.Fatalf("status %d: %+v", code, d)
	}
	if f := d.Findings[0]; f.Victim != g.name+"/victim" || f.Suspect != g.name+"/neighbour" || f.Resource.String() != "cpu" || len(f.Evidence) == 0 {
		t.Errorf("%+v", f)
	}
}

// A victim that its own quota throttles has nobody to blame but that. Where others than
// the test's groups had their CPU for more than 5 % of the time, the victim did wait for
// them, or had too little to be throttled: then the test looks again, three times in all.
func TestDiagnoseQuota(t *testing.T) {
	g := newLiveGroups(t, "1")
	g.write("cpu.shares", "262144") // what else runs here is not to be named
	g.write("victim/cpu.cfs_quota_us", "20000")
	g.start("victim", spinning)
	g.start("neighbour", spinning)
	var busy []string
	for range 3 {
		before, began := g.foreign(), time.Now()
		d, code := g.diagnose()
		others, looked := g.foreign()-before, time.Since(began)
		var wrong []string
		if code != exitFindings {
			wrong = append(wrong, fmt.Sprintf("status %d: %+v", code, d))
		}
		for _, f := range d.Findings {
			if f.Suspect != "" || f.Resource.String() != "own_limit" {
				wrong = append(wrong, fmt.Sprintf("%+v", f))
			}
			if f.Suspect == g.name+"/neighbour" {
				t.Errorf("%+v", f)
			}
		}
		if len(wrong) == 0 {
			return
		}
		if others <= looked/20 {
			t.Fatal(strings.Join(wrong, "\n"))
		}
		busy = append(busy, fmt.Sprintf("%v of %v", others, looked.Round(time.Millisecond)))
	}
	t.Skipf("others had CPU %s for %s", g.cpu, strings.Join(busy, ", then "))
}

func TestDiagnoseIdle(t *testing.T) {
	g := newLiveGroups(t, "0")
	pid := g.start("victim", "exec sleep 1000")
	waitFor(t, "it sleeps", func() bool { // its start may have waited for a CPU
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(text), " (sleep) S ")
	})
	if d, code := g.diagnose(); code != exitOK || len(d.Findings) > 0 {
		t.Errorf("status %d: %+v", code, d)
	}
}
