// Package hardware reads the counters of the hardware, of groups and of the whole host.
//
// A Counter counts cycles, instructions and cache misses, or context switches, migrations
// and page faults (perf_event_open(2)). The kernel counts a group's events on each CPU
// while a task of it or of a group below it runs there. Every event takes a descriptor per
// CPU, and hardware events cost at each switch between groups: a Counter is for groups in
// focus.
//
// A CacheReader reads what lies in last-level caches and how much goes to and from memory,
// by group of the resctrl file system (Documentation/filesystems/resctrl.rst): Intel's CMT
// and MBM, AMD's PQoS with and without assignable counters.
//
// A CPUReader reads how fast CPUs run, how often they became too hot, or how long they were
// idle: cpufreq, thermal_throttle and cpuidle of each CPU's sysfs directory
// (Documentation/admin-guide/pm/cpufreq.rst, cpuidle.rst;
// Documentation/ABI/testing/sysfs-devices-system-cpu).
//
// An EnergyReader reads what processors and their memory took, where RAPL counts it
// (Documentation/power/powercap/powercap.rst).
//
// Which groups and whose CPUs these are is left to others, as is setting anything.
package hardware
