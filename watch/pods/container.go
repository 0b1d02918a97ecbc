package pods

import "strings"

// Container is what a runtime, or the path of the container's group, tells of a
// container. What it does not tell is "".
type Container struct {
	Runtime string // docker, containerd, crio, podman, lxc or nspawn
	ID      string // 64 hexadecimal digits
	Pod     string // the pod's UID, with dashes
	Name    string
	// Namespace is that of the pod, and Labels are the container's and the pod's. No path
	// tells them.
	Namespace string
	Labels    map[string]string
}

// ContainerOf reads the own group of a container, not those below it, as the
// runtimes name it:
//
//	.../cri-containerd-ID.scope, docker-ID.scope, crio-ID.scope, libpod-ID.scope    systemd driver
//	.../docker/ID, .../kubepods/burstable/podUID/ID, .../crio-ID, .../libpod-ID     cgroupfs driver
//	.../kubepods-podUID.slice:cri-containerd:ID     cgroupfs driver with a path meant for systemd
//	.../lxc.payload.NAME, .../lxc/NAME, .../machine-NAME.scope, .../systemd-nspawn@NAME.service
//
// The sandbox of a pod looks like its containers.
func ContainerOf(groupPath string) (c Container, ok bool) {
	parts := components(groupPath)
	if len(parts) == 0 {
		return c, false
	}
	if len(parts) == 1 {
		return containerIn("", parts[0])
	}
	return containerIn(parts[len(parts)-2], parts[len(parts)-1])
}

// containerIn is ContainerOf of a group in another one, by their names.
func containerIn(parent, last string) (c Container, ok bool) {
	if c, ok := machineOf(parent, last); ok {
		return c, true
	}
	if slice, rest, found := strings.Cut(last, ":"); found {
		parent, last = slice, strings.Replace(rest, ":", "-", 1)
	}
	prefix, id := "", strings.TrimSuffix(last, ".scope")
	if i := strings.LastIndexByte(id, '-'); i >= 0 {
		prefix, id = id[:i], id[i+1:]
	} else if parent == "docker" {
		prefix = parent
	}
	c = Container{Runtime: runtimeOf(prefix), ID: id, Pod: podOf(parent)}
	if !isHex(id, 64) || c.Runtime == "" && (prefix != "" || c.Pod == "") {
		return Container{}, false
	}
	return c, true
}

// runtimeOf returns the runtime that puts a prefix before ids, "" if none does.
func runtimeOf(prefix string) string {
	switch prefix {
	case "docker", "crio":
		return prefix
	case "cri-containerd", "nerdctl":
		return "containerd"
	case "libpod":
		return "podman"
	}
	return ""
}

// machineOf reads the groups of the runtimes that write names. Of what systemd escapes in a
// unit's name, a machine's name has only '-'.
func machineOf(parent, last string) (c Container, ok bool) {
	if name, ok := strings.CutPrefix(last, "lxc.payload."); ok && name != "" {
		return Container{Runtime: "lxc", Name: name}, true
	}
	if parent == "lxc" {
		return Container{Runtime: "lxc", Name: last}, true
	}
	for _, form := range [][2]string{{"machine-", ".scope"}, {"systemd-nspawn@", ".service"}} {
		name, begins := strings.CutPrefix(last, form[0])
		name, ends := strings.CutSuffix(name, form[1])
		// Virtual machines have such scopes too: machine-qemu\x2d1\x2dNAME.scope.
		if begins && ends && name != "" && !strings.HasPrefix(name, `qemu\x2d`) {
			return Container{Runtime: "nspawn", Name: strings.ReplaceAll(name, `\x2d`, "-")}, true
		}
	}
	return c, false
}

// podOf returns the UID in the name of a pod's group: "podUID" with cgroupfs,
// "kubepods-burstable-podUID.slice" with systemd, where '_' stands for '-'.
func podOf(group string) string {
	if slice, ok := strings.CutSuffix(group, ".slice"); ok && strings.Contains(slice, "kubepods") {
		group = strings.ReplaceAll(slice[strings.LastIndexByte(slice, '-')+1:], "_", "-")
	}
	uid, ok := strings.CutPrefix(group, "pod")
	// The kubelet gives pods of a file on disk a UID without dashes.
	if !ok || !isHex(strings.ReplaceAll(uid, "-", ""), 32) {
		return ""
	}
	return uid
}

// isHex reports whether a text is so many lower case hexadecimal digits.
func isHex(text string, digits int) bool {
	return len(text) == digits && strings.Trim(text, "0123456789abcdef") == ""
}
