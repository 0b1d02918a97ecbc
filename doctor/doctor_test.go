package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// TestGolden compares whole reports, as JSON.
func TestGolden(t *testing.T) {
	t.Parallel()
	for name, fsys := range trees(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Look(fsys, Probes{})
			var got bytes.Buffer
			enc := json.NewEncoder(&got)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			if err := enc.Encode(report); err != nil {
				t.Fatal(err)
			}
			golden.Check(t, "testdata/"+name+".json", got.Bytes())
		})
	}
}

// TestComplete checks what holds for every report.
func TestComplete(t *testing.T) {
	t.Parallel()
	states := map[State]bool{OK: true, Limited: true, Missing: true, Unknown: true, NotApplicable: true}
	for name, fsys := range trees(t) {
		seen := map[string]bool{}
		for _, c := range Look(fsys, Probes{}).Capabilities {
			complete := c.Name != "" && c.Group != "" && c.Found != "" && states[c.State] && !seen[c.Name]
			healthy := c.State == OK || c.State == NotApplicable
			if !complete || (c.State != OK) != (c.Reason != "") || healthy == (c.Without != "") {
				t.Errorf("%s: %+v", name, c)
			}
			seen[c.Name] = true
		}
		for _, a := range abilities() {
			for _, need := range a.needs {
				if !seen[need] {
					t.Errorf("%s: ability %q needs %q", name, a.name, need)
				}
			}
		}
		for _, worth := range byWorth() {
			if !seen[worth] {
				t.Errorf("%s: no capability %q", name, worth)
			}
		}
	}
}

// TestEachFileMalformed spoils one file of a good host at a time: the report
// must stay whole, and at most what that file tells may become unknown.
func TestEachFileMalformed(t *testing.T) {
	t.Parallel()
	good := tree(t, "2c", base(), v2(), frequency("intel_pstate", "performance", 2), map[string]string{
		"proc/cpuinfo": cpuinfo("GenuineIntel", "cat_l3 mba"), "proc/filesystems": "nodev resctrl\n",
		"proc/cgroups":                      "cpu\t0\t9\t1\ncpuset\t0\t9\t1\nmemory\t0\t9\t1\nblkio\t0\t9\t1\npids\t0\t9\t1\n",
		"sys/fs/cgroup/system.slice/io.max": "", "sys/fs/cgroup/system.slice/io.latency": "",
		"sys/fs/resctrl/info/L3/num_closids": "16\n", "var/lib/kubelet/cpu_manager_state": `{"policyName":"none"}`,
	})
	before := unknown(Look(good, Probes{}))
	if len(before) > 0 {
		t.Fatalf("unknown on a good host: %v", before)
	}
	for name := range good {
		for _, text := range []string{"", "\x00garbage\xff", strings.Repeat("9", 40)} {
			bad := fstest.MapFS{}
			for n, f := range good {
				bad[n] = f
			}
			bad[name] = &fstest.MapFile{Data: []byte(text)}
			most := 4
			if name == "proc/self/mountinfo" || name == "proc/self/cgroup" { // they tell all of cgroups
				most = 16
			}
			if n := len(unknown(Look(bad, Probes{}))); n > most {
				t.Errorf("%s as %q: %d capabilities unknown", name, text, n)
			}
		}
	}
}

func unknown(r *Report) []string {
	var names []string
	for _, c := range r.Capabilities {
		if c.State == Unknown {
			names = append(names, c.Name)
		}
	}
	return names
}

