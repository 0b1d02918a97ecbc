package doctor

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

// What network classes need is told, and what of it is missing.
func TestNetwork(t *testing.T) {
	t.Parallel()
	config := func(text string) *fstest.MapFile {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return &fstest.MapFile{Data: b.Bytes()}
	}
	const both = "#\nCONFIG_NET_SCH_HTB=m\nCONFIG_CGROUP_BPF=y\n"
	for what, tc := range map[string]struct {
		speed, config, mounts string
		state                 State
		found, reason         string
	}{
		"all":        {"1000", both, "cgroup2", OK, "eth0 1000 Mbit/s", ""},
		"no config":  {"1000", "", "cgroup2", OK, "eth0 1000 Mbit/s", ""},
		"no speed":   {"-1", both, "cgroup2", Limited, "eth0", "no speed is told by eth0"},
		"no HTB":     {"1000", "\nCONFIG_CGROUP_BPF=y\n# CONFIG_NET_SCH_HTB is not set\n", "cgroup2", Missing, "eth0 1000 Mbit/s", "has no HTB"},
		"no program": {"1000", "\nCONFIG_NET_SCH_HTB=y\n", "cgroup2", Missing, "eth0 1000 Mbit/s", "no programs of control groups"},
		"v1":         {"1000", both, "tmpfs", Missing, "eth0 1000 Mbit/s", "cgroup v2 is not mounted"},
		"none":       {"", both, "cgroup2", Limited, "no devices of hardware", "the speed of a link is not told"},
	} {
		host := fstest.MapFS{
			"proc/self/cgroup":                 {Data: []byte("0::/\n")},
			"proc/self/mountinfo":              {Data: []byte("31 23 0:28 / /sys/fs/cgroup rw - " + tc.mounts + " x rw\n")},
			"sys/fs/cgroup/cgroup.controllers": {Data: []byte("cpu\n")},
			"sys/class/net/lo/type":            {Data: []byte("772\n")},
		}
		if tc.config != "" {
			host["proc/config.gz"] = config(tc.config)
		}
		if tc.speed != "" {
			host["sys/class/net/eth0/speed"] = &fstest.MapFile{Data: []byte(tc.speed + "\n")}
			host["sys/class/net/eth0/device/x"] = &fstest.MapFile{}
		}
		c, _ := Look(host, Probes{}).Get("network")
		if c.State != tc.state || c.Found != tc.found || !strings.Contains(c.Reason, tc.reason) {
			t.Errorf("%s: %+v, want %+v", what, c, tc)
		}
	}
}

// What can divide a device is told where the kernel tells it.
func TestNetworkMeans(t *testing.T) {
	t.Parallel()
	host := fstest.MapFS{
		"proc/self/cgroup":                 {Data: []byte("0::/\n")},
		"proc/self/mountinfo":              {Data: []byte("31 23 0:28 / /sys/fs/cgroup rw - cgroup2 x rw\n")},
		"sys/fs/cgroup/cgroup.controllers": {Data: []byte("cpu\n")},
		"sys/class/net/eth0/speed":         {Data: []byte("1000\n")},
		"sys/class/net/eth0/device/x":      {},
	}
	means := func() (map[string]string, error) { return map[string]string{"eth0": "ceilings by fq"}, nil }
	if c, _ := Look(host, Probes{Links: means}).Get("network"); c.State != OK || c.Found != "eth0 1000 Mbit/s (ceilings by fq)" {
		t.Errorf("%+v", c)
	}
	fails := func() (map[string]string, error) { return nil, errors.New("rtnetlink: no") }
	if c, _ := Look(host, Probes{Links: fails}).Get("network"); c.State != Unknown || c.Reason != "rtnetlink: no" {
		t.Errorf("%+v", c)
	}
}

// A group of v2 in which another program keeps processes is told, where CPUs are given in v1.
func TestNetworkTracked(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct{ first, self, v1, group string }{
		"at the top":   {"0::/\n", "0::/\n", "cpuset", ""},
		"systemd":      {"0::/init.scope\n", "0::/\n", "cpuset", "/init.scope"},
		"a session":    {"", "0::/user.slice\n", "cpuset", "/user.slice"},
		"v2 has CPUs":  {"0::/init.scope\n", "0::/user.slice\n", "pids", ""},
		"untold group": {"nonsense", "0::/\n", "cpuset", ""},
	} {
		host := fstest.MapFS{
			"proc/self/cgroup": {Data: []byte("2:" + tc.v1 + ":/\n" + tc.self)},
			"proc/self/mountinfo": {Data: []byte("31 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 x rw\n" +
				"32 23 0:29 / /sys/fs/cgroup/v1 rw - cgroup x rw," + tc.v1 + "\n")},
			"sys/fs/cgroup/unified/cgroup.controllers": {Data: []byte("cpuset\n")},
			"sys/class/net/eth0/speed":                 {Data: []byte("1000\n")},
			"sys/class/net/eth0/device/x":              {},
		}
		if tc.v1 == "cpuset" {
			host["sys/fs/cgroup/unified/cgroup.controllers"] = &fstest.MapFile{}
		}
		if tc.first != "" {
			host["proc/1/cgroup"] = &fstest.MapFile{Data: []byte("2:" + tc.v1 + ":/\n" + tc.first)}
		}
		state := OK
		if tc.group != "" {
			state = Limited
		}
		if c, _ := Look(host, Probes{}).Get("network"); c.State != state || !strings.Contains(c.Reason, tc.group) {
			t.Errorf("%s: %+v, want %s %q", what, c, state, tc.group)
		}
	}
}
