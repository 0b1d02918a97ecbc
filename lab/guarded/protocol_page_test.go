package guarded

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
)

// golden compares with a file of testdata, which -update writes.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// The page of a protocol is a file, its plots and all: of arms that helped little, well and not at
// all, with an innocent that was named, an onset in which nobody was, and a quadruplet that does not
// count.
func TestProtocolPage(t *testing.T) {
	t.Parallel()
	r := madeUp(shortProtocol(), 3, map[string]float64{Guarded: 1.5, NoGuard: 20, Hand: 1.2, Blame: 2})
	r.Header = fake().Header
	r.Skipped, r.Schema = nil, ProtocolSchema
	onset := 0
	for i := range r.Quadruplets {
		q := &r.Quadruplets[i]
		q.Started = r.Started.Add(time.Duration(i) * 13 * time.Second)
		if q.Arm != Guarded {
			continue
		}
		for n := range q.Periods {
			p := &q.Periods[n]
			if p.Arm == Alone {
				continue
			}
			switch onset++; onset {
			case 1: // nobody is named
			case 2:
				p.Findings = []Finding{found(0.3, detect.CPU, lab.Bystander)}
			default:
				p.Findings = []Finding{found(0.3, detect.CPU, lab.Neighbour)}
			}
		}
	}
	for b := 25; b < 60; b++ {
		r.Quadruplets[1].Machine[b].Steal = 0.01
	}
	var got bytes.Buffer
	if err := report.HTML(&got, ProtocolSheet(r, AnalyseProtocol(r))); err != nil {
		t.Fatal(err)
	}
	golden(t, "protocol.html", got.Bytes())
	// What the file must show, whoever wrote it last.
	for _, what := range []string{
		">1.5", "of 24 onsets", "does not count: ",
		`id="ratios`, `id="faults`, `id="spreads`, `id="confusion`, `id="meanwhile`,
	} {
		if !strings.Contains(got.String(), what) {
			t.Errorf("the page lacks %q", what)
		}
	}
}
