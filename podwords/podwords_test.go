package podwords

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// rowCase is what one word of a pod comes to, for its container c of 4 CPUs.
type rowCase struct {
	word  string // of the row
	key   string // "" is word
	value string
	want  string // "field=value ..." of the sources, sorted; or the problem's kind
}

func rowCases() []rowCase {
	cases := []rowCase{
		{"berth.dev/class", "", "LSE", "class=LSE"},
		{"berth.dev/class", "", "Guaranteed", "class=LSR"},
		{"berth.dev/class", "", "system", "not allowed"},
		{"berth.dev/class", "", `"SYSTEM"`, "not allowed"},
		{"berth.dev/class", "", "fast", "invalid"},
		{"berth.dev/class", "", "LSE\nmode: exclusive", "invalid"},
		{"berth.dev/class", "berth.dev/class.c", "BE", "class=BE"},
		{"berth.dev/class", "berth.dev/class.other", "BE", ""},
		{"berth.dev/cpus", "", "2", "cpus=2"},
		{"berth.dev/cpus", "", "-1", "invalid"},
		{"berth.dev/mode", "", "shared", "mode=shared"},
		{"berth.dev/shared", "", "500m", "shared=500m"},
		{"berth.dev/bind", "", "FullPCPUs", "bind=FullPCPUs"},
		{"berth.dev/bind", "", "ConstrainedBurst", "invalid"},
		{"berth.dev/bindRequired", "", "true", "bindRequired=true"},
		{"berth.dev/exclusivity", "", "PCPULevel", "exclusive=PCPULevel"},
		{"berth.dev/exclusivity", "", "numanodelevel", "not allowed"},
		{"berth.dev/exclusive", "", "PCPULevel", "exclusive=PCPULevel"},
		{"berth.dev/exclusive", "", "NUMANodeLevel", "not allowed"},
		{"berth.dev/strategy", "", "DistributeEvenly", "strategy=DistributeEvenly"},
		{"berth.dev/isolated", "", "prefer", "isolated=prefer"},
		{"berth.dev/coreKind", "", "P", "coreKind=P"},
		{"berth.dev/coreKind", "", "../../etc", "invalid"},
		{"berth.dev/numa", "", "0-1", "nodes=0-1"},
		{"berth.dev/numa", "", "one", "invalid"},
		{"berth.dev/nodes", "", "1", "nodes=1"},
		{"berth.dev/nodesRequired", "", "true", "nodesRequired=true"},
		{"berth.dev/maxNodes", "", "1", "maxNodes=1"},
		{"berth.dev/maxNodes", "", "-1", "invalid"},
		{"berth.dev/affinity", "", "[{labels: {app: db}, weight: 5000}]", "affinity=[{ map[app:db] 1000 false}]"},
		{"berth.dev/affinity", "", "[{near: db}]", "invalid"},
		{"berth.dev/hints", "", "{balloon: fast}", "hint balloon=fast"},
		{"berth.dev/hints", "", "{cpu.preserve: 'true'}", "not allowed"},
		{"berth.dev/hints", "", "{balloon: a/../b}", "invalid"},
		{"berth.dev/strict", "", "true", "strict=true"},
		{"berth.dev/strict", "", "yes", "invalid"},
		{"berth.dev/scope", "", "pod", "scope=pod"},
		{"berth.dev/scope", "", "node", "invalid"},
		{"berth.dev/role", "", "init", "role=init"},
		{"berth.dev/role", "", "main", "invalid"},
		{"berth.dev/affinity", "", "[{namespace: 'team-*', glob: true, weight: 1}]", "affinity=[{ team-* map[] 1 true}]"},
		{"berth.dev/affinity", "", "[{namespace: '[', glob: true, weight: 1}]", "invalid"},
		{"berth.dev/cache", "", "gold", "cache=gold"},
		{"berth.dev/cache", "berth.dev/cache.c", "gold", "cache=gold"},
		{"berth.dev/cache", "berth.dev/cache.d", "gold", ""},
		{"berth.dev/cache", "", "none", "cache=none"},
		{"berth.dev/cache", "", "slow", "not allowed"},
		{"berth.dev/cache", "", "lead", "not followed"},
		{"berth.dev/cache", "", "", "invalid"},
		{"berth.dev/cache", "", "a/b", "invalid"},
		{"berth.dev/io", "", "gold", "io=gold"},
		{"berth.dev/io", "", "slow", "not allowed"},
		{"berth.dev/net", "", "gold", "net=gold"},
		{"berth.dev/power", "", "gold", "power=gold"},
		{"berth.dev/power", "", "gold\npower: x", "invalid"},
		{"berth.dev/p99", "", "5ms", "p99=0.005s"},
		{"berth.dev/p99", "berth.dev/p99.c", "1.5s", "p99=1.5s"},
		{"berth.dev/p99", "", "250us", "p99=0.00025s"},
		{"berth.dev/p99", "", "5", "invalid"},
		{"berth.dev/p99", "", "fastms", "invalid"},
		{"berth.dev/p99", "", "0s", "invalid"},
		{"berth.dev/p99", "", "NaNs", "invalid"},
		{"berth.dev/p99", "", "Infs", "invalid"},
		{"berth.dev/p99", "", "2h", "invalid"},
		{"berth.dev/p99", "berth.dev/klass", "LSE", "unknown"},

		{"koordinator.sh/qosClass", "", "LSR", "class=LSR"},
		{"koordinator.sh/qosClass", "", "lsr", "invalid"},
		{"koordinator.sh/qosClass", "", "SYSTEM", "not allowed"},
		{"koordinator.sh/priority-class", "", "koord-batch", "class=BE"},
		{"koordinator.sh/priority-class", "", "koord-prod", ""},
		{"koordinator.sh/priority-class", "", "high", "invalid"},
		{"koordinator.sh/priority", "", "9", "not followed"},
		{"scheduling.koordinator.sh/resource-spec", "", `{"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}`, "bind=FullPCPUs bindRequired=true exclusive=PCPULevel"},
		{"scheduling.koordinator.sh/resource-spec", "", `{"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "None"}`, "bind=SpreadByPCPUs"},
		{"scheduling.koordinator.sh/resource-spec", "", `{"preferredCPUBindPolicy": "ConstrainedBurst"}`, "invalid"},
		{"scheduling.koordinator.sh/resource-spec", "", `{"preferredCPUExclusivePolicy": "NUMANodeLevel"}`, "not allowed"},
		{"scheduling.koordinator.sh/resource-spec", "", "{", "invalid"},
		{"scheduling.koordinator.sh/numa-topology-spec", "", `{"numaTopologyPolicy": "SingleNUMANode"}`, "maxNodes=1"},
		{"scheduling.koordinator.sh/numa-topology-spec", "", `{"numaTopologyPolicy": "BestEffort"}`, ""},
		{"scheduling.koordinator.sh/numa-topology-spec", "", `{"numaTopologyPolicy": "Restricted"}`, "fewestNodes=true"},
		{"scheduling.koordinator.sh/numa-topology-spec", "", `{"singleNUMANodeExclusive": "Required"}`, "not followed"},
		{"scheduling.koordinator.sh/numa-topology-spec", "", `{"numaTopologyPolicy": "None"}`, "invalid"},
		{"scheduling.koordinator.sh/resource-status", "", `{"cpuset": "0-3"}`, "not allowed"},
		{"scheduling.koordinator.sh/resource-status", "", `{"cpuset": "3-0"}`, "invalid"},
		{"koordinator.sh/networkQOS", "", `{"IngressLimit": "10M", "EgressLimit": "20M"}`, "egress=20000000 ingress=10000000"},
		{"koordinator.sh/networkQOS", "", `{"EgressLimit": "1Gi"}`, "egress=1073741824"},
		{"koordinator.sh/networkQOS", "", `{"QoSClass": "BE"}`, ""},
		{"koordinator.sh/networkQOS", "", `{"EgressLimit": "50%"}`, "invalid"},
		{"koordinator.sh/networkQOS", "", `{"EgressLimit": "1"}`, "invalid"},
		{"koordinator.sh/networkQOS", "", `{"EgressLimit": "666M"}`, "not followed"},
		{"koordinator.sh/networkQOS", "", `10M`, "invalid"},
		{"kubernetes.io/egress-bandwidth", "", "10M", "egress=10000000"},
		{"kubernetes.io/egress-bandwidth", "", "10Mbit", "invalid"},
		{"kubernetes.io/egress-bandwidth", "", "999", "invalid"},
		{"kubernetes.io/egress-bandwidth", "", "2P", "invalid"},
		{"kubernetes.io/egress-bandwidth", "", "-10M", "invalid"},
		{"kubernetes.io/egress-bandwidth", "", "666M", "not followed"},
		{"kubernetes.io/ingress-bandwidth", "", "1.5G", "ingress=1500000000"},
		{"kubernetes.io/ingress-bandwidth", "", "", "invalid"},
		{"kubernetes.io/ingress-bandwidth", "kubernetes.io/psp", "10M", ""},
		{"koordinator.sh/cpuQOS", "", `{"groupIdentity": 2}`, "not followed"},
		{"koordinator.sh/cpuBurst", "", `{"policy": "auto"}`, "not followed"},
		{"koordinator.sh/memoryQOS", "", `{"policy": "auto"}`, "not followed"},
		{"koordinator.sh/blkioQOS", "", "{}", "not followed"},
		{"pool.podpools.cri-resource-manager.intel.com", "", "dualcpu", "hint balloon=dualcpu"},
		{"pool.podpools.cri-resource-manager.intel.com", "pool.podpools.cri-resource-manager.intel.com/pod", "/etc", "invalid"},
		{"pooltype.podpools.cri-resource-manager.intel.com", "", "dualcpu", "hint balloon=dualcpu"},
		{"pooltype.podpools.cri-resource-manager.intel.com", "pool.podpools.resource-policy.nri.io", "dualcpu", "unknown"},
		{"dynamic-pool.dynamic-pools.cri-resource-manager.intel.com", "", "dyn", "not followed"},
		{"node.koordinator.sh/resctrl", "", `{"llc": {"schemata": {"range": [0, 30]}}}`, "not followed"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/batch-cpu": "4k", "kubernetes.io/batch-memory": "2Gi"}, "requests": {"kubernetes.io/batch-cpu": 500}}}}`, "cpuLimit=4 memoryLimit=2Gi"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/batch-cpu": 1500}}}}`, "cpuLimit=1500m"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"d": {"limits": {"kubernetes.io/batch-cpu": 1500}}}}`, ""},
		{"node.koordinator.sh/extended-resource-spec", "", "{}", ""},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/mid-cpu": "2k"}}}}`, "midCPULimit=2"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/mid-memory": "2Gi"}}}}`, "midMemoryLimit=2Gi"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/mid-cpu": "2M"}}}}`, "invalid"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"d": {"limits": {"kubernetes.io/mid-cpu": "2k"}}}}`, ""},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/mid-cpu": "2k", "kubernetes.io/batch-cpu": 500}}}}`, "cpuLimit=500m midCPULimit=2"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/mid-memory": "1Gi", "kubernetes.io/batch-memory": "2Gi"}}}}`, "memoryLimit=2Gi midMemoryLimit=1Gi"},
		{"koordinator.sh/priority-class", "", "koord-mid", ""},
		{"koordinator.sh/core-sched-group-id", "", "x", "not followed"},
		{"koordinator.sh/core-sched-policy", "", "exclusive", "not followed"},
		{"scheduling.koordinator.sh/device-allocated", "", `{"gpu": [{"minor": 0}]}`, "not followed"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/batch-cpu": "1M", "kubernetes.io/batch-memory": 0}}}}`, "cpuLimit=1000"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/batch-cpu": "2M"}}}}`, "invalid"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": {"c": {"limits": {"kubernetes.io/batch-memory": "-1"}}}}`, "invalid"},
		{"node.koordinator.sh/extended-resource-spec", "", `{"containers": []}`, "invalid"},
	}
	for _, domain := range []string{"resource-policy.nri.io", "cri-resource-manager.intel.com"} {
		for _, c := range []rowCase{
			{"prefer-isolated-cpus.", "", "true", "isolated=prefer"},
			{"prefer-isolated-cpus.", "", "false", ""},
			{"prefer-isolated-cpus.", "", "perhaps", "invalid"},
			{"prefer-isolated-cpus.", "/container.c", "true", "isolated=prefer"},
			{"prefer-isolated-cpus.", "/container.d", "true", ""},
			{"prefer-isolated-cpus.", "/pod", "true", "isolated=prefer"},
			{"prefer-isolated-cpus.", "/node", "true", "unknown"},
			{"require-isolated-cpus.", "", "true", "isolated=require"},
			{"prefer-shared-cpus.", "", "true", "hint prefer-shared-cpus=true mode=shared"},
			{"prefer-shared-cpus.", "", "false", "hint prefer-shared-cpus=false"},
			{"prefer-reserved-cpus.", "", "true", "not allowed"},
			{"hide-hyperthreads.", "", "true", "hint hide-hyperthreads=true"},
			{"cpu.preserve.", "", "true", "not allowed"},
			{"memory.preserve.", "", "true", "not allowed"},
			{"unlimited-burstable.", "", "numa", "hint unlimited-burstable=numa"},
			{"balloon.balloons.", "", "fast", "hint balloon=fast"},
			{"balloon.balloons.", "", "/etc", "invalid"},
			{"memory-type.", "", "pmem", "memory=pmem"},
			{"memory-type.", "", "PMEM, dram,pmem", "memory=dram,pmem"},
			{"memory-type.", "/container.c", "mixed", "memory=dram,pmem,hbm"},
			{"memory-type.", "", "", ""},
			{"memory-type.", "", "hbm", "not followed"},
			{"memory-type.", "", "dram,", "invalid"},
			{"memory-type.", "", "nvdimm", "invalid"},
			{"cold-start.", "", "{duration: 60s}", "not followed"},
			{"topologyhints.", "", "true", "near=devices,mounts"},
			{"topologyhints.", "", "[mounts]", "near=mounts"},
			{"topologyhints.", "", "none", "near=none"},
			{"topologyhints.", "", "devices,pod-resources", "near=devices"}, // and a problem
			{"topologyhints.", "", "", "invalid"},
			{"topologyhints.", "", "disks", "invalid"},
			{"allow.topologyhints.", "", "{paths: [/dev/nvme0]}", "nearAllow=/dev/nvme0"},
			{"allow.topologyhints.", "", "[]", "invalid"},
			{"deny.topologyhints.", "", "{type: glob, paths: ['/dev/*']}", "nearDeny=/dev/*"},
			{"deny.topologyhints.", "", "{type: glob, paths: ['[']}", "invalid"},
			{"deny.topologyhints.", "", "{type: regexp, paths: [/dev]}", "invalid"},
			{"deny.topologyhints.", "", "{paths: []}", "invalid"},
			{"strict.topologyhints.", "", "true", "nearStrict=true"},
			{"strict.topologyhints.", "", "1", "invalid"},
			{"pick-resources-by-hints.", "", "true", "nearPick=true"},
			{"pick-resources-by-hints.", "/container.d", "true", ""},
			{"prefer-cpu-priority.", "", "high", "coreKind=P"},
			{"prefer-cpu-priority.", "/container.c", "low", "coreKind=E"},
			{"prefer-cpu-priority.", "", "normal", ""},
			{"prefer-cpu-priority.", "", "none", ""},
			{"prefer-cpu-priority.", "", "default", ""},
			{"prefer-cpu-priority.", "", "3", "invalid"},
			{"cpu-class.", "", "gold", "power=gold"},
			{"cpu-class.", "", "turbo", "not followed"},
			{"scheduling-class.", "", "rt", "not followed"},
			{"irq-affinity.", "", "{}", "not followed"},
			{"rdtclass.", "", "gold", "cache=gold"},
			{"rdtclass.", "/container.c", "gold", "cache=gold"},
			{"rdtclass.", "/container.d", "gold", ""},
			{"rdtclass.", "/pod", "slow", "not allowed"},
			{"rdtclass.", "", "lead", "not followed"},
			{"blockioclass.", "", "gold", "io=gold"},
			{"blockioclass.", "", "slow", "not allowed"},
			{"blockioclass.", "", "../slow", "invalid"},
			{"toptierlimit.", "", "1G", "not followed"},
			{"no-such.", "", "x", "unknown"},
		} {
			word := c.word + domain
			cases = append(cases, rowCase{word, word + c.key, c.value, c.want})
		}
		const some = "{scope: {key: pod/namespace, operator: Equals, values: [blue]}, match: {key: %s, operator: %s, values: [db, web]}, weight: 7}"
		for _, c := range []rowCase{
			{"affinity", "", "c: [d, e]", "affinity=[{blue/shop/d map[] 1 false} {blue/shop/e map[] 1 false}]"},
			{"affinity", "", "d: [c]", ""},
			{"affinity", "", "c: [" + fmt.Sprintf(some, "pod/labels/app", "In") + "]", "affinity=[{ blue map[app:db] 7 false} { blue map[app:web] 7 false}]"},
			{"affinity", "", "c: [" + fmt.Sprintf(some, "pod/labels/app", "NotIn") + "]", "affinity=[{ blue map[] 7 false} { blue map[app:db] -7 false} { blue map[app:web] -7 false}]"},
			{"affinity", "", "c: [" + fmt.Sprintf(some, "pod/labels/app", "NotEqual") + "]", "invalid"},
			{"affinity", "", "c: [" + fmt.Sprintf(some, "pod/labels/app", "MatchesNone") + "]", "not followed"},
			{"affinity", "", "c: [" + fmt.Sprintf(some, "pod/labels/app", "Near") + "]", "invalid"},
			{"affinity", "", "c: [{match: {key: name, values: [d]}}]", "invalid"},
			{"affinity", "", "c: [{match: {operator: AlwaysTrue}}]", "affinity=[{blue/shop/* blue map[] 1 true}]"},
			{"affinity", "", "c: [" + fmt.Sprintf(some, "pod/labels/app", "MatchesAny") + "]", "affinity=[{ blue map[app:db] 7 true} { blue map[app:web] 7 true}]"},
			{"affinity", "", "c: [" + fmt.Sprintf(some, "pod/labels/app", "Matches") + "]", "invalid"},
			{"affinity", "", "c: [" + fmt.Sprintf(some, "pod/labels/app", "Equals") + "]", "invalid"},
			{"affinity", "", "c: [" + fmt.Sprintf(some, "tags/x", "In") + "]", "not followed"},
			{"affinity", "", "c: [{match: {key: name, operator: In, values: [d]}}]", "affinity=[{blue/shop/d blue map[] 1 false}]"},
			{"affinity", "", "c: [{scope: {operator: AlwaysTrue}, match: {key: namespace, operator: Equals, values: [red]}, weight: -99999}]", "affinity=[{ red map[] -1000 false}]"},
			{"affinity", "", "x", "invalid"},
			{"anti-affinity", "", "c: [d]", "affinity=[{blue/shop/d map[] -1 false}]"},
		} {
			cases = append(cases, rowCase{domain + "/" + c.word, domain + "/" + c.word, c.value, c.want})
		}
	}
	return cases
}

