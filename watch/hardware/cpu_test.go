package hardware

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// plantCPUs makes the directory of 2 packages with 2 cores of 2 CPUs each. CPUs 0 and
// 4 are threads of one core, and each core has one clock.
func plantCPUs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for cpu := range 8 {
		core := cpu % 4
		base := fmt.Sprintf("cpu%d/", cpu)
		writeFile(t, dir, base+"topology/physical_package_id", fmt.Sprintln(core/2))
		writeFile(t, dir, base+"topology/core_id", fmt.Sprintln(core%2))
		writeFile(t, dir, base+"thermal_throttle/core_throttle_count", fmt.Sprintln(10+core))
		writeFile(t, dir, base+"thermal_throttle/package_throttle_count", fmt.Sprintln(100*(1+core/2)))
		policy := fmt.Sprintf("cpufreq/policy%d", core)
		if cpu < 4 {
			writeFile(t, dir, policy+"/scaling_cur_freq", fmt.Sprintln(1000_000+100_000*core))
			writeFile(t, dir, policy+"/scaling_max_freq", fmt.Sprintln(3000_000-100_000*core))
		}
		if err := os.Symlink("../"+policy, filepath.Join(dir, base, "cpufreq")); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"POLL", "C6"} {
			state := fmt.Sprintf("%scpuidle/state%d/", base, i)
			writeFile(t, dir, state+"name", name+"\n")
			writeFile(t, dir, state+"latency", fmt.Sprintln(133*i))
			writeFile(t, dir, state+"usage", fmt.Sprintln(10*(i+1)))
			writeFile(t, dir, state+"time", fmt.Sprintln(500_000*(i+1)))
		}
	}
	return dir
}

func writeFile(t testing.TB, dir, name, text string) {
	t.Helper()
	fakekernel.Plant(t, filepath.Join(dir, name), text)
}

