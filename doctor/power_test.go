package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"berth.dev/berth/internal/fakekernel"
)

// Each kind of driver is told with what it has.
func TestPower(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]map[string]State{
		"intel_pstate":   {"cpufreq": Limited, "energy-preference": OK, "cpuidle": OK, "uncore": OK, "energy": Missing},
		"amd-pstate-epp": {"cpufreq": Limited, "energy-preference": OK, "cpuidle": OK, "uncore": NotApplicable},
		"acpi-cpufreq":   {"cpufreq": Limited, "energy-preference": Missing, "cpuidle": OK},
		"intel_cpufreq":  {"cpufreq": Limited, "energy-preference": OK, "cpuidle": OK},
		"amd-pstate":     {"cpufreq": Limited, "energy-preference": Missing, "cpuidle": OK},
		"cppc_cpufreq":   {"cpufreq": Limited, "energy-preference": Missing, "cpuidle": Missing},
		"virtual":        {"cpufreq": Missing, "energy-preference": Missing, "cpuidle": OK},
	} {
		dir := t.TempDir()
		if _, err := fakekernel.NewPower(dir, fakekernel.PowerHosts()[host]); err != nil {
			t.Fatal(err)
		}
		r := Look(os.DirFS(dir), Probes{})
		for name, state := range want {
			if c, ok := r.Get(name); !ok || c.State != state || state == Missing && (c.Reason == "" || c.Without == "") {
				t.Errorf("%s: %+v, want %s", host, c, state)
			}
		}
		if c, _ := r.Get("cpuidle"); host == "intel_pstate" && c.Found != "intel_idle, 4 states, the deepest C6 (133 µs to leave)" {
			t.Errorf("cpuidle: %q", c.Found)
		}
		if c, _ := r.Get("uncore"); host == "intel_pstate" && c.Found != "1 die, 1.2 to 2.4 GHz" {
			t.Errorf("uncore: %q", c.Found)
		}
	}
}

// Priorities and turbo of SST are never set: what is lacking, or that Berth is, is told with
// the reason and what helps.
func TestSpeedSelect(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cpuinfo string
		mailbox bool
		want    State
		reason  string
	}{
		{"vendor_id\t: GenuineIntel\nflags\t\t: fpu\n", true, Limited, "SST-CP, SST-TF"},
		{"vendor_id\t: GenuineIntel\nflags\t\t: fpu\n", false, Missing, "no /dev/isst_interface"},
		{"vendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\n", false, Missing, "hypervisor"},
		{"vendor_id\t: AuthenticAMD\nflags\t\t: fpu\n", false, NotApplicable, "only servers of Intel"},
	} {
		host := fstest.MapFS{"proc/cpuinfo": {Data: []byte("processor\t: 0\n" + tc.cpuinfo)}}
		if tc.mailbox {
			host["dev/isst_interface"] = &fstest.MapFile{}
		}
		c, _ := Look(host, Probes{}).Get("speed-select")
		if c.State != tc.want || !strings.Contains(c.Reason, tc.reason) || c.State == Limited && c.Remedy == "" {
			t.Errorf("%q, mailbox %v: %+v, want %s", tc.cpuinfo, tc.mailbox, c, tc.want)
		}
	}
}

func TestEnergy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"intel-rapl:0/name": "package-0\n", "intel-rapl:0/energy_uj": "5\n", "intel-rapl:0:0/name": "core\n", "intel-rapl:0:1/name": "dram\n"} {
		name = filepath.Join(dir, "sys/class/powercap", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if c, _ := Look(os.DirFS(dir), Probes{}).Get("energy"); c.State != OK || c.Found != "package-0, dram" {
		t.Errorf("%+v", c)
	}
}
