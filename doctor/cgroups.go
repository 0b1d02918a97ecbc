package doctor

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
)

// unified returns the remedy against v1 hierarchies.
func unified(h *host) string {
	if h.systemd() {
		return "boot with systemd.unified_cgroup_hierarchy=1 (kernel command line)"
	}
	return "boot with cgroup_no_v1=all (kernel command line) and mount cgroup2 at /sys/fs/cgroup"
}

func cgroups(h *host) Capability {
	h.fail(h.groupsErr)
	tree, v1 := h.v2(), strings.Join(h.v1(), " ")
	v2 := "v2 at /" + tree.Dir + ": " + words(tree.Controllers, "no controllers")
	switch {
	case tree.Dir == "" && v1 == "":
		return missing("not mounted", "no cgroup file system is mounted", "mount -t cgroup2 none /sys/fs/cgroup")
	case tree.Dir == "":
		return limited("v1: "+v1, lacksV1, unified(h))
	case v1 != "":
		return limited("hybrid, v1: "+v1+"; "+v2, "what v1 holds v2 cannot have: "+lacksV1, unified(h))
	case len(tree.Controllers) == 0:
		return limited(v2, "this part of the tree has been given no controllers",
			"run on the host, or give the container's parent group the controllers (cgroup.subtree_control)")
	}
	return ok(v2)
}

const lacksV1 = "no cpuset partitions, memory.high, pressure per group or safe delegation"

func words(list []string, none string) string {
	if len(list) == 0 {
		return none
	}
	return strings.Join(list, " ")
}

// refusals asks cgroup.Host.Base, for each controller that Berth uses and that
// is mounted, whether this user may make groups with it. A nil value is a yes.
func (h *host) refusals() map[string]*kernel.NotSupportedError {
	refused := map[string]*kernel.NotSupportedError{}
	if h.groupsErr != nil || h.selfErr != nil {
		return refused
	}
	user := *h.groups
	user.UID = h.self.uid
	for _, name := range cgroup.Controllers() {
		if _, mounted := user.Hierarchy(name); !mounted {
			continue
		}
		_, err := user.Base(name)
		refused[name], _ = errors.AsType[*kernel.NotSupportedError](err)
	}
	return refused
}

func rights(h *host) Capability {
	h.fail(h.groupsErr)
	h.fail(h.selfErr)
	if v2 := h.v2().Dir; v2 != "" && !h.exists(path.Join(v2, "cgroup.subtree_control")) {
		return noTree(path.Join(v2, "cgroup.subtree_control"))
	}
	user := fmt.Sprintf("user %d", h.self.uid)
	var may, not []string
	var why *kernel.NotSupportedError
	for _, name := range slices.Sorted(maps.Keys(h.refused)) {
		if refusal := h.refused[name]; refusal != nil {
			why, not = refusal, append(not, name)
			continue
		}
		may = append(may, name)
	}
	switch {
	case len(may)+len(not) == 0:
		return missing(user, "no hierarchy is mounted in which groups could be made", "")
	case len(not) == 0:
		return ok(user + " may make and change groups")
	case len(may) == 0:
		return missing(user+" may make no groups", why.Reason, why.Remedy)
	}
	return limited(user+": "+strings.Join(may, " "), "not "+strings.Join(not, " ")+": "+why.Reason, why.Remedy)
}

// controller judges one controller by its names in v2 and v1, and why it is limited in v1.
func (h *host) controller(name, inV1, v1Reason string) Capability {
	h.fail(h.groupsErr)
	t, mounted := h.groups.Hierarchy(name)
	switch {
	case !mounted:
		return h.noController(name, inV1)
	case t.Version == 2:
		return ok("v2 at /" + t.Dir)
	case v1Reason == "":
		return ok("v1 at /" + t.Dir)
	}
	return limited("v1 at /"+t.Dir, v1Reason, unified(h))
}

// noController says why a controller is in no hierarchy: proc/cgroups shows
// whether the kernel has it.
func (h *host) noController(name, inV1 string) Capability {
	text, _ := h.text("proc/cgroups")
	if text == "" {
		return Capability{State: Unknown, Found: "not told", Reason: "no hierarchy has the controller, and /proc/cgroups, " +
			"which says whether the kernel has it, is absent or empty"}
	}
	enabled, known := field(text, inV1+"\t", 2)
	switch {
	case known && enabled == "0":
		return missing("switched off", "the kernel was booted with the controller off",
			"remove cgroup_disable="+inV1+" from the kernel command line")
	case known && len(h.v1()) > 0:
		return missing("not mounted", "the kernel has the controller, but no hierarchy holds it",
			fmt.Sprintf("mkdir /sys/fs/cgroup/%s && mount -t cgroup -o %s %s /sys/fs/cgroup/%s", inV1, inV1, inV1, inV1))
	case known:
		return missing("not given", "the kernel has the controller, but this part of the tree was not given it",
			"enable it in the parent: echo +"+name+" > cgroup.subtree_control")
	}
	return missing("not in the kernel", "the kernel shows no such controller", "a kernel with the "+name+" controller")
}

