package systemd

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/guard/control"
)

const (
	agentUnit   = "berth-agent.service"
	agentDropIn = "/run/systemd/system/" + agentUnit + ".d/test.conf"
	batchIdle   = "/sys/fs/cgroup/system.slice/batch.service/cpu.idle"
	// patience is for an emulated guest on a busy host.
	patience = 5 * time.Minute
)

// agentConfig has the agent look after web.service and act on batch.service. That is no
// workload: one of class BE would be idle without the guard.
const agentConfig = `apiVersion: berth.dev/v1alpha1
kind: NodeConfig
workloads:
  - name: web
    match: {unit: web.service}
guard: {mode: enforce, probe: always, allowed: [/system.slice/batch.service]}
`

// TestAgent runs the unit of the package as the package has it.
func TestAgent(t *testing.T) {
	startWorker(t)
	log := since(t)
	run(t, "systemctl", "start", agentUnit)
	guarded(t)
	// The first reading of a workload comes up to a second after its place.
	await(t, "the metrics have figures of the workload", func() bool {
		return strings.Contains(get(t, "tcp", "127.0.0.1:9750", "http://localhost/metrics"), "\nberth_workload_cpu_seconds_total{")
	})
	writeFile(t, "/etc/berth/node.yaml", strings.Replace(agentConfig, "probe: always", "probe: always, hold: 1m", 1))
	run(t, "systemctl", "reload", agentUnit)
	await(t, "the configuration is read again", func() bool { return strings.Contains(log(), "msg=reloaded") })
	started := property(t, "ActiveEnterTimestampMonotonic")
	await(t, "the watchdog is told that all is well", func() bool { return property(t, "WatchdogTimestampMonotonic") > started })
	leave := neighbour(t)

	// systemd starts it again with the same unit, but for this: the kernel lets a call pass
	// that the filter would refuse, and logs it.
	filter := run(t, "sed", "-n", "s/^SystemCallFilter=//p", "/lib/systemd/system/"+agentUnit)
	dropIn(t, "[Service]\nSystemCallFilter=\nSystemCallLog=~"+filter+"\n")
	first := property(t, "MainPID")
	run(t, "systemctl", "kill", "--signal=KILL", "--kill-whom=main", agentUnit)
	await(t, "systemd starts it again", func() bool {
		return property(t, "MainPID") != first && run(t, "systemctl", "show", "--value", "--property=ActiveState", agentUnit) == "active"
	})
	leave()
	neighbour(t)
	if restarts := property(t, "NRestarts"); restarts != 1 {
		t.Errorf("started again %d times, want once", restarts)
	}
	t.Logf("the unit has %d KiB of memory", property(t, "MemoryCurrent")>>10)
	stopped(t)
	if !strings.Contains(log(), "which the guard had active, is restored") {
		t.Error("what the killed agent's guard had active was not restored")
	}
	for line := range strings.Lines(log()) {
		if refusal().MatchString(line) {
			t.Errorf("refused: %s", line)
		}
	}
}

// refusal matches a line of the journal that tells of something that was not permitted.
func refusal() *regexp.Regexp {
	return regexp.MustCompile(`(?i)SECCOMP|type=1326|EPERM|EACCES|not permitted|permission denied|read-only file system`)
}

// TestAgentWithoutBPF refuses the agent the calls of the probe and of the counters:
// it says so, and does without.
func TestAgentWithoutBPF(t *testing.T) {
	startWorker(t)
	dropIn(t, "[Service]\nSystemCallFilter=~bpf perf_event_open\n")
	log := since(t)
	run(t, "systemctl", "start", agentUnit)
	placed(t, 1)
	await(t, "the probe is missed", func() bool { return guardStatus(t).Status.Probe.Reason != "" })
	if probe := guardStatus(t).Status.Probe; probe.Armed || !strings.Contains(probe.Reason, "is refused") {
		t.Errorf("the probe is %+v", probe)
	}
	for _, want := range []string{"run-queue probe: not supported: ", "hardware counters: not supported: "} {
		lines := regexp.MustCompile(`(?m)^.*`+regexp.QuoteMeta(want)+`.*$`).FindAllString(log(), -1)
		if len(lines) != 1 || !strings.Contains(lines[0], "SystemCallFilter=") || strings.Contains(lines[0], "MEMLOCK") {
			t.Errorf("%q is in the log %d times, want once, with a remedy: %q", want, len(lines), lines)
		}
	}
	stopped(t)
}

// keepOff keeps the rest of the guest off CPU 2, which is as slow as it is emulated: it
// would be a noisy neighbour itself.
func keepOff(t *testing.T) {
	t.Helper()
	const file = "/etc/systemd/system.conf.d/test.conf"
	cpus := func(list string) {
		run(t, "systemctl", "daemon-reexec")
		run(t, "taskset", "--all-tasks", "--pid", "--cpu-list", list, strconv.Itoa(os.Getpid()))
	}
	if err := os.MkdirAll(path.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, "[Manager]\nCPUAffinity=0 1 3\n")
	t.Cleanup(func() {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
		cpus("0-3")
	})
	cpus("0,1,3")
}

