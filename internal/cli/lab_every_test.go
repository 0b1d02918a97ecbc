package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/catalog"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
)

// miniatures are the settings with which an experiment is over in seconds, by the name of its kind.
func miniatures() map[string][]string {
	rounds := []string{"blocks=2", "window=250ms", "settle=50ms"}
	beside := append([]string{"demand=0.1", "workingSetBytes=65536"}, rounds...)
	served := append([]string{"sample=2"}, rounds...)
	return map[string][]string{
		"quick": beside, "pinning": beside, "numa": beside, "smt": beside, "cache": beside, "power": beside,
		"isolation": rounds, "memory": rounds, "io": rounds, "net": rounds,
		"neighbours": append([]string{"tenants=[small]", "kernels=[spin]", "intensities=[50]", "programs=[]", "warm=50ms"}, rounds...),
		"benchmark": {
			"blocks=2", "settle=50ms", "tenant.service=program", "tenant.command=exec sleep 1000", "tenant.figures=json",
			`tenant.exec='sleep 0.1; echo ''{"p50": 200, "p99": 900, "throughput": 5000}'''`,
		},
		"guard":          {"faults=[hog]", "runs=3", "blocks=0", "learn=2s", "last=2s"},
		"guard-protocol": {"hypotheses=[]", "looks=[2]", "covariates=[]", "quadruplets=[{arm: guarded, fault: hog}, {arm: placebo}]", "blocks=2", "period=2s", "washout=500ms", "learn=2s"},
		"colocate":       append([]string{"service=article"}, rounds...),
		"limits":         served, "limits-noise": served, "routing": served,
		"limits-ramp": append([]string{"loads=[{clientsPerCPU: 1, tiles: small}]"}, served...),
		"services":    {"blocks=1", "window=500ms", "settle=50ms"},
	}
}

// Every experiment has a miniature that is valid and short, on a small machine and on a large one.
func TestMiniatures(t *testing.T) {
	t.Parallel()
	var machines []*machine.Machine
	for _, form := range []string{"1s2c", "2s4n4l8c2t"} {
		m := fakekernel.Short(t, form)
		machines = append(machines, m)
	}
	all := miniatures()
	for _, k := range catalog.Kinds() {
		x := k.New()
		if all[k.Name] == nil {
			t.Errorf("%s has no miniature", k.Name)
		}
		for _, set := range all[k.Name] {
			field, value, _ := strings.Cut(set, "=")
			if err := catalog.Set(x, field, value); err != nil {
				t.Errorf("%s: %s: %v", k.Name, set, err)
			}
		}
		if err := x.Validate(); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		if k.Name == "benchmark" { // how long one takes is found out
			continue
		}
		for _, m := range machines {
			if long := x.Length(m); long > time.Minute {
				t.Errorf("%s takes %s on %d CPUs", k.Name, long, m.Online.Len())
			}
		}
	}
}

// Every experiment that this machine has is killed while it is made ready, after its first round, and after a
// later one. Each time nothing is left, and what was finished is kept: in the end it is complete, and told as
// text, as JSON and as a page.
func TestEveryExperimentResumesForReal(t *testing.T) {
	if os.Getenv("BERTH_TEST_LAB") == "" {
		t.Skip("real runs take the machine for minutes: set BERTH_TEST_LAB=1")
	}
	m, err := sysfs.Live("/")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range catalog.Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			if err := k.Here(m); err != nil {
				t.Skip(err)
			}
			r := &killedRun{t: t}
			r.begin(k.Name, func() bool { return strings.Contains(r.said.String(), "calibrating: ") })
			if left, _ := filepath.Glob(filepath.Join(r.results, "*")); len(left) > 1 {
				t.Errorf("killed before a round: %q", left)
			}
			r.begin(k.Name, func() bool { return len(r.finished()) > 0 })
			first := r.finished()
			dir, resumed := filepath.Dir(r.file()), 1
			r.run([]string{"run", "--resume", dir}, func() bool { return len(r.finished()) > len(first) })
			second := r.finished()
			if len(second) <= len(first) {
				t.Fatalf("%d rounds, and %d when resumed\n%s", len(first), len(second), &r.said)
			}
			_, x, err := catalog.Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			if !x.Head().Complete { // a few rounds may all be over before this process has looked
				resumed++
				r.run([]string{"run", "--resume", dir}, nil)
			}
			for i, was := range second {
				if is := r.finished(); i >= len(is) || !bytes.Equal(was, is[i]) {
					t.Errorf("round %d is not what it was: %s", i+1, was)
				}
			}
			_, x, err = catalog.Load(dir)
			if err != nil || !x.Head().Complete || len(x.Head().Resumed) != resumed {
				t.Fatalf("%v, complete %v, resumed %v\n%s", err, x.Head().Complete, x.Head().Resumed, &r.said)
			}
			text, _, code := berth(t, "lab", "report", dir)
			if code != exitOK || !strings.Contains(text, "\ngenerator ") && k.Name != "benchmark" {
				t.Errorf("report: exit %d\n%s", code, text)
			}
			if doc, _, code := berth(t, "lab", "report", dir, "-o", "json"); code != exitOK || !json.Valid([]byte(doc)) {
				t.Errorf("as JSON: exit %d, %s", code, doc)
			}
			if page, _, code := berth(t, "lab", "report", dir, "-o", "html"); code != exitOK || !strings.Contains(page, "</html>") {
				t.Errorf("as a page: exit %d", code)
			}
			if _, stderr, code := berth(t, "lab", "run", "--resume", dir); code != exitUsage || !strings.Contains(stderr, "complete") {
				t.Errorf("resumed once more: exit %d, %s", code, stderr)
			}
		})
	}
}

