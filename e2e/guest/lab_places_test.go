package guest

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/beside"
	"berth.dev/berth/machine"
)

// runBeside runs an experiment of one tenant for a block of one slow round each.
func runBeside(t *testing.T, x *beside.Experiment, name string, set ...string) {
	t.Helper()
	dir := t.TempDir()
	args := []string{"lab", "run", name, "--results", dir}
	for _, s := range append([]string{"blocks=1", "window=3s", "settle=100ms", "rate=5", "demand=0.005", "seed=3"}, set...) {
		args = append(args, "--set", s)
	}
	text, exit := berth(t, args...)
	if exit != 0 {
		t.Fatalf("exit status %d", exit)
	}
	t.Log(text)
	files, err := filepath.Glob(filepath.Join(dir, "*", lab.ResultFile))
	if err != nil || len(files) != 1 {
		t.Fatalf("result files %v, %v", files, err)
	}
	if err := lab.Load(files[0], x.Schema, x); err != nil || !x.Complete || len(x.Skipped) > 0 {
		t.Fatalf("%v, complete %v, skipped %+v", err, x.Complete, x.Skipped)
	}
	for i := range x.Rounds {
		x.Rounds[i].Invalid = "" // on a busy host: its figures do not count, where the roles stood does
	}
}

// stood are the CPUs of a role in a cell, as read back.
func stood(t *testing.T, x *beside.Experiment, cell string, role lab.Role) cpuset.Set {
	t.Helper()
	set := lab.StoodOn(x.Rounds, cell, role)
	if set.IsEmpty() {
		t.Errorf("%s: where the %s stood is not known", cell, role)
	}
	return set
}

// TestLabNUMA has a service take its memory from its own node, from another one, and from two. How
// fast that is means nothing in a guest; where its pages are does.
func TestLabNUMA(t *testing.T) {
	onlyOn(t, "2s4n")
	onlyThorough(t)
	sleepingCPUs(t)
	h := newHost(t)
	before := h.settings()
	const articles = 48 << 20
	x := beside.NUMA()
	runBeside(t, x, "numa", "workingSetBytes=50331648")
	if len(x.Rounds) != 3 || len(x.Residency) != 3 {
		t.Fatalf("%d rounds, %d of which say where the memory was", len(x.Rounds), len(x.Residency))
	}
	for _, r := range x.Residency {
		there := int64(0)
		for node, bytes := range r.Bytes {
			if r.Wanted.Has(node) {
				there += bytes
			}
		}
		if there < articles || r.Wanted.Len() != map[string]int{"local": 1, "split": 2, "remote": 1}[r.Cell] {
			t.Errorf("%s: %v, asked for nodes %s", r.Cell, r.Bytes, r.Wanted)
		}
	}
	local, remote := stood(t, x, "local", lab.Tenant), stood(t, x, "remote", lab.Tenant)
	if local != remote || x.Residency[0].Wanted == x.Residency[1].Wanted && x.Residency[1].Wanted == x.Residency[2].Wanted {
		t.Errorf("local on CPUs %s, remote on %s: %+v", local, remote, x.Residency)
	}
	if diff := cmp.Diff(before, h.settings()); diff != "" {
		t.Errorf("after the lab (-before +after):\n%s", diff)
	}
}

// TestLabSMT has a neighbour on the sibling threads of a service's cores, and on other cores.
func TestLabSMT(t *testing.T) {
	onlyOn(t, "2s4n")
	onlyThorough(t)
	sleepingCPUs(t)
	h := newHost(t)
	before, siblings := h.settings(), map[int]int{}
	for _, core := range h.machine.ByKind(machine.Core) {
		if ids := core.CPUs.Slice(); len(ids) == 2 {
			siblings[ids[0]], siblings[ids[1]] = ids[1], ids[0]
		}
	}
	x := beside.SMT()
	runBeside(t, x, "smt", "workingSetBytes=65536")
	own := stood(t, x, "sibling idle", lab.Tenant)
	busy, others, both := stood(t, x, "sibling busy", lab.Neighbour), stood(t, x, "other cores", lab.Neighbour), stood(t, x, "both threads", lab.Tenant)
	var opposite []int
	for cpu := range own.All() {
		opposite = append(opposite, siblings[cpu])
	}
	if want := cpuset.MustOf(opposite...); busy != want || others.Overlaps(own.Union(want)) || both != own.Union(want) {
		t.Errorf("the service on %s, then beside %s, want %s; beside %s on other cores; at last on %s", own, busy, want, others, both)
	}
	if diff := cmp.Diff(before, h.settings()); diff != "" {
		t.Errorf("after the lab (-before +after):\n%s", diff)
	}
}
