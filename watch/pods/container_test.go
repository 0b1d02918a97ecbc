package pods

import (
	"reflect"
	"strings"
	"testing"
)

const (
	uid     = "8d2c5f4e-1c2b-4a39-9f6d-0a1b2c3d4e5f"
	uidUnit = "8d2c5f4e_1c2b_4a39_9f6d_0a1b2c3d4e5f"
	id      = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func TestContainerOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		group string
		want  Container // zero means none
	}{
		{"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidUnit + ".slice/cri-containerd-" + id + ".scope", Container{Runtime: "containerd", ID: id, Pod: uid}},
		{"/kubepods.slice/kubepods-pod" + uidUnit + ".slice/crio-" + id + ".scope", Container{Runtime: "crio", ID: id, Pod: uid}},
		{"/system.slice/docker-" + id + ".scope", Container{Runtime: "docker", ID: id}},
		{"/machine.slice/libpod-" + id + ".scope", Container{Runtime: "podman", ID: id}},
		{"/libpod_parent/libpod-" + id, Container{Runtime: "podman", ID: id}},
		{"/system.slice/nerdctl-" + id + ".scope", Container{Runtime: "containerd", ID: id}},
		{"/docker/" + id, Container{Runtime: "docker", ID: id}},
		{"/kubepods/burstable/pod" + uid + "/" + id, Container{ID: id, Pod: uid}},
		{"/kubepods/besteffort/pod" + strings.ReplaceAll(uid, "-", "") + "/" + id, Container{ID: id, Pod: strings.ReplaceAll(uid, "-", "")}},
		{"/kubepods/pod" + uid + "/crio-" + id, Container{Runtime: "crio", ID: id, Pod: uid}},
		{"/system.slice/containerd.service/kubepods-burstable-pod" + uidUnit + ".slice:cri-containerd:" + id, Container{Runtime: "containerd", ID: id, Pod: uid}},
		{"/system.slice:docker:" + id, Container{Runtime: "docker", ID: id}},
		{"/lxc.payload.web", Container{Runtime: "lxc", Name: "web"}},
		{"/lxc/web", Container{Runtime: "lxc", Name: "web"}},
		{`/machine.slice/machine-my\x2dbox.scope`, Container{Runtime: "nspawn", Name: "my-box"}},
		{"/machine.slice/systemd-nspawn@box.service", Container{Runtime: "nspawn", Name: "box"}},

		{"/", Container{}},
		{"/docker", Container{}},
		{"/docker/" + id[:12], Container{}},
		{"/docker/" + strings.ToUpper(id), Container{}},
		{"/docker/" + id + "/init.scope", Container{}},
		{"/user.slice/" + id, Container{}},
		{"/machine.slice/libpod-conmon-" + id + ".scope", Container{}},
		{"/system.slice/crio-conmon-" + id + ".scope", Container{}},
		{"/kubepods.slice/kubepods-pod" + uidUnit + ".slice", Container{}},
		{"/kubepods/podxyz/" + id, Container{}},
		{`/machine.slice/machine-qemu\x2d1\x2dvm.scope`, Container{}},
		{"/lxc.payload.", Container{}},
	} {
		got, ok := ContainerOf(tt.group)
		if !reflect.DeepEqual(got, tt.want) || ok != !reflect.DeepEqual(tt.want, Container{}) {
			t.Errorf("%s is %+v, %v; want %+v", tt.group, got, ok, tt.want)
		}
	}
}
