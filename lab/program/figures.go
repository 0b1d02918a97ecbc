package program

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Figures are what a benchmark says of its own run, by name: "p50" to "p99.9", "mean" and "max"
// are response times in microseconds, "throughput" is per second, "failed" counts what failed.
// What it does not print is not in them.
type Figures map[string]float64

// The names of figures but the percentiles.
const (
	Mean       = "mean"
	Max        = "max"
	Throughput = "throughput"
	Failed     = "failed"
)

// percentileNames are the percentiles that are taken over.
func percentileNames() []string { return []string{"p50", "p90", "p95", "p99", "p99.9"} }

// Format is a report of a benchmark that is understood.
type Format struct {
	Name string
	// Usage is how the benchmark has to be called.
	Usage string
	// Closed says that it loads in a closed loop: each client waits for its answer before it
	// asks again, so what a stall keeps from being asked is not counted.
	Closed bool
	parse  func(printed []byte) (Figures, error)
}

// Formats are those that there are.
func Formats() []Format {
	return []Format{
		{"wrk", "wrk --latency ...", true, parseWrk},
		{"redis-benchmark", "redis-benchmark --csv -t ONE ...", true, parseRedis},
		{"pgbench", "pgbench ...; -R makes it an open loop", true, parsePgbench},
		{"ab", "ab -e /dev/stdout ...; without -e its times are whole milliseconds", true, parseAB},
		{"fio", "fio --output-format=json --group_reporting ...", true, parseFio},
		{"json", `prints {"p50": …, "p99": …, "throughput": …}, times in microseconds`, false, parseJSON},
	}
}

