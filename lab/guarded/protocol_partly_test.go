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
	soon, late := []float64{0, 2, 5, math.Inf(1)}, [3]struct{ tenant, neighbour []float64 }{}
	for _, name := range []string{"guard-truths-quarter", "guard-truths-again"} {
		r, err := ReadProtocolFile(docs + "results/" + name + ".json.gz")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range AnalyseProtocol(r).onsetsOf(Guarded) {
			if o.q.fault.Name != Partly {
				continue
			}
			reaction, use := math.MaxFloat64, o.q.of.Periods[o.n].Use
			if o.judged.Reaction != nil {
				reaction = *o.judged.Reaction
			}
			at := slices.IndexFunc(soon, func(limit float64) bool { return reaction <= limit }) - 1
			late[at].tenant = append(late[at].tenant, use.Tenant/use.Seconds)
			late[at].neighbour = append(late[at].neighbour, use.Neighbour/use.Seconds)
		}
	}
	for i, when := range []string{"within 2 s", "after 4 to 5 s", "never"} {
		slices.Sort(late[i].tenant)
		slices.Sort(late[i].neighbour)
		row := fmt.Sprintf("| %s | %d | %s | %s |\n", when, len(late[i].tenant), fromTo("%.2f", late[i].tenant), fromTo("%.2f", late[i].neighbour))
		if !strings.Contains(string(text), row) {
			t.Errorf("partly.md lacks this row:\n%s", row)
		}
	}
}
