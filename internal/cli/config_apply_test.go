package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/kernel"
	"berth.dev/berth/machine"
)

const sharedPool = `apiVersion: berth.dev/v1alpha1
kind: NodeConfig
workloads:
- {name: web, match: {cgroup: /web}, class: LSR, cpus: 2}
- {name: cache, match: {cgroup: /cache}}
- {name: batch, match: {cgroup: /batch}, class: BE}
`

// agentOnPaper runs an agent on a machine of 4 cores that a test simulates, with groups, and
// returns the flag that names it.
func agentOnPaper(t *testing.T, conf string, groups ...string) (socket, file string) {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	socket, file = "--socket="+filepath.Join(dir, "s"), filepath.Join(dir, "node.yaml")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	l := fakekernel.V1()
	l.V1, l.Own, l.CPUs, l.Mems = []string{"cpu,cpuacct", "cpuset", "memory"}, "/", "0-7", "0"
	k, err := fakekernel.New(root, l)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		for _, c := range l.V1 {
			if err := k.Mkdir("sys/fs/cgroup/" + c + "/" + g); err != nil {
				t.Fatal(err)
			}
		}
	}
	m, err := machine.Short("1s1n4c2t")
	if err == nil {
		err = os.WriteFile(file, []byte(conf), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	opt := daemon.Options{Root: kernel.NewRoot(root, k), Machine: m, File: file, Socket: filepath.Join(dir, "s")}
	go func() { done <- daemon.Run(ctx, opt) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	waitFor(t, "all groups are placed", func() bool {
		c, err := api.Dial(ctx, opt.Socket)
		if err != nil {
			return false
		}
		defer c.Close()
		all, err := c.List(ctx)
		return err == nil && len(all) == len(groups)
	})
	return socket, file
}

// steady has times and users as on every host.
func steady(text string) string {
	text = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`).ReplaceAllString(text, "2026-11-23 21:05:11")
	return strings.ReplaceAll(text, userName(os.Geteuid()), "root")
}

func TestConfigOfAgent(t *testing.T) {
	t.Parallel()
	socket, file := agentOnPaper(t, sharedPool, "web", "cache", "batch")
	next := filepath.Join(filepath.Dir(file), "next.yaml")
	for _, step := range []struct {
		name string
		conf string
		args []string
		code int
		says string // on the error stream
	}{
		{"preview", strings.Replace(sharedPool, "cpus: 2}", "cpus: 4, limits: {weight: 200}}", 1), []string{"preview", next}, exitOK, ""},
		{"preview-loss", "reserved: 1-7\n" + sharedPool, []string{"preview", next}, exitLosses, ""},
		{"apply-loss", "reserved: 1-7\n" + sharedPool, []string{"apply", next}, exitLosses, "not applied: 1 workload would lose its place;"},
		{"preview-bad", "reserved: 9\n" + sharedPool, []string{"preview", next}, exitError, "next.yaml:1: reserved: CPUs 9 are not there, or offline; this host has 0-7"},
		{"apply", strings.Replace(sharedPool, "cpus: 2}", "cpus: 4, limits: {weight: 200}}", 1), []string{"apply", next}, exitOK, ""},
		{"apply-again", strings.Replace(sharedPool, "cpus: 2}", "cpus: 4, limits: {weight: 200}}", 1), []string{"apply", next}, exitOK, ""},
		{"replace", "policy: {name: balloons}\n" + sharedPool, []string{"apply", next, "--replace"}, exitOK, ""},
		{"rollback", "", []string{"rollback"}, exitOK, ""},
		{"history", "", []string{"history"}, exitOK, ""},
		{"version", "", []string{"history", "1"}, exitOK, ""},
		{"no-version", "", []string{"history", "9"}, exitError, "version 9 of the configuration is not there"},
		{"rollback-absent", "", []string{"rollback", "9"}, exitError, "version 9 of the configuration is not there"},
	} {
		if step.conf != "" {
			if err := os.WriteFile(next, []byte(step.conf), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		out, errs, code := berth(t, append(append([]string{"config"}, step.args...), socket)...)
		if code != step.code || !strings.Contains(errs, step.says) || step.says == "" && errs != "" {
			t.Fatalf("%s: status %d, want %d: %s%s", step.name, code, step.code, errs, out)
		}
		golden.Check(t, "testdata/config/agent-"+step.name+".txt", steady(out))
	}
	out, _, code := berth(t, "config", "apply", "-o", "json", next, socket)
	var r api.Revision
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitLosses || r.Version != 5 {
		t.Errorf("as JSON: status %d, %v: %s", code, err, out)
	}
}

func TestConfigWithoutAgent(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"preview", "x"}, {"apply", "x"}, {"history"}, {"rollback"}} {
		_, errs, code := berth(t, append([]string{"config", "--root", t.TempDir()}, args...)...)
		if code != exitError || !strings.Contains(errs, "no agent runs") {
			t.Errorf("%s: status %d: %s", args[0], code, errs)
		}
	}
	for _, args := range [][]string{{"rollback", "x"}, {"rollback", "1", "2"}, {"history", "0"}, {"apply"}} {
		if _, errs, code := berth(t, append([]string{"config"}, args...)...); code != exitUsage {
			t.Errorf("%v: status %d: %s", args, code, errs)
		}
	}
}

// config check says what the host that --root names cannot do.
func TestConfigCheckOfHost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := fakekernel.V1()
	l.Own, l.CPUs = "/", "0-7"
	if _, err := fakekernel.New(dir, l); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sys/devices/system/cpu/online": "0-7\n", "sys/devices/system/cpu/possible": "0-7\n", "proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 4194304 kB\n",
	} {
		fakekernel.Plant(t, filepath.Join(dir, name), text)
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	for text, want := range map[string]string{
		sharedPool:                                       "valid: policy berth, 3 workloads",
		"reserved: 9\n" + sharedPool:                     ":1: reserved: CPUs 9 are not there, or offline; this host has 0-7",
		"floor: 0,9\n" + sharedPool:                      ":1: floor: CPUs 9 are not there",
		"allowed: 8-9\n" + sharedPool:                    ":1: allowed: CPUs 8-9 are not there",
		"confine: [/**]\n" + sharedPool:                  ":1: confine[0]: confine /**: not supported: the agent looks at groups of a certain depth (name each level",
		"guard: {allowed: [/a/**/b]}\n" + sharedPool:     ":1: guard.allowed[0]: guard.allowed /a/**/b: not supported",
		"agent: {admins: [nobody-here]}\n" + sharedPool:  `:1: agent.admins[0]: user "nobody-here": `,
		"agent: {group: none-here}\n" + sharedPool:       ":1: agent.group: ",
		"agent: {socket: /no/such/dir/s}\n" + sharedPool: ":1: agent.socket: listen on ",
		strings.Replace(sharedPool, "class: BE}", "class: BE, limits: {memoryHigh: 1Gi}}", 1):             ":6: workloads[2].limits.memoryHigh: memory.high: not supported: cgroup v1 has no such setting",
		strings.Replace(sharedPool, "class: BE}", "class: LSE, cpus: 99}", 1):                             ":6: workloads[2].cpus: 99 CPUs are asked for, and this host has 8",
		strings.Replace(sharedPool, "class: BE}", "class: BE, limits: {quota: 9}}", 1):                    ":6: workloads[2].limits.quota: it is the time of 9 CPUs, and this host has 8",
		strings.Replace(sharedPool, "class: BE}", "class: BE, limits: {memoryMax: 4097Mi}}", 1):           ":6: workloads[2].limits.memoryMax: it is 4097Mi, and this host has 4 GiB; max removes a limit",
		strings.Replace(sharedPool, "class: BE}", "class: BE, limits: {memoryMax: 4Gi}}", 1):              "valid: policy berth, 3 workloads",
		strings.Replace(sharedPool, "class: BE}", "class: BE, limits: {quota: max, memoryMax: max}}", 1):  "valid: policy berth, 3 workloads",
		strings.Replace(sharedPool, "class: BE}", "class: BE, memory: 5Gi}", 1):                           ":6: workloads[2].memory: 5Gi are asked for, and this host has 4 GiB",
		"classes: {BE: {quota: 9}}\n" + sharedPool:                                                        ":1: classes.BE.quota: it is the time of 9 CPUs, and this host has 8",
		"classes: {LSE: {quota: 9}}\n" + sharedPool:                                                       "valid: policy berth, 3 workloads", // nobody has it
		"classes: {BE: {memoryLow: 1Gi}}\n" + sharedPool:                                                  ":1: classes.BE.memoryLow: memory.low: not supported",
		"policy: {name: balloons, options: {balloonTypes: [{name: x, lists: ['98-99']}]}}\n" + sharedPool: ":1: policy.options: ",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code := exitInvalid
		if strings.HasPrefix(want, "valid") {
			code = exitOK
		}
		out, errs, got := berth(t, "config", "check", "--root", dir, file)
		if got != code || !strings.Contains(out, want) {
			t.Errorf("%s\nstatus %d: %s%s\nwant %q", text, got, out, errs, want)
		}
		if _, _, got := berth(t, "config", "check", "--anywhere", file); got != exitOK {
			t.Errorf("%s\nanywhere: status %d", text, got)
		}
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if out, _, code := berth(t, "config", "check", "--root", dir, file); code != exitInvalid || !strings.Contains(out, "an agent of this user refuses it: ") {
		t.Errorf("a file that others may write: status %d: %s", code, out)
	}
}
