package power

import (
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"profiles: {a: {like: power}}":                                                   "",
		"profiles: {a: {min: 60%, max: 2.4GHz, wakeLatency: 0us}}":                       "",
		"profiles: {a: {min: 0%, max: 100%}}":                                            "",
		"service: {LSE: performance, BE: power}\nshared: balance-power\nreserved: power": "",
		"profiles: {a: }":                                                          "profiles.a: it says nothing",
		"profiles: {power: {like: power}}":                                         `profiles.power: the name "power" is taken`,
		"profiles: {none: {like: power}}":                                          `profiles.none: the name "none" is taken`,
		"profiles: {a/b: {like: power}}":                                           `is not a name`,
		"profiles: {a: {like: fast}}":                                              `profiles.a.like: "fast" is not built in`,
		"profiles: {a: {governor: ../x}}":                                          `profiles.a.governor: "../x" is no governor`,
		"profiles: {a: {preference: fast}}":                                        `profiles.a.preference: "fast" is not`,
		"profiles: {a: {preference: '256'}}":                                       `profiles.a.preference: "256" is not`,
		"profiles: {a: {bias: 16}}":                                                "energy bias 16",
		"profiles: {a: {min: 101%}}":                                               `profiles.a.min: "101%" is no frequency`,
		"profiles: {a: {min: '2400000'}}":                                          `profiles.a.min: "2400000" is no frequency`,
		"profiles: {a: {max: NaNGHz}}":                                             `profiles.a.max: "NaNGHz" is no frequency`,
		"profiles: {a: {max: 0GHz}}":                                               `profiles.a.max: "0GHz" is no frequency`,
		"profiles: {a: {min: 60%, max: 40%}}":                                      "profiles.a.min: 60% is above max, 40%",
		"profiles: {a: {uncoreMin: 50%}}":                                          "is a frequency",
		"profiles: {a: {uncoreMin: 2GHz, uncoreMax: 1GHz}}":                        "is above the upper one",
		"profiles: {a: {idleLatency: '10'}}":                                       `profiles.a.idleLatency: "10" is no time`,
		"profiles: {a: {wakeLatency: -1us}}":                                       `"-1us" is no time`,
		"profiles: {a: {wakeLatency: 1500ns}}":                                     `"1500ns" is no time`,
		"profiles: {a: {wakeLatency: 2s}}":                                         `"2s" is no time`,
		"profiles: {a: {speedSelect: {turbo: true}}}":                              "",
		"profiles: {a: {speedSelect: {}}}":                                         "",
		"profiles: {a: {speedSelect: {priority: 4}}}":                              "profiles.a.speedSelect: priority 4 of cores: want 0",
		"profiles: {a: {speedSelect: {priority: -1}}}":                             "profiles.a.speedSelect: priority -1",
		"profiles: {a: {speedSelect: {priority: 2, turbo: true}}}":                 "profiles.a.speedSelect: turbo with priority 2",
		"profiles: {a: {speedSelect: {weight: 2}}}":                                "weight",
		"service: {FAST: power}":                                                   `service.FAST: "FAST" is no class of service`,
		"service: {BE: powr}":                                                      `service.BE: there is no profile "powr"; did you mean "power"?`,
		"shared: eco":                                                              `shared: there is no profile "eco"`,
		"reserved: eco":                                                            `reserved: there is no profile "eco"`,
		"schedules: [{from: '22:00', to: '06:00', shared: none}]":                  "",
		"schedules: [{from: '24:00', to: '06:00', shared: power}]":                 `schedules[0].from: "24:00" is no time of day`,
		"schedules: [{from: '6:00', to: '07:00', shared: power}]":                  `"6:00" is no time of day`,
		"schedules: [{from: '06:00', shared: power}]":                              `schedules[0].to: "" is no time of day`,
		"schedules: [{from: '06:00', to: '06:00', shared: power}]":                 "it ends when it begins",
		"schedules: [{from: '06:00', to: '07:00'}]":                                "schedules[0]: it has no profile",
		"schedules: [{from: '06:00', to: '07:00', shared: powr}]":                  `schedules[0].shared: there is no profile "powr"`,
		"schedules: [{from: '06:00', to: '07:00', service: {LSF: power}}]":         `schedules[0].service.LSF: "LSF" is no class`,
		"schedules: [{from: '06:00', to: '07:00', shared: power, days: [monday]}]": `schedules[0].days[0]: "monday" is no day`,
		"sharde: power":                                                            "sharde",
	} {
		c := &Config{}
		_, err := strictyaml.Decode([]byte(text), "c.yaml", c)
		if err == nil {
			err = c.Validate()
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	var none *Config
	if none.Validate() != nil || !none.Has("power") || none.OfService("LSE") != "" || none.Pools() || none.Find("power").Like != "power" {
		t.Error("without a configuration there are the built-in profiles")
	}
}

// FuzzAmounts: what is read as a frequency, a latency or a time of day is one within bounds.
func FuzzAmounts(f *testing.F) {
	for _, text := range []string{"", "60%", "2.4GHz", "800MHz", "1e9GHz", "-1%", "infGHz", "0x1p3MHz", "10us", "1h", "-1us", "06:30", "24:00", "6:5"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, percent, err := parseClock(text)
		if err == nil && (n < 0 || percent && n > 100 || n > 100_000_000) {
			t.Errorf("%q: %d", text, n)
		}
		if us, err := parseLatency(text); err == nil && us != nil && (*us < 0 || *us > 1_000_000) {
			t.Errorf("%q: %d µs", text, *us)
		}
		if m, err := minutes(text); err == nil && (m < 0 || m >= 24*60) {
			t.Errorf("%q: minute %d", text, m)
		}
	})
}

