package cgroup

import (
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel"
)

// mountsIn are the mounts of a tree whose mountinfo has a text.
func mountsIn(text string) ([]kernel.Mount, error) {
	return ReadMounts(fstest.MapFS{"proc/self/mountinfo": {Data: []byte(text)}})
}

func TestReadMounts(t *testing.T) {
	t.Parallel()
	const text = `20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 20 0:26 / /sys/fs/cgroup ro,nosuid shared:4 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:5 master:2 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 /docker/a /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /../.. /odd\040place\134x rw - cgroup cpuset rw,cpuset,xattr
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
`
	got, err := mountsIn(text)
	if err != nil {
		t.Fatal(err)
	}
	want := []kernel.Mount{
		{Type: "cgroup2", Root: "/", Dir: "sys/fs/cgroup/unified", Device: "0:27", Source: "cgroup2", Options: []string{"rw", "nsdelegate"}},
		{Type: "cgroup", Root: "/docker/a", Dir: "sys/fs/cgroup/cpu,cpuacct", Device: "0:28", Source: "cgroup", ReadOnly: true, Options: []string{"rw", "cpu", "cpuacct"}},
		{Type: "cgroup", Root: "/../..", Dir: `odd place\x`, Device: "0:29", Source: "cpuset", Options: []string{"rw", "cpuset", "xattr"}},
		{Type: "cgroup", Root: "/", Dir: "sys/fs/cgroup/systemd", Device: "0:30", Source: "cgroup", Options: []string{"rw", "xattr", "name=systemd"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, line := range map[string]string{
		"words":            "nonsense",
		"no separator":     "31 30 0:27 / /sys rw shared:5 cgroup2 cgroup2 rw",
		"nothing after it": "31 30 0:27 / /sys rw -",
		"no options":       "31 30 0:27 / /sys rw - cgroup2 cgroup2",
		"early separator":  "31 30 0:27 / - cgroup2 cgroup2 rw x y",
		"short escape":     `31 30 0:27 / /a\04 rw - cgroup2 cgroup2 rw`,
		"bad escape":       `31 30 0:27 / /a\999 rw - cgroup2 cgroup2 rw`,
		"zero byte":        `31 30 0:27 / /a\000 rw - cgroup2 cgroup2 rw`,
		"relative dir":     "31 30 0:27 / sys rw - cgroup2 cgroup2 rw",
		"relative root":    "31 30 0:27 x /sys rw - cgroup2 cgroup2 rw",
	} {
		if got, err := mountsIn(line); err == nil {
			t.Errorf("%s: %+v, want an error", name, got)
		}
	}
}

func TestParseMembership(t *testing.T) {
	t.Parallel()
	got, err := ParseMembership("4:cpu,cpuacct:/a:b\n3:name=systemd:/\n0::/user.slice/x (deleted)\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []Membership{
		{ID: 4, Controllers: []string{"cpu", "cpuacct"}, Path: "/a:b"},
		{ID: 3, Name: "systemd", Path: "/"},
		{ID: 0, Path: "/user.slice/x"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, text := range []string{"x", "1:cpu", "x:cpu:/", "-1:cpu:/", "1:cpu:relative", "1:cpu:"} {
		if got, err := ParseMembership(text); err == nil {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
}

func FuzzReadMounts(f *testing.F) {
	f.Add("31 30 0:27 /a /sys/fs/cgroup\\040x rw,nosuid shared:5 master:2 - cgroup2 cgroup2 rw,nsdelegate\n")
	f.Add("33 30 0:29 /../.. /x ro - cgroup cpuset rw,cpuset")
	f.Fuzz(func(t *testing.T, text string) {
		mounts, err := mountsIn(text)
		if err != nil {
			return
		}
		for _, m := range mounts {
			if !m.IsCgroup() || m.Root == "" || m.Dir == "" {
				t.Errorf("%+v", m)
			}
		}
	})
}

func FuzzParseMembership(f *testing.F) {
	f.Add("4:cpu,cpuacct:/a\n0::/user.slice\n3:name=systemd:/")
	f.Fuzz(func(t *testing.T, text string) {
		members, err := ParseMembership(text)
		if err != nil {
			return
		}
		for _, m := range members {
			if m.ID < 0 {
				t.Errorf("%+v", m)
			}
			for _, h := range []Hierarchy{{Dir: "x", Root: "/"}, {Dir: "x", Root: "/a"}} {
				if dir, ok := h.dirOf(m.Path); ok && dir != "x" && dir[:2] != "x/" {
					t.Errorf("dirOf(%q) = %q", m.Path, dir)
				}
			}
		}
	})
}

func TestDirOf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		root, group, want string
		ok                bool
	}{
		{"/", "/", "m", true},
		{"/", "/a/b", "m/a/b", true},
		{"/", "/../x", "", false},
		{"/docker/a", "/docker/a", "m", true},
		{"/docker/a", "/docker/a/b", "m/b", true},
		{"/docker/a", "/docker/ab", "", false},
		{"/docker/a", "/", "", false},
		{"/..", "/../x", "m/x", true},
	}
	for _, tt := range tests {
		h := Hierarchy{Dir: "m", Root: tt.root}
		if got, ok := h.dirOf(tt.group); got != tt.want || ok != tt.ok {
			t.Errorf("root %s: dirOf(%s) = %q, %v, want %q, %v", tt.root, tt.group, got, ok, tt.want, tt.ok)
		}
	}
}
