package guarded

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// The first table of docs/measurements/partly.md is that of the stored results: how much CPU time the service and its
// neighbour had, by how soon the guard acted.
func TestPartlyPage(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("reads results of megabytes")
	}
	const docs = "../../docs/measurements/"
	text, err := os.ReadFile(docs + "partly.md")
	if err != nil {
		t.Fatal(err)
	}
	all := []struct {
		when              string
		from, to          float64 // seconds until the guard acted
		tenant, neighbour []float64
	}{{when: "within 2 s", to: 2}, {when: "after 4 to 5 s", from: 4, to: 5}, {when: "never", from: math.Inf(1), to: math.Inf(1)}}
	for _, name := range []string{"guard-truths-quarter", "guard-truths-again"} {
		r, err := readProtocolFile(docs + "results/" + name + ".json.gz")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range AnalyseProtocol(r).onsetsOf(Guarded) {
			if o.q.fault.Name != Partly {
				continue
			}
			reaction, use := math.Inf(1), o.q.of.Periods[o.n].Use
			if o.judged.Reaction != nil {
				reaction = *o.judged.Reaction
			}
			known := false
			for i := range all {
				if row := &all[i]; row.from <= reaction && reaction <= row.to {
					known = true
					row.tenant = append(row.tenant, use.Tenant/use.Seconds)
					row.neighbour = append(row.neighbour, use.Neighbour/use.Seconds)
				}
			}
			if !known {
				t.Errorf("%s: the guard acted after %g s, which is in no row", name, reaction)
			}
		}
	}
	for _, of := range all {
		slices.Sort(of.tenant)
		slices.Sort(of.neighbour)
		row := fmt.Sprintf("| %s | %d | %s | %s |\n", of.when, len(of.tenant), fromTo("%.2f", of.tenant), fromTo("%.2f", of.neighbour))
		if !strings.Contains(string(text), row) {
			t.Errorf("partly.md lacks this row:\n%s", row)
		}
	}
}
