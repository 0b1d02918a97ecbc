package knob

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// What brings a missing file to a host.
const (
	newerKernel = "boot a newer kernel, with the option built in"
	onlyV2      = "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1)"
	throttling  = "boot a kernel with CONFIG_BLK_DEV_THROTTLING"
	hugePages   = "boot a kernel with CONFIG_CGROUP_HUGETLB, and with huge pages of this size"
	ioScheduler = "load the BFQ I/O scheduler (modprobe bfq) and have the disk use it (/sys/block/DISK/queue/scheduler), or, with cgroup v2, boot a kernel with CONFIG_BLK_CGROUP_IOCOST"
)

// Hints of several rows.
const (
	badBandwidth = "quota and period are at least 1 ms, period at most 1 s, burst at most quota, and no more CPU than the parent has"
	badWeight    = "out of range, or the group is idle: an idle group's weight is locked, write cpu.idle 0 first"
	busyMemory   = "in use beyond that and not reclaimable: free memory first"
	noDevice     = "no such block device (/proc/partitions lists those that there are), or a partition: name its disk"
	bfqRange     = "a weight of BFQ is 1 to 1000"
)

// table has the rows of settings and, behind them, those of the sizes of huge pages.
var table = slices.Concat(rows, hugeRows())

// rows are in the order in which settings are written: a row
// comes before those that it locks. Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel
// describe the files, systemd.resource-control(5) the properties.
var rows = []*Knob{
	{
		Name: "idle", Words: "idle", Controller: "cpu", Type: Switch, Values: []string{"0", "1"}, Default: "0", Direction: Down,
		Locks: []string{"weight"}, V2: []File{{Name: "cpu.idle"}}, V1: []File{{Name: "cpu.idle"}},
		Process:  []File{{Name: "sched.policy", Encode: policy, Decode: isIdle}},
		Property: "CPUWeight", Needs: "boot a kernel 5.15 or newer",
	},
	{
		Name: "weight", Words: "weight", Controller: "cpu", Type: Share, Least: 1, Most: 10000, Default: "100", Reach: Wider,
		V2:      []File{{Name: "cpu.weight"}},
		V1:      []File{{Name: "cpu.shares", Encode: shares, Decode: weightOfShares, Range: "shares are 2 to 262144"}},
		Process: []File{{Name: "sched.nice", Encode: nice, Decode: weightOfNice}},
		Follows: []string{"cpu.weight.nice"}, Property: "CPUWeight", Needs: newerKernel,
		Hint: Hint{Range: "a weight is 1 to 10000", Invalid: badWeight, Locked: "an idle group's weight is locked"},
	},
	{
		Name: "quota", Words: "quota", Controller: "cpu", Type: Bandwidth, Default: "max 100000",
		V2:       []File{{Name: "cpu.max"}},
		V1:       []File{{Name: "cpu.cfs_quota_us", Beside: "cpu.cfs_period_us", Decode: quotaV1}},
		Bounds:   []string{"burst"},
		Property: "CPUQuota", Needs: "build the kernel with CONFIG_CFS_BANDWIDTH", Hint: Hint{Invalid: badBandwidth},
	},
	{
		Name: "burst", Words: "burst", Controller: "cpu", Type: Time, Default: "0",
		V2: []File{{Name: "cpu.max.burst"}}, V1: []File{{Name: "cpu.cfs_burst_us"}},
		Needs: "boot a kernel 5.14 or newer", Hint: Hint{Invalid: badBandwidth},
	},
	{
		Name: "mems", Words: "mems", Controller: "cpuset", Type: Set, V2: []File{{Name: "cpuset.mems"}}, V1: []File{{Name: "cpuset.mems"}},
		Follows: []string{"cpuset.mems.effective", "cpuset.effective_mems"}, Property: "AllowedMemoryNodes",
		Hint: Hint{
			Range:   "names a memory node that this kernel cannot have",
			Invalid: "names a memory node that is not online or not in the parent's set",
		},
	},
	{
		Name: "cpus", Words: "CPUs", Controller: "cpuset", Type: Set, V2: []File{{Name: "cpuset.cpus"}}, V1: []File{{Name: "cpuset.cpus"}},
		Process: []File{{Name: "sched.cpus"}},
		Follows: []string{"cpuset.cpus.effective", "cpuset.effective_cpus"}, Property: "AllowedCPUs",
		Hint: Hint{
			Range:   "names a CPU number that this kernel cannot have",
			Invalid: "names a CPU that is not online or not in the parent's set",
		},
	},
	{
		Name: "cacheWays", Words: "cache ways", Kind: Class, Type: Number, Least: 1, Default: Max, V2: []File{{Name: "schemata", Line: "L3"}},
		Needs: "a CPU that allocates cache, and resctrl mounted",
	},
	{
		Name: "memoryBandwidth", Words: "memory bandwidth", Kind: Class, Type: Number, Least: 1, Default: Max, V2: []File{{Name: "schemata", Line: "MB"}},
		Needs: "a CPU that allocates memory bandwidth, and resctrl mounted",
	},
	{
		Name: "sendRate", Words: "bytes sent per second", Kind: Sender, Type: Number, Least: 1, Default: Max, V2: []File{{Name: "berth.net_class"}},
		Needs: "cgroup v2, and a network device that network classes divide",
	},
	{
		Name: "partition", Words: "partition", Controller: "cpuset", Type: Word, Values: []string{"member", "root", "isolated"},
		Default: "member", Direction: Neither, V2: []File{{Name: "cpuset.cpus.partition"}},
		Needs: "boot a kernel 5.0 or newer with cgroup v2", Hint: Hint{Invalid: "this kernel has no such kind of partition"},
	},
	{
		Name: "memoryMax", Words: "memory", Controller: "memory", Type: Bytes, Default: Max,
		V2:       []File{{Name: "memory.max"}},
		V1:       []File{{Name: "memory.limit_in_bytes", Decode: noLimitV1, Max: mostBytes}},
		Property: "MemoryMax", Needs: onlyV2, Hint: Hint{Busy: busyMemory},
	},
	{
		Name: "memoryHigh", Words: "memory high", Controller: "memory", Type: Bytes, Default: Max,
		V2: []File{{Name: "memory.high"}}, Property: "MemoryHigh", Needs: onlyV2, Hint: Hint{Busy: busyMemory},
	},
	{
		Name: "memoryLow", Words: "memory low", Controller: "memory", Type: Bytes, Default: "0", Reach: Wider,
		V2: []File{{Name: "memory.low"}}, Property: "MemoryLow", Needs: onlyV2, Hint: Hint{Busy: busyMemory},
	},
	{
		Name: "ioWeight", Words: "I/O weight", Controller: "io", Type: Share, Least: 1, Most: 10000, Default: "100", Reach: Wider,
		// On the scale of the file: io.weight (io.cost) is 1 to 10000 with 100 as default, BFQ's
		// 1 to 1000 with 100, CFQ's (kernels before 5.0) 10 to 1000 with 500.
		V2:       []File{{Name: "io.weight", Line: "default"}, {Name: "io.bfq.weight", Line: "default", Encode: bfqWeight, Range: bfqRange}},
		V1:       []File{{Name: "blkio.weight", Encode: cfqWeight, Decode: weightOfCFQ}, {Name: "blkio.bfq.weight", Encode: bfqWeight, Range: bfqRange}},
		Property: "IOWeight", Feature: "weight of the io controller", Needs: ioScheduler, Hint: Hint{Range: "a weight is 1 to 10000"},
	},
	deviceWeight("ioDeviceWeight", "I/O weight", 10000, []File{{Name: "io.weight", Max: "default", Unset: "default"}}, nil),
	deviceWeight("bfqDeviceWeight", "BFQ weight", 1000, []File{{Name: "io.bfq.weight", Max: "default", Unset: "default"}}, []File{{Name: "blkio.bfq.weight_device", Max: "default", Unset: "default"}}),
	throttle("readBPS", "bytes read per second", "rbps", "read_bps_device"),
	throttle("writeBPS", "bytes written per second", "wbps", "write_bps_device"),
	throttle("readIOPS", "reads per second", "riops", "read_iops_device"),
	throttle("writeIOPS", "writes per second", "wiops", "write_iops_device"),
	{
		Name: "ioLatency", Words: "I/O latency", Controller: "io", Type: Time, Least: 1, Default: Max, Direction: Down, Reach: Wider, Key: checkDevice,
		V2:    []File{{Name: "io.latency", Word: "target", Unset: "target=max"}},
		Needs: "boot a kernel with cgroup v2 and CONFIG_BLK_CGROUP_IOLATENCY", Hint: Hint{NoDevice: noDevice},
	},
	{
		Name: "pidsMax", Words: "pids max", Controller: "pids", Type: Number, Default: Max,
		V2: []File{{Name: "pids.max"}}, V1: []File{{Name: "pids.max"}}, Property: "TasksMax",
	},
	{
		Name: "frozen", Words: "frozen", Controller: "freezer", Type: Word, Values: []string{"0", "1"}, Default: "0", Direction: Down,
		Reach: Always, V2: []File{{Name: "cgroup.freeze"}}, V1: []File{{Name: "freezer.state", Encode: freezerState, Decode: isFrozen}},
		Needs: "boot a kernel 5.2 or newer",
	},

	// Settings of others, which a group loses with its controller.
	known("uclampMin", "cpu", "cpu.uclamp.min", "0.00", ""),
	known("uclampMax", "cpu", "cpu.uclamp.max", Max, ""),
	known("exclusiveCPUs", "cpuset", "cpuset.cpus.exclusive", "", ""),
	known("memoryMin", "memory", "memory.min", "0", "MemoryMin"),
	known("oomGroup", "memory", "memory.oom.group", "0", ""),
	known("swapMax", "memory", "memory.swap.max", Max, ""),
	known("swapHigh", "memory", "memory.swap.high", Max, ""),
	known("zswapMax", "memory", "memory.zswap.max", Max, ""),
}

