package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/agent/config"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/publish"
	"berth.dev/berth/place/balloons"
	"berth.dev/berth/place/policies"
)

func berthNode(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = program().Run(context.Background(), strings.NewReader(""), &out, &errs, args)
	return out.String(), errs.String(), code
}

// The program has all verbs of berth, and its own.
func TestVerbs(t *testing.T) {
	t.Parallel()
	out, errs, code := berthNode(t, "--help")
	for _, want := range []string{"Place the containers of a Kubernetes node", "\n  nri ", "\n  run ", "\n  diagnose ", "berth-node [command]"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s%s", want, out, errs)
		}
	}
	if code != 0 {
		t.Errorf("status %d", code)
	}
	if out, errs, code := berthNode(t, "topo", "--machine", "1s2n6c2t"); code != 0 || !strings.Contains(out, "24 CPUs") {
		t.Errorf("topo: status %d, %s%s", code, out, errs)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	bad := filepath.Join(root, "rules.yaml")
	if err := os.WriteFile(bad, []byte("- {namespace: [a]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	mid := filepath.Join(root, "mid.yaml")
	if err := os.WriteFile(mid, []byte("midColdStartMinutes: -1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"extra"}, "extra"},
		{[]string{"--index", "5"}, "two digits"},
		{[]string{"--policy", "balons"}, `did you mean "balloons"?`},
		{[]string{"--reserved-cpus", "x"}, "--reserved-cpus"},
		{[]string{"--rules", bad}, `namespace: unknown field; did you mean "namespaces"?`},
		{[]string{"--rules", bad + ".none"}, "no such file"},
		{[]string{"--guard", "on"}, "want off, observe, preview or enforce"},
		{[]string{"--sensitive", "shop/db-0"}, "set --guard"},
		{[]string{"--topology"}, "--topology needs an API server: --kubeconfig or --in-cluster"},
		{[]string{"--batch", "default"}, "--batch needs an API server"},
		{[]string{"--kubeconfig", "x", "--in-cluster"}, "only one of them"},
		{[]string{"--kubeconfig", "x", "--node-name", "A/B"}, `node "A/B"`},
		{[]string{"--kubeconfig", "x", "--batch", bad}, "--batch"},
		{[]string{"--kubeconfig", "x", "--batch", mid}, "--batch: midColdStartMinutes -1: want 0 to 10080"},
	} {
		_, errs, code := berthNode(t, append([]string{"nri", "--root", root}, c.args...)...)
		if code != 2 || !strings.Contains(errs, c.want) {
			t.Errorf("%v: status %d, %q, want %q", c.args, code, errs, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	out, errs, code := berthNode(t, "nri", "--check", "--root", root)
	if code != 0 || errs != "nobody else sets CPUs of containers\n" || !strings.Contains(out, `"kind": "NodeConfig"`) {
		t.Errorf("status %d, %q, %q", code, out, errs)
	}
	file := filepath.Join(root, "node.yaml")
	text := "apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\nreserved: 0-1\npolicy: {name: kubelet, options: {cpuManagerPolicy: static, " +
		"full-pcpus-only: true, topologyManagerPolicy: single-numa-node, topologyManagerScope: pod}}\nkubernetes: {podScope: true, words: [{namespaces: [a], words: ['*']}]}\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, errs, code = berthNode(t, "nri", "--check", "--root", root, "--config", file, "--strict", "--reserved-cpus", "2")
	for _, want := range []string{`"reserved": "2"`, `"full-pcpus-only": true`, `"podScope": true`, `"strict": true`, `"nriSocket": "/var/run/nri/nri.sock"`} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("status %d, no %s in %s%s", code, want, out, errs)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, "podScope", "podscope", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := berthNode(t, "nri", "--check", "--root", root, "--config", file); code != 2 || !strings.Contains(errs, "podScope") {
		t.Errorf("a field that is none: status %d, %s", code, errs)
	}
	dir := filepath.Join(root, "var/lib/kubelet")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cpu_manager_state"), []byte(`{"policyName":"static"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--check"}, nil} {
		out, errs, code = berthNode(t, append([]string{"nri", "--root", root}, args...)...)
		if code != 1 || out != "" || !strings.Contains(errs, "berth-node: the kubelet's CPU manager sets CPUs of containers, too") {
			t.Errorf("%v: status %d, %q, %q", args, code, out, errs)
		}
	}
}

// A process that only has a rival's name, a pod's or a user's, keeps nobody from starting.
func TestUnsureRival(t *testing.T) {
	t.Parallel()
	for status, code := range map[string]int{"Uid:\t0 0 0 0\nCapEff:\t200000\n": 1, "Uid:\t0 0 0 0\nCapEff:\ta80425fb\n": 2, "Uid:\t1000 0 0 0\nCapEff:\t200000\n": 2} {
		root := t.TempDir()
		err := errors.Join(os.MkdirAll(filepath.Join(root, "proc/1"), 0o755), os.MkdirAll(filepath.Join(root, "proc/40"), 0o755))
		const users = "0 0 4294967295\n"
		for file, text := range map[string]string{"40/comm": "koordlet\n", "40/status": status, "40/uid_map": users, "1/uid_map": users} {
			err = errors.Join(err, os.WriteFile(filepath.Join(root, "proc", file), []byte(text), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
		_, errs, got := berthNode(t, "nri", "--root", root, "--rules", filepath.Join(root, "none")) // wrong usage ends one that would start
		if got != code || !strings.Contains(errs, "koordlet") || strings.Contains(errs, "warning:") != (code == 2) {
			t.Errorf("%q: status %d, %q", status, got, errs)
		}
		if _, errs, code := berthNode(t, "nri", "--check", "--root", root); code != 1 || !strings.Contains(errs, "koordlet") || strings.Contains(errs, "warning:") {
			t.Errorf("%q, --check: status %d, %q", status, code, errs)
		}
	}
}

// A pod may choose its pool under every policy that has some.
func TestPolicyHints(t *testing.T) {
	t.Parallel()
	for _, p := range policies.All() {
		pools := slices.Contains([]string{"balloons", "static-pools", "podpools"}, p.Name)
		if got := slices.Contains(policyHints(p.Name), balloons.HintType); got != pools {
			t.Errorf("%s: a pod may name its pool: %t", p.Name, got)
		}
	}
}

// The plugin has the switch of its configuration.
func TestCacheAfterStart(t *testing.T) {
	t.Parallel()
	root, err := kernel.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		c := config.Default()
		c.Kubernetes.CacheAfterStart = want
		if opt, err := options(root, c); err != nil || opt.CacheAfterStart != want {
			t.Errorf("%t, %v, want %t", opt.CacheAfterStart, err, want)
		}
	}
}

// The log says of what is told of the node that it is told again, and of what is only read what holds now.
func TestTellTold(t *testing.T) {
	t.Parallel()
	for what, want := range map[string]string{"topology": "told again", publish.Reserving: "containers may own none of the CPUs that the node's annotation reserves now"} {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		tellTold(log, what, errors.New("a\nb"))
		tellTold(log, what, nil)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[1], "level=INFO") || !strings.Contains(lines[1], "msg="+what) || !strings.Contains(lines[1], want) {
			t.Errorf("%s: %q", what, lines)
		}
	}
}

func TestBatchExample(t *testing.T) {
	t.Parallel()
	f := kubeFlags{batch: "../../../examples/kube/batch.yaml"}
	f.server.Kubeconfig = "x"
	if err := f.options(); err != nil || f.batchStrategy.Strategy.CPUMost != 40 || !f.batchStrategy.Strategy.Predicts() {
		t.Errorf("%+v, %v", f.batchStrategy, err)
	}
}
