package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/place"
)

// powerHost is a host with frequency scaling, and a workload with a profile.
func powerHost(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	l, p := fakekernel.V1(), fakekernel.PowerHosts()["intel_pstate"]
	l.Power = &p
	k, err := fakekernel.New(root, l)
	if err != nil {
		t.Fatal(err)
	}
	m := fakekernel.Short(t, "1s1n1l2c2t")
	sys, err := fakekernel.Sysfs(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.WalkDir(sys, ".", func(name string, e fs.DirEntry, err error) error {
		to := filepath.Join(root, name)
		if _, there := os.Stat(to); err != nil || there == nil {
			return err
		}
		if e.IsDir() {
			return os.Mkdir(to, 0o755)
		}
		text, err := fs.ReadFile(sys, name)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o644)
	}); err != nil {
		t.Fatal(err)
	}
	if err := k.Start("100"); err != nil {
		t.Fatal(err)
	}
	n, err := agent.Open(t.Context(), agent.Options{
		Root: kernel.NewRoot(root, k), Dir: nodeDir(root), Machine: m,
		Settings: agent.Settings{Classes: agent.ClassConfig{Power: &power.Config{
			Profiles: map[string]power.Profile{"thrifty": {Like: "power", Max: "50%"}}, Shared: "thrifty",
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	s := agent.Spec{Request: place.Request{ID: "api", Class: place.LSE, Milli: 2000}, PID: 100}
	s.SetClass(agent.PowerClass, "performance")
	if _, err := n.Place(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestPowerClasses(t *testing.T) {
	t.Parallel()
	root := powerHost(t)
	out, stderr, code := berth(t, "--root", root, "classes")
	if code != 0 {
		t.Fatalf("status %d: %s", code, stderr)
	}
	golden.Check(t, "testdata/classes/power", out)
	out, stderr, code = berth(t, "--root", root, "explain", "api")
	if code != 0 || !strings.Contains(out, "power class   performance") {
		t.Errorf("explain: status %d: %s%s", code, out, stderr)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"--root", root, "run", "--dry-run", "--name", "x", "--power", "power", "--", "true"}, "has no CPUs of its own", 125},
		{[]string{"--root", root, "move", "api", "--power", "powr"}, `did you mean "power"`, 1},
		{[]string{"--root", root, "move", "api"}, "--cpuset, --cache, --io, --net or --power is needed", exitUsage},
		{[]string{"--root", root, "move", "api", "--power", "eco"}, `power class "eco"`, 1},
		{[]string{"--root", root, "move", "api", "--power", "thrifty"}, "", 0},
	} {
		out, stderr, code := berth(t, c.args...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: status %d, want %d: %s%s\nwant %s", c.args, code, c.code, out, stderr, c.want)
		}
	}
	for file, want := range map[string]string{"scaling_governor": "powersave", "scaling_max_freq": "2250000", "energy_performance_preference": "power"} {
		for _, policy := range []string{"policy0", "policy1", "policy2", "policy3"} {
			text, err := os.ReadFile(filepath.Join(root, "sys/devices/system/cpu/cpufreq", policy, file))
			if got := strings.TrimSpace(string(text)); err != nil || got != want {
				t.Errorf("%s of %s: %q, want %q, %v", file, policy, got, want, err)
			}
		}
	}
}

// Without an agent, a NodeConfig defines profiles.
func TestPowerClassesFlag(t *testing.T) {
	t.Parallel()
	root, dir := powerHost(t), t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	run := func(file string) (string, string, int) {
		return berth(t, "--root", root, "run", "--dry-run", "--name", "x", "--class", "LSR", "--cpus", "1", "--power", "slow", "--power-classes", file, "--", "true")
	}
	out, stderr, code := run(file("power.yaml", "classes: {power: {profiles: {slow: {like: power, max: 40%}}}}\n"))
	if code != 0 || !strings.Contains(out, "scaling_max_freq  # profile slow of x") {
		t.Errorf("status %d: %s%s", code, out, stderr)
	}
	if _, stderr, code := run(file("io.yaml", "classes: {io: {classes: {slow: [{weight: 5}]}}}\n")); code == 0 || !strings.Contains(stderr, "it defines no power classes") {
		t.Errorf("a file without profiles: status %d: %s", code, stderr)
	}
}
