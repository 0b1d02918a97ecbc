package podwords

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// System is whose word a word is.
type System = plain.Enum[systemWords]

// The systems, the one whose words are weakest first.
const (
	PlainKubernetes System = iota
	CRIRM
	NRIPlugins
	Koordinator
	Berth
)

type systemWords struct{}

func (systemWords) Words() []string {
	return []string{"Kubernetes", "CRI Resource Manager", "nri-plugins", "Koordinator", "Berth"}
}

// Row is one word.
type Row struct {
	System System
	// Word is the word without a scope: "berth.dev/class".
	Word string
	// Label is true for a label of the pod; the others are annotations.
	Label bool
	// Means says what it comes to or, of one that is not followed, why.
	Means string
	// Strong are the values that only a rule of the operator's lets count (Rules); "*" is all.
	Strong []string

	read func(r *reading, text string) (Wish, error)
}

// Followed reports whether Berth acts on the word.
func (r *Row) Followed() bool { return r.read != nil }

const (
	berthDomain = "berth.dev"
	nriDomain   = "resource-policy.nri.io"
	crirmDomain = "cri-resource-manager.intel.com"
	koordinator = "koordinator.sh"
	kubernetes  = "kubernetes.io"
)

// Table returns all words.
func Table() []Row { return table }

var table = slices.Concat(berthRows(), koordinatorRows(), policyRows(NRIPlugins, nriDomain), policyRows(CRIRM, crirmDomain), kubernetesRows())

func berthRows() []Row {
	one := func(word, means string, strong ...string) Row {
		return Row{System: Berth, Word: berthDomain + "/" + word, Means: means, Strong: strong, read: berthField(word, word)}
	}
	rows := []Row{
		one("class", "the class of service: LSE, LSR, LS or BE", "SYSTEM"),
		{
			System: Berth, Word: berthDomain + "/cpus", Means: "so many of the requested CPUs are its own; the rest is time of the pool",
			read: func(_ *reading, text string) (w Wish, err error) {
				n, err := strconv.Atoi(text)
				if err != nil || n < 0 || n > cpuset.Limit {
					return w, errors.New("is no number of CPUs")
				}
				w.Own = &n
				return w, nil
			},
		},
		one("mode", "exclusive, shared, mixed or auto"),
		one("shared", "with mode mixed, the part that is time of the pool"),
		one("bind", "FullPCPUs (whole cores) or SpreadByPCPUs (one CPU per core first)"),
		one("bindRequired", "true makes bind a condition"),
		{System: Berth, Word: berthDomain + "/exclusivity", Means: "PCPULevel keeps others off its cores, NUMANodeLevel off its NUMA nodes", Strong: []string{"NUMANodeLevel"}, read: berthField("exclusivity", "exclusive")},
		one("exclusive", "the same as exclusivity", "NUMANodeLevel"),
		one("strategy", "MostAllocated, LeastAllocated or DistributeEvenly: which NUMA nodes first"),
		one("isolated", "prefer, require or avoid CPUs that the kernel's scheduler leaves alone"),
		one("coreKind", "P or E: the preferred kind of core of a hybrid machine"),
		{System: Berth, Word: berthDomain + "/numa", Means: "the NUMA nodes to come from, as a list: 0-1", read: berthField("numa", "nodes")},
		one("nodes", "the same as numa"),
		one("nodesRequired", "true makes numa a condition"),
		one("maxNodes", "the most NUMA nodes that own CPUs may span"),
		one("affinity", "a list of {id, pod, namespace, labels, weight}: near whom, or with a negative weight far from whom"),
		one("hints", "words for one placement policy"),
		{System: Berth, Word: berthDomain + "/strict", Means: "true refuses the container where a word cannot be followed", read: func(_ *reading, text string) (w Wish, err error) {
			w.Strict, err = yes(text)
			return w, err
		}},
		{System: Berth, Word: berthDomain + "/scope", Means: "pod places all containers of the pod together, or none; container each when it comes", read: func(_ *reading, text string) (w Wish, err error) {
			w.Scope = new(Scope)
			return w, w.Scope.UnmarshalText([]byte(text))
		}},
		{System: Berth, Word: berthDomain + "/role", Means: "init or sidecar: what the container is in its pod, where no API server tells", read: func(_ *reading, text string) (w Wish, err error) {
			w.Role = new(place.Role)
			return w, w.Role.UnmarshalText([]byte(text))
		}},
		{System: Berth, Word: berthDomain + "/p99", Means: "the response time that 99 % of its requests are to keep: told to whoever times them", read: func(r *reading, text string) (w Wish, err error) {
			w.P99 = new(Seconds)
			if err = w.P99.UnmarshalText([]byte(text)); err == nil && !r.opt.Node {
				return Wish{}, notFollowed("there are no requests here")
			}
			return w, err
		}},
	}
	for _, kind := range ClassKinds() {
		rows = append(rows, Row{System: Berth, Word: berthDomain + "/" + kind, Means: "the " + kind + " class, of those that the node's configuration defines; none is no class", Strong: []string{"*"}, read: class(kind)})
	}
	return rows
}

