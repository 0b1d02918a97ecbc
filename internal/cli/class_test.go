package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// classHost is a host with a group "web" that is not Berth's, on which one way of giving
// a workload its class is tried.
type classHost struct {
	t    *testing.T
	dir  string
	root *kernel.Root
	m    *machine.Machine
	file string
}

func newClassHost(t *testing.T) *classHost {
	t.Helper()
	dir := t.TempDir()
	h := &classHost{t: t, dir: filepath.Join(dir, "root"), file: filepath.Join(dir, "etc", "node.yaml")}
	for _, d := range []string{h.dir, filepath.Dir(h.file)} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l := fakekernel.V1()
	l.V1, l.CPUs = []string{"cpu,cpuacct", "cpuset", "memory"}, "0-7"
	k, err := fakekernel.New(h.dir, l)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range l.V1 {
		if err := k.Mkdir("sys/fs/cgroup/" + c + "/web"); err != nil {
			t.Fatal(err)
		}
	}
	if h.m, err = machine.Short("1s2n2c2t"); err != nil {
		t.Fatal(err)
	}
	h.root = kernel.NewRoot(h.dir, k)
	h.root.Patience = time.Millisecond
	return h
}

// node is what berth run and resize work on where no agent runs.
func (h *classHost) node() *agent.Node {
	h.t.Helper()
	n, err := agent.Open(h.t.Context(), agent.Options{Root: h.root, Machine: h.m, Dir: filepath.Join(h.dir, "state")})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { n.Close() })
	return n
}

// flags are a spec as the command lines of run and resize make it of another one.
func (h *classHost) flags(spec agent.Spec, args ...string) agent.Spec {
	h.t.Helper()
	var f specFlags
	cmd := &cobra.Command{}
	f.register(cmd)
	err := cmd.ParseFlags(args)
	if err == nil {
		err = f.apply(cmd, &spec)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return spec
}

func (h *classHost) configure(class, limits string) {
	h.t.Helper()
	text := fmt.Sprintf("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\nworkloads: [{name: web, match: {cgroup: /web}, class: %s, cpus: 1%s}]\n", class, limits)
	if err := errors.Join(os.WriteFile(h.file+"~", []byte(text), 0o600), os.Rename(h.file+"~", h.file)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *classHost) agentOptions() daemon.Options {
	return daemon.Options{Root: h.root, Machine: h.m, File: h.file, Socket: filepath.Join(filepath.Dir(h.file), "s")}
}

// agent starts an agent; it ends with the test.
func (h *classHost) agent() *api.Client {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx, h.agentOptions()) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error(err)
		}
	})
	var c *api.Client
	h.until("the agent listens", func() (err error) {
		c, err = api.Dial(ctx, h.agentOptions().Socket)
		return err
	})
	return c
}

func (h *classHost) until(what string, try func() error) {
	h.t.Helper()
	var err error
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	h.t.Fatalf("%s: %v", what, err)
}

// found waits for a workload of the class, and returns its settings.
func (h *classHost) found(c *api.Client, id string, class place.Class) doorSettings {
	h.t.Helper()
	var w agent.Workload
	h.until("a workload of class "+class.String(), func() (err error) {
		if w, err = c.Get(h.t.Context(), id); err == nil && w.Spec.Request.Class != class {
			err = errors.New("it is of class " + w.Spec.Request.Class.String())
		}
		return err
	})
	return h.settings(w)
}

// doorSettings are what a class decides for a group, as the kernel has it, and as
// Berth tells it.
type doorSettings struct {
	Idle, Shares string
	Told         string
}

func (h *classHost) settings(w agent.Workload) doorSettings {
	h.t.Helper()
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(h.dir, "sys/fs/cgroup/cpu,cpuacct", w.Group, file))
		if err != nil {
			h.t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	return doorSettings{read("cpu.idle"), read("cpu.shares"), limitsText(&w.Limits)}
}

