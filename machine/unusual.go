package machine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
)

// Note is one thing about a machine that placing or measuring should know of.
type Note struct {
	// Code is a stable word for programs, such as "offline" or "memory-only-node".
	Code string `json:"code"`
	// Text says it to a person, with numbers.
	Text string `json:"text"`
}

// PlausibleL3PerCore is the most L3 per core that Unusual believes. Processors
// with stacked cache have up to 48 MiB; a guest that shows more sees the size
// of its host's cache, of which it gets a share.
const PlausibleL3PerCore = 64 << 20

// Unusual lists how m differs from the plain case: one or more sockets, each
// one NUMA node with one L3, all cores alike and online, all sizes plausible.
// Codes: inconsistent, offline, smt-off, smt-uneven, isolated, cpu-gaps,
// hybrid, max-frequency, several-dies, several-nodes-per-socket,
// node-spans-sockets, memory-only-node, node-without-memory, node-gaps,
// uneven-nodes, several-l3-per-node, l3-spans-nodes, l3-per-core, no-l3,
// l3-implausible, crossing, distance-asymmetric, distance-local, untold.
func Unusual(m *Machine) []Note {
	n := &notes{m: m}
	n.inconsistent()
	n.cpus()
	n.smt()
	n.kindsOfCore()
	n.sockets()
	n.nodes()
	n.caches()
	n.crossings()
	n.distances()
	n.untold()
	return n.list
}

type notes struct {
	m    *Machine
	list []Note
}

func (n *notes) addf(code, format string, args ...any) {
	n.list = append(n.list, Note{code, fmt.Sprintf(format, args...)})
}

func (n *notes) inconsistent() {
	err := n.m.Validate()
	if err == nil {
		return
	}
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		n.addf("inconsistent", "inconsistent: %v", err)
		return
	}
	for _, e := range joined.Unwrap() {
		n.addf("inconsistent", "inconsistent: %v", e)
	}
}

func (n *notes) cpus() {
	if off := n.m.Offline; !off.IsEmpty() {
		n.addf("offline", "offline: %s", cpus(off))
	}
	if iso := n.m.Isolated; !iso.IsEmpty() {
		n.addf("isolated", "isolated from the scheduler's balancing: %s", cpus(iso))
	}
	present := n.m.Online.Union(n.m.Offline)
	if gaps := gapsIn(present); !gaps.IsEmpty() {
		n.addf("cpu-gaps", "CPU numbers have gaps: %s do not exist", gaps)
	}
}

func gapsIn(s cpuset.Set) cpuset.Set {
	last, ok := s.Last()
	if !ok {
		return s
	}
	all, _ := cpuset.Range(0, last)
	return all.Minus(s)
}

func cpus(s cpuset.Set) string {
	if s.Len() == 1 {
		return "CPU " + s.String()
	}
	return "CPUs " + s.String()
}

func (n *notes) smt() {
	if n.m.SMT == "off" || n.m.SMT == "forceoff" {
		n.addf("smt-off", "SMT is switched off (smt/control is %s)", n.m.SMT)
	}
	var by groups[int]
	for _, core := range n.m.ByKind(Core) {
		by.add(core.CPUs.Len(), core.CPUs)
	}
	if len(by.keys) > 1 {
		slices.Sort(by.keys)
		n.addf("smt-uneven", "cores differ in threads: %s", by.describe(func(threads int) string { return plain.Count(threads, "thread") + " per core" }))
	}
}

func (n *notes) kindsOfCore() {
	var kind groups[string]
	var capacity, frequency groups[int]
	for _, c := range n.m.CPUs {
		cpu, _ := cpuset.Of(c.ID) // Validate reports a number out of range
		kind.add(cmp.Or(c.Kind, "unknown kind"), cpu)
		capacity.add(c.Capacity, cpu)
		frequency.add(c.MaxKHz, cpu)
	}
	switch {
	case len(kind.keys) > 1:
		n.addf("hybrid", "hybrid cores: %s", kind.describe(func(k string) string { return k }))
	case len(capacity.keys) > 1:
		n.addf("hybrid", "cores differ in capacity: %s", capacity.describe(strconv.Itoa))
	case len(frequency.keys) > 1:
		n.addf("max-frequency", "maximum frequencies differ: %s", frequency.describe(func(khz int) string {
			return fmt.Sprintf("%.2f GHz", float64(khz)/1e6)
		}))
	}
}

