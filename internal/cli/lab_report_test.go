package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/stats"
)

// storedResult writes a small made-up result and returns its path.
func storedResult(t *testing.T, change func(*lab.Result)) string {
	t.Helper()
	r := &lab.Result{Header: lab.Header{Schema: lab.Schema, Started: time.Unix(1.8e9, 0).UTC(), Complete: true}, Experiment: lab.IsolationSpec()}
	for block := range 3 {
		for position, s := range r.Experiment.Scenarios {
			response, lag := stats.NewHistogram(), stats.NewHistogram()
			for i := range 500 {
				if err := response.RecordValue(int64(2000 + 4*i + 1000*block)); err != nil {
					t.Fatal(err)
				}
				if err := lag.RecordValue(20); err != nil {
					t.Fatal(err)
				}
			}
			sec := load.Second{Offered: 500}
			var err error
			if sec.Response, err = stats.Encode(response); err != nil {
				t.Fatal(err)
			}
			if sec.Lag, err = stats.Encode(lag); err != nil {
				t.Fatal(err)
			}
			sec.Service, sec.Queue = sec.Response, sec.Lag
			r.Rounds = append(r.Rounds, lab.Round{
				Block: block, Position: position, Scenario: s.Name, Seconds: 1, Host: lab.HostUsage{CPUs: 2, Busy: 1},
				Load: load.Report{Offered: 500, Done: 500, DoneInWindow: 500, Seconds: []load.Second{sec}},
			})
		}
	}
	if change != nil {
		change(r)
	}
	path := filepath.Join(t.TempDir(), "result.json")
	if err := lab.WriteFile(path, r); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLabReport(t *testing.T) {
	t.Parallel()
	path := storedResult(t, nil)
	page := filepath.Join(t.TempDir(), "lab.html")
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{path}, "× alone"},
		{[]string{filepath.Dir(path)}, "× alone"},
		{[]string{path, "-o", "json"}, `"schema": "berth.dev/lab-report/v1"`},
		{[]string{path, "-o", "html"}, "<!DOCTYPE html>"},
		{[]string{path, "-o", "csv"}, "block,position,scenario"},
		{[]string{path, "--report", page}, "× alone"},
	} {
		out, errs, code := berth(t, append([]string{"lab", "report"}, tt.args...)...)
		if code != exitOK || errs != "" || !strings.Contains(out, tt.want) {
			t.Errorf("lab report %v: status %d, %q, no %q in %.200q", tt.args[1:], code, errs, tt.want, out)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil || !strings.HasPrefix(string(text), "<!DOCTYPE html>") {
		t.Errorf("%s: %v, %.40q", page, err, text)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(page), ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left over beside the page: %v %v", left, err)
	}
}

func TestLabReportRefuses(t *testing.T) {
	t.Parallel()
	good := storedResult(t, nil)
	other := storedResult(t, func(r *lab.Result) { r.Schema = "berth.dev/lab/v9" })
	corrupted := storedResult(t, func(r *lab.Result) { r.Rounds[0].Load.Seconds[0].Response = "x" })
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"report"}, exitUsage, "accepts 1 arg"},
		{[]string{"report", good, "-o", "pdf"}, exitUsage, "it is one of text, json, html, csv"},
		{[]string{"report", good, "--bogus"}, exitUsage, "unknown flag"},
		{[]string{"report", "/nonexistent.json"}, exitError, "no such file"},
		{[]string{"report", other}, exitError, `schema "berth.dev/lab/v9"`},
		{[]string{"report", corrupted}, exitError, "response"},
		{[]string{"report", good, "--report", "/nonexistent/lab.html"}, exitError, "write report"},
		{[]string{"compare", good}, exitUsage, "accepts 2 arg"},
		{[]string{"compare", good, good, "-o", "csv"}, exitUsage, "it is one of text, json, html"},
		{[]string{"compare", good, "../../docs/measurements/results/pinning.json.gz"}, exitError, "a result of isolation, ../../docs/measurements/results/pinning.json.gz of pinning: want two of the same experiment"},
		{[]string{"compare", good, "/nonexistent.json"}, exitError, "no such file"},
	} {
		out, errs, code := berth(t, append([]string{"lab"}, tt.args...)...)
		if code != tt.code || !strings.Contains(errs, tt.want) || out != "" {
			t.Errorf("lab %v: status %d, %q, %.80q; want status %d and %q", tt.args, code, errs, out, tt.code, tt.want)
		}
	}
}

