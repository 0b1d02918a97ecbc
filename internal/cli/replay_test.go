package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/place/policies"
)

// berthReplay runs "berth replay" and returns what it printed.
func berthReplay(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	out, errs, code = berth(t, append([]string{"replay"}, args...)...)
	return code, out, errs
}

// examples returns the example scenarios that have steps, or those that make
// streams.
func examples(t *testing.T, streams bool) []string {
	t.Helper()
	files, err := filepath.Glob("../../examples/replay/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(file string) bool {
		return strings.HasPrefix(filepath.Base(file), "churn-") != streams
	})
	if len(files) < 4 {
		t.Fatalf("examples %v", files)
	}
	return files
}

func TestReplayExamples(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t, false) {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out, errs := berthReplay(t, "--draw", file)
			if code != exitOK {
				t.Fatalf("status %d: %s%s", code, out, errs)
			}
			golden.Check(t, "testdata/replay/"+name+".txt", out)
			code, out, _ = berthReplay(t, "-o", "json", file)
			if code != exitOK {
				t.Fatalf("json: status %d", code)
			}
			golden.Check(t, "testdata/replay/"+name+".json", withoutWhy(t, out))
		})
	}
}

func TestReplayExamplesUnderEveryPolicy(t *testing.T) {
	t.Parallel()
	var names []string
	for _, p := range policies.All() {
		names = append(names, p.Name)
	}
	for _, file := range examples(t, false) {
		code, out, errs := berthReplay(t, "--policy", strings.Join(names, ","), file)
		if code != exitOK {
			t.Errorf("%s: status %d: %s", file, code, errs)
		}
		for _, name := range names {
			if !strings.Contains(out, "  "+name) {
				t.Errorf("%s: no column for %s", file, name)
			}
		}
	}
}

// withoutWhy drops the explanations, which change with a policy's wording.
func withoutWhy(t *testing.T, lines string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(lines) {
		var step map[string]any
		if err := json.Unmarshal([]byte(line), &step); err != nil {
			t.Fatal(err)
		}
		delete(step, "why")
		text, err := json.Marshal(step)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(text, '\n'))
	}
	return b.String()
}

