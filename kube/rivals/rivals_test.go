package rivals

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

func TestFind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  []string // in the rivals, in order
	}{
		"nothing": {nil, nil},
		"no policy": {map[string]string{
			"var/lib/kubelet/cpu_manager_state":    `{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`,
			"var/lib/kubelet/memory_manager_state": `{"policyName":"None","checksum":4236770233}`,
			"proc/1/comm":                          "systemd\n", "proc/self/comm": "koordlet\n",
			"opt/nri/plugins/10-logger": "", "etc/tuned/active_profile": "throughput-performance\n", "proc/7/comm": "tuned\n",
		}, nil},
		"static": {map[string]string{
			"var/lib/kubelet/cpu_manager_state":    `{"policyName":"static","defaultCpuSet":"0-7","entries":{},"data":"{}","checksum":1}`,
			"var/lib/kubelet/memory_manager_state": `{"policyName":"Static"}`,
		}, []string{"cpuManagerPolicy: none", "memoryManagerPolicy: None"}},
		"others": {map[string]string{
			"opt/nri/plugins/50-balloons": "", "proc/31/comm": "koordlet\n", "proc/32/comm": "nri-resource-po\n", "proc/33/comm": "tuned\n",
			"etc/tuned/active_profile": "cpu-partitioning\n",
		}, []string{"50-balloons", "process 31", "process 32", "cpu-partitioning"}},
	} {
		host := fstest.MapFS{}
		for file, text := range c.files {
			host[file] = &fstest.MapFile{Data: []byte(text)}
		}
		all, err := Find(host)
		if err != nil || len(all) != len(c.want) {
			t.Errorf("%s: %v, %v", name, all, err)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(all[i].Error(), want) {
				t.Errorf("%s: %v, want %q in it", name, &all[i], want)
			}
		}
	}
}

// The page for those who come from another system says by what each is found, so that they end it first.
func TestPageNamesWhatIsFound(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/coming-from.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| found by |")
	table, _, _ = strings.Cut(table, "\n\n")
	found, code := 0, regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		for _, by := range code.FindAllStringSubmatch(cells[min(1, len(cells)-1)], -1) {
			host := fstest.MapFS{"proc/1/mountinfo": {Data: []byte(hostMounts)}, "proc/1/uid_map": {Data: []byte(hostMap)}}
			if file, ok := strings.CutPrefix(by[1], "/"); ok {
				host[file] = &fstest.MapFile{Data: []byte(`{"policyName":"static"}`)}
			} else {
				played{by[1][:min(len(by[1]), 15)], rootUser, allCaps, "40", hostMap, hostMounts}.on(host, "40")
			}
			if all, err := Find(host); err != nil || len(all) != 1 || all[0].Unsure {
				t.Errorf("docs/coming-from.md has `%s`: found %+v, %v", by[1], all, err)
			}
			found++
		}
	}
	if found < 7 {
		t.Errorf("docs/coming-from.md has %d that are found", found)
	}
}

// played is a process as the kernel tells of it.
type played struct {
	name, uids, caps, pids, users string
	mounts                        string // besides its own file system
}

func (p played) on(host fstest.MapFS, pid string) {
	for file, text := range map[string]string{
		"comm":      p.name + "\n",
		"status":    "Name:\t" + p.name + "\nUid:\t" + p.uids + "\nNSpid:\t" + p.pids + "\nCapEff:\t" + p.caps + "\n",
		"uid_map":   p.users,
		"mountinfo": p.mounts,
	} {
		host["proc/"+pid+"/"+file] = &fstest.MapFile{Data: []byte(text)}
	}
}

const (
	rootUser = "0\t0\t0\t0"
	allCaps  = "000001ffffffffff"
	podCaps  = "00000000a80425fb" // what a runtime gives who asks for nothing
	hostMap  = "         0          0 4294967295\n"
	podMap   = "         0      65536      65536\n"

	hostMounts = "20 1 254:1 / / rw - ext4 /dev/vda1 rw\n21 20 0:25 / /run rw - tmpfs tmpfs rw\n22 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	podMounts  = "90 80 0:60 / / rw - overlay overlay rw\n91 90 0:61 / /run rw - tmpfs tmpfs rw\n92 90 254:1 /var/lib/kubelet/pods/1/volumes/run/nri /run/nri rw - ext4 /dev/vda1 rw\n"
	nriMount   = podMounts + "93 90 0:25 /nri /var/run/nri rw - tmpfs tmpfs rw\n"
)

