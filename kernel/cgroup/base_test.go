package cgroup

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

func TestBase(t *testing.T) {
	t.Parallel()
	const session = "sys/fs/cgroup/user.slice/session-1.scope"
	owned := func(k *fakekernel.Kernel, dirs ...string) {
		for _, dir := range dirs {
			for _, file := range []string{"", "/cgroup.procs", "/cgroup.subtree_control"} {
				if err := k.Delegate(dir + file); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	enable := func(k *fakekernel.Kernel, dir string) {
		if err := k.WriteFile(dir+"/cgroup.subtree_control", "+cpu +cpuset"); err != nil {
			t.Fatal(err)
		}
	}
	inner := fakekernel.V2()
	inner.Inner, inner.Own = true, "/"
	deep := fakekernel.V2()
	deep.Own = "/a/b/c"
	tests := map[string]struct {
		layout  fakekernel.Layout
		uid     int
		prepare func(k *fakekernel.Kernel)
		want    string // of the cpu controller; "" for not supported
		says    string
	}{
		"v1 root":      {fakekernel.V1(), 0, nil, "sys/fs/cgroup/cpu,cpuacct", ""},
		"v1 user":      {fakekernel.V1(), 1000, nil, "", "run as root"},
		"v2 root":      {fakekernel.V2(), 0, nil, "sys/fs/cgroup", ""},
		"v2 container": {inner, 0, nil, "", "free of processes"},
		"v2 from outside": {inner, 0, func(k *fakekernel.Kernel) { // as nsenter does
			_ = k.Put("proc/self/cgroup", "0::/../other")
			_ = k.Put("sys/fs/cgroup/cgroup.procs", "")
		}, "sys/fs/cgroup", ""},
		"v2 user":           {fakekernel.V2(), 1000, nil, "", "systemd-run --user --scope -p Delegate=yes"},
		"v2 user, own only": {fakekernel.V2(), 1000, func(k *fakekernel.Kernel) { owned(k, session) }, "", "free of processes"},
		"v2 user, not enabled": {fakekernel.V2(), 1000, func(k *fakekernel.Kernel) { owned(k, session, path.Dir(session)) },
			"", "does not offer it"},
		"v2 user, delegated": {fakekernel.V2(), 1000, func(k *fakekernel.Kernel) {
			enable(k, "sys/fs/cgroup")
			owned(k, session, path.Dir(session))
		}, path.Dir(session), ""},
		"v2 user, parent holds processes": {fakekernel.V2(), 1000, func(k *fakekernel.Kernel) {
			enable(k, "sys/fs/cgroup")
			owned(k, session, path.Dir(session))
			_ = k.Put(path.Dir(session)+"/cgroup.procs", "7")
		}, "", "free of processes"},
		"v2 user, grandparent offers more": {deep, 1000, func(k *fakekernel.Kernel) {
			enable(k, "sys/fs/cgroup")
			owned(k, "sys/fs/cgroup/a", "sys/fs/cgroup/a/b", "sys/fs/cgroup/a/b/c")
		}, "sys/fs/cgroup/a", ""},
		"v2 user, nearest of equals": {deep, 1000, func(k *fakekernel.Kernel) {
			enable(k, "sys/fs/cgroup")
			enable(k, "sys/fs/cgroup/a")
			owned(k, "sys/fs/cgroup/a", "sys/fs/cgroup/a/b", "sys/fs/cgroup/a/b/c")
		}, "sys/fs/cgroup/a/b", ""},
		"read-only": {fakekernel.V2(), 0, func(k *fakekernel.Kernel) {
			_ = k.WriteFile("proc/self/mountinfo", "31 30 0:27 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw")
		}, "", "read-only"},
	}
	for name, tt := range tests {
		dir := fakekernel.MemoryDir(t)
		k, err := fakekernel.New(dir, tt.layout)
		if err != nil {
			t.Fatal(err)
		}
		if tt.prepare != nil {
			tt.prepare(k)
		}
		host, err := Detect(kernel.NewRoot(dir, k))
		if err != nil {
			t.Fatal(err)
		}
		if host.UID = 0; tt.uid != 0 {
			host.UID = os.Geteuid() + 1 // owns nothing
		}
		base, err := host.Base(CPU)
		if tt.want == "" {
			if !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, %v, want %q", name, base, err, tt.says)
			}
			continue
		}
		if err != nil || !slices.Equal(base.Dirs(), []string{tt.want}) {
			t.Errorf("%s: %v, %v, want %s", name, base, err, tt.want)
		}
	}
}

// TestDetectMount chooses among several mounts of one v2 tree.
func TestDetectMount(t *testing.T) {
	t.Parallel()
	const (
		main   = "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
		ro     = "31 30 0:27 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"
		cilium = "99 30 0:27 / /run/cilium/cgroupv2 rw - cgroup2 none rw\n"
		hidden = "29 30 0:27 / /mnt/hidden rw - cgroup2 cgroup2 rw\n"
	)
	tests := map[string]struct{ mounts, dir string }{
		"the first":               {main + cilium, "sys/fs/cgroup"},
		"the first, other order":  {cilium + main, "run/cilium/cgroupv2"},
		"the writable one":        {ro + cilium, "run/cilium/cgroupv2"},
		"hidden by tmpfs":         {hidden + main, "sys/fs/cgroup"},
		"hidden by a later mount": {main + cilium + ro, "run/cilium/cgroupv2"},
		"only what is hidden":     {hidden, ""},
	}
	for name, tt := range tests {
		dir := fakekernel.MemoryDir(t)
		k, err := fakekernel.New(dir, fakekernel.V2())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir+"/run/cilium/cgroupv2", 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"proc/self/mountinfo": tt.mounts, "run/cilium/cgroupv2/cgroup.controllers": "cpu"} {
			if err := k.Put(file, text); err != nil {
				t.Fatal(err)
			}
		}
		host, err := Detect(kernel.NewRoot(dir, k))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := ""
		if len(host.Hierarchies) > 0 {
			got = host.Hierarchies[0].Dir
		}
		if got != tt.dir {
			t.Errorf("%s: %q, want %q", name, got, tt.dir)
		}
	}
}