// FormatNamed returns a format by its name.
func FormatNamed(name string) (Format, error) {
	var names []string
	for _, f := range Formats() {
		if f.Name == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Format{}, fmt.Errorf("figures %q: want the format of a report: %s", name, strings.Join(names, ", "))
}

// Read reads a report. Its error says what is missing and how the benchmark is to be called.
func (f Format) Read(printed []byte) (Figures, error) {
	figures, err := f.parse(printed)
	if err == nil && !slices.ContainsFunc(slices.Collect(maps.Keys(figures)), func(name string) bool { return name != Failed }) {
		err = errors.New("it has no figures")
	}
	for name, v := range figures {
		if err == nil && (math.IsNaN(v) || math.IsInf(v, 0) || v < 0) {
			err = fmt.Errorf("%s is %v", name, v)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("not a report of %s (call it as %q): %w; it printed %s", f.Name, f.Usage, err, excerpt(printed))
	}
	return figures, nil
}

// excerpt is the beginning of what was printed, in a line.
func excerpt(printed []byte) string {
	const most = 120
	text := strings.Join(strings.Fields(string(printed)), " ")
	if text == "" {
		return "nothing"
	}
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strconv.Quote(text)
}

// number finds the first group of a pattern and reads it as a number; ok is false where there
// is none.
func number(printed []byte, pattern string) (v float64, ok bool) {
	found := regexp.MustCompile(`(?m)` + pattern).FindSubmatch(printed)
	if found == nil {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(found[1]), 64)
	return v, err == nil
}

// set enters a figure, if it is there, times a factor.
func (f Figures) set(name string, factor float64, printed []byte, pattern string) {
	if v, ok := number(printed, pattern); ok {
		f[name] = v * factor
	}
}

const decimal = `([0-9]+(?:\.[0-9]+)?)`

// parseWrk reads wrk's report with --latency. Its times have units of their own: "635.91us".
func parseWrk(printed []byte) (Figures, error) {
	f := Figures{}
	duration := func(name, pattern string) {
		found := regexp.MustCompile(`(?m)` + pattern).FindSubmatch(printed)
		if found == nil {
			return
		}
		if d, err := time.ParseDuration(string(found[1])); err == nil {
			f[name] = d.Seconds() * 1e6
		}
	}
	const length = `([0-9.]+(?:us|ms|s|m|h))`
	for _, p := range percentileNames() {
		duration(p, `^\s+`+regexp.QuoteMeta(p[1:])+`(?:\.0+)?%\s+`+length+`$`)
	}
	duration(Mean, `^\s+Latency\s+`+length+`\s`)
	duration(Max, `^\s+Latency\s+\S+\s+\S+\s+`+length+`\s`)
	f.set(Throughput, 1, printed, `^Requests/sec:\s+`+decimal)
	if _, ok := f["p50"]; !ok {
		return nil, errors.New("no latency distribution")
	}
	f[Failed] = 0
	if found := regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`).FindSubmatch(printed); found != nil {
		for _, n := range found[1:] {
			v, _ := strconv.ParseFloat(string(n), 64) // digits
			f[Failed] += v
		}
	}
	if n, ok := number(printed, `Non-2xx or 3xx responses: (\d+)`); ok {
		f[Failed] += n
	}
	return f, nil
}

// parseRedis reads the table of one test, in milliseconds.
func parseRedis(printed []byte) (Figures, error) {
	at := bytes.Index(printed, []byte(`"test"`))
	if at < 0 {
		return nil, errors.New("no table")
	}
	rows, err := csv.NewReader(bytes.NewReader(printed[at:])).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) != 2 {
		return nil, fmt.Errorf("%d tests: want one", len(rows)-1)
	}
	f := Figures{}
	for i, head := range rows[0] {
		name, isTime := strings.CutSuffix(head, "_latency_ms")
		switch {
		case head == "rps":
			name = Throughput
		case name == "avg":
			name = Mean
		}
		if !isTime && name != Throughput || name == "min" {
			continue
		}
		v, err := strconv.ParseFloat(rows[1][i], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", head, err)
		}
		if isTime {
			v *= 1000
		}
		f[name] = v
	}
	return f, nil
}

// parsePgbench reads averages, in milliseconds: it prints no percentiles.
func parsePgbench(printed []byte) (Figures, error) {
	f := Figures{}
	f.set(Mean, 1000, printed, `^latency average = `+decimal+` ms`)
	f.set(Throughput, 1, printed, `^tps = `+decimal)
	f.set(Failed, 1, printed, `^number of failed transactions: (\d+)`)
	if len(f) < 2 {
		return nil, errors.New("no averages")
	}
	return f, nil
}

// parseAB reads ApacheBench's percentiles: of the table that -e writes, in microseconds, else of
// the summary, in whole milliseconds. There 0 is less than half of one: no figure.
func parseAB(printed []byte) (Figures, error) {
	f := Figures{}
	for _, p := range percentileNames() {
		percent := regexp.QuoteMeta(p[1:])
		f.set(p, 1000, printed, `^\s+`+percent+`%\s+([1-9]\d*)`)
		f.set(p, 1000, printed, `^`+percent+`,`+decimal+`$`)
	}
	f.set(Mean, 1000, printed, `^Time per request:\s+`+decimal+` \[ms\] \(mean\)`)
	f.set(Throughput, 1, printed, `^Requests per second:\s+`+decimal)
	f.set(Failed, 1, printed, `^Failed requests:\s+(\d+)`)
	if len(f) < 2 {
		return nil, errors.New("no times")
	}
	return f, nil
}

// parseFio reads completion latencies, in nanoseconds, of the one job that reads or writes.
func parseFio(printed []byte) (Figures, error) {
	type direction struct {
		IOPS float64 `json:"iops"`
		Clat struct {
			Mean       float64            `json:"mean"`
			Max        float64            `json:"max"`
			Percentile map[string]float64 `json:"percentile"`
		} `json:"clat_ns"`
	}
	var report struct {
		Jobs []struct {
			Error float64   `json:"total_err"`
			Read  direction `json:"read"`
			Write direction `json:"write"`
		} `json:"jobs"`
	}
	at := bytes.IndexByte(printed, '{')
	if at < 0 {
		return nil, errors.New("no JSON")
	}
	if err := json.Unmarshal(printed[at:], &report); err != nil {
		return nil, err
	}
	if len(report.Jobs) != 1 {
		return nil, fmt.Errorf("%d jobs: want one", len(report.Jobs))
	}
	job := report.Jobs[0]
	d := job.Read
	switch {
	case job.Read.IOPS > 0 && job.Write.IOPS > 0:
		return nil, errors.New("it reads and writes: want one of the two")
	case job.Read.IOPS == 0:
		d = job.Write
	}
	f := Figures{Mean: d.Clat.Mean / 1000, Max: d.Clat.Max / 1000, Throughput: d.IOPS, Failed: job.Error}
	for p, ns := range d.Clat.Percentile {
		v, err := strconv.ParseFloat(p, 64)
		name := "p" + strconv.FormatFloat(v, 'f', -1, 64)
		if err == nil && slices.Contains(percentileNames(), name) {
			f[name] = ns / 1000
		}
	}
	return f, nil
}

// parseJSON reads an object of figures: the last line, so that anything may stand before it.
func parseJSON(printed []byte) (Figures, error) {
	printed = bytes.TrimSpace(printed)
	f := Figures{}
	if err := json.Unmarshal(printed[bytes.LastIndexByte(printed, '\n')+1:], &f); err != nil {
		return nil, err
	}
	known := append(percentileNames(), Mean, Max, Throughput, Failed)
	for name := range f {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%q: want some of %s", name, strings.Join(known, ", "))
		}
	}
	return f, nil
}
