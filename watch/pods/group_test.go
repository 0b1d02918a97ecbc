package pods

import (
	"strings"
	"testing"
)

// The trees of both drivers of the kubelet, in every class, as containerd, CRI-O and docker
// fill them; containers' groups of the driver cgroupfs have the same path in v1 and v2.
func TestParse(t *testing.T) {
	t.Parallel()
	const slice = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + uidUnit + ".slice"
	static := strings.ReplaceAll(uid, "-", "") // of a pod from a file
	for group, want := range map[string]Group{
		"kubepods": {Level: AllPods}, "/kubepods": {Level: AllPods}, "kubelet/kubepods": {Level: AllPods},
		"kubepods.slice":                                      {Level: AllPods, Slice: true},
		"kubelet.slice/kubelet-kubepods.slice":                {Level: AllPods, Slice: true},
		"kubepods/besteffort":                                 {Level: ClassOfPods, QoS: BestEffort},
		"kubepods/burstable":                                  {Level: ClassOfPods, QoS: Burstable},
		"kubepods.slice/kubepods-besteffort.slice":            {Level: ClassOfPods, QoS: BestEffort, Slice: true},
		"kubepods.slice/kubepods-burstable.slice":             {Level: ClassOfPods, QoS: Burstable, Slice: true},
		"a.slice/a-kubepods.slice/a-kubepods-burstable.slice": {Level: ClassOfPods, QoS: Burstable, Slice: true},
		"kubepods/pod" + uid:                                  {Level: OnePod, QoS: Guaranteed, UID: uid},
		"kubepods/burstable/pod" + uid:                        {Level: OnePod, QoS: Burstable, UID: uid},
		"kubepods/besteffort/pod" + static:                    {Level: OnePod, QoS: BestEffort, UID: static},
		"kubepods.slice/kubepods-pod" + uidUnit + ".slice":    {Level: OnePod, QoS: Guaranteed, UID: uid, Slice: true},
		slice: {Level: OnePod, QoS: BestEffort, UID: uid, Slice: true},
		"a.slice/a-kubepods.slice/a-kubepods-pod" + uidUnit + ".slice":                                     {Level: OnePod, QoS: Guaranteed, UID: uid, Slice: true},
		"kubepods/pod" + uid + "/" + id:                                                                    {Level: OneContainer, QoS: Guaranteed, UID: uid, ID: id},
		"kubepods/burstable/pod" + uid + "/crio-" + id:                                                     {Level: OneContainer, QoS: Burstable, UID: uid, ID: id},
		slice + "/cri-containerd-" + id + ".scope":                                                         {Level: OneContainer, QoS: BestEffort, UID: uid, ID: id, Slice: true},
		slice + "/crio-" + id + ".scope":                                                                   {Level: OneContainer, QoS: BestEffort, UID: uid, ID: id, Slice: true},
		slice + "/docker-" + id + ".scope":                                                                 {Level: OneContainer, QoS: BestEffort, UID: uid, ID: id, Slice: true},
		"system.slice/containerd.service/kubepods-burstable-pod" + uidUnit + ".slice:cri-containerd:" + id: {Level: OneContainer, QoS: Burstable, UID: uid, ID: id},
		"runtime.slice/containerd.service/kubepods-pod" + uidUnit + ".slice:cri-containerd:" + id:          {Level: OneContainer, QoS: Guaranteed, UID: uid, ID: id},

		"": {}, "/": {}, "burstable": {}, "x/besteffort": {}, "mykubepods": {}, "kubepods/other": {},
		"system.slice/docker-" + id + ".scope": {}, // in no pod
		"pod" + uid:                            {}, // a name that anybody can choose
		"user.slice/pod" + uid:                 {},
		"kubepods/podx/" + id:                  {},
		slice + "/cri-containerd-" + id + ".scope/init.scope": {},
		// Made by who is in a container, or by a user whose manager of units has the group.
		slice + "/cri-containerd-" + id + ".scope/kubepods/pod" + uid:                               {},
		"kubepods/pod" + uid + "/" + id + "/kubepods/pod" + uid + "/" + id:                          {},
		"user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid + "/" + id:                {},
		"user.slice/user-1000.slice/user@1000.service/kubepods-pod" + uidUnit + ".slice:crio:" + id: {},
		"system.slice/a.service/b/kubepods-pod" + uidUnit + ".slice:crio:" + id:                     {},
		"system.slice/a.service/" + slice + "/crio-" + id + ".scope":                                {},
		"machine.slice/vm.service/kubepods-pod" + uidUnit + ".slice:crio:" + id:                     {},
		"user.slice/a.service/kubepods-pod" + uidUnit + ".slice:crio:" + id:                         {},
		"runtime.slice/containerd.service/kubepods/pod" + uid + "/" + id:                            {},
		"runtime/containerd.service/kubepods-pod" + uidUnit + ".slice:crio:" + id:                   {},
		"lxc.payload.web/kubepods/burstable":                                                        {},
		"user.slice/user-1000.slice/session-1.scope/kubepods/besteffort/pod" + uid:                  {},
	} {
		if got := Parse(group); got != want {
			t.Errorf("%s is %+v, want %+v", group, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, group := range []string{"kubepods/pod" + uid + "/" + id, "kubepods.slice/kubepods-pod" + uidUnit + ".slice", "//..//", "x.slice:a:b"} {
		f.Add(group)
	}
	f.Fuzz(func(t *testing.T, group string) {
		g := Parse(group)
		if (g.Level == OneContainer) != (g.ID != "") || (g.Level >= OnePod) != (g.UID != "") || g.Level == None && g != (Group{}) {
			t.Errorf("%q is %+v", group, g)
		}
		if _, ok := ContainerOf(group); g.Level == OneContainer && !ok {
			t.Errorf("%q is a container and is not", group)
		}
	})
}