// hugeRows are the limits on huge pages, one for each size that a kernel has
// (arch/*/mm/hugetlbpage.c): of what is in use, in bytes. A page beyond is SIGBUS
// (Documentation/admin-guide/cgroup-v1/hugetlb.rst).
func hugeRows() (all []*Knob) {
	for _, size := range []string{"64Ki", "1Mi", "2Mi", "16Mi", "32Mi", "512Mi", "1Gi", "2Gi", "16Gi"} {
		file := "hugetlb." + strings.Replace(size, "i", "B", 1)
		all = append(all, &Knob{
			Name: HugePages(size), Words: "huge pages of " + size, Controller: "hugetlb", Type: Bytes, Default: Max,
			V2:    []File{{Name: file + ".max"}},
			V1:    []File{{Name: file + ".limit_in_bytes", Decode: noHugeLimitV1, Max: mostBytes}},
			Needs: hugePages,
		})
	}
	return all
}

// HugePages is the name of the limit on huge pages of a size, written as in "2Mi".
func HugePages(size string) string { return "hugePages" + size }

// noHugeLimitV1 reads what v1 shows for no limit: the highest number of whole pages.
func noHugeLimitV1(text string) string {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > unlimited-2<<34 {
		return Max
	}
	return text
}

// throttle is a limit per block device: a word of io.max, or a v1 file of its own.
func throttle(name, words, word, file string) *Knob {
	return &Knob{
		Name: name, Words: words, Controller: "io", Type: Number, Default: Max, Key: checkDevice,
		V2:    []File{{Name: "io.max", Word: word, Unset: "rbps=max wbps=max riops=max wiops=max"}},
		V1:    []File{{Name: "blkio.throttle." + file, Max: "0", Unset: "0"}}, // 0 takes the limit away, and its line with it
		Needs: throttling, Hint: Hint{NoDevice: noDevice},
	}
}