// A name makes nobody a rival: anybody names programs as he likes.
func TestUnsure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p    played
		sure bool
	}{
		"a privileged pod":                   {played{"koordlet", rootUser, allCaps, "40 7", hostMap, podMounts}, true},
		"with the host's PIDs":               {played{"koordlet", rootUser, allCaps, "40", hostMap, podMounts}, true},
		"a service":                          {played{"cri-resmgr", rootUser, allCaps, "40", hostMap, hostMounts}, true},
		"a control plane":                    {played{"ctlplane", rootUser, allCaps, "40 1", hostMap, podMounts}, true},
		"one without capabilities":           {played{"ctlplane", rootUser, "0", "40 1", hostMap, podMounts + "93 90 0:26 / /cgroup rw - cgroup2 cgroup2 rw\n"}, true},
		"its agent":                          {played{"ctlplane", "10001\t10001\t10001\t10001", "0", "40 1", hostMap, podMounts}, false},
		"a pod of a control plane's name":    {played{"ctlplane", rootUser, podCaps, "40 1", hostMap, podMounts + "93 90 0:26 /kubepods/pod1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"}, false},
		"any pod":                            {played{"koordlet", rootUser, podCaps, "40 7", hostMap, podMounts}, false},
		"not privileged, the host's PIDs":    {played{"koordlet", rootUser, podCaps, "40", hostMap, podMounts}, true},
		"the same without capabilities":      {played{"koordlet", rootUser, "0", "40", hostMap, podMounts}, true},
		"a pod's own users, the host's PIDs": {played{"koordlet", rootUser, podCaps, "40", podMap, podMounts}, false},
		"a pod with users of its own":        {played{"koordlet", "65536\t65536\t65536\t65536", allCaps, "40 7", podMap, podMounts}, false},
		"the same, as its reader sees it":    {played{"koordlet", rootUser, allCaps, "40 7", podMap, podMounts}, false},
		"a user":                             {played{"koordlet", "1000\t1000\t1000\t1000", "0", "40", hostMap, hostMounts}, false},
		"a user's link to a setuid program":  {played{"cri-resmgr", "1000\t0\t0\t0", allCaps, "40", hostMap, hostMounts}, false},
		"nothing known":                      {played{name: "koordlet"}, false},
		"no number":                          {played{"koordlet", rootUser, "lots", "40 7", hostMap, ""}, false},
		"a plugin":                           {played{"nri-resource-po", rootUser, "0", "40 1", hostMap, nriMount}, true},
		"a plugin that sees all of it":       {played{"nri-resource-po", rootUser, "0", "40 1", hostMap, podMounts + "93 90 0:25 / /host/run rw - tmpfs tmpfs rw\n"}, true},
		"a plugin that is a service":         {played{"nri-resource-po", rootUser, "0", "40", hostMap, hostMounts}, true},
		"a pod of a plugin's name":           {played{"nri-resource-po", rootUser, podCaps, "40 1", hostMap, podMounts}, false},
		"a user of a plugin's name":          {played{"nri-resource-po", "1000\t1000\t1000\t1000", "0", "40", hostMap, hostMounts}, false},
		"no pod but with a directory beside": {played{"nri-resource-po", rootUser, podCaps, "40 1", hostMap, podMounts + "93 90 0:25 /nri-of-mine /run/nri rw - tmpfs tmpfs rw\n"}, false},
		"a koordlet that only sees runtimes": {played{"koordlet", rootUser, podCaps, "40 1", hostMap, nriMount}, false},
	} {
		host := fstest.MapFS{"proc/1/mountinfo": {Data: []byte(hostMounts)}, "proc/1/uid_map": {Data: []byte(hostMap)}, "opt/nri/plugins/50-balloons": {}}
		c.p.on(host, "40")
		all, err := Find(host)
		if err != nil || len(all) != 2 || all[0].Unsure || all[1].Unsure == c.sure {
			t.Errorf("%s: %+v, %v, sure %t", name, all, err, c.sure)
		}
	}
	for missing, p := range map[string]played{
		"mountinfo": {"nri-resource-po", rootUser, "0", "40 1", hostMap, nriMount},
		"uid_map":   {"koordlet", rootUser, allCaps, "40", hostMap, hostMounts},
	} {
		host := fstest.MapFS{"proc/1/mountinfo": {Data: []byte(hostMounts)}, "proc/1/uid_map": {Data: []byte(hostMap)}}
		delete(host, "proc/1/"+missing)
		p.on(host, "40")
		if all, err := Find(host); err != nil || len(all) != 1 || !all[0].Unsure {
			t.Errorf("%s of the host is not known: %+v, %v", missing, all, err)
		}
	}
}