// killedRun is a run of the lab in processes of their own, one after the other.
type killedRun struct {
	t       *testing.T
	results string
	said    safeBuffer
}

// file is the stored result; "" before there is one.
func (r *killedRun) file() string {
	files, _ := filepath.Glob(filepath.Join(r.results, "*", lab.ResultFile))
	if len(files) != 1 {
		return ""
	}
	return files[0]
}

// finished are the rounds, runs or quadruplets that the result has.
func (r *killedRun) finished() (all []json.RawMessage) {
	text, err := os.ReadFile(r.file())
	if err != nil {
		return nil
	}
	var stored struct{ Rounds, Runs, Quadruplets []json.RawMessage }
	if err := json.Unmarshal(text, &stored); err != nil {
		r.t.Fatalf("%s: %v", r.file(), err)
	}
	for _, raw := range append(append(stored.Rounds, stored.Runs...), stored.Quadruplets...) {
		var compact bytes.Buffer
		if err := json.Compact(&compact, raw); err != nil {
			r.t.Fatal(err)
		}
		all = append(all, compact.Bytes())
	}
	return all
}

// begin begins an experiment that is then killed. One that is over before this process has looked is begun anew.
func (r *killedRun) begin(kind string, when func() bool) {
	r.t.Helper()
	for range 5 {
		r.results = r.t.TempDir()
		args := []string{"run", kind, "--results", r.results}
		for _, set := range miniatures()[kind] {
			args = append(args, "--set", set)
		}
		if r.run(args, when) {
			return
		}
	}
	r.t.Fatalf("berth lab run %s has always ended before it was killed\n%s", kind, &r.said)
}

// run runs berth lab until it ends, or kills it when a condition holds, and restores what it left; killed says which.
// Either way none of its processes and groups is left.
func (r *killedRun) run(args []string, when func() bool) (killed bool) {
	r.t.Helper()
	r.said.Reset()
	cmd := exec.Command(os.Args[0], append([]string{"lab"}, args...)...)
	cmd.Env = append(os.Environ(), runsBerth+"=1")
	cmd.Stdout, cmd.Stderr = &r.said, &r.said
	if err := fork.Start(cmd); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.After(5 * time.Minute)
	for look := time.Tick(5 * time.Millisecond); ; {
		select {
		case <-look:
			if when != nil && when() {
				_ = cmd.Process.Kill()
				when = nil
			}
			continue
		case <-deadline:
			_ = cmd.Process.Kill()
			<-ended
			r.t.Fatalf("berth lab %q has not ended after 5 minutes\n%s", args, &r.said)
		case err := <-ended:
			exit, _ := errors.AsType[*exec.ExitError](err)
			killed = exit != nil && exit.Sys().(syscall.WaitStatus).Signaled()
			switch said := r.said.String(); {
			case killed:
			case err != nil && (strings.Contains(said, "not supported") || strings.Contains(said, "two would measure each other")):
				r.t.Skip("this host cannot: ", said)
			case err != nil:
				r.t.Fatalf("berth lab %q: %v\n%s", args, err, said)
			}
		}
		break
	}
	if killed {
		if _, stderr, code := berth(r.t, "restore"); code != exitOK {
			r.t.Errorf("restore: exit %d, %s", code, stderr)
		}
	}
	expectNothingLeft(r.t, cmd.Process.Pid)
	return killed
}

// safeBuffer is written and read at once.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *safeBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}
