package doctor

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/kernel/cgroup"
)

func systemd(h *host) Capability {
	name, known := h.text("proc/1/comm")
	switch {
	case h.systemd():
		version := ""
		if n := h.systemdVersion(); n > 0 {
			version = fmt.Sprintf(" %d", n)
		}
		return ok("systemd" + version + " owns the groups of its units")
	case !known:
		return noTree("proc/1/comm")
	}
	return notApplicable("process 1 is "+name, "without systemd nobody else owns the groups at the top of the tree")
}

// systemd reports whether process 1 is systemd, by the test of sd_booted(3) or
// by its name.
func (h *host) systemd() bool {
	return h.exists("run/systemd/system") || h.word("proc/1/comm") == "systemd"
}

// systemdVersion returns systemd's version, the number in the name of systemd's shared
// library, which costs no process; 0 if there is no such file.
func (h *host) systemdVersion() int {
	for _, dir := range []string{"usr/lib/systemd", "usr/lib/*/systemd", "lib/systemd"} {
		for _, file := range h.glob(dir + "/libsystemd-shared-*.so") {
			text := strings.TrimPrefix(path.Base(file), "libsystemd-shared-")
			end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
			if n, err := strconv.Atoi(text[:end]); err == nil {
				return n
			}
		}
	}
	return 0
}

// kubelet looks for the kubelet's state and groups, not for its process: a walk
// through /proc costs too much on a full node.
func kubelet(h *host) Capability {
	const state = "var/lib/kubelet/cpu_manager_state"
	text, found := h.text(state)
	if !found && !h.exists("var/lib/kubelet/config.yaml") && !h.kubepods() {
		return notApplicable("none", "this host is not a Kubernetes node")
	}
	running := "no pods' groups"
	if h.kubepods() {
		running = "pods run"
	}
	if !found {
		return ok(running)
	}
	var manager struct {
		PolicyName    string `json:"policyName"`
		DefaultCPUSet string `json:"defaultCpuSet"`
	}
	if err := json.Unmarshal([]byte(text), &manager); err != nil {
		return h.fail(fmt.Errorf("read /%s: %w", state, err))
	}
	if manager.PolicyName != "static" {
		return ok(fmt.Sprintf("%s, CPU manager policy %s", running, manager.PolicyName))
	}
	return limited(fmt.Sprintf("%s, CPU manager policy static, shared pool %s", running, manager.DefaultCPUSet),
		"the static policy rewrites the cpuset of every container every 10 s",
		"cpuManagerPolicy: none in the kubelet's configuration, or leave cpusets to the kubelet")
}

// kubepods reports whether there is a group of pods in v2 or in any v1 hierarchy.
func (h *host) kubepods() bool {
	return slices.ContainsFunc(h.groups.Hierarchies, func(t cgroup.Hierarchy) bool {
		return h.exists(path.Join(t.Dir, "kubepods.slice")) || h.exists(path.Join(t.Dir, "kubepods"))
	})
}

func runtimes(h *host) Capability {
	sockets := []struct{ name, file string }{
		{"containerd", "run/containerd/containerd.sock"},
		{"k3s containerd", "run/k3s/containerd/containerd.sock"},
		{"CRI-O", "run/crio/crio.sock"},
		{"docker", "run/docker.sock"},
		{"podman", "run/podman/podman.sock"},
	}
	var found []string
	for _, s := range sockets {
		if h.exists(s.file) {
			found = append(found, s.name)
		}
	}
	if len(found) == 0 {
		return notApplicable("none", "no socket of a container runtime below /run")
	}
	nri := ""
	if h.exists("run/nri/nri.sock") {
		nri = ", NRI"
	}
	return ok(strings.Join(found, ", ") + nri)
}