// The users of a node that is itself in a user namespace are those of its first process.
func TestUsersOfANode(t *testing.T) {
	t.Parallel()
	const nodeMap = "         0     100000      65536\n"
	for users, node := range map[string]bool{nodeMap: true, podMap: false, hostMap: false} {
		host := fstest.MapFS{"proc/1/uid_map": {Data: []byte(nodeMap)}, "data/cpu_manager_state": {Data: []byte(`{"policyName":"static"}`)}, "proc/41/cmdline": {Data: []byte("kubelet\x00--root-dir=/data\x00")}}
		played{"koordlet", rootUser, allCaps, "40", users, hostMounts}.on(host, "40")
		played{"kubelet", rootUser, allCaps, "41", users, hostMounts}.on(host, "41")
		all, err := Find(host)
		if sure, kubelet := err == nil && !all[len(all)-1].Unsure, len(all) == 2; sure != node || kubelet != node {
			t.Errorf("map %q: %+v, %v", users, all, err)
		}
	}
}

// A kubelet of the host has its state where it says; one of a pod, or a user, says nothing.
func TestStateElsewhere(t *testing.T) {
	t.Parallel()
	const slash = "kubelet\x00--v=2\x00--root-dir=/data/\x00"
	for name, c := range map[string]struct {
		p       played
		cmdline string
		found   bool
	}{
		"the host's":           {played{"kubelet", rootUser, allCaps, "40", hostMap, ""}, slash, true},
		"the last counts":      {played{"kubelet", rootUser, allCaps, "40", hostMap, ""}, "kubelet\x00--root-dir=/other\x00--root-dir\x00/data\x00", true},
		"no path":              {played{"kubelet", rootUser, allCaps, "40", hostMap, ""}, "kubelet\x00--root-dir=data\x00--root-dir\x00", false},
		"a privileged pod's":   {played{"kubelet", rootUser, allCaps, "40 7", hostMap, ""}, slash, false},
		"a pod's":              {played{"kubelet", rootUser, podCaps, "40", hostMap, ""}, slash, false},
		"a user's":             {played{"kubelet", "1000\t1000\t1000\t1000", "0", "40", hostMap, ""}, slash, false},
		"of another user root": {played{"kubelet", rootUser, allCaps, "40", podMap, ""}, slash, false},
		"of another name":      {played{"kubelets", rootUser, allCaps, "40", hostMap, ""}, slash, false},
	} {
		host := fstest.MapFS{"proc/1/uid_map": {Data: []byte(hostMap)}, "proc/40/cmdline": {Data: []byte(c.cmdline)}, "data/cpu_manager_state": {Data: []byte(`{"policyName":"static"}`)}}
		c.p.on(host, "40")
		all, err := Find(host)
		if err != nil || (len(all) == 1) != c.found || c.found && !strings.Contains(all[0].Why, "/data/cpu_manager_state") {
			t.Errorf("%s: %+v, %v", name, all, err)
		}
	}
}

func FuzzRootDir(f *testing.F) {
	f.Add("kubelet\x00--root-dir=/data\x00")
	f.Fuzz(func(t *testing.T, cmdline string) {
		dir := rootDir(fstest.MapFS{"proc/4/cmdline": {Data: []byte(cmdline)}}, "4")
		if dir != "" && !fs.ValidPath(dir) {
			t.Errorf("%q", dir)
		}
	})
}

// A state that cannot be read is not taken for none.
func TestStateThatIsNone(t *testing.T) {
	t.Parallel()
	_, err := Find(fstest.MapFS{"var/lib/kubelet/cpu_manager_state": {Data: []byte("{")}})
	if err == nil || !strings.Contains(err.Error(), "read /var/lib/kubelet/cpu_manager_state") {
		t.Errorf("%v", err)
	}
}