// groups are sets by a property that their members share, in the order of first
// appearance.
type groups[K comparable] struct {
	keys []K
	of   map[K]cpuset.Set
}

func (g *groups[K]) add(key K, members cpuset.Set) {
	if g.of == nil {
		g.of = map[K]cpuset.Set{}
	}
	if _, known := g.of[key]; !known {
		g.keys = append(g.keys, key)
	}
	g.of[key] = g.of[key].Union(members)
}

// describe writes which CPUs each group has.
func (g *groups[K]) describe(name func(K) string) string {
	var parts []string
	for _, key := range g.keys {
		parts = append(parts, name(key)+" on "+cpus(g.of[key]))
	}
	return strings.Join(parts, "; ")
}

// several notes which domains of kind outer hold more than one of kind inner,
// those with the same number together.
func (n *notes) several(code string, outer Kind, verb [2]string, inner Kind, aside string) {
	var by groups[int]
	for _, d := range n.m.ByKind(outer) {
		if c := len(n.m.Inside(inner, d.CPUs)); c > 1 {
			id, _ := cpuset.Of(d.ID)
			by.add(c, id)
		}
	}
	for _, c := range by.keys {
		what := plain.Count(c, noun(inner))
		if ids := by.of[c]; ids.Len() == 1 {
			n.addf(code, "%s %s %s%s", domains(outer, ids), verb[0], what, aside)
		} else {
			n.addf(code, "%s %s %s each%s", domains(outer, ids), verb[1], what, aside)
		}
	}
}

func noun(k Kind) string {
	switch k {
	case Node:
		return "NUMA node"
	case L3, L2:
		return strings.ToUpper(k.String()) + " cache"
	}
	return k.String()
}

// domains writes "NUMA node 1", "NUMA nodes 0-3".
func domains(k Kind, ids cpuset.Set) string {
	if ids.Len() == 1 {
		return noun(k) + " " + ids.String()
	}
	return noun(k) + "s " + ids.String()
}

func (n *notes) sockets() {
	has := [2]string{"has", "have"}
	n.several("several-dies", Socket, has, Die, "")
	n.several("several-nodes-per-socket", Socket, has, Node, " (sub-NUMA clustering, NPS)")
}

func (n *notes) nodes() {
	var ids, sized cpuset.Set // of nodes
	nodes := n.m.ByKind(Node)
	for _, d := range nodes {
		ids, _ = ids.With(d.ID)
		if d.Bytes > 0 {
			sized, _ = sized.With(d.ID)
		}
	}
	if gaps := gapsIn(ids); !gaps.IsEmpty() {
		n.addf("node-gaps", "NUMA node numbers have gaps: %s do not exist", gaps)
	}
	n.several("node-spans-sockets", Node, [2]string{"spans", "span"}, Socket, "")
	for _, d := range nodes {
		if d.CPUs.IsEmpty() {
			n.addf("memory-only-node", "NUMA node %d has no CPUs (%s)", d.ID, memory(d.Bytes))
		} else if d.Bytes == 0 && !sized.IsEmpty() {
			n.addf("node-without-memory", "NUMA node %d has CPUs but no memory", d.ID)
		}
	}
	n.unevenNodes(nodes)
}

func memory(bytes int64) string {
	if bytes == 0 {
		return "no memory either, or it is unknown"
	}
	return fmt.Sprintf("%.4g GiB of memory only", float64(bytes)/(1<<30))
}

