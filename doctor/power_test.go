package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakespeed"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
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

// Priorities of cores and turbo by priority are told with what the device has, or the reason and what helps.
func TestSpeedSelect(t *testing.T) {
	t.Parallel()
	const intel, amd = "vendor_id\t: GenuineIntel\nflags\t\t: fpu\n", "vendor_id\t: AuthenticAMD\nflags\t\t: fpu\n"
	for what, tc := range map[string]struct {
		cpuinfo string
		device  bool
		set     func(*fakespeed.Device) // nil is a tree without answers of the device
		want    State
		text    string // of what was found, or the reason
	}{
		"all":           {intel, true, func(*fakespeed.Device) {}, OK, "2 packages, priorities of cores, turbo by priority"},
		"no turbo":      {intel, true, func(d *fakespeed.Device) { d.Package(1).Turbo = "" }, Limited, "not all have turbo by priority (SST-TF)"},
		"no priorities": {intel, true, func(d *fakespeed.Device) { d.Package(1).CorePower = "" }, Missing, "not all have priorities of cores (SST-CP)"},
		"not root":      {intel, true, func(d *fakespeed.Device) { d.Err = fs.ErrPermission }, Limited, "this user may not use /dev/isst_interface"},
		"broken":        {intel, true, func(d *fakespeed.Device) { d.Err = errors.New("mailbox is busy") }, Limited, "mailbox is busy"},
		"a tree":        {intel, true, nil, Limited, "a tree has no answers"},
		"no module":     {intel, false, func(d *fakespeed.Device) { d.Err = fs.ErrNotExist }, Missing, "no /dev/isst_interface"},
		"virtual":       {strings.Replace(intel, "fpu", "fpu hypervisor", 1), false, nil, Missing, "hypervisor"},
		"AMD":           {amd, false, nil, NotApplicable, "only servers of Intel"},
	} {
		host := fstest.MapFS{"proc/cpuinfo": {Data: []byte("processor\t: 0\n" + tc.cpuinfo)}}
		if tc.device {
			host["dev/isst_interface"] = &fstest.MapFile{}
		}
		probes := Probes{}
		if tc.set != nil {
			dir := t.TempDir()
			k, err := fakekernel.NewPower(dir, fakekernel.PowerHosts()["intel_pstate"])
			if err != nil {
				t.Fatal(err)
			}
			d := fakespeed.New(k.FS(), 4, 2, 1)
			tc.set(d)
			probes.Power = func() (*power.Host, error) { return power.Read(power.Lay(kernel.NewRoot(dir, k), d).FS()) }
		}
		c, _ := Look(host, probes).Get("speed-select")
		if c.State != tc.want || !strings.Contains(c.Found+" "+c.Reason, tc.text) || c.State == Limited && c.Remedy == "" {
			t.Errorf("%s: %+v, want %s, %q", what, c, tc.want, tc.text)
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
