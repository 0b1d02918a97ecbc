package guest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/beside"
	"berth.dev/berth/lab/catalog"
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

// TestLabPlaces runs the experiments of hardware that few machines have. What they find out
// means nothing in a guest, but who stands where does: as read back.
func TestLabPlaces(t *testing.T) {
	onlyOn(t, "2s4n")
	onlyThorough(t)
	h := newHost(t)
	before := h.settings()
	for _, kind := range []string{"numa", "smt"} {
		results := t.TempDir()
		args := []string{"lab", "run", kind, "--results", results, "--seed", "1"}
		for _, set := range []string{"blocks=1", "window=1s", "rate=10", "demand=0.01", "workingSetBytes=4194304", "for=10m", "neighbour.intensity=10"} {
			args = append(args, "--set", set)
		}
		out, exit := berth(t, args...)
		if exit != 0 {
			t.Fatalf("%s: exit status %d, %s", kind, exit, out)
		}
		files, err := filepath.Glob(filepath.Join(results, "*", lab.ResultFile))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s: result files %v, %v", kind, files, err)
		}
		_, loaded, err := catalog.Load(files[0])
		if err != nil {
			t.Fatal(err)
		}
		x := loaded.(*beside.Experiment)
		places := map[string]string{}
		for _, round := range x.Rounds {
			var at []string
			for _, k := range round.Knobs {
				if k.File == "cpuset.cpus" || k.File == "cpuset.mems" && kind == "numa" {
					at = append(at, fmt.Sprintf("%s %s=%s", k.Of, k.File, k.Value))
				}
			}
			places[round.Scenario] = strings.Join(at, " ")
		}
		text, _ := json.Marshal(places)
		t.Logf("%s: %s, skipped %v", kind, text, x.Skipped)
		if len(x.Skipped) > 0 || len(x.Rounds) < 3 {
			t.Errorf("%s: %d rounds, skipped %v", kind, len(x.Rounds), x.Skipped)
		}
		seen := map[string]string{}
		for cell, place := range places {
			if other, twice := seen[place]; twice && kind == "numa" {
				t.Errorf("%s and %s stand alike: %s", cell, other, place)
			}
			seen[place] = cell
		}
		for _, r := range x.Residency {
			there, all := int64(0), int64(0)
			for node, n := range r.Bytes {
				all += n
				if r.Wanted.Has(node) {
					there += n
				}
			}
			t.Logf("%s: %v of nodes %s", r.Cell, r.Bytes, r.Wanted)
			if r.Cell != "split" && (all == 0 || 2*there < all) {
				t.Errorf("%s: %d of %d bytes on nodes %s", r.Cell, there, all, r.Wanted)
			}
		}
		if kind == "numa" && len(x.Residency) != len(x.Rounds) {
			t.Errorf("residency of %d of %d rounds", len(x.Residency), len(x.Rounds))
		}
	}
	if diff := cmp.Diff(before, h.settings()); diff != "" {
		t.Errorf("after the lab (-before +after):\n%s", diff)
	}
}
