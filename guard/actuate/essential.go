package actuate

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// essentials are the daemons that others on the host depend on: buses, sessions, names and
// addresses, time, block devices, and what starts containers. Each has its units of system.slice,
// without ".service", and its programs; those of systemd are called systemd-.
var essentials = []struct{ units, programs string }{
	{"dbus dbus-broker", "dbus-daemon dbus-broker dbus-broker-launch"},
	{"polkit", "polkitd"},
	{"ssh sshd dropbear", "sshd sshd-session dropbear"},
	{"systemd-journald systemd-logind systemd-networkd systemd-resolved systemd-timesyncd systemd-machined systemd-oomd systemd-userdbd", ""},
	{"systemd-udevd", "udevd"},
	{"NetworkManager", "NetworkManager"},
	{"chrony chronyd", "chronyd"},
	{"iscsid", "iscsid"},
	{"multipathd", "multipathd"},
	{"containerd", "containerd containerd-shim-runc-v2"},
	{"docker cri-docker", "dockerd cri-dockerd"},
	{"crio", "crio"},
	{"kubelet k3s k3s-agent rke2-server rke2-agent", "kubelet k3s rke2"},
	{"berth-agent", "berth berth-node"},
	// What starts the others, and what an operator works by, has no unit.
	{"", "init systemd runit s6-svscan openrc-init login agetty getty sudo su tmux screen"},
	{"", shells},
}

// shells are programs of essentials that also run scripts.
const shells = "bash sh ash dash zsh ksh mksh tcsh fish"

var essentialUnits, essentialPrograms = func() (units, programs []string) {
	for _, e := range essentials {
		for _, unit := range strings.Fields(e.units) {
			units = append(units, unit+".service")
		}
		programs = append(programs, strings.Fields(e.programs)...)
	}
	return units, programs
}()

// essentialScore is the oom_score_adj from which on down a process is one that the host
// is not to lose. Only CAP_SYS_RESOURCE can lower it. The kubelet gives -999 to itself and to
// kube-proxy as a process, and -997 to pods of the priority system-node-critical and to
// guaranteed ones (pkg/kubelet/qos/policy.go); systemd's units have what OOMScoreAdjust= says, -1000 for sshd
// and -900 for dbus, for example. sandboxScore is that of the process that only holds a pod's
// namespaces, in every pod whatever its class.
const (
	essentialScore = -900
	sandboxScore   = -998
)

// maxScored is of how many processes of a group the score is read: those of a group have it from their parent.
const maxScored = 32

// essential says why the host depends on a group with some processes in it; "" if it is
// not known to. Names count only where nobody but root can have made the group.
func (h *Host) essential(group string, pids []int) string {
	if names := strings.Split(group, "/"); len(names) > 1 && names[0] == "system.slice" && slices.Contains(essentialUnits, names[1]) {
		return names[1] + " is a service that others depend on"
	}
	for _, pid := range pids[:min(len(pids), maxScored)] {
		text, err := h.read(path.Join("proc", strconv.Itoa(pid), "oom_score_adj"))
		if err != nil {
			continue // it has ended
		}
		if score, err := strconv.Atoi(text); err == nil && score <= essentialScore && score != sandboxScore {
			return fmt.Sprintf("process %d has oom_score_adj %d, as what a host depends on has", pid, score)
		}
	}
	return ""
}
