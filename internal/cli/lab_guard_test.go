package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/catalog"
	"berth.dev/berth/lab/guarded"
)

func TestLabGuardFlags(t *testing.T) {
	t.Parallel()
	cmd := labGuardCommand()
	var f labGuardFlags
	for flag, value := range map[string]string{"faults": "hog", "runs": "3", "probe": "false"} {
		if err := cmd.Flags().Set(flag, value); err != nil {
			t.Fatal(err)
		}
	}
	e, err := f.build(cmd)
	if err != nil {
		t.Fatal(err)
	}
	want := guarded.Default()
	if !slices.Equal(e.Faults, []string{guarded.Hog}) || e.Runs != 3 || e.Probe != guard.ProbeNever || e.Blocks != want.Blocks || e.Learn != want.Learn {
		t.Errorf("got %+v", e)
	}
}

func TestLabGuardHelp(t *testing.T) {
	t.Parallel()
	stdout, _, code := berth(t, "lab", "guard", "--help")
	for _, want := range append(guarded.FaultNames(), "own_limit", "no group suspected", "Exit status") {
		if code != exitOK || !strings.Contains(stdout, want) {
			t.Errorf("help (exit %d) lacks %q", code, want)
		}
	}
}

// measureGuard has berth lab guard measure for real. It returns the file that was stored, and what is in it.
// All is as before then, and nothing else is left behind.
func measureGuard(t *testing.T, args ...string) (file string, result *guarded.Result) {
	t.Helper()
	r := startLab(t, append([]string{"guard"}, args...)...)
	err := r.cmd.Wait()
	if out := r.output.String(); strings.Contains(out, "can have none of the faults") || strings.Contains(out, "not supported") {
		t.Skip("this host cannot: ", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, &r.output)
	}
	files, _ := filepath.Glob(filepath.Join(r.results, "*", lab.ResultFile))
	if len(files) != 1 {
		t.Fatalf("%d result files\n%s", len(files), &r.output)
	}
	if result, err = guarded.ReadFile(files[0]); err != nil {
		t.Fatal(err)
	}
	for _, run := range result.Runs {
		if len(run.Changed) > 0 {
			t.Errorf("%s: not as before: %q", run.Fault, run.Changed)
		}
	}
	expectNothingLeft(t, r.cmd.Process.Pid)
	return files[0], result
}

// The short form measures, and stores what can be shown again. Against the hog the guard does all that it is
// for, in one of six runs at least: in a single one the rest of the host may be in the way.
func TestLabGuardForReal(t *testing.T) {
	file, result := measureGuard(t, "--short")
	if !result.Complete || len(result.Runs) != 2 {
		t.Errorf("complete %v, %d runs", result.Complete, len(result.Runs))
	}
	for _, run := range result.Runs {
		if len(run.Bins) == 0 || run.Windows == 0 {
			t.Errorf("%s: %d bins, %d windows", run.Fault, len(run.Bins), run.Windows)
		}
		if run.Fault == guarded.Hog && run.NeighbourCPUs <= 0 {
			t.Errorf("the hog used no CPU time")
		}
	}
	if stdout, stderr, code := berth(t, "lab", "guard", "--show", file); code != exitOK || !strings.Contains(stdout, "hog 1:") {
		t.Errorf("shown again: exit %d, %s", code, stderr)
	}
	for range 5 {
		if didAll(t, result) {
			return
		}
		_, result = measureGuard(t, "--short", "--faults", guarded.Hog, "--last", "8s")
	}
	if !didAll(t, result) {
		t.Error("in none of six runs the guard did all that it is for")
	}
}