// Own profiles: shares of the range, and what goes over a built-in one.
func TestOwnProfile(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		host    string
		profile Profile
		want    string
	}{
		{"intel_pstate", Profile{Min: "50%", Max: "100%"}, "cpufreq/policy0/scaling_min_freq 2250000"},
		{"acpi-cpufreq", Profile{Min: "50%"}, "cpufreq/policy0/scaling_min_freq 2600000"}, // the next step up
		{"acpi-cpufreq", Profile{Max: "50%"}, "cpufreq/policy0/scaling_max_freq 1800000"},
		{"intel_pstate", Profile{Governor: performance, Preference: "power"}, "admits no other"},
		{"intel_pstate", Profile{Like: "power", Preference: "balance_power", Max: "1GHz"}, `
			cpufreq/policy0/energy_performance_preference balance_power
			cpufreq/policy0/scaling_max_freq 1000000
			cpu0/power/energy_perf_bias 15`},
		{"virtual", Profile{WakeLatency: "20us"}, "cpu0/power/pm_qos_resume_latency_us 20"},
		{"virtual", Profile{Max: "50%"}, "frequency scaling: not supported"},
		{"acpi-cpufreq", Profile{Bias: of(3)}, "energy bias: not supported"},
	} {
		_, root := played(t, tc.host)
		h := read(t, root)
		cpus := cpuset.MustParse("0")
		if tc.host == "acpi-cpufreq" {
			cpus = cpuset.MustParse("0-1")
		}
		d, err := h.Divide([]Wish{{Who: "a", CPUs: cpus, Name: "own", Profile: tc.profile}}, nothing, never)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range d.Plan {
			got = append(got, strings.TrimPrefix(s.Path, cpuDir+"/")+" "+s.Value)
		}
		if err := d.Errs[0]; err != nil {
			if len(got) > 0 {
				t.Errorf("%s %+v: in part: %q", tc.host, tc.profile, got)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s %+v: %v, want %q", tc.host, tc.profile, err, tc.want)
			}
			continue
		}
		if text, want := strings.Join(got, "\n"), strings.ReplaceAll(strings.TrimSpace(tc.want), "\t", ""); text != want {
			t.Errorf("%s %+v:\n%s\nwant\n%s", tc.host, tc.profile, text, want)
		}
	}
}

func nothing(string) (string, bool) { return "", false }
func never(string) bool             { return false }

