package fakekernel

import (
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
)

func mustSet(list string) cpuset.Set { return cpuset.MustParse(list) }

// write is one write to a cgroup file.
func (k *Kernel) write(m mount, dir, file, value string) error {
	name := dir + "/" + file
	switch file {
	case "cgroup.procs":
		return k.attach(m, dir, value)
	case "cgroup.subtree_control":
		return k.enable(m, dir, value)
	case "cgroup.kill":
		return k.kill(dir)
	case "cpu.weight", "cpu.shares":
		return k.weight(dir, file, value)
	case "cpu.idle":
		return k.idle(m, dir, value)
	case "cpu.max", "cpu.max.burst", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us":
		return k.bandwidth(dir, file, value)
	case "cpuset.cpus", "cpuset.mems":
		return k.cpuset(m, dir, file, value)
	case "cpuset.cpus.partition":
		return k.partition(m, dir, value)
	case "memory.max", "memory.high", "memory.low", "memory.limit_in_bytes":
		return k.memory(m, name, value)
	case "io.max", "io.weight", "io.bfq.weight", "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device",
		"blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device", "blkio.bfq.weight_device":
		return k.keyed(dir, file, value)
	case "io.latency":
		return k.latency(dir, value)
	case "io.cost.qos", "io.cost.model":
		return k.cost(dir, file, value)
	case "blkio.bfq.weight":
		return k.ranged(name, value, 1, 1000, syscall.ERANGE)
	case "cgroup.freeze":
		return k.ranged(name, value, 0, 1, syscall.ERANGE)
	case "pids.max":
		if value == "max" {
			return k.put(name, value)
		}
		return k.ranged(name, value, 0, 1<<22, syscall.EINVAL)
	case "freezer.state":
		if value != "FROZEN" && value != "THAWED" {
			return syscall.EINVAL
		}
		if err := k.put(name, value); err != nil {
			return err
		}
		return k.thaw(dir)
	}
	return syscall.EINVAL
}

func (k *Kernel) ranged(name, value string, low, high int64, refuse error) error {
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case err != nil:
		return syscall.EINVAL
	case n < low || n > high:
		return refuse
	}
	return k.put(name, strconv.FormatInt(n, 10))
}

// weight: v1 clamps, v2 refuses; an idle group's weight is locked.
func (k *Kernel) weight(dir, file, value string) error {
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case err != nil || k.get(dir, "cpu.idle") == "1" || n < 0:
		return syscall.EINVAL
	case file == "cpu.shares":
		n = min(max(n, 2), 262144)
	case n < 1 || n > 10000:
		return syscall.ERANGE
	}
	return k.put(dir+"/"+file, strconv.FormatInt(n, 10))
}

// idle resets the weight, both ways.
func (k *Kernel) idle(m mount, dir, value string) error {
	if value != "0" && value != "1" {
		return syscall.EINVAL
	}
	if value == k.get(dir, "cpu.idle") {
		return nil
	}
	file, weights := "cpu.weight", [2]string{"100", "1"}
	switch {
	case m.version == 1:
		file, weights = "cpu.shares", [2]string{"1024", "3"}
	case !k.atLeast(6, 12):
		weights[1] = "0"
	}
	if err := k.put(dir+"/cpu.idle", value); err != nil {
		return err
	}
	return k.put(dir+"/"+file, weights[value[0]-'0'])
}

// quota is quota, period and burst of a group in us; quota -1 is none.
func (k *Kernel) quota(dir string) (quota, period, burst int64) {
	if words := strings.Fields(k.get(dir, "cpu.max")); len(words) == 2 {
		quota = -1
		if words[0] != "max" {
			quota, _ = strconv.ParseInt(words[0], 10, 64)
		}
		period, _ = strconv.ParseInt(words[1], 10, 64)
		return quota, period, k.number(dir, "cpu.max.burst")
	}
	return k.number(dir, "cpu.cfs_quota_us"), k.number(dir, "cpu.cfs_period_us"), k.number(dir, "cpu.cfs_burst_us")
}

func (k *Kernel) bandwidth(dir, file, value string) error {
	quota, period, burst := k.quota(dir)
	words := strings.Fields(value)
	if len(words) == 0 || len(words) > 1 && file != "cpu.max" {
		return syscall.EINVAL
	}
	n, err := strconv.ParseInt(words[0], 10, 64)
	if file == "cpu.max" && words[0] == "max" {
		n, err = -1, nil
	} else if file != "cpu.cfs_quota_us" && n < 0 || err != nil {
		return syscall.EINVAL
	}
	if len(words) > 1 { // no number, and what follows, is passed over
		if p, err := strconv.ParseInt(words[1], 10, 64); err == nil {
			period = p
		}
	}
	switch file {
	case "cpu.cfs_period_us":
		period = n
	case "cpu.cfs_burst_us", "cpu.max.burst":
		burst = n
	default:
		quota = n
	}
	if period < 1000 || period > 1000000 || burst < 0 || quota >= 0 && (quota < 1000 || burst > quota) {
		return syscall.EINVAL
	}
	if file[:7] == "cpu.cfs" && !k.fits(dir, quota, period) {
		return syscall.EINVAL
	}
	if file == "cpu.max" {
		word := "max"
		if quota >= 0 {
			word = strconv.FormatInt(quota, 10)
		}
		return k.put(dir+"/cpu.max", fmt.Sprintf("%s %d", word, period))
	}
	return k.put(dir+"/"+file, strconv.FormatInt(n, 10))
}

