package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// killedGuard is a host with groups web and hog on which a guard of the agent was killed
// after it had taken CPUs from hog. It returns the guard's directory and the tree as
// it was before.
func killedGuard(t *testing.T) (h *host, dir string, fresh map[string]string) {
	t.Helper()
	h = newHost(t, webAndHog+"confine: [/hog]\n"+off)
	for _, name := range []string{"web", "hog"} {
		h.mkdir(name)
		for file, text := range map[string]string{"cpuset.cpus": "0-7", "cpuset.mems": "0-1"} {
			if err := h.k.WriteFile(cpusets+name+"/"+file, text+"\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	fresh = tree(t, h.k)
	conf, err := ReadConfig(h.file)
	if err != nil {
		t.Fatal(err)
	}
	dir = agent.GuardDir(filepath.Join(h.dir, StateDir(conf)))
	g, err := actuate.Open(actuate.Options{Root: kernel.NewRoot(h.dir, h.k), Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	action := control.Action{Remedy: detect.ShrinkCPUs, Group: "hog", Limits: cgroup.Limits{CPUs: cpuset.MustParse("6-7")}}
	if _, err := g.Apply(t.Context(), action); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil { // the kernel closes its files, and its changes stay
		t.Fatal(err)
	}
	if got := h.read(cpusets + "hog/cpuset.cpus"); got != "6-7" {
		t.Fatalf("the guard has %s active", got)
	}
	return h, dir, fresh
}

// The agent gives back what a killed guard left before it notes the original values of its
// own changes, whatever its own guard is to do.
func TestStartRecoversFirst(t *testing.T) {
	t.Parallel()
	for _, sensors := range []bool{true, false} {
		h, _, fresh := killedGuard(t)
		if sensors {
			h.guards()
		}
		h.opt.RestoreOnExit = true
		r := h.run()
		r.await(agent.Placed, "web:web")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fresh, tree(t, h.k)); diff != "" {
			t.Errorf("sensors %v: restored (-want +got):\n%s", sensors, diff)
		}
	}
}

// The agent does not start above what it could not restore, and says what is to be done.
func TestStartRefusesGuardsLeftovers(t *testing.T) {
	t.Parallel()
	rewrite := func(change func(string) string) func(*testing.T, *host, string) {
		return func(t *testing.T, _ *host, dir string) {
			name := filepath.Join(dir, "ledger")
			text, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(name, []byte(change(string(text))), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, tt := range map[string]struct {
		prepare func(t *testing.T, h *host, dir string)
		says    string
	}{
		"another guard runs": {func(t *testing.T, h *host, _ string) {
			g, err := actuate.Open(actuate.Options{Root: kernel.NewRoot(h.dir, h.k), Dir: filepath.Join(t.TempDir(), "other")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = g.Close() })
		}, "end it first"},
		"its first line is bad": {rewrite(func(s string) string { return "x" + s }), "'berth restore' sets it aside"},
		"another line is bad":   {rewrite(func(s string) string { return s + "x\n" }), "by hand"},
		"the directory is open to others": {func(t *testing.T, _ *host, dir string) {
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		}, "chmod go-w"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h, dir, _ := killedGuard(t)
			h.guards()
			tt.prepare(t, h, dir)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := Run(ctx, h.opt)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("the agent ended with %v, want %q", err, tt.says)
			}
			if _, err := os.Stat(h.opt.Socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("its socket: %v", err)
			}
			if entries, err := os.ReadDir(filepath.Join(h.dir, StateDir(config.Default()))); err == nil && len(entries) > 0 {
				t.Errorf("the node's books were opened: %v", entries)
			}
		})
	}
}