func TestLabCompare(t *testing.T) {
	t.Parallel()
	a, b := storedResult(t, nil), storedResult(t, func(r *lab.Result) { r.Host.Kernel = "7.0" })
	out, errs, code := berth(t, "lab", "compare", a, b)
	if code != exitOK || errs != "" || !strings.Contains(out, "kernel: unknown in A, 7.0 in B") {
		t.Errorf("status %d, %q, %q", code, errs, out)
	}
	out, errs, code = berth(t, "lab", "compare", a, a, "-o", "json")
	var c struct {
		Schema string
		Rows   []struct{ Ratio *stats.Interval }
	}
	if err := json.Unmarshal([]byte(out), &c); code != exitOK || errs != "" || err != nil {
		t.Fatalf("status %d, %q, %v", code, errs, err)
	}
	if c.Schema != "berth.dev/lab-compare/v2" || len(c.Rows) == 0 {
		t.Errorf("schema %q, %d rows", c.Schema, len(c.Rows))
	}
	for _, row := range c.Rows {
		if row.Ratio != nil && row.Ratio.Estimate != 1 {
			t.Errorf("a result differs from itself by %v", row.Ratio.Estimate)
		}
	}
}

// Every experiment's results are compared: one with itself has no change.
func TestLabCompareEvery(t *testing.T) {
	t.Parallel()
	computes(t)
	const stored = "../../docs/measurements/results/"
	for name, cell := range map[string]string{
		"readme": "weighted", "memory": "memory-max", "io": "io-max", "net": "net-first", "quick": "idle", "pinning": "pinned", "cache": "", "routing": "", "limits": "", "neighbours": "scan-100", "colocate": "", "services": "",
		"../../../internal/cli/testdata/lab/guard-v1": "",
	} {
		file := stored + name + ".json.gz"
		if !exists(file) {
			file = stored + name + ".json"
		}
		out, errs, code := berth(t, "lab", "compare", file, file, "-o", "json")
		var c struct {
			Experiment  string
			Differences []any
			Rows        []struct {
				Cell    string
				Change  stats.Interval
				Ratio   *stats.Interval
				Verdict stats.Verdict
			}
		}
		if err := json.Unmarshal([]byte(out), &c); err != nil || code != exitOK || errs != "" {
			t.Errorf("%s: status %d, %s, %v", name, code, errs, err)
			continue
		}
		seen := cell == ""
		for _, row := range c.Rows {
			seen = seen || row.Cell == cell
			same := func(iv stats.Interval) bool {
				return iv.Estimate > 0.999999 && iv.Estimate < 1.000001 || iv.Estimate == 0
			}
			if !same(row.Change) || row.Ratio != nil && !same(*row.Ratio) || row.Verdict == stats.Worse || row.Verdict == stats.Better {
				t.Errorf("%s: %+v", name, row)
			}
		}
		if !seen || len(c.Rows) < 2 || len(c.Differences) > 0 || c.Experiment == "" {
			t.Errorf("%s: %d rows of %s, differences %v; no cell %s", name, len(c.Rows), c.Experiment, c.Differences, cell)
		}
	}
	page, _, code := berth(t, "lab", "compare", stored+"pinning.json.gz", stored+"pinning.json.gz", "-o", "html")
	if code != exitOK || !strings.Contains(page, "What changed of p99") {
		t.Errorf("page: status %d, %.200s", code, page)
	}
}
