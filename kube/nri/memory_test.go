package nri

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/kubelet"
	"berth.dev/berth/podwords"
)

// slowMemory adds a NUMA node without CPUs to each of the two of a played host, numbers 2 and 3, in
// a slower tier. All nodes have 1 GiB.
func slowMemory(t *testing.T, opt *Options, normal string) {
	t.Helper()
	m := opt.Node.Machine
	i := slices.IndexFunc(m.Domains, func(d machine.Domain) bool { return d.Kind == machine.Node })
	m.Domains = slices.Insert(m.Domains, i+2, machine.Domain{Kind: machine.Node, ID: 2, KernelID: 2}, machine.Domain{Kind: machine.Node, ID: 3, KernelID: 3})
	for n := range 4 {
		m.Domains[i+n].Bytes = 1 << 30
	}
	m.Distances = [][]int{{10, 20, 17, 28}, {20, 10, 28, 17}, {17, 28, 10, 28}, {28, 17, 28, 10}}
	must(t, m.Validate())
	for file, text := range map[string]string{
		"system/node/has_memory": "0-3", "system/node/has_cpu": "0-1", "system/node/has_normal_memory": normal,
		"virtual/memory_tiering/memory_tier4/nodelist": "0-1", "virtual/memory_tiering/memory_tier22/nodelist": "2-3",
	} {
		name := filepath.Join(opt.Node.Root.Name(), "sys/devices", file)
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must(t, os.WriteFile(name, []byte(text+"\n"), 0o644))
	}
}

// A container's memory is that of the kinds that its pod names, the nearest to its CPUs.
func TestMemoryType(t *testing.T) {
	t.Parallel()
	const word, onNode1, preserve = "memory-type.resource-policy.nri.io", "berth.dev/numa", "memory.preserve.resource-policy.nri.io"
	const gib = 1 << 30
	for name, c := range map[string]struct {
		words   map[string]string // over class LSE
		normal  string            // nodes whose memory is not only movable
		limit   int64
		want    string // memory nodes; "" is a refusal
		problem string
	}{
		"nothing said":            {map[string]string{onNode1: "1"}, "0-3", 0, "1", ""},
		"slow":                    {map[string]string{word: "pmem"}, "0-3", 0, "2", ""},
		"near to its CPUs":        {map[string]string{word: "pmem", onNode1: "1"}, "0-3", 0, "3", ""},
		"both":                    {map[string]string{word: "DRAM,PMEM", onNode1: "1"}, "0-3", 0, "1,3", ""},
		"what there is of all":    {map[string]string{word: "mixed", onNode1: "1"}, "0-3", 0, "1,3", ""},
		"in the pool":             {map[string]string{word: "pmem", "berth.dev/class": "LS"}, "0-3", 0, "2", ""},
		"in all of the pool":      {map[string]string{word: "pmem", "berth.dev/class": "BE"}, "0-3", 0, "2-3", ""},
		"there is none":           {map[string]string{word: "hbm", onNode1: "1"}, "0-3", 0, "1", "no NUMA node is known to have it"},
		"movable":                 {map[string]string{word: "pmem", onNode1: "1"}, "0-1", 0, "1", "movable memory only"},
		"movable beside other":    {map[string]string{word: "dram,pmem", onNode1: "1"}, "0-1", 0, "1,3", ""},
		"strict":                  {map[string]string{word: "hbm", "berth.dev/strict": "true"}, "0-3", 0, "", "no NUMA node is known to have it"},
		"left alone":              {map[string]string{word: "pmem", preserve: "true", onNode1: "1"}, "0-3", 0, "1", ""},
		"of CRI Resource Manager": {map[string]string{"memory-type.cri-resource-manager.intel.com/container.a": "pmem"}, "0-3", 0, "2", ""},
		"promised":                {map[string]string{word: "pmem", onNode1: "1"}, "0-3", gib, "3", ""},
		"promised on both":        {map[string]string{word: "pmem", onNode1: "1"}, "0-3", gib + gib/2, "2-3", ""},
		"more than there is":      {map[string]string{word: "pmem", onNode1: "1"}, "0-3", 3 * gib, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opt, heard := options(t, "2s1n4c2t")
			opt.Words.Rules = podwords.Everything()
			slowMemory(t, &opt, c.normal)
			p := open(t, opt)
			words := maps.Clone(exclusive)
			maps.Copy(words, c.words)
			q := guaranteed(pod("web", words))
			box := container(q, "a", 2000)
			if c.limit > 0 {
				box.Linux.Resources.Memory = &api.LinuxMemory{Limit: api.Int64(c.limit)}
			}
			adjust, _, err := p.CreateContainer(context.Background(), q, box)
			if got := adjust.GetLinux().GetResources().GetCpu().GetMems(); got != c.want || (err != nil) != (c.want == "") {
				t.Errorf("memory nodes %q, %v, want %q", got, err, c.want)
			}
			problems := strings.Join(heard.kinds(Word), "\n")
			if !strings.Contains(problems, c.problem) || (problems == "") != (c.problem == "") {
				t.Errorf("problems %q, want %q", problems, c.problem)
			}
			if c.want == "" {
				return
			}
			w, err := p.node.Get(context.Background(), "default/web/a")
			must(t, err)
			for left := c.limit; left > 0; {
				if len(w.Grant.Memory) == 0 {
					t.Fatalf("%d bytes are promised nowhere", left)
				}
				b := w.Grant.Memory[0]
				if !w.Mems.Has(b.Node) {
					t.Errorf("%d bytes are promised on node %d, and it has %s", b.Bytes, b.Node, w.Mems)
				}
				left, w.Grant.Memory = left-b.Bytes, w.Grant.Memory[1:]
			}
		})
	}
}

// Memory of a kind is no reason against a pod's place as a whole.
func TestMemoryTypeOfAPod(t *testing.T) {
	t.Parallel()
	api := known{}
	n := newNode(t, "1s2n4c1t", func(o *Options) {
		o.Pods = api
		o.Node.Policy = kubelet.Policy{CPUManager: kubelet.CPUManagerStatic, TopologyManager: kubelet.TopologyManagerSingle, TopologyManagerScope: kubelet.ScopePod}
		o.Node.Config.Reserved = setOf(0)
		slowMemory(t, o, "0-3")
	})
	p := api.of("p", needs("a", place.App, 1000), needs("b", place.App, 3000))
	p.Annotations = map[string]string{"memory-type.resource-policy.nri.io": "pmem"}
	must(t, n.create(p, container(p, "a", 1000), 1))
	all, err := n.p.node.List(context.Background())
	must(t, err)
	if len(all) != 2 {
		t.Fatalf("%d places at the first container, want the whole pod's", len(all))
	}
	for i := range all {
		if all[i].Mems != setOf(3) || !setOf(4, 5, 6, 7).Contains(all[i].CPUs) {
			t.Errorf("%s: memory nodes %s, CPUs %s", all[i].ID(), all[i].Mems, all[i].CPUs)
		}
	}
}
