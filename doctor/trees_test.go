package doctor

import (
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"berth.dev/berth/internal/fakekernel"
)

// tree lays files over the synthetic machine of a short form ("" for none).
// Later maps replace the files of earlier ones; the text "-" removes a file.
func tree(t *testing.T, short string, layers ...map[string]string) fstest.MapFS {
	t.Helper()
	fsys := fstest.MapFS{}
	if short != "" {
		m := fakekernel.Short(t, short)
		hardware, err := fakekernel.Sysfs(m)
		if err != nil {
			t.Fatal(err)
		}
		err = fs.WalkDir(hardware, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := fs.ReadFile(hardware, name)
			fsys[name] = &fstest.MapFile{Data: data}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, layer := range layers {
		for name, text := range layer {
			if text == "-" {
				delete(fsys, name)
				continue
			}
			fsys[name] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return fsys
}

func join(layers ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, l := range layers {
		maps.Copy(all, l)
	}
	return all
}

// status is proc/self/status of a user with the given effective capabilities.
func status(uid int, caps uint64) string {
	return fmt.Sprintf("Name:\tberth\nUid:\t%d\t%d\t%d\t%d\nCapEff:\t%016x\n", uid, uid, uid, uid, caps)
}

const (
	allCaps = 1<<41 - 1
	noLimit = "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max realtime priority     0                    0                    \n"
	psiText  = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
	statText = "cpu  5248 0 2411 160446 512 0 67 100 0 0\ncpu0 2075 0 856 81409 29 0 7 50 0 0\n"
	v2Mount  = "31 23 0:29 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
)

func cpuinfo(vendor, flags string) string {
	return "processor\t: 0\nvendor_id\t: " + vendor + "\nmodel name\t: Some CPU\nflags\t\t: fpu " + flags + "\n\nprocessor\t: 1\n"
}

// base is what every recent kernel shows.
func base() map[string]string {
	return map[string]string{
		"proc/sys/kernel/hostname":            "node\n",
		"proc/sys/kernel/osrelease":           "6.12.3-1-amd64\n",
		"proc/sys/kernel/sched_rt_runtime_us": "950000\n",
		"proc/sys/kernel/perf_event_paranoid": "2\n",
		"proc/filesystems":                    "nodev\tsysfs\nnodev\tcgroup2\n\text4\n",
		"proc/stat":                           statText,
		"proc/schedstat":                      "version 17\n",
		"proc/self/schedstat":                 "1 2 3\n",
		"proc/self/status":                    status(0, allCaps),
		"proc/self/limits":                    noLimit,
		"proc/pressure/cpu":                   psiText,
		"proc/pressure/io":                    psiText,
		"proc/pressure/memory":                psiText,
		"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
		"sys/kernel/btf/vmlinux":                       strings.Repeat("x", 1<<20),
		"sys/kernel/mm/transparent_hugepage/enabled":   "always [madvise] never\n",
		"sys/bus/event_source/devices/software/type":   "1\n",
		"sys/bus/event_source/devices/cpu/type":        "4\n",
		"sys/devices/system/cpu/smt/control":           "on\n",
		"sys/devices/system/cpu/smt/active":            "1\n",
		"sys/kernel/sched_ext/state":                   "disabled\n",
		"sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
	}
}

// v2 is a host whose systemd has all controllers in cgroup v2.
func v2() map[string]string {
	return map[string]string{
		"proc/self/mountinfo":                      "22 27 0:21 / /proc rw - proc proc rw\n" + v2Mount,
		"proc/self/cgroup":                         "0::/user.slice/user-1000.slice/session-1.scope\n",
		"proc/1/comm":                              "systemd\n",
		"run/systemd/system/keep":                  "",
		"usr/lib/systemd/libsystemd-shared-255.so": "",
		"usr/lib/systemd/system/user@.service":     "[Service]\nDelegate=pids memory cpu\n",
		"sys/fs/cgroup/cgroup.controllers":         "cpuset cpu io memory hugetlb pids rdma misc\n",
		"sys/fs/cgroup/cgroup.subtree_control":     "cpu io memory pids\n",
		"sys/fs/cgroup/cgroup.procs":               "2\n",
		"sys/fs/cgroup/cpuset.cpus.effective":      "0-31\n",
		"sys/fs/cgroup/cpuset.mems.effective":      "0-1\n",
		"sys/fs/cgroup/system.slice/cpu.weight":    "100\n",
		"sys/fs/cgroup/system.slice/cpu.idle":      "0\n",
		"sys/fs/cgroup/system.slice/cpu.max":       "max 100000\n",
		"sys/fs/cgroup/init.scope/cgroup.procs":    "1\n",
	}
}

func frequency(driver, governor string, policies int) map[string]string {
	files := map[string]string{}
	for i := range policies {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpufreq/policy%d/", i)
		files[dir+"scaling_driver"] = driver + "\n"
		files[dir+"scaling_governor"] = governor + "\n"
	}
	return files
}

// hybrid is a small virtual machine with v1 controllers and an empty v2.
func hybrid() map[string]string {
	mounts := "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
	for i, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "name=systemd"} {
		mounts += fmt.Sprintf("%d 31 0:%d / /sys/fs/cgroup/%s rw,relatime - cgroup cgroup rw,%s\n", 40+i, 29+i, c, c)
	}
	mounts += "60 31 0:60 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	return map[string]string{
		"proc/self/mountinfo": mounts,
		"proc/self/cgroup": "9:name=systemd:/\n8:pids:/\n7:blkio:/\n6:freezer:/\n5:devices:/\n4:memory:/\n3:cpuset:/\n" +
			"2:cpuacct:/\n1:cpu:/\n0::/\n",
		"proc/1/comm":      "init\n",
		"proc/self/status": status(0, allCaps&^(1<<capSysResource)),
		"proc/cpuinfo":     cpuinfo("GenuineIntel", "hypervisor avx2"),
		"sys/fs/cgroup/unified/cgroup.controllers":     "hugetlb\n",
		"sys/fs/cgroup/unified/cgroup.subtree_control": "\n",
		"sys/fs/cgroup/cpuacct/cgroup.procs":           "1\n",
		"sys/fs/cgroup/memory/cgroup.procs":            "1\n",
		"sys/fs/cgroup/freezer/cgroup.procs":           "1\n",
		"sys/fs/cgroup/blkio/cgroup.procs":             "1\n",
		"sys/fs/cgroup/pids/cgroup.procs":              "1\n",
		"sys/fs/cgroup/cpuset/cpuset.effective_cpus":   "0-1\n",
		"sys/fs/cgroup/cpuset/cpuset.effective_mems":   "0\n",
		"sys/fs/cgroup/cpu/cpu.cfs_quota_us":           "-1\n",
		"sys/fs/cgroup/cpu/cpu.idle":                   "0\n",
		"sys/fs/cgroup/cpu/cpu.rt_runtime_us":          "950000\n",
		"sys/devices/system/cpu/smt/control":           "notsupported\n",
		"sys/bus/event_source/devices/cpu/type":        "-",
		"sys/kernel/sched_ext/state":                   "-",
		"sys/devices/system/cpu/intel_pstate/no_turbo": "-",
	}
}

// trees are whole hosts, by name.
func trees(t *testing.T) map[string]fs.FS {
	t.Helper()
	rdt := cpuinfo("GenuineIntel", "rdt_a cat_l3 cdp_l3 mba cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local")
	return map[string]fs.FS{
		"systemd-v2": tree(t, "2s1n1l8c2t", base(), v2(), frequency("intel_pstate", "powersave", 32), map[string]string{
			"proc/cpuinfo":                         rdt,
			"proc/filesystems":                     "nodev\tresctrl\n",
			"sys/fs/resctrl/info/L3/num_closids":   "16\n",
			"sys/fs/resctrl/info/MB/num_closids":   "8\n",
			"sys/fs/resctrl/info/L3_MON/num_rmids": "256\n",
			"sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/cgroup.controllers": "cpu memory pids\n",
			"run/containerd/containerd.sock":                                                "",
			"var/lib/kubelet/cpu_manager_state":                                             `{"policyName":"static","defaultCpuSet":"0-3,16-19","checksum":1}`,
			"sys/fs/cgroup/kubepods.slice/cgroup.procs":                                     "",
			"proc/sys/kernel/numa_balancing":                                                "1\n",
			"sys/class/dmi/id/sys_vendor":                                                   "Amazon EC2\n",
			"sys/class/dmi/id/product_name":                                                 "m7i.metal-24xl\n",
			"sys/kernel/security/lockdown":                                                  "[none] integrity confidentiality\n",
			"proc/sys/kernel/unprivileged_bpf_disabled":                                     "2\n",
		}),
		"hybrid-vm": tree(t, "2c", base(), hybrid()),
		"container": tree(t, "4c2t", base(), map[string]string{
			"proc/self/mountinfo":                  strings.Replace(v2Mount, "rw,nosuid", "ro,nosuid", 1),
			"proc/self/cgroup":                     "0::/\n",
			"proc/1/comm":                          "app\n",
			"proc/self/status":                     status(1000, 0),
			"proc/cpuinfo":                         cpuinfo("AuthenticAMD", "hypervisor"),
			"proc/cgroups":                         "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t9\t1\nblkio\t0\t9\t0\nmemory\t0\t9\t1\ncpuset\t0\t9\t1\npids\t0\t9\t1\n",
			"sys/fs/cgroup/cgroup.controllers":     "cpu memory pids\n",
			"sys/fs/cgroup/cgroup.subtree_control": "\n",
			"sys/hypervisor/type":                  "xen\n",
			"sys/kernel/btf/vmlinux":               "-",
		}),
		"v1": tree(t, "8c", base(), map[string]string{
			"proc/self/mountinfo": "33 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"34 25 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"proc/self/cgroup":                                "4:cpu,cpuacct:/app\n3:memory:/\n",
			"proc/cgroups":                                    "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t0\t1\t1\nblkio\t0\t1\t0\n",
			"proc/1/comm":                                     "systemd\n",
			"proc/sys/kernel/osrelease":                       "4.19.0\n",
			"proc/cpuinfo":                                    cpuinfo("GenuineIntel", "sse"),
			"sys/fs/cgroup/cpu,cpuacct/cpu.shares":            "1024\n",
			"sys/fs/cgroup/memory/cgroup.procs":               "1\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.rt_runtime_us":     "950000\n",
			"sys/fs/cgroup/cpu,cpuacct/app/cpu.rt_runtime_us": "0\n",
			"proc/pressure/cpu":                               "-",
			"proc/pressure/io":                                "-",
			"proc/pressure/memory":                            "-",
			"sys/devices/system/clocksource/clocksource0/current_clocksource":   "hpet\n",
			"sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm\n",
			"proc/schedstat": "-", "proc/self/schedstat": "-",
		}),
		"rdt-not-mounted": tree(t, "2s8c2t", base(), v2(), frequency("intel_cpufreq", "performance", 2), map[string]string{
			"proc/cpuinfo":               rdt,
			"proc/filesystems":           "nodev\tresctrl\n",
			"sys/kernel/sched_ext/state": "enabled\n", "sys/kernel/sched_ext/root/ops": "layered\n",
		}),
		"amd": tree(t, "1s4n2l2c2t", base(), v2(), frequency("amd-pstate-epp", "performance", 4), map[string]string{
			"proc/cpuinfo":     cpuinfo("AuthenticAMD", "rdt_a cat_l3 mba smba cqm_llc cqm_occup_llc"),
			"proc/filesystems": "nodev\text4\n",
			"sys/devices/system/cpu/intel_pstate/no_turbo":                            "-",
			"sys/devices/system/cpu/cpufreq/boost":                                    "0\n",
			"etc/systemd/system/user@.service.d/d.conf":                               "[Service]\nDelegate=yes\n",
			"sys/fs/cgroup/user.slice/user-0.slice/user@0.service/cgroup.controllers": "cpuset cpu io memory pids\n",
			"run/crio/crio.sock":                                                      "", "run/nri/nri.sock": "",
			"proc/self/status": status(1000, 0),
			"proc/self/limits": strings.Replace(noLimit, "priority     0 ", "priority     99", 1),
		}),
		"arm": tree(t, "2n16c", base(), v2(), frequency("cppc_cpufreq", "schedutil", 1), map[string]string{
			"proc/cpuinfo":     "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n\nprocessor\t: 1\n",
			"proc/filesystems": "nodev\tproc\n",
			"sys/devices/system/clocksource/clocksource0/current_clocksource": "arch_sys_counter\n",
			"sys/devices/system/cpu/smt/control":                              "notimplemented\n",
			"sys/bus/event_source/devices/cpu/type":                           "-",
			"sys/bus/event_source/devices/armv8_pmuv3_0/type":                 "8\n",
			"sys/devices/system/cpu/intel_pstate/no_turbo":                    "-",
		}),
		"malformed": tree(t, "4c", base(), v2(), hybrid(), frequency("acpi-cpufreq", "performance", 1), map[string]string{
			"proc/self/mountinfo":                          "31 23 garbage\n",
			"proc/cpuinfo":                                 "\x00\xff",
			"proc/stat":                                    "cpu x y\n",
			"proc/self/status":                             "Uid:\tnobody\nCapEff:\tzz\n",
			"proc/sys/kernel/osrelease":                    "unversioned\n",
			"proc/sys/kernel/sched_rt_runtime_us":          "many\n",
			"proc/sys/kernel/numa_balancing":               "perhaps\n",
			"proc/filesystems/x":                           "a directory",
			"sys/devices/system/node/online":               "0-\n",
			"sys/devices/system/cpu/online":                "3-1\n",
			"sys/devices/system/cpu/smt/control":           "sideways\n",
			"sys/devices/system/cpu/intel_pstate/no_turbo": "?\n",
			"sys/kernel/mm/transparent_hugepage/enabled":   "sometimes\n",
			"var/lib/kubelet/cpu_manager_state":            "{",
			"sys/kernel/sched_ext/state/x":                 "",
			"proc/pressure/cpu":                            "-",
			"proc/pressure/cpu/x":                          "",
			"proc/self/schedstat":                          "-",
			"proc/self/schedstat/x":                        "",
			"proc/filesystems":                             "-",
			"proc/1/comm":                                  "-",
			"proc/1/comm/x":                                "",
			"sys/devices/system/clocksource/clocksource0/current_clocksource": "-",
			"sys/bus/event_source/devices/cpu/type":                           "4\n",
			"proc/sys/kernel/perf_event_paranoid":                             "high\n",
		}),
		"empty": fstest.MapFS{},
	}
}
