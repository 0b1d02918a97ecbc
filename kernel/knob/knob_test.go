package knob

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A row is complete, and consistent with the others.
func TestTable(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for i, k := range All() {
		if k.Name == "" || names[k.Name] || k.Words == "" || len(k.V2) == 0 || k.Kind == Group && k.Controller == "" {
			t.Errorf("row %d, %q: without a name of its own, words, a v2 file or a controller", i, k.Name)
		}
		names[k.Name] = true
		if k.ReadOnly {
			continue
		}
		key := ""
		if k.Key != nil {
			key = "8:0"
		}
		if err := (Settings{ID{k, key}: k.Default}).Check(); err != nil {
			t.Errorf("%s: its default: %v", k.Name, err)
		}
		if err := (Settings{ID{k, "sda"}: k.Default}).Check(); err == nil {
			t.Errorf("%s: a key that it cannot have is accepted", k.Name)
		}
		for _, f := range k.files() {
			if v, ok := f.Value(key, f.Text(key, k.Default)); k.Default != "" && f.Beside == "" && (!ok || v != k.Default) {
				t.Errorf("%s: default %q is %q, %v in %s", k.Name, k.Default, v, ok, f.Name)
			}
			if row, of := OfFile(f.Name); row == nil || of.Name != f.Name {
				t.Errorf("%s: file %s is not found", k.Name, f.Name)
			}
		}
		for _, locked := range k.Locks {
			if j := slices.IndexFunc(All(), func(o *Knob) bool { return o.Name == locked }); j <= i {
				t.Errorf("%s locks %s, which is not below it in the table", k.Name, locked)
			}
		}
	}
	if k, f := OfFile("cgroup.procs"); k != nil || f != nil {
		t.Errorf("cgroup.procs is a file of %v, %v", k, f)
	}
	if k, f := OfFile("cpu.cfs_period_us"); k == nil || k.Name != "quota" || f.Beside != "cpu.cfs_period_us" {
		t.Errorf("cpu.cfs_period_us is a file of %v, %v", k, f)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, key, value, file, text, back string }{ // back "" is value
		{"weight", "", "250", "cpu.weight", "250", ""},
		{"weight", "", "250", "cpu.shares", "2560", ""},
		{"weight", "", "1", "cpu.shares", "10", ""},
		{"weight", "", "10000", "cpu.shares", "102400", ""},
		{"idle", "", "1", "sched.policy", "SCHED_IDLE", ""},
		{"idle", "", "0", "sched.policy", "SCHED_OTHER", ""},
		{"weight", "", "1", "sched.nice", "19", ""},
		{"weight", "", "100", "sched.nice", "0", ""},
		{"weight", "", "6", "sched.nice", "13", "5"},
		{"weight", "", "10000", "sched.nice", "-20", "8674"},
		{"ioWeight", "", "2000", "io.weight", "default 2000", ""},
		{"ioWeight", "", "2000", "io.bfq.weight", "default 1000", "1000"},
		{"ioWeight", "", "2000", "blkio.weight", "1000", "200"},
		{"ioWeight", "", "30", "blkio.bfq.weight", "30", ""},
		{"memoryMax", "", "max", "memory.limit_in_bytes", "9223372036854775807", ""},
		{"memoryMax", "", "4096", "memory.limit_in_bytes", "4096", ""},
		{"readBPS", "8:0", "5", "io.max", "8:0 rbps=5", ""},
		{"readBPS", "8:0", "max", "io.max", "8:0 rbps=max", ""},
		{"readBPS", "8:0", "max", "blkio.throttle.read_bps_device", "8:0 0", ""},
		{"writeIOPS", "8:16", "7", "blkio.throttle.write_iops_device", "8:16 7", ""},
		{"ioDeviceWeight", "8:0", "250", "io.weight", "8:0 250", ""},
		{"ioDeviceWeight", "8:0", "max", "io.weight", "8:0 default", ""},
		{"bfqDeviceWeight", "8:0", "250", "io.bfq.weight", "8:0 250", ""},
		{"bfqDeviceWeight", "8:0", "max", "blkio.bfq.weight_device", "8:0 default", ""},
		{"ioLatency", "8:0", "75", "io.latency", "8:0 target=75", ""},
		{"ioLatency", "8:0", "max", "io.latency", "8:0 target=max", ""},
		{"hugePages2Mi", "", "8388608", "hugetlb.2MB.max", "8388608", ""},
		{"hugePages1Gi", "", "max", "hugetlb.1GB.max", "max", ""},
		{"hugePages64Ki", "", "max", "hugetlb.64KB.limit_in_bytes", "9223372036854775807", ""},
		{"frozen", "", "1", "freezer.state", "FROZEN", ""},
		{"frozen", "", "0", "cgroup.freeze", "0", ""},
	} {
		k := Find(tc.name)
		files := append(k.files(), k.Process...)
		i := slices.IndexFunc(files, func(f File) bool { return f.Name == tc.file })
		f := files[i]
		if got := f.Text(tc.key, tc.value); got != tc.text {
			t.Errorf("%s %s in %s is %q, want %q", tc.name, tc.value, tc.file, got, tc.text)
		}
		want := tc.back
		if want == "" {
			want = tc.value
		}
		if got, ok := f.Value(tc.key, tc.text+"\n"); !ok || got != want {
			t.Errorf("%s: %q of %s is %q, %v; want %q", tc.name, tc.text, tc.file, got, ok, want)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "50000\n", "cpu.shares": "1024\n", "io.max": "8:16 rbps=1 wbps=max\n8:0 rbps=9 wbps=max\n",
		"memory.limit_in_bytes": "9223372036854771712\n", "freezer.state": "FREEZING\n",
	}
	get := func(name string) (string, bool) { text, ok := files[name]; return text, ok }
	for _, tc := range []struct{ name, key, want string }{
		{"quota", "", "max 50000"}, {"weight", "", "100"}, {"readBPS", "8:0", "9"}, {"writeBPS", "8:0", "max"},
		{"readBPS", "8:1", ""}, {"idle", "", ""}, {"memoryMax", "", "max"}, {"frozen", "", "1"}, {"readIOPS", "8:0", ""},
	} {
		if got, ok := Find(tc.name).Read(tc.key, get); got != tc.want || ok != (tc.want != "") {
			t.Errorf("%s %s is %q, %v; want %q", tc.name, tc.key, got, ok, tc.want)
		}
	}
}

// A line of a file is decided on by the setting of its key only.
func TestNamedLine(t *testing.T) {
	t.Parallel()
	all := Settings{ID{Knob: Find("ioWeight")}: "50", {Find("ioDeviceWeight"), "8:0"}: "20", {Find("readBPS"), "8:0"}: "5", {Knob: Find("idle")}: "0"}
	for _, tc := range []struct {
		file, key string
		want      bool
	}{
		{"io.weight", "default", true}, {"io.weight", "8:0", true}, {"io.weight", "8:16", false}, {"io.max", "8:0", true}, {"io.max", "8:16", false},
		{"blkio.bfq.weight", "50", true}, {"cpu.weight", "100", true}, {"io.latency", "8:0", false},
	} {
		if got := all.Named(tc.file, tc.key); got != tc.want {
			t.Errorf("%s %s: %v", tc.file, tc.key, got)
		}
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, narrow, wide string }{
		{"weight", "9", "10"}, {"idle", "1", "0"}, {"frozen", "1", "0"}, {"memoryHigh", "4096", "max"}, {"memoryLow", "0", "1"},
		{"quota", "90000 200000", "50000 100000"}, {"quota", "50000 100000", "max 100000"}, {"cpus", "4-5", "0-2"}, {"cpus", "0-2", ""},
		{"readBPS", "1", "max"}, {"ioLatency", "max", "75"}, {"ioLatency", "80", "75"},
	} {
		k := Find(tc.name)
		if k.Compare(tc.narrow, tc.wide) >= 0 || k.Compare(tc.wide, tc.narrow) <= 0 || k.Compare(tc.wide, tc.wide) != 0 {
			t.Errorf("%s: %s is not narrower than %s", tc.name, tc.narrow, tc.wide)
		}
	}
	if n := Find("partition").Compare("root", "member"); n != 0 {
		t.Errorf("partitions compare as %d", n)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ setting, value, wrong string }{ // wrong "" is right
		{"weight", "0", "not 1 to 10000"}, {"weight", "10001", "not 1 to 10000"}, {"weight", "max", "not a number"}, {"weight", "10000", ""},
		{"pidsMax", "-1", "less than 0"}, {"pidsMax", "max", ""}, {"memoryHigh", "1e3", "not a number"},
		{"quota", "999 100000", "less than 1 ms"}, {"quota", "1000 999", "not 1 ms to 1 s"}, {"quota", "max", "not a quota"},
		{"cpus", "3-1", "3-1"}, {"cpus", "", ""}, {"idle", "2", "not 0, 1"}, {"partition", "mine", "member"},
	} {
		err := Settings{ID{Knob: Find(tc.setting)}: tc.value}.Check()
		if (err == nil) != (tc.wrong == "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
			t.Errorf("%s %q: %v, want %q", tc.setting, tc.value, err, tc.wrong)
		}
	}
	idle, weight := ID{Knob: Find("idle")}, ID{Knob: Find("weight")}
	if err := (Settings{idle: "1", weight: "5"}).Check(); err == nil || !strings.Contains(err.Error(), "an idle group's weight is locked") {
		t.Errorf("the weight of an idle group: %v", err)
	}
	if err := (Settings{idle: "0", weight: "5"}).Check(); err != nil {
		t.Errorf("the weight of a group that is not idle: %v", err)
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	settings := Settings{ID{Knob: Find("weight")}: "5", ID{Knob: Find("quota")}: "max 100000", ID{Find("readBPS"), "8:0"}: "1"}
	for file, want := range map[string]bool{
		"cpu.weight": true, "cpu.shares": true, "cpu.idle": true, "cpu.cfs_period_us": true, "cpu.max.burst": true, "io.max 8:0": true,
		"io.max 8:1": false, "memory.high": false, "cgroup.procs": false,
	} {
		name, key, _ := strings.Cut(file, " ")
		if got := settings.Named(name, key); got != want {
			t.Errorf("%s is named: %v", file, got)
		}
	}
}

func TestReaches(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]bool{
		"weight 101": true, "weight 100": false, "weight 1": false, "ioWeight 200": true, "memoryLow 4096": true, "memoryLow 0": false,
		"frozen 0": true, "memoryMax 1": false, "quota max 100000": false,
	} {
		name, value, _ := strings.Cut(setting, " ")
		if got := Find(name).Reaches(value); got != want {
			t.Errorf("%s reaches others: %v", setting, got)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	settings := Settings{ID{Find("memoryHigh"), ""}: "4096", ID{Find("readBPS"), "8:0"}: "max"}
	text, err := json.Marshal(settings)
	if err != nil || string(text) != `{"memoryHigh":"4096","readBPS 8:0":"max"}` {
		t.Errorf("%s, %v", text, err)
	}
}

// What a group loses with a controller is what it has when it is new.
func TestFresh(t *testing.T) {
	t.Parallel()
	want := map[string]map[string]string{
		"cpu": {
			"cpu.weight": "100", "cpu.idle": "0", "cpu.max": "max 100000", "cpu.max.burst": "0",
			"cpu.uclamp.min": "0.00", "cpu.uclamp.max": "max",
		},
		"cpuset": {"cpuset.cpus": "", "cpuset.mems": "", "cpuset.cpus.exclusive": "", "cpuset.cpus.partition": "member"},
		"memory": {
			"memory.max": "max", "memory.high": "max", "memory.low": "0", "memory.min": "0", "memory.oom.group": "0",
			"memory.swap.max": "max", "memory.swap.high": "max", "memory.zswap.max": "max",
		},
		"io":      {"io.weight": "default 100", "io.bfq.weight": "default 100", "io.max": "", "io.latency": ""},
		"pids":    {"pids.max": "max"},
		"cpuacct": {},
	}
	for controller, files := range want {
		if diff := cmp.Diff(files, Fresh(controller)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", controller, diff)
		}
	}
}

func TestBesides(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"idle":  {"cpu.weight", "cpu.shares", "cpu.weight.nice"},
		"cpus":  {"cpuset.cpus.effective", "cpuset.effective_cpus"},
		"burst": nil,
	} {
		if diff := cmp.Diff(want, Find(name).Besides()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