// deviceWeight is the weight on one block device, Max for that of all others. The kernel
// takes it only for a device that shares its time by this file (EOPNOTSUPP).
func deviceWeight(name, words string, most int64, v2, v1 []File) *Knob {
	return &Knob{
		Name: name, Words: words, Controller: "io", Type: Number, Least: 1, Most: most, Default: Max, Reach: Always, Key: checkDevice,
		V2: v2, V1: v1, Needs: ioScheduler, Hint: Hint{NoDevice: noDevice},
	}
}

func checkDevice(key string) error {
	major, minor, ok := strings.Cut(key, ":")
	_, err1 := strconv.ParseUint(major, 10, 32)
	_, err2 := strconv.ParseUint(minor, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return fmt.Errorf("block device %q: not MAJOR:MINOR", key)
	}
	return nil
}

func known(name, controller, file, def, property string) *Knob {
	return &Knob{Name: name, Words: name, Controller: controller, Default: def, V2: []File{{Name: file}}, Property: property, ReadOnly: true}
}

// scaled returns a function that maps a number.
func scaled(text string, to func(int64) int64) string {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return text
	}
	return strconv.FormatInt(to(n), 10)
}

// shares returns the v1 cpu.shares in the same ratio to its default (1024) as a weight is
// to its own (100), within 2 to 262144.
func shares(weight string) string {
	return scaled(weight, func(w int64) int64 { return min(max(w*1024/100, 2), 262144) })
}

