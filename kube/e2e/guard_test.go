package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
)

// weighing is the file with the CPU time that a group gets beside its siblings, and what weight 1
// of 100 is in it.
func weighing() (file, least string) {
	if _, err := os.Stat("/sys/fs/cgroup/cpu"); err == nil {
		return "cpu.shares", "10"
	}
	return "cpu.weight", "1"
}

// withCPU is a group of containers in the hierarchy of the cpu controller.
func withCPU(group string) string { return in("cpu", group) }

// in is a group of containers in the hierarchy of a controller.
func in(controller, group string) string {
	if below, ok := strings.CutPrefix(group, "/sys/fs/cgroup/cpuset/"); ok {
		return "/sys/fs/cgroup/" + controller + "/" + below
	}
	return group
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// settings are what groups have of the CPUs, by file.
func settings(t *testing.T, groups ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, group := range groups {
		for _, name := range []string{"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.weight", "cpu.max", "cpu.idle"} {
			file := filepath.Join(withCPU(group), name)
			if _, err := os.Stat(file); err == nil {
				all[file] = readText(t, file)
			}
		}
		all[group] = readText(t, filepath.Join(group, "cpuset.cpus"))
	}
	return all
}

// changed reports what of it is otherwise now.
func changed(t *testing.T, before map[string]string, groups ...string) error {
	t.Helper()
	var errs []error
	now := settings(t, groups...)
	for file, was := range before {
		if now[file] != was {
			errs = append(errs, fmt.Errorf("%s was %q, is %q", file, was, now[file]))
		}
	}
	return errors.Join(errs...)
}

// foreign is the CPU time since boot that others had than what runs here, the hypervisor among
// them, and that of all CPUs, in seconds.
func foreign(t *testing.T) (took, all float64) {
	t.Helper()
	line, _, _ := strings.Cut(readText(t, "/proc/stat"), "\n")
	number := func(text string, unit float64) float64 {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n * unit
	}
	for i, field := range strings.Fields(line)[1:9] {
		n := number(field, 0.01)
		if all += n; i != 3 && i != 4 { // idle, and waiting for disks
			took += n
		}
	}
	if text, err := os.ReadFile("/sys/fs/cgroup/cpuacct/cpuacct.usage"); err == nil {
		return took - number(strings.TrimSpace(string(text)), 1e-9), all
	}
	return took - number(strings.Fields(readText(t, "/sys/fs/cgroup/cpu.stat"))[1], 1e-6), all
}

// troubled runs a pod that works in turns beside a best-effort one that takes all CPU time it gets,
// and has ten times the weight. It returns the container of each, by its group.
func (c *cluster) troubled(t *testing.T) (victim, hog string) {
	t.Helper()
	top := withCPU(filepath.Dir(pods()) + "/")
	if file, _ := weighing(); file == "cpu.shares" { // what runs outside of the box is not to be named, but does run
		was := readText(t, top+"cpu.shares")
		write := func(value string) {
			if err := os.WriteFile(top+"cpu.shares", []byte(value), 0); err != nil {
				t.Error(err)
			}
		}
		write("8192")
		t.Cleanup(func() { write(was) })
	}
	work := burstable("a", 100)
	work.Args = []string{"2", "0.3"}
	c.run(t, pod("victim", work))
	spin := burstable("a", 1000)
	spin.Args = []string{"4", "1"}
	p := pod("hog", spin)
	p.Annotations["berth.dev/class"] = "BE"
	c.run(t, p)
	var all []string
	for _, name := range []string{"victim", "hog"} {
		c.has(t, name, "a", online(t).Len(), cpuset.Set{})
		group, err := c.group(name, "a")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, group)
	}
	return all[0], all[1]
}

// guarded starts the plugin anew with its guard at work, until the function that it returns.
func (c *cluster) guarded(t *testing.T) (end func()) {
	t.Helper()
	return c.with(t, append([]string{"--guard", "enforce"}, server()...)...)
}

// disturbed waits for what comes of a neighbour, unless others outside of the box explain that it
// does not.
func (c *cluster) disturbed(t *testing.T, try func() error) {
	t.Helper()
	took, all := foreign(t)
	err := within(try)
	if err == nil {
		return
	}
	tookNow, allNow := foreign(t)
	if part := (tookNow - took) / (allNow - all); part > 0.2 {
		t.Skipf("others on this host had %.0f %% of the CPU time, which explains that the neighbour is not blamed: %v", 100*part, err)
	}
	t.Fatalf("%v\nthe plugin:\n%s", err, c.plugin.Tail(40))
}