func (n *notes) unevenNodes(nodes []Domain) {
	least, most := 0, 0
	for _, d := range nodes {
		if c := d.CPUs.Len(); c > 0 {
			if least == 0 || c < least {
				least = c
			}
			most = max(most, c)
		}
	}
	if least != most {
		n.addf("uneven-nodes", "NUMA nodes differ in size: %s to %s", plain.Count(least, "CPU"), plain.Count(most, "CPU"))
	}
}

func (n *notes) caches() {
	n.several("several-l3-per-node", Node, [2]string{"has", "have"}, L3, "")
	n.several("l3-spans-nodes", L3, [2]string{"spans", "span"}, Node, "")
	l3s := n.m.ByKind(L3)
	if len(l3s) == 0 {
		return
	}
	without := n.m.Online
	alone, cores := 0, make([]int, len(l3s)+1) // cores: by position in l3s plus 1
	owner := n.m.owners(L3)
	for _, core := range n.m.ByKind(Core) {
		first, _ := core.CPUs.First()
		cores[owner[first]]++
	}
	for i, l3 := range l3s {
		without = without.Minus(l3.CPUs)
		cores := cores[i+1]
		if cores == 1 {
			alone++
		}
		if cores > 0 && l3.Bytes/int64(cores) > PlausibleL3PerCore {
			n.addf("l3-implausible", "L3 cache %d has %d MiB for %s: probably the size of a hypervisor's host, shared with other guests",
				l3.ID, l3.Bytes>>20, plain.Count(cores, "core"))
		}
	}
	if alone > 1 && alone == len(l3s) {
		n.addf("l3-per-core", "every core has an L3 of its own: rare in hardware, common where a hypervisor hides what is shared")
	}
	if !without.IsEmpty() {
		n.addf("no-l3", "no L3: %s", cpus(without))
	}
}

// crossings notes, once for each pair of kinds, domains that share CPUs while
// neither is inside the other.
func (n *notes) crossings() {
	for _, pair := range [][2]Kind{{Node, Socket}, {Node, Die}, {L3, Socket}, {L3, Die}, {L3, Node}} {
		if a, b, ok := n.m.crossing(pair[0], pair[1]); ok {
			n.addf("crossing", "%ss and %ss cross: %s %d has CPUs %s, %s %d has %s",
				noun(a.Kind), noun(b.Kind), noun(a.Kind), a.ID, a.CPUs, noun(b.Kind), b.ID, b.CPUs)
		}
	}
}

func (m *Machine) crossing(j, k Kind) (a, b *Domain, ok bool) {
	as, bs := m.ByKind(j), m.ByKind(k)
	for i := range as {
		for l := range bs {
			a, b = &as[i], &bs[l]
			if a.CPUs.Overlaps(b.CPUs) && !a.CPUs.Contains(b.CPUs) && !b.CPUs.Contains(a.CPUs) {
				return a, b, true
			}
		}
	}
	return nil, nil, false
}

func (n *notes) distances() {
	nodes := n.m.ByKind(Node)
	for i, from := range nodes {
		local, ok := n.m.Distance(from.ID, from.ID)
		if ok && local != 10 {
			n.addf("distance-local", "NUMA node %d is at distance %d from itself, not 10", from.ID, local)
		}
		for _, to := range nodes[i+1:] {
			there, ok1 := n.m.Distance(from.ID, to.ID)
			back, ok2 := n.m.Distance(to.ID, from.ID)
			if ok1 && ok2 && there != back {
				n.addf("distance-asymmetric", "distance from NUMA node %d to NUMA node %d is %d, back %d", from.ID, to.ID, there, back)
			}
		}
	}
}

func (n *notes) untold() {
	var missing []string
	for _, k := range Kinds() {
		if len(n.m.ByKind(k)) == 0 {
			missing = append(missing, noun(k)+"s")
		}
	}
	if len(missing) > 0 {
		n.addf("untold", "the source says nothing about: %s", strings.Join(missing, ", "))
	}
}
