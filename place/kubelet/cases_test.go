package kubelet

import (
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/placetest"
	"berth.dev/berth/place"
)

// folder reads the cases folder.
func folder(t *testing.T) *placetest.Folder {
	t.Helper()
	f, err := placetest.ReadFolder("../testdata/cases")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func topology(t *testing.T, f *placetest.Folder, name string) *place.Topology {
	t.Helper()
	m, err := f.Machine(name)
	if err != nil {
		t.Fatal(err)
	}
	topo, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// suite runs every case of a suite. run returns what is wrong with the answer,
// "" if nothing. Cases in known, with the reason, must fail: one that passes is
// to be struck off the list.
func suite[C any](t *testing.T, name string, known map[string]string, run func(t *testing.T, f *placetest.Folder, c *C) string) {
	t.Helper()
	f := folder(t)
	cases := f.Cases(name)
	passed := 0
	for i := range cases {
		var c C
		if err := cases[i].Decode(&c); err != nil {
			t.Fatal(err)
		}
		wrong := run(t, f, &c)
		reason, expected := known[cases[i].ID]
		switch {
		case wrong == "" && expected:
			t.Errorf("case %s passes, but is listed as known not to: %s", cases[i].ID, reason)
		case wrong == "":
			passed++
		case !expected:
			t.Errorf("case %s: %s", cases[i].ID, wrong)
		}
	}
	t.Logf("%s: %d of %d cases passed", name, passed, len(cases))
}

// TestSuites finds suites that no test here runs.
func TestSuites(t *testing.T) {
	t.Parallel()
	run := []string{
		"kubelet-take", "kubelet-allocate", "kubelet-state", "kubelet-merge", "kubelet-compare", "kubelet-hints",
		"kubelet-wrong", "kubelet-podscope", "kubelet-memory-device",
	}
	for _, name := range folder(t).Suites() {
		if len(name) > 8 && name[:8] == "kubelet-" && !slices.Contains(run, name) {
			t.Errorf("suite %s is not run", name)
		}
	}
}

// header are the fields that a case may have besides those of its suite.
type header struct {
	ID    string
	Note  string
	Quirk string `json:"upstreamQuirk"`
}

type takeWant struct {
	CPUs  *cpuset.Set
	Error string
}

type takeCase struct {
	header
	Machine   string
	Available cpuset.Set
	CPUs      int
	Strategy  string
	Group     int
	Options   []string
	NUMA      *cpuset.Set
	Want      takeWant
	Steps     []struct {
		CPUs int
		Want takeWant
	}
	WantL3 *cpuset.Set
}

func (c *takeCase) taker(t *place.Topology) *taker {
	return &taker{
		Policy: Policy{
			DistributeAcrossCores: c.Strategy == "spread", DistributeAcrossNUMA: c.Strategy == "distributed",
			PreferAlignByUncoreCache: slices.Contains(c.Options, "uncore"), AlignBySocket: slices.Contains(c.Options, "align-by-socket"),
		},
		t: t, group: max(1, c.Group),
	}
}
