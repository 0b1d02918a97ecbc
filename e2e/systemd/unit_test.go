package systemd

import (
	"os"
	"path"
	"strings"
	"testing"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/place"
)

const webDir = "sys/fs/cgroup/system.slice/web.service/"

// startWeb starts a service with a weight of its own.
func startWeb(t *testing.T) {
	t.Helper()
	startService(t, "web", "ExecStart=sleep infinity\nCPUWeight=150\n")
}

// webShows compares files of the service's group.
func webShows(t *testing.T, when string, want map[string]string) {
	t.Helper()
	for file, value := range want {
		if got := read(t, "/"+webDir+file); got != value {
			t.Errorf("%s: %s is %q, want %q", when, file, got, value)
		}
	}
}

// TestUnit changes a unit's group, once behind systemd's back and once through it.
func TestUnit(t *testing.T) {
	startWeb(t)
	original := map[string]string{"cpu.weight": "150", "cpu.max": "max 100000", "cpu.idle": "0", "memory.max": "max"}
	webShows(t, "at first", original)

	raw, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.WriteFile(webDir+"cpu.weight", "50\n"); err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "daemon-reload")
	webShows(t, "written directly, after a reload", original)

	root, err := systemd.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	undo, err := kernel.Apply(root, kernel.Plan{
		{Op: kernel.Enable, Path: "sys/fs/cgroup/cgroup.subtree_control", Value: "+cpuset"},
		{Op: kernel.Enable, Path: "sys/fs/cgroup/system.slice/cgroup.subtree_control", Value: "+cpuset"},
		{Path: webDir + "cpuset.cpus", Value: "1-2", Format: kernel.List},
		{Path: webDir + "cpuset.mems", Value: "0", Format: kernel.List},
		{Path: webDir + "cpu.max", Value: "20000 50000"},
		{Path: webDir + "cpu.weight", Value: "30"},
		{Path: webDir + "memory.max", Value: "67108864"},
		{Path: webDir + "memory.high", Value: "33554432"},
		{Path: webDir + "memory.low", Value: "4096"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	changed := map[string]string{
		"cpuset.cpus.effective": "1-2", "cpuset.mems": "0", "cpu.max": "20000 50000", "cpu.weight": "30",
		"memory.max": "67108864", "memory.high": "33554432", "memory.low": "4096",
	}
	webShows(t, "through systemd", changed)
	run(t, "systemctl", "daemon-reload")
	webShows(t, "through systemd, after a reload", changed)
	run(t, "systemctl", "restart", "web.service")
	webShows(t, "through systemd, after a restart", changed)

	if err := undo(); err != nil {
		t.Error(err)
	}
	webShows(t, "undone", original)
	run(t, "systemctl", "daemon-reload")
	webShows(t, "undone, after a reload", original)
	for _, property := range []string{"AllowedCPUs", "AllowedMemoryNodes"} {
		expect(t, run(t, "systemctl", "show", "--property="+property, "web.service"), property+"=")
	}
	expect(t, run(t, "systemctl", "show", "--property=MemoryMax", "web.service"), "MemoryMax=infinity")
	mayUseAll(t, "system.slice/web.service")
}

// TestIdleUnit makes a unit idle and takes that back.
func TestIdleUnit(t *testing.T) {
	startWeb(t)
	root, err := systemd.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	step := kernel.Step{Path: webDir + "cpu.idle", Value: "1", Disturbs: []string{webDir + "cpu.weight"}}
	undo, err := kernel.Apply(root, kernel.Plan{step}, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "daemon-reload")
	webShows(t, "idle", map[string]string{"cpu.idle": "1"})
	expect(t, run(t, "systemctl", "show", "--property=CPUWeight", "web.service"), "CPUWeight=idle")
	run(t, "systemctl", "stop", "web.service")
	if err := undo(); err != nil {
		t.Error(err)
	}
	run(t, "systemctl", "start", "web.service")
	expect(t, run(t, "systemctl", "show", "--property=CPUWeight", "web.service"), "CPUWeight=150") // as at first
}

// TestNode has a node place a service and keep a slice off its CPUs.
func TestNode(t *testing.T) {
	startWeb(t)
	run(t, "systemctl", "start", "user.slice")
	node, err := agent.Open(t.Context(), agent.Options{Dir: t.TempDir(), Settings: agent.Settings{Confine: []string{"user.slice"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	spec := agent.Spec{
		Request: place.Request{ID: "web", Class: place.LSE, Milli: 2000},
		Group:   "system.slice/web.service",
		Limits:  cgroup.Limits{Weight: 40},
	}
	w, err := node.Place(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "systemctl", "daemon-reload")
	webShows(t, "placed", map[string]string{"cpuset.cpus.effective": w.CPUs.String(), "cpu.weight": "40"})
	rest := cpuset.MustParse("0-3").Minus(w.CPUs).String()
	expect(t, read(t, "/sys/fs/cgroup/user.slice/cpuset.cpus.effective"), rest)
	expect(t, run(t, "systemctl", "show", "--property=AllowedCPUs", "user.slice"), "AllowedCPUs="+strings.ReplaceAll(rest, ",", " "))

	if _, err := node.Restore(t.Context()); err != nil {
		t.Error(err)
	}
	run(t, "systemctl", "daemon-reload")
	webShows(t, "restored", map[string]string{"cpu.weight": "150"})
	mayUseAll(t, "system.slice/web.service")
	mayUseAll(t, "user.slice")
	for _, unit := range []string{"web.service", "user.slice"} {
		expect(t, run(t, "systemctl", "show", "--property=AllowedCPUs", unit), "AllowedCPUs=")
	}
}

// mayUseAll checks that a group has all CPUs again, by a file of its own or without.
func mayUseAll(t *testing.T, group string) {
	t.Helper()
	for dir := path.Join("/sys/fs/cgroup", group); ; dir = path.Dir(dir) {
		text, err := os.ReadFile(dir + "/cpuset.cpus.effective")
		if err == nil {
			expect(t, string(text), "0-3\n")
			return
		}
	}
}
