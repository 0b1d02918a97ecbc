// Package idletable has the rows of a measurement in guests, what cpu.idle leaves of a
// neighbour's harm by kernel, and makes the table of them.
package idletable

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/lab/stats"
)

// Env has the Ask of a guest, as JSON, and Mark begins each line of its output that has a Row.
const (
	Env  = "BERTH_TEST_P99"
	Mark = "p99,"
)

// The cases: what is done about a neighbour that spins on each CPU.
const (
	Alone  = "alone"     // it is frozen
	None   = "none"      // nothing
	Idle   = "idle"      // cpu.idle, also in those below
	Capped = "idle+cap"  // a quota that leaves 4 % of the CPUs to nobody
	OffOne = "idle-cpu0" // it may not use the first CPU
	Spread = "spread"    // each of the tenant's threads has one CPU only
)

// Ask is what a guest is to measure.
type Ask struct {
	// Seeds is how many schedules of requests there are; each meets all Cases.
	Seeds   int           `json:"seeds"`
	Workers []int         `json:"workers"`
	Cases   []string      `json:"cases"`
	Length  time.Duration `json:"length"`
}

// Row is a figure of one case under one schedule. Times are in milliseconds of the guest's
// clock, Tenant and Neighbour what they used, in CPUs.
type Row struct {
	Kernel            string
	CPUs, Workers     int
	Case              string
	Seed, Requests    int
	P50, P99          float64
	Tenant, Neighbour float64
}

// Header names the columns of CSV.
const Header = "kernel,cpus,workers,case,seed,requests,p50_ms,p99_ms,tenant_cpus,neighbour_cpus"

// CSV returns the row as a line of the columns of Header.
func (r Row) CSV() string {
	return fmt.Sprintf("%s,%d,%d,%s,%d,%d,%.3f,%.3f,%.3f,%.3f", r.Kernel, r.CPUs, r.Workers, r.Case, r.Seed, r.Requests, r.P50, r.P99, r.Tenant, r.Neighbour)
}

// Parse reads lines of CSV, with or without the Header.
func Parse(text string) (rows []Row, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line == Header {
			continue
		}
		fields := strings.Split(line, ",")
		if len(fields) != 10 {
			return nil, fmt.Errorf("row %q: %d columns, want 10", line, len(fields))
		}
		r := Row{Kernel: fields[0], Case: fields[3]}
		for i, to := range map[int]any{1: &r.CPUs, 2: &r.Workers, 4: &r.Seed, 5: &r.Requests, 6: &r.P50, 7: &r.P99, 8: &r.Tenant, 9: &r.Neighbour} {
			if _, err := fmt.Sscan(fields[i], to); err != nil {
				return nil, fmt.Errorf("row %q: column %d: %w", line, i+1, err)
			}
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// Replace returns rows stored before, without those of a kernel and number of CPUs that were measured
// anew, and then these.
func Replace(stored, measured []Row) []Row {
	return append(slices.DeleteFunc(slices.Clone(stored), func(old Row) bool {
		return slices.ContainsFunc(measured, func(r Row) bool { return r.Kernel == old.Kernel && r.CPUs == old.CPUs })
	}), measured...)
}

// Check reports rows that no table should have: a tenant that did not serve, a neighbour
// that had nothing to do with it.
func Check(rows []Row) error {
	var errs []error
	for _, r := range rows {
		switch {
		case r.Requests < 100 || !(r.P99 >= r.P50) || !(r.P50 > 0):
			errs = append(errs, fmt.Errorf("%s: too few requests, or no times", r.CSV()))
		case r.Case == Alone && r.Neighbour > 0.01:
			errs = append(errs, fmt.Errorf("%s: the neighbour is to be frozen", r.CSV()))
		case r.Case != Alone && r.Neighbour < 0.1:
			errs = append(errs, fmt.Errorf("%s: the neighbour has no CPU time", r.CSV()))
		}
	}
	return errors.Join(errs...)
}

// version is a kernel's, to sort by.
func version(kernel string) (numbers []int) {
	for part := range strings.SplitSeq(kernel, ".") {
		n, _ := strconv.Atoi(part)
		numbers = append(numbers, n)
	}
	return numbers
}

// Table is a table in Markdown: for each kernel, number of CPUs and of workers, and each case
// other than Alone, the p99 as a multiple of that of Alone under the same schedule, and what the
// neighbour used. The multiple is the median; its interval is from the least to the largest of the
// ratios, which has the true median in all but 2^(1-n) of cases: 97 % for six.
func Table(rows []Row) string {
	type cell struct {
		kernel        string
		cpus, workers int
		of            string
	}
	alone := map[cell]map[int]Row{}
	cells := map[cell][]Row{}
	for _, r := range rows {
		c := cell{r.Kernel, r.CPUs, r.Workers, r.Case}
		cells[c] = append(cells[c], r)
		if r.Case == Alone {
			if alone[c] == nil {
				alone[c] = map[int]Row{}
			}
			alone[c][r.Seed] = r
		}
	}
	var order []cell
	for c := range cells {
		if c.of != Alone {
			order = append(order, c)
		}
	}
	cases := []string{None, Idle, Capped, OffOne, Spread}
	slices.SortFunc(order, func(a, b cell) int {
		return cmp.Or(cmp.Compare(a.cpus, b.cpus), cmp.Compare(slices.Index(cases, a.of), slices.Index(cases, b.of)), cmp.Compare(a.workers, b.workers),
			slices.Compare(version(a.kernel), version(b.kernel)))
	})
	var out bytes.Buffer
	out.WriteString("| CPUs | case | workers | kernel | schedules | p99 alone, ms | p99 over alone | neighbour's CPUs |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range order {
		var ratios, before, used []float64
		for _, r := range cells[c] {
			a, ok := alone[cell{c.kernel, c.cpus, c.workers, Alone}][r.Seed]
			if !ok {
				continue
			}
			ratios, before, used = append(ratios, r.P99/a.P99), append(before, a.P99), append(used, r.Neighbour)
		}
		if len(ratios) == 0 {
			continue
		}
		fmt.Fprintf(&out, "| %d | %s | %d | %s | %d | %.2f | %.2f [%.2f, %.2f] | %.2f |\n", c.cpus, c.of, c.workers, c.kernel, len(ratios),
			stats.Median(before), stats.Median(ratios), slices.Min(ratios), slices.Max(ratios), stats.Median(used))
	}
	return out.String()
}
