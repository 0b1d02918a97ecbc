package daemon

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
)

// plantFile writes a file of the host beside its control groups.
func (h *host) plantFile(name, text string) {
	h.t.Helper()
	fakekernel.Plant(h.t, filepath.Join(h.dir, name), text)
}

// Devices, huge pages, affinity and CPUs of both kinds decide in the agent where a
// workload is, and the kernel is told.
func TestUsesOfWorkloads(t *testing.T) {
	t.Parallel()
	h := newHost(t, `
devices: [{name: nic0, kind: nic, pci: '0000:3b:00.0'}]
workloads:
- {name: card, match: {cgroup: /card}, class: LSR, cpus: 1, devices: [nic=1]}
- {name: pages, match: {cgroup: /pages}, class: LSR, cpus: 1, hugePages: {2Mi: 64Mi}}
- {name: near, match: {cgroup: /near}, class: LSR, cpus: 1, affinity: [card]}
- {name: apart, match: {cgroup: /apart}, class: LSR, cpus: 1, antiAffinity: [card]}
- {name: mixed, match: {cgroup: /mixed}, cpus: 1500m, mode: mixed}
- {name: late, match: {cgroup: /second}, devices: [nic0]}
`)
	h.plantFile("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n")
	h.plantFile("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "16\n")
	h.plantFile("sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "128\n")
	r := h.run()
	for _, name := range []string{"card", "pages", "near", "apart", "mixed"} {
		h.mkdir(name)
		r.await(agent.Placed, name+":"+name)
	}
	node := func(name string) string {
		w, err := r.Get(t.Context(), name+":"+name)
		if err != nil {
			t.Fatal(err)
		}
		for n, cpus := range map[string]string{"0": "0-1,4-5", "1": "2-3,6-7"} {
			if cpuset.MustParse(cpus).Contains(w.Grant.Own) {
				return n
			}
		}
		return "both"
	}
	got := map[string]string{}
	for _, name := range []string{"card", "pages", "near", "apart"} {
		got[name] = node(name)
	}
	if diff := cmp.Diff(map[string]string{"card": "1", "pages": "1", "near": "1", "apart": "0"}, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	if mems := h.read(cpusets + "pages/cpuset.mems"); mems != "1" {
		t.Errorf("the memory nodes of the one with huge pages are %s", mems)
	}
	w, err := r.Get(t.Context(), "mixed:mixed")
	if err != nil || w.Grant.Own.Len() != 1 || w.CPUs.Len() < 2 || h.read(cpusets+"mixed/cpuset.cpus") != w.CPUs.String() {
		t.Errorf("mixed has own CPUs %s of %s, %v", w.Grant.Own, w.CPUs, err)
	}
	h.mkdir("second")
	r.until(func(a api.About) bool {
		return len(a.Waiting) == 1 && strings.Contains(a.Waiting[0].Reason, `device "nic0": held by card:card`)
	})
}

// A group is placed as a whole: not before each of its entries has a control group, and all
// of them or none, at once and by a changed configuration.
func TestGroupPlacedAsAWhole(t *testing.T) {
	t.Parallel()
	const shop = `workloads:
- {name: web, match: {cgroup: /web}, class: LSR, cpus: 2, group: shop}
- {name: db, match: {cgroup: /db}, class: LSR, cpus: 2, group: shop}
- {name: other, match: {cgroup: /other}, class: LSR, cpus: 4}
`
	h := newHost(t, shop)
	r := h.run()
	h.mkdir("web")
	r.until(func(a api.About) bool {
		return len(a.Waiting) == 1 && strings.Contains(a.Waiting[0].Reason, "group shop is placed as a whole, and no control group of db is there yet")
	})
	h.mkdir("other")
	r.await(agent.Placed, "other:other")
	h.mkdir("db")
	r.until(func(a api.About) bool {
		return len(a.Waiting) == 2 && strings.Contains(a.Waiting[0].Reason, "not enough CPUs") && strings.Contains(a.Waiting[1].Reason, "not enough CPUs")
	})
	if len(r.cpus()) != 1 {
		t.Errorf("a part of it is placed: %v", r.cpus())
	}
	smaller := strings.Replace(shop, "cpus: 4", "cpus: 1", 1)
	got := h.applied(r, "with room", api.Proposal{Text: header + smaller})
	if len(r.cpus()) != 3 || len(got.Effects) != 3 {
		t.Errorf("with room are placed %v: %+v", r.cpus(), got.Effects)
	}
}