// classes are those of a node that has some of two names of each kind.
func classes(kind, name string) error {
	if name == "gold" || name == "slow" {
		return nil
	}
	return fmt.Errorf("%s class %q: it is not defined", kind, name)
}

func TestEveryWord(t *testing.T) {
	t.Parallel()
	tested := map[string]bool{}
	for _, c := range rowCases() {
		key := c.key
		if key == "" {
			key = c.word
		}
		pod := Pod{Namespace: "blue", Name: "shop", Annotations: map[string]string{key: c.value}, HostNetwork: true}
		if i := slices.IndexFunc(Table(), func(r Row) bool { return r.Word == c.word }); i >= 0 && Table()[i].Label {
			pod.Labels, pod.Annotations = pod.Annotations, nil
		}
		tested[c.word] = true
		if got := told(Read(&pod, "c", Options{Class: classes, Bandwidth: notTheBeast, Memory: noHBM, Node: true, Rules: Rules{{Namespaces: []string{"blue"}, Words: []string{"*", "*=gold", "*=none"}}}})); got != c.want {
			t.Errorf("%s: %q: %s, want %s", key, c.value, got, c.want)
		}
	}
	for _, row := range Table() {
		if !tested[row.Word] {
			t.Errorf("no test of %s", row.Word)
		}
	}
}