func startCPUs(t testing.TB, c CPUConfig) *CPUReader {
	t.Helper()
	r, err := OpenCPUs(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func readCPUs(t *testing.T, r *CPUReader) map[watch.Quantity]float64 {
	t.Helper()
	samples, err := r.Read(watch.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	values := map[watch.Quantity]float64{}
	for _, s := range samples {
		if _, twice := values[s.Quantity]; twice || s.Subject != r.subject || s.Time != watch.Second {
			t.Errorf("sample %+v", s)
		}
		values[s.Quantity] = s.Value
	}
	return values
}

func TestReadCPUs(t *testing.T) {
	t.Parallel()
	dir := plantCPUs(t)
	who := watch.Subject{Scope: watch.Group, Name: "web"}
	for cpus, want := range map[string]map[watch.Quantity]float64{
		"0": {
			watch.Frequency: 1e9, watch.FrequencyLimit: 3e9, watch.ThrottledCores: 10, watch.ThrottledPackages: 100,
			watch.IdleTime: 1.5, watch.IdleEntries: 30,
		},
		// Three CPUs of two cores: what both threads of one share counts once.
		"0-1,4": {
			watch.Frequency: (1e9 + 1e9 + 1.1e9) / 3, watch.FrequencyLimit: 2.9e9, watch.ThrottledCores: 21, watch.ThrottledPackages: 100,
			watch.IdleTime: 4.5, watch.IdleEntries: 90,
		},
		// CPU 9 is offline.
		"1,3,9": {
			watch.Frequency: 1.2e9, watch.FrequencyLimit: 2.7e9, watch.ThrottledCores: 24, watch.ThrottledPackages: 300,
			watch.IdleTime: 3, watch.IdleEntries: 60,
		},
	} {
		got := map[watch.Quantity]float64{}
		for _, signal := range CPUSignals() {
			maps.Copy(got, readCPUs(t, startCPUs(t, CPUConfig{Dir: dir, CPUs: cpuset.MustParse(cpus), Subject: who, Signal: signal})))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("CPUs %s: %s", cpus, diff)
		}
	}
}

// The clock rate that the hardware reports is better than the one asked for.
// What a CPU does not know is left out of the mean.
func TestClock(t *testing.T) {
	t.Parallel()
	dir := plantCPUs(t)
	writeFile(t, dir, "cpufreq/policy0/cpuinfo_avg_freq", "900000\n")
	r := startCPUs(t, CPUConfig{Dir: dir, CPUs: cpuset.MustParse("0-1"), Signal: Clock})
	if got := readCPUs(t, r)[watch.Frequency]; got != 1e9 {
		t.Errorf("mean of 0.9 and 1.1 GHz is %v", got)
	}
	writeFile(t, dir, "cpufreq/policy0/cpuinfo_avg_freq", "<unknown>\n")
	if got := readCPUs(t, r)[watch.Frequency]; got != 1.1e9 {
		t.Errorf("the one that is known is 1.1 GHz, not %v", got)
	}
	writeFile(t, dir, "cpufreq/policy1/scaling_cur_freq", "<unknown>\n")
	if got, there := readCPUs(t, r)[watch.Frequency]; there {
		t.Errorf("nobody knows, and it is %v", got)
	}
	writeFile(t, dir, "cpufreq/policy1/scaling_cur_freq", "fast\n")
	if samples, err := r.Read(watch.Second, nil); err == nil || len(samples) > 0 {
		t.Errorf("no number: %v, %v", samples, err)
	}
	// A driver without limits.
	if err := os.Remove(filepath.Join(dir, "cpufreq/policy2/scaling_max_freq")); err != nil {
		t.Fatal(err)
	}
	if got := readCPUs(t, startCPUs(t, CPUConfig{Dir: dir, CPUs: cpuset.MustParse("2"), Signal: Clock})); len(got) != 1 {
		t.Errorf("without a limit: %v", got)
	}
}

func TestCPUsMissing(t *testing.T) {
	t.Parallel()
	for _, s := range CPUSignals() {
		_, err := OpenCPUs(CPUConfig{Dir: t.TempDir(), CPUs: cpuset.MustParse("0"), Signal: s})
		var no *kernel.NotSupportedError
		if !errors.As(err, &no) || no.Feature != s.String() || no.Remedy == "" {
			t.Errorf("%v: %v", s, err)
		}
	}
}

// What this host has can be read and what it lacks has a reason.
func TestLiveCPUs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/" + CPUDir + "/online")
	if err != nil {
		t.Skipf("which CPUs are online: %v", err)
	}
	for _, signal := range CPUSignals() {
		r, err := OpenCPUs(CPUConfig{Dir: "/" + CPUDir, CPUs: cpuset.MustParse(strings.TrimSpace(string(text))), Signal: signal})
		if errors.Is(err, kernel.ErrNotSupported) {
			t.Log(err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got := readCPUs(t, r)
		if v, there := got[watch.Frequency]; there && (v < 1e8 || v > 1e10) {
			t.Errorf("CPUs run at %v Hz", v)
		}
		if signal == Idle && got[watch.IdleTime] == 0 {
			t.Error("no CPU was ever idle")
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func FuzzParseFrequency(f *testing.F) {
	f.Add([]byte("2500000\n"))
	f.Add([]byte("<unknown>\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if n, told, err := parseFrequency(text); n < 0 || told && err != nil || !told && n != 0 {
			t.Errorf("%q: %v, %t, %v", text, n, told, err)
		}
	})
}

// Not parallel: AllocsPerRun counts for the whole program.
func TestReadCPUsDoesNotAllocate(t *testing.T) {
	for _, signal := range CPUSignals() {
		r := startCPUs(t, CPUConfig{Dir: plantCPUs(t), CPUs: cpuset.MustParse("0-7"), Signal: signal})
		var buf []watch.Sample
		if n := testing.AllocsPerRun(10, func() { buf, _ = r.Read(watch.Second, buf[:0]) }); n != 0 {
			t.Errorf("%v: %v allocations", signal, n)
		}
	}
}

// BenchmarkRead leaves out what the hardware takes, as these are plain files.
func BenchmarkReadCPUs(b *testing.B) {
	r := startCPUs(b, CPUConfig{Dir: plantCPUs(b), CPUs: cpuset.MustParse("0-7"), Signal: Idle})
	var buf []watch.Sample
	for b.Loop() {
		var err error
		if buf, err = r.Read(watch.Second, buf[:0]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(r.files[0])+len(r.files[1])), "files")
}