// ClassKinds are the kinds of classes that a pod may name, each a word of Berth's.
func ClassKinds() []string { return []string{"cache", "io", "power", "net"} }

// NoClass is what a pod writes to have no class, not that of its class of service either.
const NoClass = "none"

// class reads the name of a class of a kind.
func class(kind string) func(*reading, string) (Wish, error) {
	return func(r *reading, text string) (w Wish, err error) {
		if err := plainWord(text); err != nil || text == "" {
			return w, cmp.Or(err, errors.New("is empty"))
		}
		if r.opt.Class == nil {
			return w, notFollowed("there are no %s classes here", kind)
		}
		if text != NoClass {
			if err := r.opt.Class(kind, text); err != nil {
				return w, &Problem{Kind: NotFollowed, Err: err}
			}
		}
		w.Classes = map[string]string{kind: text}
		return w, nil
	}
}

// berthField reads a field of Words by its name in JSON.
func berthField(word, field string) func(*reading, string) (Wish, error) {
	return func(_ *reading, text string) (w Wish, err error) {
		_, err = strictyaml.Decode([]byte(field+":\n  "+strings.ReplaceAll(text, "\n", "\n  ")), "", &w.Words)
		for _, e := range strictyaml.Errors(err) {
			return Wish{}, e.Err
		}
		if err != nil {
			return Wish{}, err
		}
		return w, w.Words.check(word)
	}
}

// The most that one word may hold.
const (
	maxList = 16
	maxWord = 253
)

// check bounds what has no bound of its own.
func (w *Words) check(word string) error {
	if len(w.Affinity) > maxList || len(w.Hints) > maxList {
		return fmt.Errorf("more than %d of them", maxList)
	}
	for i := range w.Affinity {
		if err := w.Affinity[i].checkGlobs(); err != nil {
			return err
		}
		w.Affinity[i].Weight = min(max(w.Affinity[i].Weight, -maxWeight), maxWeight)
	}
	for key, text := range w.Hints {
		if err := errors.Join(plainWord(key), plainWord(text)); err != nil {
			return err
		}
	}
	if w.MaxNodes != nil && *w.MaxNodes < 0 || w.Shared != nil && *w.Shared < 0 {
		return fmt.Errorf("%s is below zero", word)
	}
	return plainWord(w.CoreKind)
}

// plainWord refuses what is not a name such as a label's value: nobody may take it for a
// path or for two words.
func plainWord(text string) error {
	bad := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.,:=", c))
	}
	if len(text) > maxWord || strings.ContainsFunc(text, bad) || strings.Contains(text, "..") {
		return fmt.Errorf("%s is no plain word of at most %d letters, digits and -_.,:=", plain.Shell(plain.Line(text)), maxWord)
	}
	return nil
}

func yes(text string) (*bool, error) {
	switch text {
	case "true":
		return new(true), nil
	case "false":
		return new(false), nil
	}
	return nil, fmt.Errorf("%q is neither true nor false", plain.Line(text))
}