// A limit that no container has is told by the resource that says it.
func TestExtendedResourceOfAnError(t *testing.T) {
	t.Parallel()
	for resource, value := range map[string]string{
		"kubernetes.io/batch-cpu": "2M", "kubernetes.io/mid-cpu": "2M", "kubernetes.io/batch-memory": "-1", "kubernetes.io/mid-memory": "x",
	} {
		pod := Pod{Annotations: map[string]string{"node.koordinator.sh/extended-resource-spec": fmt.Sprintf(`{"containers": {"c": {"limits": {"kubernetes.io/mid-cpu": 1, %q: %q}}}}`, resource, value)}}
		if resource == "kubernetes.io/mid-cpu" { // each key once
			pod.Annotations["node.koordinator.sh/extended-resource-spec"] = `{"containers": {"c": {"limits": {"kubernetes.io/mid-cpu": "2M"}}}}`
		}
		r := Read(&pod, "c", Options{Node: true})
		if len(r.Problems) != 1 || r.Problems[0].Kind != Invalid || !strings.Contains(r.Problems[0].Err.Error(), resource) || r.Wish.MidCPULimit != nil {
			t.Errorf("%s: %+v, %v", resource, r.Wish, Problems(r.Problems))
		}
	}
}

// noHBM is a host that has other memory, too.
func noHBM(kinds []machine.MemoryKind) error {
	if slices.Equal(kinds, []machine.MemoryKind{machine.HBM}) {
		return errors.New("no")
	}
	return nil
}

