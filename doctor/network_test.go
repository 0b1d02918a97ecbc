package doctor

import (
	"bytes"
	"compress/gzip"
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
		"no speed":   {"-1", both, "cgroup2", Limited, "eth0", "the speed of a link is not told"},
		"no HTB":     {"1000", "\nCONFIG_CGROUP_BPF=y\n# CONFIG_NET_SCH_HTB is not set\n", "cgroup2", Missing, "eth0 1000 Mbit/s", "has no HTB"},
		"no program": {"1000", "\nCONFIG_NET_SCH_HTB=y\n", "cgroup2", Missing, "eth0 1000 Mbit/s", "no programs of control groups"},
		"v1":         {"1000", both, "tmpfs", Missing, "eth0 1000 Mbit/s", "cgroup v2 is not mounted"},
		"none":       {"", both, "cgroup2", Limited, "no devices of hardware", "not told"},
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