func weightOfShares(text string) string {
	return scaled(text, func(s int64) int64 { return max((s*100+512)/1024, 1) })
}

func policy(value string) string {
	if value == "1" {
		return "SCHED_IDLE"
	}
	return "SCHED_OTHER"
}

func isIdle(text string) string {
	if text == "SCHED_IDLE" {
		return "1"
	}
	return "0"
}

// A step of nice is a quarter more or less CPU time (sched_prio_to_weight in
// kernel/sched/core.c): nice 0 is the weight 100, 19 a little more than 1.
const niceStep = 1.25

func nice(weight string) string {
	return scaled(weight, func(w int64) int64 {
		return int64(min(max(math.Round(-math.Log(float64(w)/100)/math.Log(niceStep)), -20), 19))
	})
}

func weightOfNice(text string) string {
	return scaled(text, func(n int64) int64 { return max(int64(math.Round(100*math.Pow(niceStep, -float64(n)))), 1) })
}

func bfqWeight(weight string) string {
	return scaled(weight, func(w int64) int64 { return min(w, 1000) })
}

func cfqWeight(weight string) string {
	return scaled(weight, func(w int64) int64 { return min(max(w*5, 10), 1000) })
}

func weightOfCFQ(text string) string {
	return scaled(text, func(w int64) int64 { return max(w/5, 1) })
}

// mostBytes is no limit on memory in v1. The kernel then shows the highest number of whole
// pages; a page has at most 64 KiB.
const mostBytes = "9223372036854775807"

func noLimitV1(text string) string {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= unlimited>>16<<16 {
		return Max
	}
	return text
}

// quotaV1 reads a quota and a period of two files; a negative quota is no limit.
func quotaV1(text string) string {
	if quota, period, _ := strings.Cut(text, " "); strings.HasPrefix(quota, "-") {
		return Max + " " + period
	}
	return text
}

func freezerState(value string) string {
	if value == "1" {
		return "FROZEN"
	}
	return "THAWED"
}

func isFrozen(text string) string {
	if text == "THAWED" {
		return "0"
	}
	return "1"
}