// policyRows are the words of nri-plugins, which CRI Resource Manager has in a domain of
// its own, with those of the policies that only it has.
func policyRows(system System, domain string) []Row {
	row := func(key, means string, read func(*reading, string) (Wish, error), strong ...string) Row {
		return Row{System: system, Word: key + "." + domain, Means: means, read: read, Strong: strong}
	}
	isolated := func(want place.Want) func(*reading, string) (Wish, error) {
		return func(_ *reading, text string) (w Wish, err error) {
			b, err := yes(text)
			if err == nil && *b {
				w.Isolated = &want
			}
			return w, err
		}
	}
	hint := func(name string, and func(*Wish, bool)) func(*reading, string) (Wish, error) {
		return func(_ *reading, text string) (w Wish, err error) {
			b, err := yes(text)
			if err != nil {
				return w, err
			}
			w.Hints = map[string]string{name: text}
			if and != nil {
				and(&w, *b)
			}
			return w, nil
		}
	}
	word := func(name string) func(*reading, string) (Wish, error) {
		return func(_ *reading, text string) (w Wish, err error) {
			w.Hints = map[string]string{name: text}
			return w, plainWord(text)
		}
	}
	shared := func(w *Wish, yes bool) {
		if yes {
			w.Mode = new(place.Shared)
		}
	}
	rows := []Row{
		row("prefer-isolated-cpus", "true prefers CPUs that the kernel's scheduler leaves alone", isolated(place.Prefer)),
		row("require-isolated-cpus", "true requires such CPUs", isolated(place.Require)),
		row("prefer-shared-cpus", "true gives time of the pool and no CPUs of its own", hint("prefer-shared-cpus", shared)),
		row("prefer-reserved-cpus", "a hint of topology-aware: the reserved CPUs", hint("prefer-reserved-cpus", nil), "*"),
		row("hide-hyperthreads", "a hint of topology-aware and balloons: one CPU per core", hint("hide-hyperthreads", nil)),
		row("cpu.preserve", "a hint: its CPUs are left as they are", hint("cpu.preserve", nil), "*"),
		row("memory.preserve", "a hint: its memory nodes are left as they are", hint("memory.preserve", nil), "*"),
		row("unlimited-burstable", "a hint of topology-aware: how wide the pool of a container without limit is", word("unlimited-burstable")),
		row("balloon.balloons", "a hint of balloons: the type of balloon to join", word("balloon")),
		{System: system, Word: domain + "/affinity", Means: "expressions over containers of the node: near whom", read: affinity(1)},
		{System: system, Word: domain + "/anti-affinity", Means: "the same: far from whom", read: affinity(-1)},
		row("memory-type", "dram, pmem, hbm, a list of these, or mixed: the NUMA nodes with such memory that are nearest to its CPUs", memoryType),
		row("cold-start", "to begin on slow memory alone, which is mostly movable and starts no program: with memory-type dram,pmem the kernel moves there what is cold", nil),
		row("topologyhints", "true, or a list of devices and mounts: the NUMA nodes that these are near to first", near(nearSources)),
		row("allow.topologyhints", "paths of devices and mounts that count though they are denied", near(nearPaths(func(n *Near) **Paths { return &n.Allow }))),
		row("deny.topologyhints", "paths of devices and mounts that do not count", near(nearPaths(func(n *Near) **Paths { return &n.Deny }))),
		row("strict.topologyhints", "true makes these NUMA nodes a condition", near(nearYes(func(n *Near) **bool { return &n.Strict }))),
		row("pick-resources-by-hints", "true takes own CPUs from the NUMA node of the devices and mounts, if they have one", near(nearYes(func(n *Near) **bool { return &n.Pick }))),
		row("prefer-cpu-priority", "high prefers the P cores of a hybrid machine, low its E cores; elsewhere the fastest are for class LSE", cpuPriority),
		row("cpu-class", "the power profile of that name, of CPUs of its own", class("power"), "*"),
		row("scheduling-class", "it names a class of that system's configuration, whose policies outrank all others by priority: berth.dev/class says who comes first", nil),
		row("irq-affinity", "which CPUs serve an interrupt is a setting of the host for all who use the device, which irqbalance or its operator writes", nil),
		row("rdtclass", "the cache class of that name", class("cache"), "*"),
		row("blockioclass", "the I/O class of that name", class("io"), "*"),
		row("toptierlimit", "the kernel has no limit on how much of a container's memory is fast: memory-type says which kinds it may have", nil),
	}
	if system == CRIRM {
		rows = append(rows,
			row("pool.podpools", "a hint of podpools: the pool to run in", word("balloon")),
			row("pooltype.podpools", "the same, as older ones have it", word("balloon")),
			row("dynamic-pool.dynamic-pools", "no policy here measures what pools use to size them: balloons go by requests", nil))
	}
	return rows
}