// fits: on v1, a group may not have more than its parent, nor less than a child.
func (k *Kernel) fits(dir string, quota, period int64) bool {
	if _, err := os.Stat(k.real(path.Dir(dir) + "/cpu.cfs_quota_us")); err == nil {
		if q, p, _ := k.quota(path.Dir(dir)); q >= 0 && quota >= 0 && quota*p > q*period {
			return false
		}
	}
	for _, child := range k.children(dir) {
		if q, p, _ := k.quota(child); q >= 0 && quota >= 0 && q*period > quota*p {
			return false
		}
	}
	return true
}

func (k *Kernel) cpuset(m mount, dir, file, value string) error {
	set, err := cpuset.Parse(value)
	if err != nil {
		return syscall.EINVAL
	}
	online := mustSet(k.layout.CPUs)
	if file == "cpuset.mems" {
		online = mustSet(k.layout.Mems)
	}
	if !online.Contains(set) {
		// The kernel knows up to 1023 nodes, and the CPUs that may come online.
		if last, _ := set.Last(); file == "cpuset.mems" && last < 1024 {
			return syscall.EINVAL
		}
		return syscall.ERANGE
	}
	if m.version == 1 {
		if file == "cpuset.cpus" && !k.online().Contains(set) {
			return syscall.EINVAL
		}
		if dir != m.dir && !k.set(path.Dir(dir), file).Contains(set) {
			return syscall.EACCES
		}
		for _, child := range k.children(dir) {
			if !set.Contains(k.set(child, file)) {
				return syscall.EBUSY
			}
		}
	}
	if set.IsEmpty() && k.get(dir, file) != "" && k.populated(dir) && (m.version == 1 || !k.atLeast(7, 0)) {
		return syscall.ENOSPC
	}
	if err := k.put(dir+"/"+file, set.String()); err != nil {
		return err
	}
	if m.version == 2 {
		return k.repartition(m, dir)
	}
	return k.put(dir+"/"+strings.Replace(file, "cpuset.", "cpuset.effective_", 1), set.String())
}

func (k *Kernel) memory(m mount, name, value string) error {
	const page = 4096
	none := "max"
	if m.version == 1 {
		none = "-1"
	}
	if value == none {
		if m.version == 1 {
			value = "9223372036854771712"
		}
		return k.put(name, value)
	}
	if value == "" {
		value = "0"
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return syscall.EINVAL
	}
	if m.version == 2 && n/page == math.MaxInt64/page {
		return k.put(name, none)
	}
	return k.put(name, strconv.FormatInt(n/page*page, 10))
}

// inOrder joins controllers as the kernel does: in the order of their numbers.
func inOrder(controllers []string) string {
	var words []string
	for _, c := range [...]string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"} {
		if slices.Contains(controllers, c) {
			words = append(words, c)
		}
	}
	return strings.Join(words, " ")
}

// isThreaded reports whether a controller can divide up threads, so that a group may
// hand it on beside processes.
func isThreaded(controller string) bool {
	return controller == "cpu" || controller == "cpuset" || controller == "pids"
}

// enable is a write of "+a -b" to cgroup.subtree_control.
func (k *Kernel) enable(m mount, dir, value string) error {
	before := strings.Fields(k.get(dir, "cgroup.subtree_control"))
	on := slices.Clone(before)
	for _, word := range strings.Fields(value) {
		name := word[1:]
		switch {
		case word[0] != '+' && word[0] != '-' || inOrder([]string{name}) == "":
			return syscall.EINVAL
		case word[0] == '+' && !slices.Contains(on, name):
			on = append(on, name)
		case word[0] == '-':
			on = slices.DeleteFunc(on, func(c string) bool { return c == name })
		}
	}
	if err := k.mayEnable(dir, before, on); err != nil {
		return err
	}
	if err := k.put(dir+"/cgroup.subtree_control", inOrder(on)); err != nil {
		return err
	}
	for _, child := range k.children(dir) {
		if err := k.offer(m, child, on); err != nil {
			return err
		}
	}
	return k.retype(dir)
}

// mayEnable: a parent must offer what is enabled, no child may hand on what is
// disabled, and a group with processes is not a domain that divides up memory.
func (k *Kernel) mayEnable(dir string, before, on []string) error {
	offered := strings.Fields(k.get(dir, "cgroup.controllers"))
	for _, c := range on {
		if !slices.Contains(offered, c) {
			return syscall.ENOENT
		}
	}
	for _, c := range before {
		for _, child := range k.children(dir) {
			if !slices.Contains(on, c) && slices.Contains(strings.Fields(k.get(child, "cgroup.subtree_control")), c) {
				return syscall.EBUSY
			}
		}
	}
	kind := k.get(dir, "cgroup.type")
	if kind == "" || k.get(dir, "cgroup.procs") == "" {
		return nil
	}
	for _, c := range on {
		switch {
		case isThreaded(c) || slices.Contains(before, c):
		case kind != "domain":
			return syscall.EOPNOTSUPP
		default:
			return syscall.EBUSY
		}
	}
	return nil
}

// retype tells what a group is: one that holds processes and hands controllers on
// has only threads below, and its children are not groups for processes.
func (k *Kernel) retype(dir string) error {
	if k.get(dir, "cgroup.type") == "" {
		return nil
	}
	own, below := "domain", "domain"
	if k.get(dir, "cgroup.procs") != "" && k.get(dir, "cgroup.subtree_control") != "" {
		own, below = "domain threaded", "domain invalid"
	}
	if err := k.put(dir+"/cgroup.type", own); err != nil {
		return err
	}
	for _, child := range k.children(dir) {
		if err := k.put(child+"/cgroup.type", below); err != nil {
			return err
		}
	}
	return nil
}