func cpusets(h *host) Capability {
	c := h.controller("cpuset", "cpuset", "")
	if c.State != OK {
		return c
	}
	t, _ := h.groups.Hierarchy(cgroup.CPUSet)
	files := []string{"cpuset.cpus.effective", "cpuset.mems.effective"}
	if t.Version == 1 {
		files = []string{"cpuset.effective_cpus", "cpuset.effective_mems"}
	}
	cpus := h.set(path.Join(t.Dir, files[0]))
	nodes := h.set(path.Join(t.Dir, files[1]))
	c.Found = fmt.Sprintf("v%d, no effective CPUs shown", t.Version)
	if !cpus.IsEmpty() {
		c.Found = fmt.Sprintf("v%d, CPUs %s, nodes %s", t.Version, cpus, nodes)
	}
	return c
}

// set reads a file in the kernel's list form; an absent one is the empty set.
func (h *host) set(name string) cpuset.Set {
	text, _ := h.text(name)
	s, err := cpuset.Parse(text)
	if err != nil {
		h.fail(fmt.Errorf("read /%s: %w", name, err))
	}
	return s
}

func cpuController(h *host) Capability {
	c := h.controller("cpu", "cpu", "")
	if c.State != OK {
		return c
	}
	quota, shares := "v2: weight, max", "v2: weight"
	if h.v1CPU() != nil {
		quota, shares = "v1: shares, quota", "v1: shares"
	}
	if why, _ := h.lacks("quota"); why != nil {
		return limited(shares, "CFS bandwidth control is not in the kernel: "+why.Reason, "a kernel with CONFIG_CFS_BANDWIDTH=y")
	}
	c.Found = quota
	return c
}

// lacks says why groups have no setting, given by the name of its knob; nil if they do.
// known is false if no group has its controller.
func (h *host) lacks(name string) (why *kernel.NotSupportedError, known bool) {
	k := knob.Find(name)
	t, ok := h.groups.Hierarchy(k.Controller)
	if !ok {
		return nil, false
	}
	return t.Lacks(kernel.NewRoot("/", reading{h.fsys}), k)
}

func cpuIdle(h *host) Capability {
	c := h.controller("cpu", "cpu", "")
	if c.State != OK {
		return c
	}
	why, known := h.lacks("idle")
	has := why == nil
	if !known {
		has, known = h.newer(5, 15)
	}
	switch {
	case !known:
		return Capability{State: Unknown, Found: "not told", Reason: "no group has the cpu controller, and the kernel's version is unknown"}
	case !has:
		return h.noIdle()
	}
	return ok(c.Found + ": SCHED_IDLE for a whole group")
}

// noIdle says why the cpu controller has no cpu.idle.
func (h *host) noIdle() Capability {
	const found, remedy = "no file cpu.idle", "kernel 5.15 or newer"
	switch newer, known := h.newer(5, 15); {
	case !known:
		return missing(found, "no group shows the file, which came with kernel 5.15", remedy)
	case !newer:
		return missing(found, "the kernel is older than 5.15", remedy)
	}
	return missing(found, "no group shows the file, though kernel "+h.release+" is new enough for it", "")
}

func memory(h *host) Capability {
	return h.controller("memory", "memory", "v1 has a hard limit and no memory.high, memory.low or memory.min")
}

func ioController(h *host) Capability {
	return h.controller("io", "blkio", "v1 does not throttle buffered writes: they belong to no group")
}

// noIO is for what the io controller would have.
func noIO(h *host) (c Capability, has bool) {
	c = h.controller("io", "blkio", "-")
	return missing("no io controller", "what shares out and slows down disks is a part of it", "see io"), c.State == OK || c.State == Limited
}

// ioWeights says by which file groups share out disks, and for which disks.
func ioWeights(h *host) Capability {
	c, has := noIO(h)
	if !has {
		return c
	}
	const bfq = "modprobe bfq; echo bfq > /sys/block/DISK/queue/scheduler"
	asRoot := *h.groups
	asRoot.UID = 0
	base, err := asRoot.Base(cgroup.IO)
	if err != nil {
		h.fail(ignoreNotSupported(err))
		return missing("not told", "the groups of root cannot be looked at", "")
	}
	plan, err := base.Child("berth").Set(cgroup.Limits{IOWeight: 100})
	if err != nil || len(plan) == 0 {
		h.fail(ignoreNotSupported(err))
		return missing("no file for weights", "the kernel shows no sign of BFQ or io.cost", bfq+", or cgroup v2 and a kernel with CONFIG_BLK_CGROUP_IOCOST")
	}
	file := path.Base(plan[0].Path)
	var disks []string
	for _, name := range h.glob("sys/block/*/queue/scheduler") {
		if text, _ := h.text(name); strings.Contains(text, "[bfq]") {
			disks = append(disks, strings.Split(name, "/")[2])
		}
	}
	if text, _ := h.text(path.Join(h.v2().Dir, "io.cost.qos")); file == "io.weight" && strings.Contains(text, "enable=1") {
		return ok(file + " by io.cost")
	}
	if len(disks) == 0 && file == "io.weight" {
		return limited(file+", in force on no disk", "io.cost is not enabled for any, and no disk has the scheduler BFQ", "name disks under cost of the I/O classes (docs/io.md), or "+bfq)
	}
	if len(disks) == 0 {
		return limited(file+", in force on no disk", "no disk has the scheduler BFQ", bfq)
	}
	return ok(file + " by BFQ on " + strings.Join(disks, ", "))
}

