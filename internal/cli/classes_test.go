package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/agent"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/place"
)

const someClasses = `
partitions:
  fast:                              # nobody else fills these ways
    l3Allocation: "4 ways"
    classes: {gold: }
  rest:
    l3Allocation: "5 ways"
    mbAllocation: ["100%", "40GBps"]  # which of the two counts is the CPU's to say
    classes:
      DEFAULT:                       # all work without a class
      bulk: {l3Allocation: "40%", mbAllocation: ["20%", "5GBps"]}
service: {BE: bulk}                  # workloads of class BE have class bulk
`

// cacheHost is a host with resctrl, and two workloads in cache classes.
func cacheHost(t *testing.T, cpu string, placed bool) (root, file string) {
	t.Helper()
	dir := t.TempDir()
	l := fakekernel.V1()
	r := fakekernel.ResctrlCPUs()[cpu]
	l.Resctrl, l.CPUs = &r, "0-15"
	k, err := fakekernel.New(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	m := fakekernel.Short(t, "2s1n1l4c2t")
	sys, err := fakekernel.Sysfs(m)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "classes.yaml")
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, "sys/devices")), os.CopyFS(dir, sys), os.WriteFile(file, []byte(someClasses), 0o600)); err != nil {
		t.Fatal(err)
	}
	if !placed {
		return dir, file
	}
	c, err := resctrl.Parse([]byte(someClasses), file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(k.Start("100"), k.Start("101"), k.Mkdir(fakekernel.ResctrlDir+"/pod-a"), k.WriteFile(fakekernel.ResctrlDir+"/pod-a/schemata", "L3:0=1\n")); err != nil {
		t.Fatal(err)
	}
	n, err := agent.Open(t.Context(), agent.Options{
		Root: kernel.NewRoot(dir, k), Dir: nodeDir(dir), Machine: m, Settings: agent.Settings{Classes: agent.ClassConfig{Cache: c}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for _, s := range []agent.Spec{
		{Request: place.Request{ID: "api", Class: place.LS}, PID: 100, Classes: map[agent.ClassKind]string{agent.CacheClass: "gold"}},
		{Request: place.Request{ID: "batch", Class: place.BE}, PID: 101},
	} {
		if _, err := n.Place(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	return dir, file
}

func TestClasses(t *testing.T) {
	t.Parallel()
	root, file := cacheHost(t, "skylake", true)
	out, stderr, code := berth(t, "--root", root, "classes")
	if code != 0 {
		t.Fatalf("status %d: %s", code, stderr)
	}
	golden.Check(t, "testdata/classes/placed", out)
	out, stderr, code = berth(t, "--root", root, "classes", "-o", "json")
	var r classReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r.Kinds) != len(agent.ClassKinds()) || len(r.Kinds[0].Classes) != 4 || r.Kinds[0].Supplies[0].Left != 4 {
		t.Errorf("%v, status %d: %s%s", err, code, out, stderr)
	}
	out, stderr, code = berth(t, "--root", root, "explain", "api")
	if code != 0 || !strings.Contains(out, "cache class") || !strings.Contains(out, "gold") {
		t.Errorf("explain: status %d: %s%s", code, out, stderr)
	}
	empty, _ := cacheHost(t, "zen4", false)
	out, stderr, code = berth(t, "--root", empty, "classes", "--file", file)
	if code != 0 {
		t.Fatalf("status %d: %s", code, stderr)
	}
	golden.Check(t, "testdata/classes/planned", out)
	out, stderr, code = berth(t, "--root", empty, "run", "--dry-run", "--cache-classes", file, "--cache", "gold", "--name", "api", "--", "true")
	if code != 0 || !strings.Contains(out, "mkdir /sys/fs/resctrl/berth-gold") {
		t.Errorf("dry run: status %d: %s%s", code, out, stderr)
	}
}

// What is wrong says what to do.
func TestClassesRefuses(t *testing.T) {
	t.Parallel()
	root, file := cacheHost(t, "skylake", false)
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("partitions: {a: {l3Allocation: 12 ways, classes: {gold: }}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain, _, _ := hostOf(t, "1s1n1l2c1t", "0-1", "0")
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"--root", plain, "classes"}, "not supported", 1},
		{[]string{"--root", root, "classes", "--file", bad}, "need 12 ways", 1},
		{[]string{"--root", root, "classes", "--file", "absent.yaml"}, "absent.yaml", 1},
		{[]string{"--root", root, "run", "--dry-run", "--cache", "gold", "--name", "api", "--", "true"}, "defines no cache classes", 125},
		{[]string{"--root", root, "run", "--dry-run", "--cache-classes", file, "--cache", "glod", "--name", "api", "--", "true"}, `did you mean "gold"`, 125},
	} {
		out, stderr, code := berth(t, c.args...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: status %d, want %d: %s%s\nwant %s", c.args, code, c.code, out, stderr, c.want)
		}
	}
}

// I/O classes are listed with what they come to on the disks of the host.
func TestIOClasses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k, err := fakekernel.New(dir, fakekernel.V2())
	if err != nil {
		t.Fatal(err)
	}
	m := fakekernel.Short(t, "1s1n1l2c2t")
	sys, err := fakekernel.Sysfs(m)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "classes.yaml")
	const text = "Classes:\n  slow:\n  - Weight: 20\n  - {Devices: [/dev/vd*], ThrottleReadBps: 60M, Weight: 50}\n  - {Devices: [/dev/sdz], ThrottleReadIOPS: 10k}\n"
	if err := errors.Join(k.PlugDisk("vda", "254:0", "bfq", "vda1"), os.RemoveAll(filepath.Join(dir, "sys/devices")), os.CopyFS(dir, sys), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	out, stderr, code := berth(t, "--root", dir, "classes", "--file", file)
	for _, want := range []string{"io classes\n", "slow   I/O weight 20, BFQ weight 50 on vda, bytes read per second 60000000 on vda  nobody", "note: class slow: device /dev/sdz: no such block device"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("status %d: %s%s\nwant %s", code, out, stderr, want)
		}
	}
	out, stderr, code = berth(t, "--root", dir, "run", "--dry-run", "--io-classes", file, "--io", "slow", "--name", "api", "--", "true")
	for _, want := range []string{"echo default 20 > /sys/fs/cgroup/berth/api/io.weight  # I/O class slow", "echo 254:0 rbps=60000000 > /sys/fs/cgroup/berth/api/io.max  # I/O class slow", "sdz: no such"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("dry run: status %d: %s%s\nwant %s", code, out, stderr, want)
		}
	}
	_, stderr, code = berth(t, "--root", dir, "run", "--dry-run", "--cache-classes", file, "--name", "api", "--", "true")
	if code == 0 || !strings.Contains(stderr, "it defines no cache classes") {
		t.Errorf("I/O classes as cache classes: status %d: %s", code, stderr)
	}
}