// notTheBeast is a host that can have any limit but one.
func notTheBeast(bits int64) error {
	if bits == 666e6 {
		return errors.New("no")
	}
	return nil
}

// The network plugin of a pod with a network of its own follows Kubernetes' words; Koordinator's
// are Berth's, and those of both count by system.
func TestBandwidthOfWhom(t *testing.T) {
	t.Parallel()
	words := map[string]string{"kubernetes.io/egress-bandwidth": "10M", "kubernetes.io/ingress-bandwidth": "30M", "koordinator.sh/networkQOS": `{"EgressLimit": "20M"}`}
	for _, c := range []struct {
		host     bool
		opt      Options
		want     string
		problems int
	}{
		{true, Options{Bandwidth: notTheBeast}, "egress=20000000 ingress=30000000", 1}, // a contradiction
		{false, Options{Bandwidth: notTheBeast}, "egress=20000000", 0},
		{true, Options{}, "not followed", 3},
		{false, Options{}, "not followed", 1},
	} {
		r := Read(&Pod{Annotations: words, HostNetwork: c.host}, "c", c.opt)
		if got := told(r); got != c.want || len(r.Problems) != c.problems {
			t.Errorf("host's network %t: %s, want %s, and %v", c.host, got, c.want, r.Problems)
		}
	}
}

