package guest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/services"
)

// shop is three services in four placements, of which one cannot be told from another here.
const shop = `
kind: services
services:
- {name: web, cpu: 100us, workingSetBytes: 65536, steps: [[{to: cache, times: 2}, {to: db, share: 0.5}]]}
- {name: db, cpu: 50us, workingSetBytes: 16777216}
- {name: cache, cpu: 20us, workingSetBytes: 8388608}
placements:
- {name: no rule}
- {name: node, parts: 1, over: nodes}
- {name: split, parts: 2, over: nodes, first: [web, db]}
- {name: half, parts: 1, over: halves}
compare: []
rate: 2
blocks: 1
settle: 100ms
window: 5s
seed: 3
`

// sleepingCPUs keeps the lab from having idle CPUs poll, as it does on a virtual machine: all
// CPUs of an emulated guest take turns on one of the host, and those that poll take it from
// those that work.
func sleepingCPUs(t *testing.T) {
	t.Helper()
	const file, away = "/dev/cpu_dma_latency", "/dev/cpu_dma_latency.away"
	if err := os.Rename(file, away); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Rename(away, file); err != nil {
			t.Error(err)
		}
	})
}

// TestLabServices runs services that call each other on a machine of several memories. How long
// they take means nothing in a guest; where they stand and where their memory is does.
func TestLabServices(t *testing.T) {
	onlyOn(t, "2s4n")
	onlyThorough(t)
	sleepingCPUs(t)
	h := newHost(t)
	before := h.settings()
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte(shop), 0o600); err != nil {
		t.Fatal(err)
	}
	var x services.Experiment
	for range 4 { // how many requests a starved guest answers in a window is the host's affair: some at last
		if x = runShop(t, file); !slices.ContainsFunc(x.Served, unknown) {
			break
		}
	}
	if !x.Complete || len(x.Rounds) != 3 || len(x.Skipped) != 1 || !strings.Contains(x.Skipped[0].Reason, `the same as "node"`) {
		t.Fatalf("complete %v, %d rounds, skipped %+v", x.Complete, len(x.Rounds), x.Skipped)
	}
	sizes := map[string]int64{"web": 65536, "db": 16 << 20, "cache": 8 << 20}
	want := map[string]map[string]int{"node": {"web": 0, "db": 0, "cache": 0}, "split": {"web": 0, "db": 0, "cache": 1}}
	for i, served := range x.Served {
		t.Logf("%s: offered %d, done %d; %+v", served.Cell, x.Rounds[i].Load.Offered, x.Rounds[i].Load.Done, served.Services)
		if len(served.Services) != 3 {
			t.Errorf("%s: %+v", served.Cell, x.Rounds[i].Load)
		}
		if unknown(served) {
			t.Errorf("%s: where a service ran or has its memory is not known", served.Cell)
		}
		for _, s := range served.Services {
			node, ok := want[served.Cell][s.Name]
			if ok && (s.Bytes[node] < sizes[s.Name] || s.Ran[node] != 1) {
				t.Errorf("%s: %s ran on %v and has memory %v, want node %d", served.Cell, s.Name, s.Ran, s.Bytes, node)
			}
		}
	}
	if diff := cmp.Diff(before, h.settings()); diff != "" {
		t.Errorf("after the lab (-before +after):\n%s", diff)
	}
}

// unknown says of which round it is not known where each service ran and has its memory.
func unknown(served services.Served) bool {
	return slices.ContainsFunc(served.Services, func(s services.ServiceServed) bool { return len(s.Bytes) == 0 || len(s.Ran) == 0 })
}

// runShop runs the experiment of a file and returns its result.
func runShop(t *testing.T, file string) (x services.Experiment) {
	t.Helper()
	dir := t.TempDir()
	text, exit := berth(t, "lab", "run", file, "--results", dir)
	if exit != 0 {
		t.Fatalf("exit status %d", exit)
	}
	t.Log(text)
	files, err := filepath.Glob(filepath.Join(dir, "*", lab.ResultFile))
	if err != nil || len(files) != 1 {
		t.Fatalf("result files %v, %v", files, err)
	}
	if err := lab.Load(files[0], services.Schema, &x); err != nil {
		t.Fatal(err)
	}
	return x
}
