package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kube/e2e/nodekit"
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
	for i, field := range strings.Fields(line)[1:9] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			t.Fatal(err)
		}
		n *= 0.01
		if all += n; i != 3 && i != 4 { // idle, and waiting for disks
			took += n
		}
	}
	return took - usedBy(t, filepath.Dir(pods())+"/"), all
}

// usedBy is the CPU time that a group has used, in seconds.
func usedBy(t *testing.T, group string) float64 {
	t.Helper()
	text, unit := "", 1e-9
	if file := in("cpuacct", group); file != group {
		text = readText(t, filepath.Join(file, "cpuacct.usage"))
	} else {
		text, unit = strings.Fields(readText(t, filepath.Join(group, "cpu.stat")))[1], 1e-6
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * unit
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

// suppression is a limit of all best-effort work, and what it was computed from, in CPUs. Without a limit it was
// taken away.
type suppression struct{ limit, others, system float64 }

var suppressions = regexp.MustCompile(`text="(applied|reverted) headroom_cap \S*besteffort: ([0-9.]+) CPUs(?:; others use ([0-9.]+) CPUs, the system ([0-9.]+))?`)

// suppressed are the limits that the plugin has set since its output had a length.
func (c *cluster) suppressed(t *testing.T, since int) (all []suppression) {
	t.Helper()
	for _, step := range suppressions.FindAllStringSubmatch(c.plugin.Output()[since:], -1) {
		var is suppression
		for i, to := range []*float64{&is.limit, &is.others, &is.system} {
			var err error
			if *to, err = strconv.ParseFloat(step[i+2], 64); err != nil && step[1] == "applied" {
				t.Fatalf("%s: %v", step[0], err)
			}
		}
		if step[1] == "reverted" {
			is = suppression{}
		}
		all = append(all, is)
	}
	return all
}

// byFormula checks that limits follow from their figures by Koordinator's formula with a threshold of 90 % (its 65 %
// leave nothing on a busy host), within Berth's floor, and rise by a tenth of the node at most.
func byFormula(t *testing.T, all []suppression) {
	t.Helper()
	cpus, last := float64(online(t).Len()), 0.0
	for _, is := range all {
		want := max(0.9*cpus-is.others-is.system, 0.05*cpus, 0.1)
		if last > 0 {
			want = min(want, last+0.1*cpus)
		}
		const rounded = 0.021 // figures have two digits after the point
		if math.Abs(is.limit-want) > rounded && is != (suppression{}) {
			t.Errorf("after a limit of %.2f CPUs: %+v, want %.2f", last, is, want)
		}
		last = is.limit
	}
}

// quotaOf is the limit of a group in CPUs, 0 for none.
func quotaOf(t *testing.T, group string) float64 {
	t.Helper()
	var words []string
	if _, err := os.Stat(filepath.Join(withCPU(group), "cpu.max")); err == nil {
		words = strings.Fields(readText(t, filepath.Join(withCPU(group), "cpu.max")))
	} else {
		for _, name := range []string{"cpu.cfs_quota_us", "cpu.cfs_period_us"} {
			words = append(words, readText(t, filepath.Join(withCPU(group), name)))
		}
	}
	quota, none := strconv.ParseFloat(words[0], 64)
	period, err := strconv.ParseFloat(words[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	if none != nil || quota < 0 {
		return 0
	}
	return quota / period
}

// All best-effort pods together have what Koordinator's formula leaves of the node, and less once others use more.
// Meanwhile the kubelet starts and ends pods among them, and leaves the limit. It goes with the guard.
func TestSuppression(t *testing.T) {
	c := theNode(t)
	bestEffort := func(name string, args ...string) *v1.Pod {
		return pod(name, v1.Container{Name: "a", Image: nodekit.Image, ImagePullPolicy: v1.PullIfNotPresent, Args: args})
	}
	c.run(t, bestEffort("batch", "4", "1"))
	group, err := c.group("batch", "a")
	if err != nil {
		t.Fatal(err)
	}
	class := filepath.Dir(filepath.Dir(group))
	before := settings(t, class)
	file := filepath.Join(state, "suppression.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\nguard: {mode: enforce, suppression: {by: quota, threshold: 90}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	since := len(c.plugin.Output())
	end := c.with(t, append(server(), "--config", file)...)
	holds := func(when string, as func(suppression) bool) (last suppression) {
		t.Helper()
		if err := within(func() error {
			last = suppression{}
			if all := c.suppressed(t, since); len(all) > 0 {
				last = all[len(all)-1]
			}
			if is := quotaOf(t, class); last.limit == 0 || math.Abs(is-last.limit) > 0.006 || !as(last) {
				return fmt.Errorf("%s best effort has %.3f CPUs, the guard says %+v", when, is, last)
			}
			return nil
		}); err != nil {
			t.Errorf("%v\nthe plugin:\n%s", err, c.plugin.Tail(20))
		}
		t.Logf("%s: %.2f CPUs, as others use %.2f and the system %.2f", when, last.limit, last.others, last.system)
		return last
	}
	first := holds("at first", func(suppression) bool { return true })
	used, began := usedBy(t, class), time.Now()
	time.Sleep(2 * time.Second) // in which it would take all CPUs
	use, most := (usedBy(t, class)-used)/time.Since(began).Seconds(), first.limit
	for _, is := range c.suppressed(t, since) {
		most = max(most, is.limit)
	}
	if use > 1.3*most+0.05 {
		t.Errorf("best effort uses %.2f CPUs, and has %.2f at most", use, most)
	}
	work := burstable("a", 100)
	work.Args = []string{"1", "0.4"}
	c.run(t, pod("working", work))
	least := max(0.05*float64(online(t).Len()), 0.1) + 0.01
	holds("beside a pod that works", func(s suppression) bool { return s.others > first.others+0.2 || s.limit < least })
	c.run(t, bestEffort("more"))
	if err := c.up("kubelet"); err != nil {
		t.Error(err)
	}
	holds("beside a new pod of its own", func(suppression) bool { return true })
	c.remove(t, "more")
	holds("after that has ended", func(suppression) bool { return true })
	byFormula(t, c.suppressed(t, since))
	end()
	if err := changed(t, before, class); err != nil {
		t.Errorf("after the end of the guard: %v", err)
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