// told is the sources of a reading or, if there are none, the kind of its problem.
func told(r Reading) string {
	var all []string
	for _, s := range r.Sources {
		all = append(all, s.Field+"="+s.Value)
	}
	if len(all) == 0 && len(r.Problems) > 0 {
		return r.Problems[0].Kind.String()
	}
	return strings.Join(all, " ")
}

// The page of the documentation has a row for every word, and no other.
func TestPageHasEveryWord(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/pod-words.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range Table() {
		if word := shortWord(row.Word); !strings.Contains(string(page), "`"+strings.TrimPrefix(word, "berth.dev/")+"`") {
			t.Errorf("docs/pod-words.md has no `%s`", word)
		}
	}
}

// shortWord is a word as pages have it: those of nri-plugins and CRI Resource Manager, of which most
// are the same, without the domain.
func shortWord(word string) string {
	if rest, ok := strings.CutPrefix(word, crirmDomain); ok {
		return nriDomain + rest
	}
	return strings.TrimSuffix(strings.TrimSuffix(word, "."+nriDomain), "."+crirmDomain)
}

// The page for those who come from another system says of each word of theirs whether it is followed,
// and has no word that is none.
func TestPageSaysWhatIsFollowed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/coming-from.md")
	if err != nil {
		t.Fatal(err)
	}
	says, code := map[string]string{}, regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !slices.Contains([]string{"follows", "by rule", "not followed"}, cells[1]) {
			continue
		}
		for _, word := range code.FindAllStringSubmatch(cells[0], -1) {
			says[word[1]] = cells[1]
		}
	}
	known := map[string]bool{}
	for _, row := range Table() {
		word, want := shortWord(row.Word), "follows"
		switch {
		case row.System == Berth:
			continue
		case !row.Followed():
			want = "not followed"
		case slices.Contains(row.Strong, "*"):
			want = "by rule"
		}
		if known[word] = true; says[word] != want {
			t.Errorf("docs/coming-from.md says %q of `%s`, want %q", says[word], word, want)
		}
	}
	for word := range says {
		if !known[word] {
			t.Errorf("docs/coming-from.md has `%s`, which is no word", word)
		}
	}
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	pod := Pod{
		Namespace: "blue", Name: "shop", Labels: map[string]string{"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-batch"},
		Annotations: map[string]string{
			"berth.dev/class":   "LS",
			"berth.dev/class.c": "LSE",
			"prefer-isolated-cpus.cri-resource-manager.intel.com/container.c": "true",
			"require-isolated-cpus.resource-policy.nri.io":                    "true",
			"scheduling.koordinator.sh/resource-spec":                         `{"preferredCPUBindPolicy": "SpreadByPCPUs"}`,
		},
	}
	r := Read(&pod, "c", Options{})
	want := []Source{
		{"bind", "SpreadByPCPUs", "annotation scheduling.koordinator.sh/resource-spec"},
		{"class", "LSE", "annotation berth.dev/class.c"},
		{"isolated", "require", "annotation require-isolated-cpus.resource-policy.nri.io"},
	}
	if diff := cmp.Diff(want, r.Sources); diff != "" {
		t.Error(diff)
	}
	var kinds []string
	for _, p := range r.Problems {
		kinds = append(kinds, p.Kind.String()+" "+p.Word)
	}
	if got, want := strings.Join(kinds, ", "), "contradiction require-isolated-cpus.resource-policy.nri.io, contradiction berth.dev/class"; got != want {
		t.Errorf("problems %s, want %s", got, want)
	}
	if r := Read(&pod, "d", Options{}); told(r) != "bind=SpreadByPCPUs class=LS isolated=require" {
		t.Errorf("another container: %s", told(r))
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	rules := Rules{
		{Namespaces: []string{"kube-system"}, Words: []string{"*", "berth.dev/class=SYSTEM"}},
		{Namespaces: []string{"batch-*"}, Words: []string{"berth.dev/class", "*.resource-policy.nri.io"}},
		{Namespaces: []string{"quiet"}},
	}
	if err := rules.Validate(); err != nil {
		t.Error(err)
	}
	if err := (Rules{{Namespaces: []string{"["}}}).Validate(); err == nil {
		t.Error("a bad glob is valid")
	}
	for _, c := range []struct {
		namespace, key, value string
		want                  bool
	}{
		{"kube-system", "berth.dev/class", "SYSTEM", true},
		{"kube-system", "berth.dev/exclusivity", "NUMANodeLevel", false},
		{"kube-system", "berth.dev/bind", "FullPCPUs", true},
		{"batch-1", "berth.dev/class", "BE", true},
		{"batch-1", "berth.dev/class", "SYSTEM", false},
		{"batch-1", "berth.dev/bind", "FullPCPUs", false},
		{"batch-1", "hide-hyperthreads.resource-policy.nri.io", "true", true},
		{"quiet", "berth.dev/class", "BE", false},
		{"other", "berth.dev/class", "BE", true},
		{"other", "cpu.preserve.resource-policy.nri.io", "true", false},
	} {
		r := Read(&Pod{Namespace: c.namespace, Name: "p", Annotations: map[string]string{c.key: c.value}}, "c", Options{Rules: rules})
		if got := len(r.Sources) > 0; got != c.want {
			t.Errorf("%s may say %s: %s: %v, want %v (%v)", c.namespace, c.key, c.value, got, c.want, Problems(r.Problems))
		}
	}
	if r := Read(&Pod{Annotations: map[string]string{"cpu.preserve.resource-policy.nri.io": "true"}}, "c", Options{Rules: Everything()}); len(r.Sources) != 1 {
		t.Errorf("%v", Problems(r.Problems))
	}
}

