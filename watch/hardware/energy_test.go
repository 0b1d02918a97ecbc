package hardware

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// plantZone makes a zone of powercap with a counter that wraps at 10 J.
func plantZone(t *testing.T, dir, zone, name string, uj int) {
	t.Helper()
	writeFile(t, dir, zone+"/name", name+"\n")
	writeFile(t, dir, zone+"/max_energy_range_uj", "10000000\n")
	writeFile(t, dir, zone+"/energy_uj", fmt.Sprintln(uj))
}

func TestEnergy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plantZone(t, dir, "intel-rapl:0", "package-0", 9_000_000)
	plantZone(t, dir, "intel-rapl:0:0", "core", 0)
	plantZone(t, dir, "intel-rapl:0:1", "dram", 500_000)
	plantZone(t, dir, "intel-rapl:1", "package-1", 0)
	plantZone(t, dir, "intel-rapl:2", "psys", 0)
	plantZone(t, dir, "intel-rapl-mmio:0", "package-0", 0)
	writeFile(t, dir, "intel-rapl/enabled", "1\n")
	r, err := OpenEnergy(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	check := func(packages, memory float64) {
		t.Helper()
		got, err := r.Read(7, nil)
		want := []watch.Sample{{Time: 7, Quantity: watch.EnergyPackages, Value: packages}, {Time: 7, Quantity: watch.EnergyMemory, Value: memory}}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	check(0, 0)
	plantZone(t, dir, "intel-rapl:0", "package-0", 9_500_000)
	plantZone(t, dir, "intel-rapl:1", "package-1", 2_000_000)
	plantZone(t, dir, "intel-rapl:2", "psys", 9_000_000)
	check(2.5, 0)
	plantZone(t, dir, "intel-rapl:0", "package-0", 250_000) // it went through 10 J
	plantZone(t, dir, "intel-rapl:0:1", "dram", 750_000)
	check(3.25, 0.25)
}

// Memory that is not counted has no sample; without packages there is nothing.
func TestEnergyAbsent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var no *kernel.NotSupportedError
	if _, err := OpenEnergy(dir + "/absent"); !errors.As(err, &no) || no.Remedy == "" {
		t.Errorf("no powercap: %v", err)
	}
	plantZone(t, dir, "intel-rapl:2", "psys", 0)
	if _, err := OpenEnergy(dir); !errors.As(err, &no) {
		t.Errorf("no package: %v", err)
	}
	plantZone(t, dir, "intel-rapl:0", "package-0", 1)
	r, err := OpenEnergy(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := r.Read(1, nil); err != nil || len(got) != 1 {
		t.Errorf("%v, %v: want the package alone", got, err)
	}
	if os.Getuid() != 0 {
		if err := os.Chmod(dir+"/intel-rapl:0/energy_uj", 0); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenEnergy(dir); !errors.As(err, &no) || no.Remedy == "" {
			t.Errorf("not to be read: %v", err)
		}
	}
	writeFile(t, dir, "intel-rapl:0/max_energy_range_uj", "many\n")
	if _, err := OpenEnergy(dir); err == nil {
		t.Error("nonsense is read")
	}
}