// cpuPriority reads how fast CPUs of its own are to be.
func cpuPriority(_ *reading, text string) (w Wish, err error) {
	switch text {
	case "high":
		w.CoreKind = machine.KindP
	case "low":
		w.CoreKind = machine.KindE
	case "normal", "none", "default":
	default:
		err = fmt.Errorf("%q is none of high, normal, low, none, default", plain.Line(text))
	}
	return w, err
}

// memoryType reads kinds of memory, in any case as that system does.
func memoryType(r *reading, text string) (w Wish, err error) {
	if text == "" {
		return w, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		var kind machine.MemoryKind
		if word = strings.TrimSpace(word); strings.EqualFold(word, "mixed") {
			w.Memory = append(w.Memory, machine.MemoryKinds()...)
			continue
		}
		if kind.UnmarshalText([]byte(word)) != nil {
			return Wish{}, fmt.Errorf("%q is none of dram, pmem, hbm, mixed", plain.Line(word))
		}
		w.Memory = append(w.Memory, kind)
	}
	slices.Sort(w.Memory)
	w.Memory = slices.Compact(w.Memory)
	if r.opt.Memory == nil {
		return Wish{}, notFollowed("what memory NUMA nodes have is not known here")
	}
	if err := r.opt.Memory(w.Memory); err != nil {
		return Wish{}, &Problem{Kind: NotFollowed, Err: err}
	}
	return w, nil
}

// lookUp finds the row of a label's or annotation's key; ok is false if the key is none
// of a system that Berth reads, and row nil if that has no such word.
func lookUp(key string, label bool) (row *Row, scope int, container string, ok bool) {
	if label {
		i := slices.IndexFunc(table, func(r Row) bool { return r.Label && r.Word == key })
		if i < 0 {
			return nil, 0, "", false
		}
		return &table[i], 1, "", true
	}
	word := key
	switch domain, rest, _ := strings.Cut(key, "/"); {
	case domain == berthDomain:
		field, of, own := strings.Cut(rest, ".")
		if word = domain + "/" + field; own {
			scope, container = 2, of
		}
	case strings.HasSuffix(domain, "."+nriDomain), strings.HasSuffix(domain, "."+crirmDomain):
		name, own := strings.CutPrefix(rest, "container.")
		switch {
		case own:
			scope, container = 2, name
		case rest == "pod":
			scope = 1
		case rest != "":
			return nil, 0, "", true
		}
		word = domain
	case domain == nriDomain, domain == crirmDomain:
	case isKoordinator(domain), domain == kubernetes:
	default:
		return nil, 0, "", false
	}
	i := slices.IndexFunc(table, func(r Row) bool { return !r.Label && r.Word == word })
	if i < 0 {
		// These domains have words for others: schedulers, controllers.
		return nil, scope, container, !isKoordinator(word) && !strings.HasPrefix(word, kubernetes+"/")
	}
	return &table[i], scope, container, true
}

func isKoordinator(word string) bool {
	domain, _, _ := strings.Cut(word, "/")
	return domain == koordinator || strings.HasSuffix(domain, "."+koordinator)
}

// nearest is a hint at the word that was meant, or "".
func nearest(key string) string {
	var all []string
	for i := range table {
		all = append(all, table[i].Word)
	}
	return strictyaml.Nearest(key, all)
}