// A pod of class BE takes the CPUs of another one: the guard finds it, has the BE pod's group,
// where the paths of both part, weigh least, and says so on both, with evidence; nothing of it is
// left when the guard ends.
func TestGuard(t *testing.T) {
	c := theNode(t)
	victim, hog := c.troubled(t)
	class := filepath.Dir(filepath.Dir(hog))
	groups := []string{victim, filepath.Dir(victim), hog, filepath.Dir(hog), class, filepath.Join(filepath.Dir(class), "besteffort")}
	before := settings(t, groups...)
	end := c.guarded(t)
	file, least := weighing()
	c.disturbed(t, func() error {
		if is := readText(t, filepath.Join(withCPU(filepath.Dir(hog)), file)); is != least {
			return fmt.Errorf("the pod that disturbs has %s %s, want %s", file, is, least)
		}
		return nil
	})
	if is := settings(t, hog); is[filepath.Join(withCPU(hog), file)] != before[filepath.Join(withCPU(hog), file)] {
		t.Errorf("the container's own group was changed: %v", is)
	}
	const figures = `: .*\(at least .* counts`
	for name, all := range map[string][]string{
		"victim": {`Disturbed: cpu: disturbed by default/hog/a` + figures, `NeighbourSlowed: cpu: default/hog/a is slowed \(.* has CPU weight 1\)` + figures},
		"hog":    {`Disturbs: cpu: disturbs default/victim/a` + figures, `Slowed: cpu: slowed for default/victim/a \(.* has CPU weight 1\)` + figures},
	} {
		for _, want := range all {
			if err := within(func() error {
				if text := c.events(name); !regexp.MustCompile(want).MatchString(text) {
					return fmt.Errorf("no event of %s is like %q:\n%s", name, want, text)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("events of the victim:\n%sof the hog:\n%s", c.events("victim"), c.events("hog"))
	end()
	if err := changed(t, before, groups...); err != nil {
		t.Errorf("after the end of the guard: %v", err)
	}
}

// What the kubelet writes again and again (here as the pod is resized) is left to it.
func TestGuardYields(t *testing.T) {
	c := theNode(t)
	_, hog := c.troubled(t)
	from, end := len(c.plugin.Output()), c.guarded(t)
	file, least := weighing()
	weight := filepath.Join(withCPU(filepath.Dir(hog)), file)
	milli, resized := int64(1000), time.Time{}
	c.disturbed(t, func() error {
		said := c.plugin.Output()[from:]
		has := func(outcome string) bool { return strings.Contains(said, `text="`+outcome+` weight `) }
		switch is := readText(t, weight); {
		case has("yielded"):
			return nil
		case has("reverted"): // on a busy host it may not have seen that it helps
			end()
			from, end = len(c.plugin.Output()), c.guarded(t)
		// Not while it judges the remedy, nor while a trial has lifted it.
		case (has("kept") || has("undecided")) && is == least && time.Since(resized) > 2*time.Second:
			milli, resized = 1900-milli, time.Now()
			c.ask(t, "hog", "a", milli, false)
		}
		return errors.New("the guard has not left the weight to the kubelet")
	})
	is := readText(t, weight)
	if is == least {
		t.Errorf("the weight that is the kubelet's now is %s", is)
	}
	c.says(t, "hog", "Released: cpu: no longer slowed for default/victim/a")
	end()
	if now := readText(t, weight); now != is {
		t.Errorf("after the end of the guard the weight is %s, before %s", now, is)
	}
}

// Without an agent, and by files of this node alone, diagnose names the pod that disturbs.
func TestDiagnose(t *testing.T) {
	c := theNode(t)
	c.troubled(t)
	c.plugin.End(syscall.SIGTERM)
	connects := c.connects()
	t.Cleanup(func() {
		if err := errors.Join(c.plugin.Start(), c.connected(connects)); err != nil {
			t.Error(err)
		}
	})
	var said string
	c.disturbed(t, func() error {
		cmd := exec.Command(filepath.Join(os.Getenv(builtEnv), "berth-node"), "diagnose", "default/victim", "--for", "10s", "-o", "json")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		said = out.String()
		var d struct {
			Findings []struct {
				Victim   string            `json:"victim"`
				Suspect  string            `json:"suspect"`
				Resource string            `json:"resource"`
				Evidence []json.RawMessage `json:"evidence"`
			} `json:"findings"`
		}
		if json.Unmarshal(out.Bytes(), &d) != nil {
			return fmt.Errorf("diagnose: %w\n%s", err, &errs)
		}
		for _, f := range d.Findings {
			if strings.HasPrefix(f.Victim, "default/victim") && f.Suspect == "default/hog/a" && f.Resource == "cpu" && len(f.Evidence) > 0 {
				return nil
			}
		}
		return fmt.Errorf("diagnose does not name the pod that disturbs:\n%s", said)
	})
	t.Log(said)
}