// What CPUs share has what its strongest wish asks for.
func TestDivide(t *testing.T) {
	t.Parallel()
	_, root := played(t, "intel_pstate")
	h := read(t, root)
	wish := func(cpus string, p Profile) Wish { return Wish{CPUs: cpuset.MustParse(cpus), Profile: p} }
	off, on := false, true
	for what, tc := range map[string]struct {
		wishes []Wish
		want   string
	}{
		"boost off of some":   {[]Wish{wish("0-1", Profile{Boost: &off})}, ""},
		"boost off and on":    {[]Wish{wish("0-1", Profile{Boost: &off}), wish("2-3", Profile{Boost: &on})}, ""},
		"boost off of all":    {[]Wish{wish("0-1", Profile{Boost: &off}), wish("2-3", Profile{Boost: &off})}, "intel_pstate/no_turbo 1"},
		"uncore of some":      {[]Wish{wish("0", Profile{UncoreMax: "1.8GHz"})}, ""},
		"uncore min of some":  {[]Wish{wish("0", Profile{UncoreMin: "1.8GHz"})}, "intel_uncore_frequency/package_00_die_00/min_freq_khz 1800000"},
		"uncore max of all":   {[]Wish{wish("0", Profile{UncoreMax: "1.8GHz"}), wish("1-3", Profile{UncoreMax: "2GHz"})}, "intel_uncore_frequency/package_00_die_00/max_freq_khz 2000000"},
		"offline CPUs":        {[]Wish{wish("7", Profile{Bias: of(0)})}, ""},
		"the rest of a cross": {[]Wish{wish("0-3", Profile{UncoreMin: "2.2GHz"}), wish("0-3", Profile{UncoreMax: "1.5GHz"})}, "intel_uncore_frequency/package_00_die_00/min_freq_khz 1500000\nintel_uncore_frequency/package_00_die_00/max_freq_khz 1500000"},
	} {
		d, err := h.Divide(tc.wishes, nothing, never)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		var got []string
		for _, s := range d.Plan {
			got = append(got, strings.TrimPrefix(s.Path, cpuDir+"/")+" "+s.Value)
		}
		if text := strings.Join(got, "\n"); text != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", what, text, tc.want)
		}
	}
}

// A limit that is left to another program bounds the other one.
func TestDivideLeft(t *testing.T) {
	t.Parallel()
	_, root := played(t, "intel_pstate")
	least := cpuDir + "/cpufreq/policy0/scaling_min_freq"
	if _, err := kernel.Apply(root, kernel.Plan{{Path: least, Value: "2000000"}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		left func(string) bool
		want string
	}{
		{never, "/scaling_min_freq 1000000\n/scaling_max_freq 1000000"},
		{func(path string) bool { return path == least }, "/scaling_max_freq 2000000"},
	} {
		d, err := read(t, root).Divide([]Wish{{CPUs: cpuset.MustParse("0"), Profile: Profile{Max: "1GHz"}}}, nothing, tc.left)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range d.Plan {
			got = append(got, strings.TrimPrefix(s.Path, cpuDir+"/cpufreq/policy0")+" "+s.Value)
		}
		if text := strings.Join(got, "\n"); text != tc.want {
			t.Errorf("%s\nwant\n%s", text, tc.want)
		}
	}
}

// Of a host with 256 CPUs: what a transaction takes beside reading, and what a note of one
// workload does.
func BenchmarkDivide(b *testing.B) {
	l := fakekernel.PowerHosts()["intel_pstate"]
	l.CPUs, l.Packages = 256, 2
	dir := b.TempDir()
	k, err := fakekernel.NewPower(dir, l)
	if err != nil {
		b.Fatal(err)
	}
	h, err := Read(kernel.NewRoot(dir, k).FS())
	if err != nil {
		b.Fatal(err)
	}
	var wishes []Wish
	for cpu := 0; cpu < 256; cpu += 4 {
		cpus, _ := cpuset.Range(cpu, cpu+3)
		wishes = append(wishes, Wish{Who: "w", CPUs: cpus, Name: "performance", Profile: Profile{Like: "performance"}})
	}
	b.Run("divide", func(b *testing.B) {
		for b.Loop() {
			if _, err := h.Divide(wishes, nothing, never); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("note", func(b *testing.B) {
		for b.Loop() {
			if _, err := h.Shared(wishes[3]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := Read(kernel.NewRoot(dir, k).FS()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A percentage is of the whole range, not of a hundredth that was rounded first.
func TestClockPercent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"0%": 800_010, "50%": 2_250_032, "100%": 3_700_055, "2.4GHz": 2_400_000, "": 0} {
		if got := clock(text, 800_010, 3_700_055); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// A governor that is not known is not taken for the fastest.
func TestUnknownGovernor(t *testing.T) {
	t.Parallel()
	if governorStrength("sugov_ext") >= governorStrength("powersave") || governorStrength(performance) <= governorStrength("schedutil") {
		t.Error("the order is wrong")
	}
}
