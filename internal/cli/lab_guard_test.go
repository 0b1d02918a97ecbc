package cli

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/guard"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/lab"
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

// The short form measures, stores what can be shown again, and leaves nothing behind.
func TestLabGuardForReal(t *testing.T) {
	r := startLab(t, "guard", "--short")
	err := r.cmd.Wait()
	if strings.Contains(r.output.String(), "not supported") {
		t.Skip("this host cannot: ", r.output.String())
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, &r.output)
	}
	files, _ := filepath.Glob(filepath.Join(r.results, "*", lab.ResultFile))
	if len(files) != 1 {
		t.Fatalf("%d result files\n%s", len(files), &r.output)
	}
	result, err := guarded.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if !result.Complete || len(result.Runs) != 2 {
		t.Errorf("complete %v, %d runs", result.Complete, len(result.Runs))
	}
	for _, run := range result.Runs {
		if len(run.Bins) == 0 || run.Windows == 0 || len(run.Changed) > 0 {
			t.Errorf("%s: %d bins, %d windows, not as before: %q", run.Fault, len(run.Bins), run.Windows, run.Changed)
		}
		if run.Fault == guarded.Hog && run.NeighbourCPUs <= 0 {
			t.Errorf("the hog used no CPU time")
		}
	}
	if stdout, stderr, code := berth(t, "lab", "guard", "--show", files[0]); code != exitOK || !strings.Contains(stdout, "hog 1:") {
		t.Errorf("shown again: exit %d, %s", code, stderr)
	}
	expectNothingLeft(t, r.cmd.Process.Pid)
}

// A neighbour that reads the lab's own disk is named for who reads it, too.
func TestLabGuardForRealIO(t *testing.T) {
	r := startLab(t, "guard", "--faults", "io", "--runs", "1", "--blocks", "0", "--max-others", "1")
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
	result, err := guarded.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	run := result.Runs[0]
	if !slices.ContainsFunc(run.Findings, func(f guarded.Finding) bool {
		return f.Resource == detect.IO && f.Suspect == lab.Neighbour && f.At > 0 && f.At <= run.End
	}) {
		t.Errorf("the neighbour was not named over I/O: %+v", run.Findings)
	}
	expectNothingLeft(t, r.cmd.Process.Pid)
}