// TestCapability covers single facts that no golden tree shows.
func TestCapability(t *testing.T) {
	t.Parallel()
	host := join(base(), v2(), map[string]string{"proc/cpuinfo": cpuinfo("GenuineIntel", "sse")})
	user := map[string]string{"proc/self/status": status(1000, 0)}
	tests := map[string]struct {
		files  map[string]string
		name   string
		want   State
		reason string
		remedy string
	}{
		"idle by version":        {map[string]string{"sys/fs/cgroup/system.slice/cpu.weight": "-", "sys/fs/cgroup/system.slice/cpu.idle": "-", "sys/fs/cgroup/system.slice/cpu.max": "-"}, "cpu.idle", OK, "", ""},
		"idle too old":           {map[string]string{"sys/fs/cgroup/system.slice/cpu.idle": "-", "proc/sys/kernel/osrelease": "5.10.0"}, "cpu.idle", Missing, "older than 5.15", "kernel 5.15"},
		"idle not shown":         {map[string]string{"sys/fs/cgroup/system.slice/cpu.idle": "-", "proc/sys/kernel/osrelease": "6.8.0-31"}, "cpu.idle", Missing, "though kernel 6.8.0-31 is new enough", ""},
		"idle, no version":       {map[string]string{"sys/fs/cgroup/system.slice/cpu.idle": "-", "proc/sys/kernel/osrelease": "x"}, "cpu.idle", Missing, "no group shows the file", "kernel 5.15"},
		"idle untold":            {map[string]string{"sys/fs/cgroup/system.slice/cpu.weight": "-", "sys/fs/cgroup/system.slice/cpu.idle": "-", "sys/fs/cgroup/system.slice/cpu.max": "-", "proc/sys/kernel/osrelease": "x"}, "cpu.idle", Unknown, "version is unknown", ""},
		"no bandwidth control":   {map[string]string{"sys/fs/cgroup/system.slice/cpu.max": "-"}, "cpu", Limited, "bandwidth", "CONFIG_CFS_BANDWIDTH"},
		"sched_ext enabled":      {map[string]string{"sys/kernel/sched_ext/state": "enabled\n"}, "sched_ext", Limited, "no effect", "stop"},
		"autogroup on":           {map[string]string{"proc/sys/kernel/sched_autogroup_enabled": "1\n"}, "autogroup", Limited, "by session", "sched_autogroup_enabled=0"},
		"autogroup off":          {map[string]string{"proc/sys/kernel/sched_autogroup_enabled": "0\n"}, "autogroup", OK, "", ""},
		"autogroup unknown":      {map[string]string{"proc/sys/kernel/sched_autogroup_enabled": "-"}, "autogroup", OK, "", ""},
		"rights of a user":       {user, "cgroup-rights", Missing, "writable for user 1000", "Delegate=yes"},
		"rights beside net_cls":  {map[string]string{"proc/self/mountinfo": v2Mount + "70 31 0:70 / /sys/fs/cgroup/net_cls,net_prio ro - cgroup cgroup ro,net_cls,net_prio\n", "proc/self/cgroup": "10:net_cls,net_prio:/\n0::/\n"}, "cgroup-rights", OK, "", ""},
		"rights, memory in v1":   {map[string]string{"proc/self/mountinfo": v2Mount + "70 31 0:70 / /sys/fs/cgroup/memory ro - cgroup cgroup ro,memory\n", "proc/self/cgroup": "10:memory:/\n0::/\n"}, "cgroup-rights", Limited, "not memory: /sys/fs/cgroup/memory is mounted read-only", "writable"},
		"rights, mounted over":   {map[string]string{"proc/self/mountinfo": strings.Replace(v2Mount, "rw,nosuid", "ro,nosuid", 1) + v2Mount}, "cgroup-rights", OK, "", ""},
		"rights, bare tree":      {map[string]string{"sys/fs/cgroup/cgroup.subtree_control": "-"}, "cgroup-rights", Unknown, "subtree_control is absent", ""},
		"v2 hidden":              {map[string]string{"sys/fs/cgroup/cgroup.controllers": "-"}, "cgroup", Unknown, "cgroup.controllers", ""},
		"v2 hidden, cpu":         {map[string]string{"sys/fs/cgroup/cgroup.controllers": "-"}, "cpu", Unknown, "cgroup.controllers", ""},
		"v2, no membership":      {map[string]string{"proc/self/cgroup": "-"}, "cgroup", Unknown, "/proc/self/cgroup", ""},
		"v1, no membership":      {map[string]string{"proc/self/mountinfo": "70 31 0:70 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "proc/self/cgroup": "-"}, "cgroup", Unknown, "/proc/self/cgroup", ""},
		"v1, only named":         {map[string]string{"proc/self/mountinfo": "70 31 0:70 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n", "proc/self/cgroup": "1:name=systemd:/\n"}, "cgroup", Missing, "no cgroup file system", "mount"},
		"freezer too old":        {map[string]string{"proc/sys/kernel/osrelease": "5.1.9"}, "freezer", Missing, "older than 5.2", "kernel 5.2"},
		"bpf of a user":          {user, "bpf", Missing, "CAP_BPF", "sudo"},
		"bpf by two caps":        {map[string]string{"proc/self/status": status(1000, 1<<capBPF|1<<capPerfmon)}, "bpf", OK, "", ""},
		"bpf locked down":        {map[string]string{"sys/kernel/security/lockdown": "none integrity [confidentiality]"}, "bpf", Missing, "lockdown", "lockdown=integrity"},
		"bpf on an old kernel":   {map[string]string{"proc/sys/kernel/osrelease": "5.4.0"}, "bpf", Missing, "5.8", "5.8"},
		"fifo of a user":         {user, "fifo", Missing, "CAP_SYS_NICE", "sudo"},
		"fifo without limit":     {join(user, map[string]string{"proc/self/limits": "Max realtime priority unlimited unlimited\n"}), "fifo", OK, "", ""},
		"fifo, bad limit":        {join(user, map[string]string{"proc/self/limits": "Max realtime priority many many\n"}), "fifo", Unknown, "limits", ""},
		"fifo switched off":      {map[string]string{"proc/sys/kernel/sched_rt_runtime_us": "0\n"}, "fifo", Missing, "is 0", "sysctl"},
		"fifo unthrottled":       {map[string]string{"proc/sys/kernel/sched_rt_runtime_us": "-1\n"}, "fifo", OK, "", ""},
		"triggers of a user":     {user, "psi-triggers", Limited, "multiples of 2 s", "CAP_SYS_RESOURCE"},
		"triggers, old kernel":   {join(user, map[string]string{"proc/sys/kernel/osrelease": "6.3.9"}), "psi-triggers", Missing, "CAP_SYS_RESOURCE", "6.4"},
		"no PSI":                 {map[string]string{"proc/pressure/cpu": "-", "proc/pressure/io": "-", "proc/pressure/memory": "-"}, "psi", Missing, "PSI", "psi=1"},
		"smt off":                {map[string]string{"sys/devices/system/cpu/smt/control": "off\n"}, "smt", OK, "", ""},
		"smt on, no siblings":    {map[string]string{"sys/devices/system/cpu/smt/active": "0\n"}, "smt", NotApplicable, "second thread", ""},
		"one node":               {map[string]string{"sys/devices/system/node/online": "0\n"}, "numa", NotApplicable, "equally far", ""},
		"two nodes":              {map[string]string{"sys/devices/system/node/online": "0-1\n"}, "numa", OK, "", ""},
		"io not in the kernel":   {map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu\n", "proc/cgroups": "cpu\t0\t1\t1\n"}, "io", Missing, "no such controller", "io controller"},
		"weights, no controller": {map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu\n", "proc/cgroups": "cpu\t0\t1\t1\n"}, "io-weights", Missing, "a part of it", "see io"},
		"weights, no scheduler":  {map[string]string{"sys/fs/cgroup/io.cost.qos": "\n"}, "io-weights", Limited, "io.cost is not enabled", "docs/io.md"},
		"weights by io.cost":     {map[string]string{"sys/fs/cgroup/io.cost.qos": "254:0 enable=1 ctrl=auto\n"}, "io-weights", OK, "", ""},
		"weights by BFQ":         {map[string]string{"sys/block/sda/queue/scheduler": "none [bfq]\n"}, "io-weights", OK, "", ""},
		"latency":                {map[string]string{"sys/fs/cgroup/a/io.max": "\n", "sys/fs/cgroup/a/io.latency": "\n"}, "io-latency", OK, "", ""},
		"latency not built in":   {map[string]string{"sys/fs/cgroup/a/b/io.max": "\n"}, "io-latency", Missing, "IOLATENCY", "boot a kernel"},
		"io untold":              {map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu\n"}, "io", Unknown, "/proc/cgroups", ""},
		"io switched off":        {map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu\n", "proc/cgroups": "blkio\t0\t1\t0\n"}, "io", Missing, "off", "cgroup_disable=blkio"},
		"io not given":           {map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu\n", "proc/cgroups": "blkio\t0\t1\t1\n"}, "io", Missing, "not given", "subtree_control"},
		"no cgroups":             {map[string]string{"proc/self/mountinfo": "22 27 0:21 / /proc rw - proc proc rw\n"}, "cgroup", Missing, "no cgroup file system", "mount -t cgroup2"},
		"v2 without any":         {map[string]string{"sys/fs/cgroup/cgroup.controllers": "\n"}, "cgroup", Limited, "no controllers", "host"},
		"virtual machine":        {map[string]string{"proc/cpuinfo": cpuinfo("GenuineIntel", "hypervisor"), "sys/class/dmi/id/sys_vendor": "QEMU\n", "sys/class/dmi/id/product_name": "Standard PC\n"}, "hypervisor", Limited, "steal", "bare metal"},
		"arm virtual machine":    {map[string]string{"proc/cpuinfo": "Features\t: fp\n", "sys/class/dmi/id/sys_vendor": "QEMU\n"}, "hypervisor", Limited, "steal", "bare metal"},
		"no frequency driver":    {nil, "cpufreq", Missing, "firmware", "firmware"},
		"resctrl without L3":     {map[string]string{"proc/filesystems": "nodev resctrl\n", "sys/fs/resctrl/info/MB/num_closids": "8\n"}, "cache-ways", Missing, "no cache allocation", ""},
		"resctrl, bad number":    {map[string]string{"proc/filesystems": "nodev resctrl\n", "sys/fs/resctrl/info/L3/num_closids": "x\n"}, "cache-ways", Unknown, "num_closids", ""},
		"resctrl not in kernel":  {map[string]string{"proc/cpuinfo": cpuinfo("GenuineIntel", "cat_l3")}, "cache-ways", Missing, "kernel has no resctrl", "CONFIG_X86_CPU_RESCTRL"},
		"paranoid":               {join(user, map[string]string{"proc/sys/kernel/perf_event_paranoid": "4\n"}), "pmu", Missing, "paranoid is 4", "sysctl"},
		"kubelet, none":          {map[string]string{"var/lib/kubelet/cpu_manager_state": `{"policyName":"none","defaultCpuSet":""}`}, "kubelet", OK, "", ""},
		"kubelet, no state":      {map[string]string{"var/lib/kubelet/config.yaml": ""}, "kubelet", OK, "", ""},
		"kubelet, pods only":     {map[string]string{"sys/fs/cgroup/kubepods/x": ""}, "kubelet", OK, "", ""},
		"bad drop-in":            {map[string]string{"etc/systemd/system/user@.service.d/x.conf/y": ""}, "delegation", Unknown, "x.conf", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Look(tree(t, "", host, test.files), Probes{})
			got, found := report.Get(test.name)
			if !found || got.State != test.want || !strings.Contains(got.Reason, test.reason) || !strings.Contains(got.Remedy, test.remedy) {
				t.Errorf("got %+v\nwant %s, reason %q, remedy %q", got, test.want, test.reason, test.remedy)
			}
		})
	}
}

// TestFreezerOfHybrid: where v1 has the freezer, Berth freezes there.
func TestFreezerOfHybrid(t *testing.T) {
	t.Parallel()
	got, _ := Look(tree(t, "", base(), hybrid()), Probes{}).Get("freezer")
	if got.State != OK || got.Found != "v1 at /sys/fs/cgroup/freezer" {
		t.Errorf("got %+v", got)
	}
}

// TestUser looks at what an ordinary user is promised, without a delegated
// group and with one that has some of the controllers.
func TestUser(t *testing.T) {
	t.Parallel()
	const unit = "user.slice/user-1000.slice/user@1000.service"
	fsys := tree(t, "2c", base(), v2(), map[string]string{
		"proc/self/status": status(1000, 0),
		"sys/fs/cgroup/" + unit + "/cgroup.controllers":        "cpu memory pids\n",
		"sys/fs/cgroup/" + unit + "/cgroup.subtree_control":    "\n",
		"sys/fs/cgroup/" + unit + "/cgroup.procs":              "",
		"sys/fs/cgroup/" + unit + "/cgroup.type":               "domain\n",
		"sys/fs/cgroup/" + unit + "/app.scope/cgroup.procs":    "7\n",
		"sys/fs/cgroup/user.slice/user-1000.slice/cgroup.type": "domain\n",
	})
	for _, name := range []string{"", "/cgroup.subtree_control", "/cgroup.procs"} {
		file := fsys["sys/fs/cgroup/"+unit+name]
		if file == nil {
			file = &fstest.MapFile{Mode: fs.ModeDir}
			fsys["sys/fs/cgroup/"+unit+name] = file
		}
		file.Mode |= 0o755
		file.Sys = &syscall.Stat_t{Uid: 1000}
	}
	tests := map[string]struct {
		group                string
		rights               Capability
		fully, lesser, never []string
	}{
		"session": {
			group: "/user.slice/user-1000.slice/session-1.scope", rights: Capability{State: Missing, Found: "user 1000 may make no groups"},
			lesser: []string{"pin to CPUs", "freeze"}, never: []string{"cap CPU time", "limit memory", "limit I/O"},
		},
		"delegated": {
			group: "/" + unit + "/app.scope", rights: Capability{State: Limited, Found: "user 1000: cpu cpuacct freezer memory pids"},
			fully: []string{"cap CPU time", "limit memory", "freeze"}, lesser: []string{"pin to CPUs"}, never: []string{"limit I/O"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := maps.Clone(fsys)
			own["proc/self/cgroup"] = &fstest.MapFile{Data: []byte("0::" + test.group + "\n")}
			report := Look(own, Probes{})
			if got, _ := report.Get("cgroup-rights"); got.State != test.rights.State || got.Found != test.rights.Found {
				t.Errorf("got %+v", got)
			}
			for _, pair := range []struct{ want, got []string }{
				{test.fully, report.Summary.Fully}, {test.lesser, report.Summary.Lesser}, {test.never, report.Summary.Not},
			} {
				for _, ability := range pair.want {
					if !slices.Contains(pair.got, ability) {
						t.Errorf("%q is not among %q", ability, pair.got)
					}
				}
			}
		})
	}
}

func TestHardwareCounterProbe(t *testing.T) {
	t.Parallel()
	privileged := join(base(), map[string]string{"proc/cpuinfo": cpuinfo("GenuineIntel", "sse")})
	user := join(privileged, map[string]string{"proc/self/status": status(1000, 0)})
	tests := map[string]struct {
		files  map[string]string
		err    error
		want   State
		reason string
	}{
		"works":       {privileged, nil, OK, ""},
		"none":        {privileged, syscall.ENOENT, Missing, "no hardware counter"},
		"unsupported": {privileged, syscall.EOPNOTSUPP, Missing, "no hardware counter"},
		"forbidden":   {user, syscall.EACCES, Missing, "perf_event_paranoid is 2"},
		"filtered":    {privileged, syscall.EPERM, Missing, "seccomp"},
		"strange":     {privileged, errors.New("no idea"), Unknown, "no idea"},
	}
	for name, test := range tests {
		report := Look(tree(t, "", test.files), Probes{HardwareCounter: func() error { return test.err }})
		got, _ := report.Get("pmu")
		if got.State != test.want || !strings.Contains(got.Reason, test.reason) {
			t.Errorf("%s: got %s, %q; want %s, %q", name, got.State, got.Reason, test.want, test.reason)
		}
	}
}

func TestPressureSwitchedOff(t *testing.T) {
	t.Parallel()
	fsys := fakekernel.Refusing{FS: tree(t, "", base(), v2()), Name: "proc/pressure/cpu", Err: syscall.EOPNOTSUPP}
	got, _ := Look(fsys, Probes{}).Get("psi")
	if got.State != Missing || !strings.Contains(got.Remedy, "psi=1") {
		t.Errorf("got %+v", got)
	}
}

func TestUnifiedMount(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fsys    fs.FS
		want    string
		wantErr bool
	}{
		"v2":     {tree(t, "", v2()), "sys/fs/cgroup", false},
		"hybrid": {tree(t, "", hybrid()), "sys/fs/cgroup/unified", false},
		"bind mount first": {tree(t, "", v2(), map[string]string{"run/cilium/cgroupv2/cgroup.controllers": "cpu\n",
			"proc/self/mountinfo": "30 23 0:29 /kubepods /run/cilium/cgroupv2 rw - cgroup2 cgroup2 rw\n" + v2Mount}), "sys/fs/cgroup", false},
		"hidden":    {tree(t, "", v2(), map[string]string{"sys/fs/cgroup/cgroup.controllers": "-"}), "", true},
		"no tree":   {fstest.MapFS{}, "", false},
		"malformed": {tree(t, "", v2(), map[string]string{"proc/self/mountinfo": "x"}), "", true},
	}
	for name, test := range tests {
		got, err := UnifiedMount(test.fsys)
		if got != test.want || (err != nil) != test.wantErr {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

// TestSameMountAsBerth: of several v2 mounts the doctor speaks of the one that
// cgroup.Detect chooses.
func TestSameMountAsBerth(t *testing.T) {
	t.Parallel()
	const other = "90 23 0:29 / /run/cilium/cgroupv2 rw - cgroup2 cgroup2 rw\n"
	readOnly := strings.Replace(v2Mount, "rw,nosuid", "ro,nosuid", 1)
	for name, mounts := range map[string]string{
		"second mount":    v2Mount + other,
		"other first":     other + v2Mount,
		"read-only first": readOnly + other,
		"mounted over":    v2Mount + other + readOnly,
	} {
		fsys := tree(t, "", v2(), map[string]string{"proc/self/mountinfo": mounts, "run/cilium/cgroupv2/cgroup.controllers": "cpu\n"})
		host, err := cgroup.Detect(kernel.NewRoot("/", reading{fsys}))
		if err != nil || len(host.Hierarchies) != 1 {
			t.Fatalf("%s: %v, %v", name, host, err)
		}
		if got, err := UnifiedMount(fsys); err != nil || got != host.Hierarchies[0].Dir {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, host.Hierarchies[0].Dir)
		}
	}
}

func FuzzProcess(f *testing.F) {
	f.Add(status(0, allCaps), noLimit, cpuinfo("GenuineIntel", "sse"), "6.18.1")
	f.Add("Uid:\nCapEff:", "Max realtime priority", "flags:", ".")
	f.Fuzz(func(t *testing.T, status, limits, info, release string) {
		fsys := tree(t, "", base(), map[string]string{
			"proc/self/status": status, "proc/self/limits": limits, "proc/cpuinfo": info, "proc/sys/kernel/osrelease": release,
		})
		for _, c := range Look(fsys, Probes{}).Capabilities {
			if c.State == "" || c.Found == "" {
				t.Errorf("%+v", c)
			}
		}
	})
}

func BenchmarkLook(b *testing.B) {
	fsys := os.DirFS("/")
	b.ReportAllocs()
	for b.Loop() {
		Look(fsys, Probes{})
	}
}
