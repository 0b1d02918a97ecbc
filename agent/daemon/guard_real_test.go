package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/fakekernel"
)

// On the host's own v1 groups: spinning best-effort work beside a modest latency-
// sensitive group is told to yield, and has its values back when the agent ends, which
// leaves the grants.
func TestGuardOnThisHost(t *testing.T) {
	t.Parallel()
	dirs, prefix := realGroups(t)
	if _, err := os.Stat("/sys/fs/cgroup/cpu"); err != nil {
		t.Skip("no cpu hierarchy of cgroup v1 at /sys/fs/cgroup/cpu")
	}
	web, hog := prefix+"web", prefix+"hog"
	for _, group := range []string{web, hog} {
		makeGroup(t, dirs, group)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile("/sys/fs/cgroup/cpuset/" + file)
			if err == nil {
				err = os.WriteFile("/sys/fs/cgroup/cpuset/"+group+"/"+file, text, 0)
			}
			if err != nil {
				t.Skipf("no cpuset hierarchy of cgroup v1 at /sys/fs/cgroup/cpuset: %v", err)
			}
		}
	}
	r := realAgent(t, web, hog)
	spin(t, dirs, web, "while :; do i=0; while [ $i -lt 500 ]; do i=$((i+1)); done; sleep 0.005; done")
	for range 3 {
		spin(t, dirs, hog, "while :; do :; done")
	}
	applied, err := r.applies(t, hog)
	if err != nil {
		t.Skipf("the host is too busy with others to tell that this hog disturbs: %v", err)
	}
	idle := func() string {
		text, err := os.ReadFile("/sys/fs/cgroup/cpu/" + hog + "/cpu.idle")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	if len(applied.Changes) == 0 || len(applied.Evidence) == 0 {
		t.Errorf("applied: %+v", applied)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	shares, err := os.ReadFile("/sys/fs/cgroup/cpu/" + hog + "/cpu.shares")
	if idle() != "0" || err != nil || string(shares) != "4096\n" {
		t.Errorf("at the end the hog has cpu.idle %s and %s shares, want 0 and the agent's 4096; %v", idle(), shares, err)
	}
}

// spin runs a shell in a group until the end of the test.
func spin(t *testing.T, dirs []string, group, script string) {
	t.Helper()
	c := exec.Command("sh", "-c", script)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, group, "cgroup.procs"), fmt.Append(nil, c.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// realRun is an agent on this host.
type realRun struct {
	*api.Client
	stop func() error
}

func realAgent(t *testing.T, web, hog string) *realRun {
	t.Helper()
	dir := fakekernel.MemoryDir(t)
	file, socket := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "s")
	text := fmt.Sprintf(`apiVersion: %s
kind: %s
workloads:
- {name: web, match: {cgroup: /%s}, class: LS}
- {name: hog, match: {cgroup: /%s}, class: BE, limits: {weight: 400}}
guard: {mode: "off", probe: always}
agent: {stateDir: %s/node, socket: %s, metrics: "off"}
`, config.APIVersion, config.Kind, web, hog, dir, socket)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	open := func() (Sensors, error) { return guard.OpenHost("") }
	go func() { done <- Run(ctx, Options{File: file, Sensors: open}) }()
	r := &realRun{stop: sync.OnceValue(func() error { cancel(); return <-done })}
	t.Cleanup(func() {
		if err := errors.Join(r.stop(), takeBack(dir)); err != nil {
			t.Error(err)
		}
	})
	for until := time.Now().Add(time.Minute); r.Client == nil && time.Now().Before(until) && len(done) == 0; time.Sleep(10 * time.Millisecond) {
		r.Client, _ = api.Dial(t.Context(), socket)
	}
	if r.Client == nil {
		err := r.stop()
		if _, busy := errors.AsType[*actuate.BusyError](err); busy {
			t.Skipf("another guard acts on this host: %v", err)
		}
		t.Fatalf("the agent did not answer: %v", err)
	}
	placed := 0
	patience, enough := context.WithTimeout(t.Context(), time.Minute)
	defer enough()
	for e, err := range r.Events(patience, 0, true) {
		if err != nil {
			t.Fatalf("of 2 groups the agent has placed %d: %v", placed, err)
		}
		if e.Kind == agent.Refused {
			t.Skipf("another node has this host's groups: %s", e.Text)
		}
		if e.Kind == agent.Placed {
			placed++
		}
		if placed == 2 {
			break
		}
	}
	if err := r.SetMode(t.Context(), config.GuardEnforce); err != nil {
		t.Skipf("another guard acts on this host: %v", err)
	}
	return r
}

// takeBack restores what an agent of the test has left in place.
func takeBack(dir string) error {
	_, err := agent.Restore(context.Background(), agent.Options{Dir: filepath.Join(dir, "node")})
	return err
}

// applies waits until the guard acts on a group.
func (r *realRun) applies(t *testing.T, group string) (*control.Event, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for e, err := range r.Events(ctx, 0, true) {
		if err != nil {
			return nil, err
		}
		if e.Guard != nil && e.Guard.Outcome == control.Applied && e.Guard.Action.Group == group {
			return e.Guard, nil
		}
	}
	return nil, errors.New("no action came")
}