func TestHintsOfThePolicyOnly(t *testing.T) {
	t.Parallel()
	pod := Pod{Annotations: map[string]string{"balloon.balloons.resource-policy.nri.io": "fast", "hide-hyperthreads.resource-policy.nri.io": "true"}}
	r := Read(&pod, "c", Options{Hints: []string{"balloon"}})
	if !maps.Equal(r.Wish.Hints, map[string]string{"balloon": "fast"}) || len(r.Problems) != 1 || r.Problems[0].Kind != NotFollowed {
		t.Errorf("%v, %v", r.Wish.Hints, Problems(r.Problems))
	}
}

// No word gives more than the container pays for.
func TestApply(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		res     Resources
		words   map[string]string
		threads int
		want    string // class mode milli/shared
		problem bool
	}{
		{"guaranteed, whole", Resources{Milli: 2000, LimitMilli: 2000, QoS: place.LSR}, nil, 2, "LSR auto 2000/0", false},
		{"guaranteed, a part", Resources{Milli: 1500, LimitMilli: 1500, QoS: place.LSR}, nil, 2, "LSR shared 1500/0", false},
		{"burstable", Resources{Milli: 2000, QoS: place.LS}, nil, 2, "LS auto 2000/0", false},
		{"best effort", Resources{QoS: place.BE}, nil, 2, "BE auto 0/0", false},
		{"own by word", Resources{Milli: 2000, QoS: place.LS}, map[string]string{"berth.dev/class": "LSE"}, 2, "LSE auto 2000/0", false},
		{"a part of a core", Resources{Milli: 1000, QoS: place.LS}, map[string]string{"berth.dev/class": "LSE"}, 2, "LS auto 1000/0", true},
		{"one thread per core", Resources{Milli: 1000, QoS: place.LS}, map[string]string{"berth.dev/class": "LSE"}, 1, "LSE auto 1000/0", false},
		{"a part of a CPU", Resources{Milli: 100, QoS: place.LS}, map[string]string{"berth.dev/class": "LSE"}, 1, "LS auto 100/0", true},
		{"nothing requested", Resources{QoS: place.BE}, map[string]string{"berth.dev/mode": "exclusive"}, 1, "BE auto 0/0", true},
		{"some own", Resources{Milli: 2500, QoS: place.LS}, map[string]string{"berth.dev/cpus": "2"}, 2, "LS mixed 2500/500", false},
		{"all own", Resources{Milli: 2000, QoS: place.LS}, map[string]string{"berth.dev/cpus": "2"}, 2, "LS exclusive 2000/0", false},
		{"more than requested", Resources{Milli: 2500, QoS: place.LS}, map[string]string{"berth.dev/cpus": "3"}, 2, "LS auto 2500/0", true},
		{"shared part too large", Resources{Milli: 1000, QoS: place.LS}, map[string]string{"berth.dev/mode": "mixed", "berth.dev/shared": "2"}, 2, "LS auto 1000/0", true},
		{"reserved by a part", Resources{Milli: 1500, LimitMilli: 1500, QoS: place.LSR}, map[string]string{"berth.dev/class": "LSR"}, 2, "LSR auto 1500/0", false},
		{"a core's level", Resources{Milli: 3000, LimitMilli: 3000, QoS: place.LSR}, map[string]string{"berth.dev/exclusivity": "PCPULevel"}, 2, "LSR auto 3000/0", true},
	} {
		r := Read(&Pod{Namespace: "n", Name: "p", Annotations: c.words}, "c", Options{})
		req, _ := r.Apply(Kubernetes(c.res), c.threads)
		req.ID = "x"
		if got := fmt.Sprintf("%s %s %d/%d", req.Class, req.Mode, req.Milli, req.SharedMilli); got != c.want || (len(r.Problems) > 0) != c.problem {
			t.Errorf("%s: %s, want %s; %v", c.name, got, c.want, Problems(r.Problems))
		}
		if err := req.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A response time is kept of what the guard looks after.
func TestP99OfAClass(t *testing.T) {
	t.Parallel()
	for class, kept := range map[string]bool{"LSE": true, "LS": true, "BE": false} {
		r := Read(&Pod{Annotations: map[string]string{"berth.dev/p99": "20ms", "berth.dev/class": class}}, "c", Options{Node: true})
		r.Apply(place.Request{ID: "x", Milli: 2000}, 1)
		if got := r.Wish.P99 != nil; got != kept || kept != (len(r.Problems) == 0) || kept && *r.Wish.P99 != 0.02 {
			t.Errorf("%s: kept %t, %v", class, got, Problems(r.Problems))
		}
	}
	if r := Read(&Pod{Annotations: map[string]string{"berth.dev/p99": "20ms"}}, "c", Options{}); told(r) != "not followed" {
		t.Errorf("without requests: %s", told(r))
	}
}

func TestCPUsOfAScheduler(t *testing.T) {
	t.Parallel()
	for cpus, want := range map[string]string{"0-1": "0-1", "0-2": "", "0": ""} {
		pod := Pod{Annotations: map[string]string{"scheduling.koordinator.sh/resource-status": fmt.Sprintf(`{"cpuset": %q, "numaNodeResources": []}`, cpus)}}
		r := Read(&pod, "c", Options{Rules: Everything(), Node: true})
		if _, got := r.Apply(place.Request{ID: "x", Milli: 2000, Class: place.LSR}, 2); got.String() != want {
			t.Errorf("%s for 2 CPUs: %q, want %q", cpus, got, want)
		}
		if r := Read(&pod, "c", Options{Rules: Everything()}); told(r) != "not followed" || !r.Wish.CPUs.IsEmpty() {
			t.Errorf("%s, on paper: %s", cpus, told(r))
		}
	}
}

// What a pod writes without end costs the node no more than a few words: annotations of 256 KiB, the
// most that the API server takes, that are no words, and texts in which aliases stand for aliases.
func TestWithoutEnd(t *testing.T) {
	t.Parallel()
	pod := &Pod{Namespace: "a", Name: "p", Annotations: map[string]string{}}
	for i := range 256 << 10 / len("berth.dev/x00000") {
		pod.Annotations[fmt.Sprintf("berth.dev/x%05d", i)] = ""
	}
	r := Read(pod, "c", Options{})
	size := 0
	for i := range r.Problems {
		size += len(r.Problems[i].Error())
	}
	last := r.Problems[len(r.Problems)-1]
	if len(r.Problems) != maxUnknown+1 || size > 128<<10 || last.Word != "berth.dev/x00016" || !strings.Contains(last.Error(), "one of 16368 more") {
		t.Errorf("%d problems of %d bytes; the last is %v", len(r.Problems), size, &last)
	}
	text := "x: &a0 [" + strings.Repeat("x,", 100) + "]\n"
	for i := range 3 {
		text += fmt.Sprintf("a%d: &a%[1]d [%s]\n", i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 50))
	}
	pod.Annotations = map[string]string{"berth.dev/hints": "\n" + text, "scheduling.koordinator.sh/resource-spec": text}
	r = Read(pod, "c", Options{})
	for i := range r.Problems {
		if p := &r.Problems[i]; p.Kind != Invalid || !strings.Contains(p.Error(), "aliases stand for more values") {
			t.Error(p)
		}
	}
	if len(r.Problems) != 2 || len(text) > MaxValue {
		t.Errorf("%d bytes are read: %v", len(text), r.Problems)
	}
}

