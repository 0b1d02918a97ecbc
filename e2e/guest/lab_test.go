package guest

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab"
)

// TestLab runs a short experiment. What it finds out means nothing in a guest, but
// the result is complete, the knobs are those of its scenarios, and all is as before.
func TestLab(t *testing.T) {
	onlyOn(t, "virtual4")
	onlyThorough(t)
	h := newHost(t)
	before := h.settings()
	results := t.TempDir()
	_, exit := berth(t, "lab", "isolation", "--rounds", "1", "--duration", "1s", "--settle", "100ms", "--scenario", "weighted,idle",
		"--cpus", "0-1", "--neighbour-threads", "1", "--rate", "10", "--service-time", "1ms", "--working-set", "65536", "--results", results)
	if exit != 0 {
		t.Fatalf("exit status %d", exit)
	}
	files, err := filepath.Glob(filepath.Join(results, "*", lab.ResultFile))
	if err != nil || len(files) != 1 {
		t.Fatalf("result files %v, %v", files, err)
	}
	result, err := lab.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Analyse(result); err != nil || !result.Complete || len(result.Rounds) != 4 {
		t.Errorf("%d rounds, complete %v, %v", len(result.Rounds), result.Complete, err)
	}
	want := map[string]lab.Knob{
		"weighted": {Of: "neighbour", File: "cpu.weight", Value: "10"},
		"idle":     {Of: "neighbour", File: "cpu.idle", Value: "1"},
	}
	for _, round := range result.Rounds {
		t.Logf("%s: offered %d, done %d, failed %d; %s", round.Scenario, round.Load.Offered, round.Load.Done, round.Load.Failed, round.Invalid)
		if round.Load.Offered == 0 || round.Load.Done == 0 || round.Load.Failed > 0 {
			t.Errorf("%s: %+v", round.Scenario, round.Load)
		}
		for _, knob := range round.Knobs {
			if knob == want[round.Scenario] {
				delete(want, round.Scenario)
			}
		}
	}
	for scenario, knob := range want {
		t.Errorf("%s: no %+v was read back", scenario, knob)
	}
	if text, exit := berth(t, "lab", "report", files[0]); exit != 0 || text == "" {
		t.Errorf("berth lab report: exit status %d, %q", exit, text)
	}
	if diff := cmp.Diff(before, h.settings()); diff != "" {
		t.Errorf("after the lab (-before +after):\n%s", diff)
	}
}

// TestLabResources says what the strategies about memory would write, on a kernel that has
// all of them.
func TestLabResources(t *testing.T) {
	onlyThorough(t)
	h := newHost(t)
	before := h.settings()
	text, exit := berth(t, "lab", "--resource", "memory", "--working-set", "1048576", "--dry-run", "-o", "json")
	var plan lab.Preview
	if err := json.Unmarshal([]byte(text), &plan); err != nil || exit != 0 {
		t.Fatalf("exit status %d, %v: %s", exit, err, text)
	}
	for scenario, want := range map[string]string{
		"memory-max": "neighbour/memory.max", "memory-high": "neighbour/memory.high", "memory-low": "tenant/memory.low",
	} {
		if !strings.Contains(plan.Writes[scenario], want) {
			t.Errorf("%s writes %q, want %s in it", scenario, plan.Writes[scenario], want)
		}
	}
	if len(plan.Skipped) > 0 {
		t.Errorf("skipped: %+v", plan.Skipped)
	}
	if diff := cmp.Diff(before, h.settings()); diff != "" {
		t.Errorf("after the preview (-before +after):\n%s", diff)
	}
}