// Whichever way a workload came to have a class, its group has the same settings, and
// they are those of the class's traits unless its limits say something else.
func TestClassThroughEveryDoor(t *testing.T) {
	t.Parallel()
	for _, limits := range []struct{ yaml, flags string }{{}, {", limits: {weight: 5}", "--weight=5"}} {
		for _, class := range place.Classes() {
			name := class.String()
			want := doorSettings{Idle: "0", Shares: "1024"}
			switch {
			case limits.yaml != "":
				want = doorSettings{Idle: "0", Shares: "51", Told: "weight 5"}
			case class.Traits().Idle:
				want = doorSettings{Idle: "1", Shares: "3", Told: "idle"}
			}
			args := []string{"--class=" + name, "--cpus=1"}
			spec := agent.Spec{Request: place.Request{ID: "web", Class: class, Milli: 1000}, Group: "web"}
			if limits.yaml != "" {
				args = append(args, limits.flags)
				spec.Limits = cgroup.Limits{Weight: 5}
			}
			other := place.BE
			if class == place.BE {
				other = place.LS
			}
			for door, through := range map[string]func(*classHost) doorSettings{
				"run": func(h *classHost) doorSettings {
					w, err := h.node().Place(h.t.Context(), h.flags(agent.Spec{Request: place.Request{ID: "web"}}, args...))
					if err != nil {
						h.t.Fatal(err)
					}
					return h.settings(w)
				},
				"run --dry-run": func(h *classHost) doorSettings {
					w, plan, err := h.node().Preview(h.t.Context(), h.flags(agent.Spec{Request: place.Request{ID: "web"}, Group: "web"}, args...))
					if err != nil {
						h.t.Fatal(err)
					}
					got := h.settings(w)
					for _, s := range plan {
						switch filepath.Base(s.Path) {
						case "cpu.idle":
							got.Idle, got.Shares = s.Value, map[string]string{"1": "3", "0": "1024"}[s.Value]
						case "cpu.shares":
							got.Shares = s.Value
						}
					}
					return got
				},
				"resize": func(h *classHost) doorSettings {
					n := h.node()
					was, err := n.Place(h.t.Context(), agent.Spec{Request: place.Request{ID: "web", Class: other, Milli: 1000}, Group: "web"})
					if err != nil {
						h.t.Fatal(err)
					}
					w, err := n.Resize(h.t.Context(), h.flags(was.Spec, args...))
					if err != nil {
						h.t.Fatal(err)
					}
					return h.settings(w)
				},
				"NodeConfig": func(h *classHost) doorSettings {
					h.configure(name, limits.yaml)
					return h.found(h.agent(), "web:web", class)
				},
				"NodeConfig, read again": func(h *classHost) doorSettings {
					h.configure(other.String(), "")
					c := h.agent()
					h.found(c, "web:web", other)
					h.configure(name, limits.yaml)
					return h.found(c, "web:web", class)
				},
				"agent --dry-run": func(h *classHost) doorSettings {
					h.configure(name, limits.yaml)
					drafts, err := daemon.Preview(h.t.Context(), h.agentOptions())
					if err != nil || len(drafts) != 1 {
						h.t.Fatalf("%v, %v", drafts, err)
					}
					return doorSettings{want.Idle, want.Shares, limitsText(&drafts[0].Limits)}
				},
				"config check": func(h *classHost) doorSettings {
					h.configure(name, limits.yaml)
					c, err := daemon.ReadConfig(h.file)
					if err != nil {
						h.t.Fatal(err)
					}
					return doorSettings{want.Idle, want.Shares, limitsOf(c, &c.Workloads[0])}
				},
				"API": func(h *classHost) doorSettings {
					if err := os.WriteFile(h.file, []byte("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n"), 0o600); err != nil {
						h.t.Fatal(err)
					}
					w, err := h.agent().Place(h.t.Context(), spec)
					if err != nil {
						h.t.Fatal(err)
					}
					return h.settings(w)
				},
			} {
				if class == place.System && strings.HasPrefix(door, "r") {
					continue // refused: the host's own services are not run by hand
				}
				t.Run(name+limits.flags+"/"+door, func(t *testing.T) {
					t.Parallel()
					if diff := cmp.Diff(want, through(newClassHost(t))); diff != "" {
						t.Errorf("settings (-want +got):\n%s", diff)
					}
				})
			}
		}
	}
}