// Whatever a pod says, what comes of it is valid, bounded, and asks for no more than the
// container requests.
func FuzzRead(f *testing.F) {
	for _, c := range rowCases() {
		key := c.key
		if key == "" {
			key = c.word
		}
		f.Add(key, c.value, 2000)
	}
	f.Fuzz(func(t *testing.T, key, text string, milli int) {
		milli = min(max(milli, 0), 512000)
		for _, pod := range []Pod{{Annotations: map[string]string{key: text}}, {Labels: map[string]string{key: text}}} {
			r := Read(&pod, "c", Options{Rules: Everything(), Node: true})
			req, cpus := r.Apply(Kubernetes(Resources{Milli: milli, QoS: place.LS}), 2)
			req.ID = "x"
			if err := req.Validate(); err != nil {
				t.Fatalf("%q: %q: %v", key, text, err)
			}
			own, shared := split(&req)
			if req.Milli != milli || own*1000+shared > milli || cpus.Len()*1000 > milli {
				t.Errorf("%q: %q: %d own CPUs, %d shared and CPUs %s for %d", key, text, own, shared, cpus, milli)
			}
			for k, v := range req.Hints {
				if strings.ContainsAny(k+v, "/\n ") {
					t.Errorf("%q: %q: hint %q: %q", key, text, k, v)
				}
			}
			if len(req.Affinity) > maxList || len(req.Hints) > maxList {
				t.Errorf("%q: %q: unbounded", key, text)
			}
			if err := Problems(r.Problems); err != nil && strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%q: control characters in %q", key, err)
			}
		}
	})
}

// split is what the default policy reads a request as.
func split(r *place.Request) (own, shared int) {
	of := *r
	if c := r.Class.Traits(); r.Mode == place.Auto && c.Own {
		if of.Mode = place.Mixed; c.WholeCores {
			of.Mode = place.Exclusive
		}
	}
	return of.Split()
}

func TestProblemIsAnError(t *testing.T) {
	t.Parallel()
	r := Read(&Pod{Annotations: map[string]string{"berth.dev/class": strings.Repeat("x", 5000)}}, "c", Options{})
	err := Problems(r.Problems)
	var p *Problem
	if !errors.As(err, &p) || p.Kind != Invalid || len(err.Error()) > 300 {
		t.Errorf("%v", err)
	}
	if Problems(nil) != nil {
		t.Error("an error of no problems")
	}
}

