package program

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// reports are what each benchmark prints, and what that says.
func reports() map[string]struct {
	printed string
	want    Figures
} {
	return map[string]struct {
		printed string
		want    Figures
	}{
		"wrk": {`Running 1s test @ http://127.0.0.1:8080/index.html
  2 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   635.91us    0.89ms  12.92ms   93.69%
    Req/Sec    56.20k     8.07k   62.00k    86.54%
  Latency Distribution
     50%  250.00us
     75%  491.00us
     90%  700.00us
     99%    5.80ms
  22464 requests in 1.10s, 17.76MB read
  Socket errors: connect 0, read 2, write 0, timeout 3
  Non-2xx or 3xx responses: 4
Requests/sec:  20421.53
Transfer/sec:     16.15MB
`, Figures{"p50": 250, "p90": 700, "p99": 5800, Mean: 635.91, Max: 12920, Throughput: 20421.53, Failed: 9}},
		"redis-benchmark": {`WARNING: Could not fetch server CONFIG
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"GET","112359.55","0.238","0.088","0.231","0.327","0.495","0.967"
`, Figures{"p50": 231, "p95": 327, "p99": 495, Mean: 238, Max: 967, Throughput: 112359.55}},
		"pgbench": {`pgbench (15.6 (Debian 15.6-0+deb12u1))
transaction type: -
scaling factor: 1
number of transactions actually processed: 600/600
number of failed transactions: 1 (0.167%)
latency average = 0.345 ms
initial connection time = 4.010 ms
tps = 5797.101449 (without initial connection time)
`, Figures{Mean: 345, Throughput: 5797.101449, Failed: 1}},
		"ab": {`Concurrency Level:      8
Time taken for tests:   0.153 seconds
Complete requests:      3000
Failed requests:        0
Requests per second:    19607.84 [#/sec] (mean)
Time per request:       0.408 [ms] (mean)
Time per request:       0.051 [ms] (mean, across all concurrent requests)

Percentage of the requests served within a certain time (ms)
  50%      0
  66%      1
  90%      1
  95%      2
  98%      3
  99%      4
 100%     11 (longest request)
`, Figures{"p90": 1000, "p95": 2000, "p99": 4000, Mean: 408, Throughput: 19607.84, Failed: 0}},
		"fio": {`fio: this and that
{"fio version": "fio-3.33", "jobs": [{"jobname": "x", "total_err": 0,
 "read": {"iops": 1234.5, "clat_ns": {"mean": 2500.0, "max": 90000, "percentile": {"50.000000": 2000, "95.000000": 3000, "99.000000": 4000, "99.500000": 4500, "99.900000": 9000}}},
 "write": {"iops": 0}}]}
`, Figures{"p50": 2, "p95": 3, "p99": 4, "p99.9": 9, Mean: 2.5, Max: 90, Throughput: 1234.5, Failed: 0}},
		"json": {"warming up\n{\"p50\": 210, \"p99\": 900, \"throughput\": 12000}\n", Figures{"p50": 210, "p99": 900, Throughput: 12000}},
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for _, f := range Formats() {
		report, ok := reports()[f.Name]
		if !ok {
			t.Errorf("%s: no report of it is tried", f.Name)
			continue
		}
		got, err := f.Read([]byte(report.printed))
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		for name, v := range got { // milliseconds times 1000, and the like
			if want := report.want[name]; want != v && v > want*0.999999 && v < want*1.000001 {
				got[name] = want
			}
		}
		if diff := cmp.Diff(report.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f.Name, diff)
		}
		for _, other := range []string{"", "\n", "nothing of the kind", "{}", report.printed[:len(report.printed)/8]} {
			if got, err := f.Read([]byte(other)); err == nil || !strings.Contains(err.Error(), "not a report of "+f.Name) {
				t.Errorf("%s of %q: %v, %v; want an error", f.Name, other, got, err)
			}
		}
	}
	if _, err := FormatNamed("wrk2"); err == nil || !strings.Contains(err.Error(), "wrk, redis-benchmark") {
		t.Errorf("of no format: %v", err)
	}
}

// With -e, ab's table has what its summary rounds to milliseconds.
func TestABTable(t *testing.T) {
	t.Parallel()
	got, err := parseAB([]byte("Failed requests:        0\nPercentage served,Time in ms\n0,0.050\n50,0.213\n99,0.412\n  50%      0\n  99%      0\n"))
	if diff := cmp.Diff(Figures{"p50": 213, "p99": 412, Failed: 0}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestFormatsRefuse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ format, printed, want string }{
		{"redis-benchmark", "\"test\",\"rps\"\n\"GET\",\"1\"\n\"SET\",\"1\"\n", "2 tests: want one"},
		{"redis-benchmark", "\"test\",\"rps\"\n\"GET\",\"nan\"\n", "throughput is NaN"},
		{"fio", `{"jobs": [{}, {}]}`, "2 jobs: want one"},
		{"fio", `{"jobs": [{"read": {"iops": 1}, "write": {"iops": 1}}]}`, "reads and writes"},
		{"json", `{"p98": 1}`, `"p98": want some of`},
		{"json", `{"p99": -1}`, "p99 is -1"},
		{"json", `{"failed": 1}`, "it has no figures"},
		{"wrk", strings.Repeat("x", 1000), `xx…"`},
	} {
		f, err := FormatNamed(test.format)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Read([]byte(test.printed)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %q: %v, want %q", test.format, test.printed, err, test.want)
		}
	}
}

// FuzzFormats: whatever is printed makes no reader panic, and no figure that is none.
func FuzzFormats(f *testing.F) {
	for _, report := range reports() {
		f.Add([]byte(report.printed))
	}
	f.Fuzz(func(t *testing.T, printed []byte) {
		for _, format := range Formats() {
			figures, err := format.Read(printed)
			if (err == nil) != (len(figures) > 0) {
				t.Errorf("%s: %v, %v", format.Name, figures, err)
			}
			for name, v := range figures {
				if !(v >= 0) || math.IsInf(v, 0) {
					t.Errorf("%s: %s is %v", format.Name, name, v)
				}
			}
		}
	})
}