// ioLatency looks for io.latency in a group that shows the limits of the controller, too.
func ioLatency(h *host) Capability {
	c, has := noIO(h)
	if !has {
		return c
	}
	t, _ := h.groups.Hierarchy(cgroup.IO)
	if t.Version == 1 {
		return missing("no io.latency", "cgroup v1 has none", unified(h))
	}
	for _, pattern := range []string{"/*/", "/*/*/"} {
		if len(h.glob(t.Dir+pattern+"io.latency")) > 0 {
			return ok("io.latency")
		}
		if len(h.glob(t.Dir+pattern+"io.max")) > 0 {
			return missing("no io.latency", "the kernel was built without CONFIG_BLK_CGROUP_IOLATENCY", "boot a kernel with it")
		}
	}
	return Capability{State: Unknown, Found: "not told", Reason: "no group has the io controller, and so none shows the file"}
}

func ignoreNotSupported(err error) error {
	if errors.Is(err, kernel.ErrNotSupported) {
		return nil
	}
	return err
}

func pids(h *host) Capability { return h.controller("pids", "pids", "") }

// hugeTLB looks at the limit on huge pages. Berth leaves the v2 tree of a hybrid host alone.
func hugeTLB(h *host) Capability {
	c := h.controller("hugetlb", "hugetlb", "")
	cpus, ok := h.groups.Hierarchy(cgroup.CPUSet)
	if t, mounted := h.groups.Hierarchy(cgroup.HugeTLB); c.State == OK && ok && t.Version != cpus.Version && mounted && t.Version == 2 {
		return missing("v2 at /"+t.Dir, "the v2 tree beside v1 controllers is left to whoever tracks processes by it", unified(h))
	}
	return c
}

// freezer looks at the hierarchy that Berth freezes in: v1 where that has it.
func freezer(h *host) Capability {
	h.fail(h.groupsErr)
	t, mounted := h.groups.Hierarchy(cgroup.Freezer)
	if !mounted || t.Version == 1 {
		return h.controller("freezer", "freezer", "")
	}
	if newer, known := h.newer(5, 2); known && !newer {
		return missing("no file cgroup.freeze", "the kernel is older than 5.2", "kernel 5.2 or newer")
	}
	return ok("v2: cgroup.freeze")
}

func pressure(h *host) Capability {
	var found []string
	for _, name := range []string{"cpu", "io", "memory", "irq"} {
		_, there, err := h.read("proc/pressure/" + name)
		if err != nil && strings.Contains(err.Error(), "not supported") { // EOPNOTSUPP
			return missing("switched off", err.Error(), "boot with psi=1 (kernel command line)")
		}
		h.fail(err)
		if there {
			found = append(found, name)
		}
	}
	switch {
	case len(found) == 0:
		return missing("no /proc/pressure", "the kernel has no PSI, or it is switched off",
			"boot with psi=1 (kernel command line); the kernel needs CONFIG_PSI=y")
	case h.groupsErr != nil:
		h.fail(h.groupsErr)
	case h.v2().Dir == "":
		return limited("whole host: "+strings.Join(found, " "), "without cgroup v2 there is no pressure per group", unified(h))
	case len(h.v1()) > 0:
		return limited("whole host and v2 groups: "+strings.Join(found, " "),
			"pressure counts by a task's v2 group: workloads that are in v1 groups alone share one figure",
			"give each workload a v2 group beside its v1 groups")
	}
	return ok("whole host and groups: " + strings.Join(found, " "))
}

func pressureTriggers(h *host) Capability {
	if !h.exists("proc/pressure/cpu") {
		return missing("no /proc/pressure", "triggers need PSI", "see psi")
	}
	h.fail(h.selfErr)
	if h.self.has(capSysResource) {
		return ok("windows of 0.5 to 10 s")
	}
	const reason, remedy = "this process lacks CAP_SYS_RESOURCE", "run with CAP_SYS_RESOURCE"
	if newer, known := h.newer(6, 4); !known || newer {
		return limited("windows of 2, 4, ... 10 s", reason+": windows must be multiples of 2 s", remedy)
	}
	return missing("not permitted", reason, remedy+", or kernel 6.4 or newer")
}

func delegated(h *host) Capability {
	if h.exists("proc/self/mountinfo") {
		h.fail(h.groupsErr)
	}
	s := h.delegation(h.v2().Dir)
	c := Capability{State: OK, Found: string(s.State), Reason: s.Reason, Remedy: s.Remedy}
	switch s.State {
	case DelegationApplied:
		c.Reason = ""
	case DelegationNotApplicable:
		c.State, c.Found = NotApplicable, "nothing to delegate"
	case DelegationAbsent:
		c.State, c.Found = Missing, "users get "+words(s.Configured, "nothing")
	default:
		c.State = Limited
	}
	return c
}
