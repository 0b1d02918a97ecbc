package benchmark

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/labtest"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/program"
	"berth.dev/berth/lab/stats"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// miniature is a run of a few seconds.
func miniature(t *testing.T, service, command, figures string) (*Result, lab.Options) {
	t.Helper()
	r := Default()
	e := &r.Experiment
	e.Tenant.Service, e.Tenant.Exec, e.Tenant.Figures = service, command, figures
	if service == lab.Command {
		e.Tenant.Command = "exec sleep 1000"
	}
	if err := e.Keep([]string{lab.Unisolated}); err != nil {
		t.Fatal(err)
	}
	e.Blocks, e.ThreadsPerCPU = 2, 1
	if err := r.Validate(); err != nil {
		t.Fatal(err)
	}
	return r, lab.Options{Exe: os.Args[0], Dir: t.TempDir(), UndoLogDir: t.TempDir(), Unprivileged: true}
}

func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	r, opt := miniature(t, lab.Command, `echo warming up; sleep 0.05; echo '{"p50": 200, "p99": 900, "throughput": 5000, "failed": 0}'`, "json")
	if err := r.Run(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	if len(r.Rounds) != 6 || !r.Complete || r.Setup.BenchmarkTook < lab.Duration(50*time.Millisecond) || r.Setup.Rate != 0 {
		t.Errorf("%d rounds, complete %v, setup %+v", len(r.Rounds), r.Complete, r.Setup)
	}
	worked := false // a busy host may have no CPU for the neighbour in a round
	for _, round := range r.Rounds {
		if round.Told["p99"] != 900 || round.Seconds < 0.05 || round.Load.Offered != 0 || (round.Neighbour != nil) != (round.Scenario == lab.Unisolated) {
			t.Errorf("%+v", round)
		}
		worked = worked || round.Neighbour != nil && round.Neighbour.Work > 0
	}
	if !worked {
		t.Error("the neighbour did nothing")
	}
	j := r.judged()
	if v, ok := stats.Typical(j.Samples, lab.Baseline, lab.Throughput.Name); !ok || v != 5000 {
		t.Errorf("throughput %v, %v", v, ok)
	}
	var names []string
	for _, f := range j.Figures {
		names = append(names, f.Name)
	}
	if got := strings.Join(names, " "); got != "p50 p99 throughput neighbour's work" {
		t.Errorf("figures %s", got)
	}
	s, err := r.Sheet()
	if err != nil || len(s.Answer) == 0 || !strings.HasPrefix(s.Answer[0], "Its p99 is 900 µs alone, and 900 µs beside") {
		t.Errorf("%v, %v", s, err)
	}
	if err := r.Run(t.Context(), opt); err == nil || !strings.Contains(err.Error(), "complete") {
		t.Errorf("a complete run goes on: %v", err)
	}
}

// What a benchmark does wrong is said: it is not found, it fails, it prints something else.
func TestRefuses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for command, want := range map[string]string{
		"no-such-benchmark":      "the command of --exec does not succeed: exit status 127",
		"echo 3 requests":        `not a report of wrk (call it as "wrk --latency ..."): no latency distribution; it printed "3 requests"`,
		"printf ''; echo >&2 no": "it printed nothing",
	} {
		r, opt := miniature(t, lab.Command, command, "wrk")
		if err := r.Run(t.Context(), opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
	}
}

// What to do is said of the cure with the best figure.
func TestHowTo(t *testing.T) {
	t.Parallel()
	var r Result
	if err := lab.Load("../../docs/measurements/results/benchmark.json.gz", Schema, &r); err != nil {
		t.Fatal(err)
	}
	want := "Do it: berth run --class BE -- COMMAND (idle has the best p99; cures were not compared with each other)"
	if words := r.words(r.judged()); words[len(words)-1] != want {
		t.Errorf("%q, want %q last", words, want)
	}
	for i := range r.Rounds {
		r.Rounds[i].Told = map[string]float64{"p99": 300}
	}
	if words := strings.Join(r.words(r.judged()), " "); strings.Contains(words, "Do it") {
		t.Errorf("where nothing differs: %s", words)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	for want, spoil := range map[string]func(*lab.Spec){
		`figures ""`:       func(e *lab.Spec) { e.Tenant.Figures = "" },
		`figures "wrk2"`:   func(e *lab.Spec) { e.Tenant.Figures = "wrk2" },
		"want --exec":      func(e *lab.Spec) { e.Tenant.Exec = "" },
		"leave out rate":   func(e *lab.Spec) { e.Rate = 5 },
		"until, slo":       func(e *lab.Spec) { e.Until = 0.1 },
		"slo and look":     func(e *lab.Spec) { e.Look = 3 },
		"say --tenant":     func(e *lab.Spec) { e.Tenant.Service = lab.Article },
		"want one of --ex": func(e *lab.Spec) { e.Tenant.Ask = "x" },
	} {
		r := Default()
		spoil(&r.Experiment)
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// Real benchmarks, where they are installed, beside the servers that they are for.
func TestRealBenchmarks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, test := range []struct{ service, command, figures, has string }{
		{"nginx", "wrk --latency -t1 -c8 -d1s http://127.0.0.1:{port}/index.html", "wrk", "p99"},
		{"nginx", "ab -e /dev/stdout -k -c 8 -n 3000 http://127.0.0.1:{port}/index.html", "ab", "p99"},
		{"redis", "redis-benchmark -p {port} -t get -c 8 -n 5000 --csv", "redis-benchmark", "p99"},
		{"postgres", "echo 'SELECT filler FROM accounts WHERE id = 7;' | pgbench -h 127.0.0.1 -p {port} -U berth -n -f - -c 2 -t 300 postgres", "pgbench", program.Mean},
		{lab.Command, "fio --name=x --ioengine=null --rw=randread --bs=4k --size=64m --number_ios=20000 --output-format=json --group_reporting", "fio", "p99"},
	} {
		t.Run(test.figures, func(t *testing.T) {
			if _, err := exec.LookPath(test.figures); err != nil {
				t.Skipf("%s is not installed", test.figures)
			}
			if s, ok := program.Find(test.service); ok {
				if _, err := s.Version(); err != nil {
					t.Skip(err)
				}
			}
			r, opt := miniature(t, test.service, test.command, test.figures)
			r.Experiment.Blocks = 1
			if err := r.Run(t.Context(), opt); err != nil {
				t.Fatal(err)
			}
			for _, round := range r.Rounds {
				if round.Told[test.has] <= 0 || round.Told[program.Throughput] <= 0 || round.Told[program.Failed] != 0 || round.Tenant.CPUSeconds <= 0 {
					t.Errorf("%s: %v, tenant %+v", round.Scenario, round.Told, round.Tenant)
				}
			}
		})
	}
}
