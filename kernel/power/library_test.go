package power

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/intel/goresctrl/pkg/sst"
	"github.com/intel/goresctrl/pkg/utils"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// The live host is read by the library; without the device it says what is lacking.
func TestSpeedHere(t *testing.T) {
	t.Parallel()
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	root = Over(root)
	h, err := Read(root.FS())
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Speed) > 0 {
		t.Skipf("this host has it: %+v", h.Speed)
	}
	if lacks := h.LacksSpeed(); lacks == nil || !errors.Is(lacks, kernel.ErrNotSupported) || !strings.Contains(lacks.Reason, "/dev/isst_interface") || lacks.Remedy == "" {
		t.Errorf("%v", lacks)
	}
	if _, err := os.Stat(speedDevice); err == nil {
		return
	}
	for _, name := range []string{closFile(0), SpeedPackage{}.file(speedPower)} {
		if _, err := fs.ReadFile(root.FS(), name); !errors.Is(err, syscall.ENXIO) {
			t.Errorf("/%s: %v", name, err)
		}
	}
	if Over(root) != root {
		t.Error("the files are laid twice")
	}
}

// domain is a power domain of the library.
func domain(cpus utils.IDSet, change func(*sst.PunitStatus)) *sst.PunitStatus {
	d := &sst.PunitStatus{CPUs: cpus, TF: sst.TFStatus{Supported: true}, CP: sst.CPStatus{Supported: true, Enabled: true, Priority: sst.Ordered}}
	d.Clos = []sst.ClosStatus{{Config: sst.ClosConfig{MaxFreq: 25500}}, {}, {}, {Config: sst.ClosConfig{MaxFreq: 2000}, CPUs: cpus}}
	if change != nil {
		change(d)
	}
	return d
}

// What the library says of a package is what there is to set: what differs among its power domains is
// no value, and what not all have is not there.
func TestSpeedPackage(t *testing.T) {
	t.Parallel()
	levels := map[int]*sst.PerfLevelInfo{0: {TF: sst.TFInfo{Buckets: []sst.TFBucketInfo{{HighPriorityCoreCount: 2}, {HighPriorityCoreCount: 6}}}}}
	of := func(change func(*sst.PunitStatus), err error) (SpeedPackage, error) {
		return speedPackage(&sst.PackageStatus{ID: 1, Punits: map[utils.ID]*sst.PunitStatus{
			0: domain(utils.NewIDSet(4, 5), nil), 1: domain(utils.NewIDSet(6, 7), change),
		}}, func(int) (map[utils.ID]*sst.PerfLevelInfo, error) { return levels, err })
	}
	full := SpeedPackage{
		ID: 1, CorePower: "1", Order: "ordered", Turbo: "0", Priority: map[int]int{4: 3, 5: 3, 6: 3, 7: 3}, Most: [Priorities]int{25_500_000, 0, 0, 2_000_000},
		Domains: []SpeedDomain{{cpuset.MustParse("4-5"), 6}, {cpuset.MustParse("6-7"), 0}},
	}
	for what, tc := range map[string]struct {
		change func(*sst.PunitStatus)
		want   func(*SpeedPackage)
	}{
		"alike":         {nil, func(*SpeedPackage) {}},
		"off here":      {func(d *sst.PunitStatus) { d.CP.Enabled = false }, func(p *SpeedPackage) { p.CorePower = unlike }},
		"weights here":  {func(d *sst.PunitStatus) { d.CP.Priority = sst.Proportional }, func(p *SpeedPackage) { p.Order = unlike }},
		"turbo here":    {func(d *sst.PunitStatus) { d.TF.Enabled = true }, func(p *SpeedPackage) { p.Turbo = unlike }},
		"no turbo here": {func(d *sst.PunitStatus) { d.TF.Supported = false }, func(p *SpeedPackage) { p.Turbo, p.Domains[0].HighCores = "", 0 }},
		"none here": {func(d *sst.PunitStatus) { d.CP.Supported, d.Clos = false, nil }, func(p *SpeedPackage) {
			*p = SpeedPackage{ID: 1, Priority: map[int]int{}, Domains: []SpeedDomain{{CPUs: cpuset.MustParse("4-5")}, {CPUs: cpuset.MustParse("6-7")}}}
		}},
	} {
		want := full
		want.Domains = append([]SpeedDomain(nil), full.Domains...)
		tc.want(&want)
		if got, err := of(tc.change, nil); err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%s: %v (-want +got):\n%s", what, err, cmp.Diff(want, got))
		}
	}
	if _, err := of(nil, errors.New("no such level")); err == nil {
		t.Error("a level that cannot be read is read")
	}
}
