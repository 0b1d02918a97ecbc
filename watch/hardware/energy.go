package hardware

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// EnergyDir is where the kernel counts energy, below the root directory
// (Documentation/power/powercap/powercap.rst).
const EnergyDir = "sys/class/powercap"

// EnergyReader reads what the host's processors took since it was opened: watch.EnergyPackages,
// and watch.EnergyMemory where the memory beside them is counted. It has to read once in each
// turn of a counter, which takes minutes at full power. It is for one goroutine at a time.
type EnergyReader struct {
	zones []energyZone
	buf   []byte
}

// energyZone is a counter of RAPL.
type energyZone struct {
	kernel.File
	quantity watch.Quantity
	most     uint64 // µJ; after it comes 0
	last     uint64
	joules   float64
}

// energyZones are what is counted, by the names of zones. Those of a package's parts (core,
// uncore) are in the package's, psys has more than processors in it.
func energyZones(name string) (watch.Quantity, bool) {
	switch {
	case strings.HasPrefix(name, "package-"):
		return watch.EnergyPackages, true
	case name == "dram":
		return watch.EnergyMemory, true
	}
	return 0, false
}

// OpenEnergy opens the counters of a directory, EnergyDir below the root. If there are none,
// or they are not to be read, the error is a kernel.NotSupportedError.
func OpenEnergy(dir string) (*EnergyReader, error) {
	r := &EnergyReader{buf: make([]byte, 64)}
	no := &kernel.NotSupportedError{Feature: "energy counters", Reason: "no package has one (there is no intel-rapl zone)", Remedy: "load the module intel_rapl_msr; virtual machines have none"}
	// intel-rapl-mmio counts the same packages once more.
	names, err := fs.Glob(os.DirFS(dir), "intel-rapl:*")
	packages := false
	for _, name := range names {
		if err = r.open(filepath.Join(dir, name)); err != nil {
			break
		}
	}
	for _, z := range r.zones {
		packages = packages || z.quantity == watch.EnergyPackages
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		no.Reason, no.Remedy = err.Error(), "run as root: since Linux 5.10 nobody else may read them"
		err = no
	case err == nil && !packages:
		err = no
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open energy counters: %w", err), r.Close())
	}
	return r, nil
}

func (r *EnergyReader) open(dir string) error {
	name, err := os.ReadFile(filepath.Join(dir, "name"))
	if err != nil {
		return kernel.IgnoreAbsent(err)
	}
	quantity, ok := energyZones(strings.TrimSpace(string(name)))
	if !ok {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(dir, "max_energy_range_uj"))
	if err != nil {
		return kernel.IgnoreAbsent(err)
	}
	z := energyZone{quantity: quantity}
	word, _ := kernel.Word(text)
	if z.most, err = kernel.Uint(word); err != nil {
		return fmt.Errorf("%s/max_energy_range_uj: %w", dir, err)
	}
	if z.File, err = kernel.OpenFile(filepath.Join(dir, "energy_uj")); err != nil {
		return kernel.IgnoreAbsent(err)
	}
	r.zones = append(r.zones, z)
	r.zones[len(r.zones)-1].last, err = r.count(&r.zones[len(r.zones)-1])
	return err
}

func (r *EnergyReader) count(z *energyZone) (uint64, error) {
	text, buf, err := z.Read(r.buf)
	r.buf = buf
	if err != nil {
		return 0, err
	}
	word, _ := kernel.Word(text)
	n, err := kernel.Uint(word)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", z.Path(), err)
	}
	return n, nil
}

// Read appends the samples of the host, stamped with now.
func (r *EnergyReader) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	start := len(to)
	sums, counted := map[watch.Quantity]float64{}, map[watch.Quantity]bool{}
	for i := range r.zones {
		z := &r.zones[i]
		n, err := r.count(z)
		if err != nil {
			return to[:start], fmt.Errorf("read energy counters: %w", err)
		}
		took := n - z.last
		if n < z.last {
			took = z.most - z.last + n
		}
		z.last = n
		z.joules += float64(took) / 1e6
		sums[z.quantity] += z.joules
		counted[z.quantity] = true
	}
	for _, q := range []watch.Quantity{watch.EnergyPackages, watch.EnergyMemory} {
		if counted[q] {
			to = append(to, watch.Sample{Time: now, Quantity: q, Value: sums[q]})
		}
	}
	return to, nil
}

// Close closes what is open.
func (r *EnergyReader) Close() error {
	var errs []error
	for i := range r.zones {
		errs = append(errs, r.zones[i].Close())
	}
	return errors.Join(errs...)
}
