package systemd

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab"
)

// labRun runs berth lab for a block, and returns what it stored. What it finds out means nothing in a guest.
func labRun(t *testing.T, args ...string) *lab.Result {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "lab") // on the disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	args = append([]string{"berth", "lab", "--rounds", "1", "--duration", "2s", "--cpus", "0-1", "--neighbour-threads", "1", "--results", dir}, args...)
	t.Log(run(t, args...))
	files, err := filepath.Glob(filepath.Join(dir, "*", lab.ResultFile))
	if err != nil || len(files) != 1 {
		t.Fatalf("result files %v, %v", files, err)
	}
	result, err := lab.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if !result.Complete || len(result.Skipped) > 0 {
		t.Errorf("complete %v, skipped %+v", result.Complete, result.Skipped)
	}
	for _, round := range result.Rounds {
		if l := round.Load; l.Done == 0 || l.Failed > 0 {
			t.Errorf("%s: of %d requests %d are done, %d failed: %v", round.Scenario, l.Offered, l.Done, l.Failed, l.Errors)
		}
	}
	return result
}

// asBefore waits until a state is as it was: systemd may be about to disable controllers.
func asBefore(t *testing.T, before map[string]string, units ...string) {
	t.Helper()
	await(t, "all is as it was", func() bool {
		differs := cmp.Diff(before, stateOf(t, units))
		if differs != "" {
			t.Logf("not yet as it was (-before +now):\n%s", differs)
		}
		return differs == ""
	})
}

// labGroups are the lab's groups of a role.
func labGroups(role string) (dirs []string) {
	for _, above := range []string{"", "*/", "*/*/"} {
		found, _ := filepath.Glob("/sys/fs/cgroup/" + above + "berth-lab-*/" + role) // the pattern is well formed
		dirs = append(dirs, found...)
	}
	return dirs
}

// TestLabUnit measures a service of Debian's while it runs, by the name of its unit and by its group. The
// neighbour comes and goes; the service keeps its processes and its settings.
func TestLabUnit(t *testing.T) {
	const unit, group = "nginx.service", "system.slice/nginx.service"
	run(t, "systemctl", "start", unit)
	t.Cleanup(func() { run(t, "systemctl", "stop", unit) })
	await(t, "nginx answers", func() bool {
		answer, err := http.Get("http://127.0.0.1/")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
	before := stateOf(t, []string{unit})
	for flag, name := range map[string]string{"--unit": unit, "--cgroup": "/" + group} {
		t.Run(flag, func(t *testing.T) {
			served := requestsServed(t)
			r := labRun(t, flag, name, "--probe", "http://127.0.0.1/", "--rate", "50", "--settle", "500ms", "--neighbour", "spin", "--scenario", "unisolated,limited")
			if got := strings.Trim(r.Experiment.Tenant.Group, "/"); got != group || r.Experiment.Tenant.Service != lab.Outside {
				t.Errorf("the tenant is %+v, want what runs in %s", r.Experiment.Tenant, group)
			}
			answered, used := 0, 0.0
			for _, round := range r.Rounds {
				answered, used = answered+round.Load.Done, used+round.Tenant.CPUSeconds
				if beside := round.Neighbour != nil; beside && round.Neighbour.Work <= 0 || beside == (round.Scenario == lab.Baseline || round.Scenario == lab.BaselineAgain) {
					t.Errorf("%s: neighbour %+v", round.Scenario, round.Neighbour)
				}
			}
			if more := requestsServed(t) - served; more < answered || used <= 0 {
				t.Errorf("%d requests were answered, nginx tells of %d, and used %g s of CPU time", answered, more, used)
			}
			asBefore(t, before, unit)
			if left := labGroups("*"); len(left) > 0 {
				t.Errorf("groups are left: %q", left)
			}
		})
	}
}

// requestsServed is how many lines nginx has in its log.
func requestsServed(t *testing.T) int {
	t.Helper()
	return strings.Count(read(t, "/var/log/nginx/access.log")+"\n", "\n")
}

// TestLabMemory has a neighbour fill the page cache under memory.high, and a tenant with memory.low beside it:
// the settings are in force while the round is measured, and only then the kernel counts that the neighbour
// was beyond its memory.high.
func TestLabMemory(t *testing.T) {
	before := stateOf(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan map[bool]int)
	go func() { told <- highEvents(ctx) }()
	r := labRun(t, "--resource", "memory", "--scenario", "unisolated,memory-high,memory-low", "--settle", "1s", "--rate", "20", "--service-time", "1ms", "--working-set", "8388608", "--intensity", "50")
	cancel()
	events := <-told
	t.Logf("memory.events of the neighbour, high: %d more under memory.high, %d without", events[true], events[false])
	if events[true] == 0 || events[false] > 0 {
		t.Errorf("memory.events, high: %d more under memory.high, %d without", events[true], events[false])
	}
	want := map[string]map[string]string{
		"memory-high": {"neighbour memory.high": "33554432", "tenant memory.low": "0"},
		"memory-low":  {"neighbour memory.high": "max", "tenant memory.low": "268435456"},
	}
	for _, round := range r.Rounds {
		has := map[string]string{}
		for _, k := range round.Knobs {
			has[k.Of+" "+k.File] = k.Value
		}
		expected := want[round.Scenario]
		if expected == nil {
			expected = map[string]string{"neighbour memory.high": "max", "tenant memory.low": "0"}
		}
		for name, value := range expected {
			if has[name] != value {
				t.Errorf("%s: %s is %q, want %q", round.Scenario, name, has[name], value)
			}
		}
		delete(want, round.Scenario)
	}
	if len(want) > 0 {
		t.Errorf("there was no round of %v", want)
	}
	asBefore(t, before)
	if left := labGroups("*"); len(left) > 0 {
		t.Errorf("groups are left: %q", left)
	}
}

// highEvents is how often the lab's neighbour was beyond memory.high until ctx is done, while it had one and
// while it had none, as memory.events of its group tells.
func highEvents(ctx context.Context) map[bool]int {
	more, last, was := map[bool]int{}, map[string]int{}, map[string]bool{}
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		for _, dir := range labGroups("neighbour") {
			text, _ := os.ReadFile(dir + "/memory.events") // the group may go at any time
			limit, _ := os.ReadFile(dir + "/memory.high")
			limited := len(limit) > 0 && string(limit) != "max\n"
			for line := range strings.Lines(string(text)) {
				n := 0
				if _, err := fmt.Sscanf(line, "high %d", &n); err == nil {
					more[limited || was[dir]] += n - last[dir] // the limit came or went since
					last[dir] = n
				}
			}
			was[dir] = limited
		}
	}
	return more
}