func TestReplayExplains(t *testing.T) {
	t.Parallel()
	file := scenarioFile(t, `
machine: 1n4c2t
steps:
  - {place: a, class: LSE, cpus: 2}
  - {place: b, class: BE}
  - {place: c, class: LSE, cpus: 99}
`)
	code, out, errs := berthReplay(t, "--explain", file)
	if code != exitOK {
		t.Fatalf("status %d: %s", code, errs)
	}
	for _, want := range []string{"step 1: place a\n  choose ", "chosen", "lost on tie", "core 2 … core 3", "there was nothing to choose", "step 3: place c: not enough CPUs"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestReplayExplainsRefusals has for every policy the decisions up to a refusal,
// and what the candidates lacked.
func TestReplayExplainsRefusals(t *testing.T) {
	t.Parallel()
	file := scenarioFile(t, `
machine: 2s4c2t
config: {reserved: "0"}
options:
  kubelet: {cpuManagerPolicy: static, full-pcpus-only: true}
  kubelet/numa: {cpuManagerPolicy: static, topologyManagerPolicy: single-numa-node}
  kubelet/fit: {cpuManagerPolicy: static, fit-allocatable: true}
steps:
  - {place: a, class: LSE, cpus: 4}
  - {place: b, class: LSE, cpus: 4}
  - {place: c, class: LSE, cpus: 10}
`)
	for policy, want := range map[string]string{
		"berth": "node 0", "kubelet": "choose free CPUs in whole cores: none would do\n     node 0  ", "koordinator": "node 0", "topology-aware": "none would do",
		"kubelet/numa": "CPUs: no nodes suffice\n  merged: nodes any, preferred: false\n  choose nodes by free CPUs: none would do",
		"kubelet/fit":  "7000m of 15000m allocatable CPU time are free",
	} {
		_, out, errs := berthReplay(t, "--explain", "--policy", policy, file)
		_, refusal, found := strings.Cut(out, "\nstep 3: place c: ")
		if !found || !strings.Contains(refusal, want) {
			t.Errorf("%s: no %q in the refusal\n%s%s", policy, want, refusal, errs)
		}
	}
}

func TestReplayCompares(t *testing.T) {
	t.Parallel()
	file := scenarioFile(t, `
about: two strategies
machine: 2s4c2t
config: {reserved: "0,8"}
options: {berth/least: {strategy: LeastAllocated}}
steps:
  - {place: a, class: LSE, cpus: 2}
  - {place: b, class: LSE, cpus: 2}
  - {place: big, class: LSE, cpus: 8, expect: {nodes: 2}}
  - {place: web, class: LS, cpus: 500m}
  - {release: a}
`)
	code, out, errs := berthReplay(t, "--policy", "berth,berth/least", file)
	if code != exitUnexpected {
		t.Errorf("status %d, want %d: %s", code, exitUnexpected, errs)
	}
	golden.Check(t, "testdata/replay/compare.out", strings.ReplaceAll(out, file, "FILE"))
	_, out, _ = berthReplay(t, "-o", "json", "--policy", "berth,berth/least", file)
	if n := strings.Count(out, "\n"); n != 12 {
		t.Errorf("%d lines of JSON, want 5 steps and a summary twice", n)
	}
	code, out, _ = berthReplay(t, "--policy", "berth/least", file)
	if code != exitOK || !strings.Contains(out, "were not looked at") {
		t.Errorf("status %d under another policy:\n%s", code, out)
	}
	code, out, _ = berthReplay(t, "--draw", "--policy", "berth,berth/least", file)
	if code != exitUnexpected || strings.Count(out, "step 5: release a") != 2 {
		t.Errorf("status %d, drawing of both:\n%s", code, out)
	}
}

func TestReplayStreamExamples(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t, true) {
		code, out, errs := berthReplay(t, "--seeds", "1", file)
		if code != exitOK || !strings.Contains(out, "mean of 1 stream ") {
			t.Errorf("%s: status %d: %s%s", file, code, out, errs)
		}
	}
}

func TestReplayStreams(t *testing.T) {
	t.Parallel()
	file := scenarioFile(t, `
about: a small stream
machine: 2s4c2t
config: {reserved: "0,8"}
options: {berth/least: {strategy: LeastAllocated}, kubelet: {cpuManagerPolicy: static}}
generate:
  settle: 10
  arrivals: 50
  seeds: 3
  load: 0.9
  mix:
    - {weight: 3, class: LSE, sizes: {2: 2, 4: 1}}
    - {weight: 1, class: LS, cpus: 500m}
`)
	const policies = "berth,berth/least,kubelet"
	code, out, errs := berthReplay(t, "--policy", policies, file)
	if code != exitOK {
		t.Fatalf("status %d: %s", code, errs)
	}
	golden.Check(t, "testdata/replay/streams.out", strings.ReplaceAll(out, file, "FILE"))
	_, out, _ = berthReplay(t, "--policy", policies, "--seeds", "1", file)
	if strings.Contains(out, "difference from") {
		t.Errorf("differences from a single stream:\n%s", out)
	}
	_, out, _ = berthReplay(t, "-o", "json", "--policy", policies, "--seeds", "2", file)
	if n := strings.Count(out, `"seed":2,`); n != 3 || strings.Count(out, "\n") != 6 {
		t.Errorf("a line per policy and seed:\n%s", out)
	}
	code, out, _ = berthReplay(t, "--seed", "2", "--explain", file)
	if code != exitOK || !strings.Contains(out, "step 60: ") || !strings.Contains(out, "choose ") {
		t.Errorf("status %d, step by step:\n%s", code, out)
	}
	steps := scenarioFile(t, "machine: 4c\nsteps: [{place: a}]\n")
	for want, args := range map[string][]string{
		"--draw and --explain are of one stream": {"--draw", file},
		"--seed and --seeds":                     {"--seed", "1", "--seeds", "2", file},
		"--seeds 0: want 1 stream or more":       {"--seeds", "0", file},
		"has steps, and no streams":              {"--seed", "1", steps},
	} {
		if code, _, errs := berthReplay(t, args...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, no %q in %s", args, code, want, errs)
		}
	}
}

func TestReplayDraws(t *testing.T) {
	t.Parallel()
	file := scenarioFile(t, `
machine: 2s2l3c2t
isolated: 9,21
config: {reserved: 0, allowed: "0-19,21"}
steps:
  - {place: a, class: LSE, cpus: 3}
  - {place: b, class: LSR, cpus: 2, bind: SpreadByPCPUs}
  - {place: c, class: BE}
`)
	code, out, errs := berthReplay(t, "--draw", file)
	if code != exitOK {
		t.Fatalf("status %d: %s", code, errs)
	}
	golden.Check(t, "testdata/replay/draw.out", strings.ReplaceAll(out, file, "FILE"))
}

func TestReplayDrawsWideNodes(t *testing.T) {
	t.Parallel()
	_, out, _ := berthReplay(t, "--draw", scenarioFile(t, "machine: 1n64c2t\nsteps: [{place: a, class: LSE, cpus: 2}]\n"))
	for line := range strings.Lines(out) {
		if len(line) > 110 {
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
	if n := strings.Count(out, ".."); n < 62 {
		t.Errorf("%d free cores are drawn", n)
	}
}

func TestReplayStatus(t *testing.T) {
	t.Parallel()
	good := scenarioFile(t, "machine: 4c\nsteps: [{place: a, class: LSE, cpus: 2, expect: {own: 1-2}}]\n")
	failing := scenarioFile(t, "machine: 4c\nsteps: [{place: a, class: LSE, cpus: 2, expect: {own: 0-1}}]\n")
	broken := scenarioFile(t, "machine: 4c\nsteps: [{place: a, cpu: 2}]\n")
	for name, tc := range map[string]struct {
		args []string
		code int
		text string // in either output
	}{
		"good":                {[]string{good}, exitOK, "1-2"},
		"failing":             {[]string{failing}, exitUnexpected, "FAILED: own CPUs 0-1 were expected, not 1-2"},
		"failing is counted":  {[]string{failing, good, failing}, exitUnexpected, "2 steps not as expected"},
		"failing as json":     {[]string{"-o", "json", failing}, exitUnexpected, `"unmet":["own CPUs`},
		"broken":              {[]string{broken}, exitError, `line 2: steps[0].cpu: unknown field`},
		"broken beats failed": {[]string{failing, broken, good}, exitError, "1-2"},
		"missing":             {[]string{filepath.Join(t.TempDir(), "none.yaml")}, exitError, "read scenario"},
		"no file":             {nil, exitUsage, "no scenario file"},
		"unknown policy":      {[]string{"--policy", "ghost", good}, exitUsage, `no policy "ghost"`},
		"policy twice":        {[]string{"--policy", "berth,berth", good}, exitUsage, "twice"},
		"bad output":          {[]string{"-o", "yaml", good}, exitUsage, "it is one of text, json"},
		"bad flag":            {[]string{"--speed", good}, exitUsage, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out, errs := berthReplay(t, tc.args...)
			if code != tc.code || !strings.Contains(out+errs, tc.text) {
				t.Errorf("status %d, want %d; no %q in\n%s%s", code, tc.code, tc.text, out, errs)
			}
		})
	}
}

func TestReplayMachineSources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const table = "# CPU,CORE,SOCKET,NODE,CACHE\n0,0,0,0,0\n1,1,0,0,0\n2,2,0,1,1\n3,3,0,1,1\n"
	if err := os.WriteFile(filepath.Join(dir, "machine.csv"), []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := berthTopo(t, "--machine", "2n2c", "--export", filepath.Join(dir, "machine.json")); code != exitOK {
		t.Fatal(errs)
	}
	for name, source := range map[string]string{
		"short":  "2n2c",
		"lscpu":  "machine.csv",
		"export": "machine.json",
		"inline": "|\n  " + strings.ReplaceAll(strings.TrimSpace(table), "\n", "\n  "),
	} {
		file := filepath.Join(dir, name+".yaml")
		text := "machine: " + source + "\nsteps:\n- {place: a, class: LSE, cpus: 2, expect: {own: 2-3, mems: 1}}\n"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if code, out, errs := berthReplay(t, file); code != exitOK {
			t.Errorf("%s: status %d\n%s%s", name, code, out, errs)
		}
	}
}

// berthTopo runs "berth topo".
func berthTopo(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(context.Background(), strings.NewReader(""), &stdout, &stderr, append([]string{"topo"}, args...))
	return code, stdout.String(), stderr.String()
}

func TestReplayTextDoesNotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	file := scenarioFile(t, "about: \"a\\x1b[2Jb\"\nmachine: 4c\nsteps: [{place: a, devices: [{names: [\"\\x1b[2J\"]}]}]\n")
	code, out, _ := berthReplay(t, "--draw", "--explain", file)
	if code != exitOK || strings.Contains(out, "\x1b") {
		t.Errorf("status %d: %q", code, out)
	}
}

func TestReplayHelpListsPolicies(t *testing.T) {
	t.Parallel()
	_, out, _ := berthReplay(t, "--help")
	for _, p := range policies.All() {
		if !strings.Contains(out, "  "+p.Name+" ") {
			t.Errorf("help does not list %s", p.Name)
		}
	}
}

func scenarioFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// Objects of Kubernetes are one scenario on a machine, whatever their order; scenarios stand
// beside them.
func TestReplayKubernetes(t *testing.T) {
	t.Parallel()
	kubelet, shop := "../../examples/kubernetes/kubelet.yaml", "../../examples/kubernetes/shop.yaml"
	code, out, errs := berthReplay(t, "--machine", "1s2n6c2t", kubelet, shop)
	if code != exitOK {
		t.Fatalf("status %d: %s", code, errs)
	}
	golden.Check(t, "testdata/replay/kubernetes.txt", strings.ReplaceAll(out, "../../", ""))
	if code, out, errs = berthReplay(t, "--machine", "1s2n6c2t", "--policy", "berth,kubelet", shop, kubelet, "../../examples/replay/pod-scope.yaml"); code != exitOK ||
		!strings.Contains(out, "got CPUs of their own") || !strings.Contains(out, "pods of two containers") {
		t.Errorf("compared: status %d: %s%s", code, out, errs)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{shop}, exitUsage, "name the machine that they run on with --machine"},
		{[]string{"--machine", "4c", "../../examples/replay/pod-scope.yaml"}, exitUsage, "--machine is for objects of Kubernetes"},
		{[]string{"--machine", "4q", shop}, exitError, "machine: "},
		{[]string{"--machine", "4c", kubelet}, exitError, "a kubelet, and no pods"},
		{[]string{"--machine", "4c", "--seeds", "2", shop}, exitUsage, "has steps, and no streams"},
	} {
		if code, out, errs := berthReplay(t, tt.args...); code != tt.code || !strings.Contains(errs, tt.want) {
			t.Errorf("%v: status %d, %s%s; want %d, %q", tt.args, code, out, errs, tt.code, tt.want)
		}
	}
}