// What is denied counts only if it is allowed, and what a pod says about which of its devices
// count is a wish to be near them.
func TestNear(t *testing.T) {
	t.Parallel()
	const hints = ".resource-policy.nri.io"
	for _, c := range []struct {
		words map[string]string
		want  string // what counts of /dev/a, /dev/b and the mount of /data
	}{
		{nil, ""},
		{map[string]string{"topologyhints": "true"}, "/dev/a /dev/b /data"},
		{map[string]string{"topologyhints": "mounts"}, "/data"},
		{map[string]string{"topologyhints": "false", "strict.topologyhints": "true"}, ""},
		{map[string]string{"strict.topologyhints": "true"}, "/dev/a /dev/b /data"},
		{map[string]string{"strict.topologyhints": "false"}, ""},
		{map[string]string{"pick-resources-by-hints": "true", "topologyhints": "devices"}, "/dev/a /dev/b"},
		{map[string]string{"deny.topologyhints": "{paths: [/dev]}"}, "/data"},
		{map[string]string{"deny.topologyhints": "{type: glob, paths: ['/*', '/dev/*']}", "allow.topologyhints": "{paths: [/dev/b]}"}, "/dev/b"},
		{map[string]string{"allow.topologyhints": "{paths: [/dev/b]}"}, "/dev/a /dev/b /data"},
	} {
		pod := Pod{Annotations: map[string]string{}}
		for word, text := range c.words {
			pod.Annotations[word+hints] = text
		}
		r := Read(&pod, "c", Options{Node: true})
		var got []string
		for _, name := range []string{"/dev/a", "/dev/b", "/data"} {
			if r.Wish.Near.Concerns(strings.HasPrefix(name, "/dev"), name) {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != c.want || len(r.Problems) > 0 {
			t.Errorf("%v: %v, want %s; %v", c.words, got, c.want, r.Problems)
		}
		if r := Read(&pod, "c", Options{}); len(r.Problems) != len(c.words) || r.Wish.Near.Asked() {
			t.Errorf("%v where no devices are known: %v", c.words, r.Problems)
		}
	}
}

// An expression concerns the containers of other pods that nri-plugins have it select; what a pod
// without the label is to a negation is part of that.
func TestExpressions(t *testing.T) {
	t.Parallel()
	held := []place.Request{
		{ID: "blue/a/c", Namespace: "blue", Labels: map[string]string{"app": "db"}},
		{ID: "blue/b/c", Namespace: "blue", Labels: map[string]string{"app": "web"}},
		{ID: "blue/n/c", Namespace: "blue"},
		{ID: "red/a/c", Namespace: "red", Labels: map[string]string{"app": "db"}},
		{ID: "blue/shop/d", Namespace: "blue", Labels: map[string]string{"app": "shop"}},
	}
	const blue = "scope: {key: namespace, operator: Equals, values: [blue]}, "
	const all = "scope: {operator: AlwaysTrue}, "
	for text, want := range map[string]string{
		blue + "match: {key: pod/labels/app, operator: Equals, values: [db]}":                                                  "blue/a/c",
		blue + "match: {key: pod/labels/app, operator: Equals, values: ['*']}":                                                 "blue/a/c blue/b/c blue/shop/d",
		blue + "match: {key: pod/labels/app, operator: NotEqual, values: [db]}":                                                "blue/b/c blue/n/c blue/shop/d",
		blue + "match: {key: pod/labels/app, operator: In, values: [db, web]}":                                                 "blue/a/c blue/b/c",
		blue + "match: {key: pod/labels/app, operator: NotIn, values: [db, web]}":                                              "blue/n/c blue/shop/d",
		blue + "match: {key: pod/labels/app, operator: Exists}":                                                                "blue/a/c blue/b/c blue/shop/d",
		blue + "match: {key: pod/labels/app, operator: NotExist}":                                                              "blue/n/c",
		blue + "match: {key: pod/labels/app, operator: Matches, values: ['?b']}":                                               "blue/a/c",
		blue + "match: {key: pod/labels/app, operator: MatchesNot, values: ['*b']}":                                            "blue/n/c blue/shop/d",
		blue + "match: {operator: AlwaysTrue}":                                                                                 "blue/a/c blue/b/c blue/n/c blue/shop/d",
		all + "match: {key: pod/labels/app, operator: NotIn, values: [db]}":                                                    "blue/b/c blue/n/c blue/shop/d",
		all + "match: {key: namespace, operator: NotEqual, values: [blue]}":                                                    "red/a/c",
		"scope: {key: namespace, operator: NotIn, values: [red]}, match: {key: pod/labels/app, operator: In, values: [db]}":    "blue/a/c",
		"scope: {key: namespace, operator: NotIn, values: [red]}, match: {key: pod/labels/app, operator: NotIn, values: [db]}": "blue/b/c blue/n/c blue/shop/d",
		"scope: {key: namespace, operator: In, values: [red, blue]}, match: {key: pod/labels/app, operator: Exists}":           "blue/a/c blue/b/c red/a/c blue/shop/d",
		"scope: {key: namespace, operator: Exists}, match: {key: pod/labels/app, operator: NotExist}":                          "blue/n/c",
		"match: {operator: AlwaysTrue}":                                                                                        "blue/shop/d",
		"match: {key: name, operator: Exists}":                                                                                 "blue/shop/d",
		"match: {key: name, operator: NotIn, values: [e]}":                                                                     "blue/shop/d",
		"match: {key: name, operator: NotIn, values: [d]}":                                                                     "",
	} {
		pod := Pod{Namespace: "blue", Name: "shop", Annotations: map[string]string{nriDomain + "/anti-affinity": "c: [{" + text + ", weight: 3}]"}}
		r := Read(&pod, "c", Options{})
		var got []string
		for i := range held {
			sum := 0
			for _, a := range r.Wish.Affinity {
				if near := place.Affinity(a); near.Matches(&held[i]) {
					sum += a.Weight
				}
			}
			if sum == -3 {
				got = append(got, held[i].ID)
			} else if sum != 0 {
				t.Errorf("%s: %s by %d", text, held[i].ID, sum)
			}
		}
		if strings.Join(got, " ") != want || len(r.Problems) > 0 {
			t.Errorf("%s: %v, want %s; %v", text, got, want, r.Problems)
		}
	}
}
