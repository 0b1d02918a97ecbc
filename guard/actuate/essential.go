package actuate

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// essentialUnits are units of system.slice that others on the host depend on: buses,
// sessions, names and addresses, time, block devices, and what starts containers.
var essentialUnits = strings.Fields(`
	dbus.service dbus-broker.service polkit.service ssh.service sshd.service
	systemd-journald.service systemd-udevd.service systemd-logind.service systemd-networkd.service
	systemd-resolved.service systemd-timesyncd.service systemd-machined.service systemd-oomd.service systemd-userdbd.service
	NetworkManager.service chrony.service chronyd.service iscsid.service multipathd.service
	containerd.service docker.service crio.service cri-docker.service kubelet.service
	k3s.service k3s-agent.service rke2-server.service rke2-agent.service berth-agent.service`)

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
func (h *Host) essential(group string, pids []string) string {
	if names := strings.Split(group, "/"); len(names) > 1 && names[0] == "system.slice" && slices.Contains(essentialUnits, names[1]) {
		return names[1] + " is a service that others depend on"
	}
	for _, pid := range pids[:min(len(pids), maxScored)] {
		text, err := h.read(path.Join("proc", pid, "oom_score_adj"))
		if err != nil {
			continue // it has ended
		}
		if score, err := strconv.Atoi(text); err == nil && score <= essentialScore && score != sandboxScore {
			return fmt.Sprintf("process %s has oom_score_adj %d, as what a host depends on has", pid, score)
		}
	}
	return ""
}