// didAll reports whether the guard has named the hog, acted on it, seen that this helps, and given back what it
// took.
func didAll(t *testing.T, result *guarded.Result) bool {
	t.Helper()
	a, err := guarded.Analyse(result)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(result.Runs, func(run guarded.Trial) bool { return run.Fault == guarded.Hog })
	if i < 0 {
		t.Fatal("no run of the hog")
	}
	run, judged := &result.Runs[i], &a.Runs[i]
	told := func(outcomes ...control.Outcome) bool {
		return slices.ContainsFunc(run.Events, func(e guarded.Event) bool {
			return e.Action != nil && e.Action.Suspect == lab.Neighbour && slices.Contains(outcomes, e.Outcome)
		})
	}
	named, acted := judged.Detected != nil, judged.Acted != nil
	helped, back := told(control.Kept), told(control.Reverted, control.Relaxed)
	if !named || !acted || !helped || !back {
		t.Logf("named %v (%s), acted %v, helped %v, given back %v; others took %.0f %% of the CPUs", named, judged.Named, acted, helped, back, 100*run.Others)
		for _, e := range run.Events {
			t.Logf("%.1f s: %s", e.At, e.Words)
		}
		return false
	}
	return true
}

// A neighbour that reads the lab's own disk is named for who reads it, too.
func TestLabGuardForRealIO(t *testing.T) {
	_, result := measureGuard(t, "--faults", "io", "--runs", "1", "--blocks", "0", "--max-others", "1")
	run := result.Runs[0]
	if !slices.ContainsFunc(run.Findings, func(f guarded.Finding) bool {
		return f.Resource == detect.IO && f.Suspect == lab.Neighbour && f.At > 0 && f.At <= run.End
	}) {
		t.Errorf("the neighbour was not named over I/O: %+v", run.Findings)
	}
}

// A protocol states what is run: flags that would change that are refused, and so is another kind,
// before anything is measured.
func TestLabGuardProtocolRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"--demand: a protocol states what is run", []string{"--protocol", "--demand", "0.2"}},
		{"it is of kind isolation: want guard-protocol", []string{"--protocol", file("a.yaml", "kind: isolation\n")}},
		{`washot: unknown field; did you mean "washout"?`, []string{"--protocol", file("b.yaml", "kind: guard-protocol\nwashot: 1s\n")}},
		{`arm "gaurded": not one of guarded, unguarded, hand, blame, placebo; did you mean "guarded"?`, []string{"--protocol=" + file("c.yaml", "kind: guard-protocol\nquadruplets: [{arm: gaurded, fault: hog}]\n")}},
		{"no such file", []string{"--protocol", "./none.yaml"}},
		{"accepts 0 arg(s)", []string{"none.yaml"}},
	} {
		_, stderr, code := berth(t, append([]string{"lab", "guard"}, tt.args...)...)
		if code != exitUsage || !strings.Contains(stderr, tt.want) {
			t.Errorf("%q: exit %d, %s; want %q", tt.args, code, stderr, tt.want)
		}
	}
}

// The protocols of the repository can be run.
func TestProtocolFiles(t *testing.T) {
	t.Parallel()
	read := func(name string) *guarded.Protocol {
		path := "../../docs/measurements/" + name
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		k, x, err := catalog.Parse(text, path)
		if err != nil || k.Name != shippedProtocol {
			t.Fatalf("%s: %s, %v", path, k.Name, err)
		}
		return &x.(*catalog.GuardProtocol).Experiment
	}
	// The probe rests for 30 s after a finding. All of it is to take 25 minutes at most.
	if p := read("guard-rested.yaml"); time.Duration(p.Rest) < 35*time.Second || p.Length() > 25*time.Minute || p.Probe != guard.ProbeNeeded || p.Window != 0 {
		t.Errorf("rest %s, length %s, probe %s, window %s", p.Rest, p.Length(), p.Probe, p.Window)
	}
	read("guard-truths-quarter.yaml")
	read("guard-truths-again.yaml")
	// 300 onsets of the guard at least, and every truth with the simplest guard as well.
	p := read("guard-truths.yaml")
	onsets, arms := 0, map[string][]string{}
	for _, q := range p.Quadruplets {
		if q.Arm == guarded.Guarded {
			onsets += 2 * p.Blocks
		}
		if q.Demand == 0 {
			arms[q.Arm] = append(arms[q.Arm], q.Fault)
		}
	}
	if onsets < 300 || !slices.Equal(arms[guarded.Guarded], arms[guarded.Blame]) || len(arms[guarded.Guarded]) < 10 {
		t.Errorf("%d onsets with the guard; arms %v", onsets, arms)
	}
}