// startWorker starts a service that often needs CPU 2, and configures the agent to look
// after it.
func startWorker(t *testing.T) {
	t.Helper()
	keepOff(t)
	startService(t, "web", "ExecStart=/bin/guest.test work-in-turns\nCPUAffinity=2\n")
	if err := os.MkdirAll("/etc/berth", 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, "/etc/berth/node.yaml", agentConfig)
	t.Cleanup(func() {
		run(t, "systemctl", "stop", agentUnit)
		run(t, "berth", "restore", "--all")
	})
}

// guarded waits until the service has its place, and the run-queue probe looks at it.
func guarded(t *testing.T) {
	t.Helper()
	placed(t, 1)
	await(t, "the probe is armed", func() bool { return guardStatus(t).Status.Probe.Armed })
}

// neighbour starts a service that takes most of CPU 2 by its weight once the guard knows the worker
// without it, and waits until the guard has it run only when nobody else wants to.
func neighbour(t *testing.T) (leave func()) {
	t.Helper()
	const enough = 12 // windows, until the guard knows what is usual
	from := guardStatus(t).Status.Windows
	await(t, "the guard knows what is usual", func() bool { return guardStatus(t).Status.Windows >= from+enough })
	leave = startService(t, "batch", "ExecStart=/bin/busybox sh -c 'while :; do :; done'\nCPUAffinity=2\nCPUWeight=1000\n")
	await(t, "the neighbour yields", func() bool {
		return isIdle() && slices.ContainsFunc(guardStatus(t).Status.Active, func(a control.Action) bool {
			return a.Group == "system.slice/batch.service"
		})
	})
	return leave
}

// isIdle reports whether the neighbour's group is. Without the cpu controller it is not.
func isIdle() bool {
	text, err := os.ReadFile("/sys/fs/cgroup/system.slice/batch.service/cpu.idle")
	return err == nil && string(text) == "1\n"
}

// placed waits until so many services have their place.
func placed(t *testing.T, services int) {
	t.Helper()
	await(t, "the services are placed", func() bool {
		var all struct{ Workloads []agent.Workload }
		ask(t, "/v1/workloads", &all)
		return len(all.Workloads) == services
	})
}

// stopped stops the agent, which ends well and restores what its guard had active.
func stopped(t *testing.T) {
	t.Helper()
	run(t, "systemctl", "stop", agentUnit)
	expect(t, run(t, "systemctl", "show", "--property=ActiveState,Result,ExecMainStatus", agentUnit), "Result=success\nExecMainStatus=0\nActiveState=inactive")
	if isIdle() {
		t.Error("the neighbour still yields")
	}
}

// dropIn changes the unit until the test ends.
func dropIn(t *testing.T, text string) {
	t.Helper()
	if err := os.MkdirAll(strings.TrimSuffix(agentDropIn, "/test.conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, agentDropIn, text)
	run(t, "systemctl", "daemon-reload")
	t.Cleanup(func() {
		if err := os.Remove(agentDropIn); err != nil {
			t.Error(err)
		}
		run(t, "systemctl", "daemon-reload")
	})
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// since returns what reads all of the journal, the kernel's lines too, from now on. It
// is shown if the test fails.
func since(t *testing.T) (log func() string) {
	t.Helper()
	cursor := run(t, "journalctl", "--lines=0", "--show-cursor")
	_, cursor, _ = strings.Cut(cursor, "cursor: ")
	log = func() string {
		return run(t, "journalctl", "--sync", "--quiet") + run(t, "journalctl", "--quiet", "--output=short-monotonic", "--after-cursor="+cursor)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the journal:\n%s", log())
		}
	})
	return log
}

// property is a number that systemd has of the agent's unit.
func property(t *testing.T, name string) int {
	t.Helper()
	n, err := strconv.Atoi(run(t, "systemctl", "show", "--value", "--property="+name, agentUnit))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// await waits until something is so. To look often would make the test itself a noisy
// neighbour.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for began := time.Now(); !so(); time.Sleep(2 * time.Second) {
		if time.Since(began) > patience {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// guardStatus is where the agent's guard stands, once it runs.
func guardStatus(t *testing.T) (g api.Guard) {
	t.Helper()
	await(t, "the guard runs", func() bool {
		g = api.Guard{}
		ask(t, "/v1/guard", &g)
		return g.Status != nil
	})
	return g
}

// ask asks the agent's API.
func ask(t *testing.T, path string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(get(t, "unix", "/run/berth/agent.sock", "http://agent"+path)), into); err != nil {
		t.Fatal(err)
	}
}

// get returns the answer to a request that is sent to an address.
func get(t *testing.T, network, address, url string) string {
	t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v\n%s", url, answer.Status, err, text)
	}
	return string(text)
}
