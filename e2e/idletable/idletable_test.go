package idletable

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	row := Row{Kernel: "6.12", CPUs: 2, Workers: 8, Case: Idle, Seed: 3, Requests: 1500, P50: 1.25, P99: 4.5, Tenant: 1.2, Neighbour: 0.75}
	got, err := Parse(Header + "\n" + row.CSV() + "\n\n")
	if err != nil || len(got) != 1 || got[0] != row {
		t.Errorf("%+v, %v, want %+v", got, err, row)
	}
	for _, bad := range []string{"6.12,2", strings.Replace(row.CSV(), "4.500", "x", 1), row.CSV() + ",1"} {
		if rows, err := Parse(bad); err == nil {
			t.Errorf("%q is read: %+v", bad, rows)
		}
	}
}

// What was measured anew takes the place of all rows of its kernel and CPUs, and of no others.
func TestReplace(t *testing.T) {
	t.Parallel()
	stored := []Row{{Kernel: "6.1", CPUs: 2, Seed: 1}, {Kernel: "6.1", CPUs: 4, Seed: 1}, {Kernel: "6.1", CPUs: 4, Seed: 2}, {Kernel: "7.3", CPUs: 4, Seed: 1}}
	measured := []Row{{Kernel: "6.1", CPUs: 4, Seed: 1, P99: 3}}
	want := []Row{stored[0], stored[3], measured[0]}
	if got := Replace(stored, measured); !slices.Equal(got, want) || stored[1].CPUs != 4 || stored[3].Kernel != "7.3" {
		t.Errorf("%v, want %v; stored is %v", got, want, stored)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := Row{Case: Idle, Requests: 1500, P50: 1, P99: 4, Neighbour: 0.5}
	for name, tt := range map[string]struct {
		change func(*Row)
		ok     bool
	}{
		"good":                {func(*Row) {}, true},
		"few requests":        {func(r *Row) { r.Requests = 99 }, false},
		"no times":            {func(r *Row) { r.P50, r.P99 = 0, 0 }, false},
		"upside down":         {func(r *Row) { r.P99 = 0.5 }, false},
		"nobody beside":       {func(r *Row) { r.Neighbour = 0 }, false},
		"alone":               {func(r *Row) { r.Case, r.Neighbour = Alone, 0 }, true},
		"alone, not frozen":   {func(r *Row) { r.Case = Alone }, false},
		"spread, no CPU left": {func(r *Row) { r.Case, r.Neighbour = Spread, 0.01 }, false},
	} {
		r := good
		tt.change(&r)
		if err := Check([]Row{good, r}); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A case is compared with the tenant alone under the same schedule, not with another's.
func TestTable(t *testing.T) {
	t.Parallel()
	var rows []Row
	for seed := range 6 {
		p99 := 2.0 + float64(seed)
		rows = append(rows,
			Row{Kernel: "6.12", CPUs: 2, Workers: 8, Case: Alone, Seed: seed, P99: 1},
			Row{Kernel: "6.12", CPUs: 2, Workers: 8, Case: Idle, Seed: seed, P99: 2, Neighbour: 0.7},
			Row{Kernel: "6.1", CPUs: 2, Workers: 8, Case: Alone, Seed: seed, P99: p99},
			Row{Kernel: "6.1", CPUs: 2, Workers: 8, Case: Idle, Seed: seed, P99: (3 + float64(seed%2)) * p99, Neighbour: 0.7})
	}
	rows = append(rows, Row{Kernel: "6.1", CPUs: 2, Workers: 8, Case: Idle, Seed: 9, P99: 1000}) // never alone
	want := "| 2 | idle | 8 | 6.1 | 6 | 4.50 | 3.50 [3.00, 4.00] | 0.70 |\n| 2 | idle | 8 | 6.12 | 6 | 1.00 | 2.00 [2.00, 2.00] | 0.70 |"
	if got := Table(rows); !strings.HasSuffix(strings.TrimSpace(got), want) {
		t.Errorf("%s, want its end to be\n%s", got, want)
	}
}

// The page has the table of the stored rows.
func TestPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/measurements/results/idle-by-kernel.csv")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(rows); err != nil {
		t.Error(err)
	}
	page, err := os.ReadFile("../../docs/measurements/idle-by-kernel.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := Table(rows); !strings.Contains(string(page), table) {
		t.Errorf("docs/measurements/idle-by-kernel.md lacks this table:\n%s", table)
	}
}
