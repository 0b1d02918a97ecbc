package rivals

import (
	"io/fs"
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
		"static, elsewhere": {map[string]string{
			"proc/40/comm": "kubelet\n", "proc/40/status": "Name:\tkubelet\nUid:\t0\t0\t0\t0\nNSpid:\t40\n", "proc/40/cmdline": "/usr/bin/kubelet\x00--v=2\x00--root-dir=/data/kubelet/\x00",
			"proc/41/comm": "kubelet\n", "proc/41/status": "Uid:\t0\t0\t0\t0\nNSpid:\t41\n", "proc/41/cmdline": "kubelet\x00--root-dir=/data\x00--root-dir\x00/other\x00",
			"data/kubelet/cpu_manager_state": `{"policyName":"static"}`, "other/cpu_manager_state": `{"policyName":"static"}`,
		}, []string{"/data/kubelet/cpu_manager_state", "/other/cpu_manager_state"}},
		"a kubelet of a pod, or of a user": {map[string]string{
			"proc/40/comm": "kubelet\n", "proc/40/status": "Uid:\t0\t0\t0\t0\nNSpid:\t40\t7\n", "proc/40/cmdline": "kubelet\x00--root-dir=/data\x00",
			"proc/41/comm": "kubelet\n", "proc/41/status": "Uid:\t1000\t0\t0\t0\nNSpid:\t41\n", "proc/41/cmdline": "kubelet\x00--root-dir=/data\x00",
			"proc/42/comm": "kubelet\n", "proc/42/status": "Uid:\t0\t0\t0\t0\nNSpid:\t42\n", "proc/42/cmdline": "kubelet\x00--root-dir=data\x00--root-dir\x00",
			"proc/43/comm": "kubelet\n", "data/cpu_manager_state": `{"policyName":"static"}`,
		}, nil},
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

// Only root's process in the host's PID namespace is surely what its name says.
func TestUnsure(t *testing.T) {
	t.Parallel()
	for status, unsure := range map[string]bool{
		"Uid:\t0\t0\t0\t0\nNSpid:\t40\n": false, "Uid:\t0\t0\t0\t0\nNSpid:\t40\t7\n": true, "Uid:\t1000\t0\t0\t0\nNSpid:\t40\n": true, "": true,
	} {
		all, err := Find(fstest.MapFS{"proc/40/comm": {Data: []byte("koordlet\n")}, "proc/40/status": {Data: []byte(status)}, "opt/nri/plugins/50-balloons": {}})
		if err != nil || len(all) != 2 || all[0].Unsure || all[1].Unsure != unsure {
			t.Errorf("%q: %+v, %v", status, all, err)
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
