package power_test

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakespeed"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
)

const speed = "sys/devices/system/cpu/speed_select/"

// speedRoot has 4 CPUs of one package, two of each core.
func speedRoot(t *testing.T) (*kernel.Root, *fakespeed.Device) {
	t.Helper()
	l := fakekernel.PowerHosts()["intel_pstate"]
	l.CPUs, l.Threads = 4, 2
	dir := t.TempDir()
	k, err := fakekernel.NewPower(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	d := fakespeed.New(k.FS(), 4, 1, 2)
	return power.Lay(kernel.NewRoot(dir, k), d), d
}

// A plan writes each core once, and each setting after what it needs; undone it is the other way round.
func TestSpeedPlan(t *testing.T) {
	t.Parallel()
	root, d := speedRoot(t)
	before := d.State()
	h, err := power.Read(root.FS())
	if err != nil {
		t.Fatal(err)
	}
	plan, err := h.Plan(cpuset.MustParse("0-3"), power.Settings{SpeedSelect: &power.SpeedSelect{Priority: 1, Turbo: true}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range plan {
		got = append(got, strings.TrimPrefix(s.Path, speed)+" "+s.Value)
	}
	want := []string{"cpu0/clos 1", "cpu2/clos 1", "package0/core_power 1", "package0/priority_type ordered", "package0/turbo_freq 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	undo, err := kernel.Apply(root, plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h, err = power.Read(root.FS()); err != nil {
		t.Fatal(err)
	}
	if plan, err := h.Plan(cpuset.MustParse("0-3"), power.Settings{SpeedSelect: &power.SpeedSelect{Priority: 1, Turbo: true}}); err != nil || len(plan) > 0 {
		t.Errorf("again: %v\n%s", err, plan)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, d.State()); diff != "" {
		t.Errorf("undone (-before +after):\n%s", diff)
	}
	if _, err := h.Plan(cpuset.MustParse("0-1"), power.Settings{SpeedSelect: &power.SpeedSelect{}}); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "name CPUs 2-3, too") {
		t.Errorf("half a package: %v", err)
	}
}

// The files are as strict as the device.
func TestSpeedFiles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		set        func(*fakespeed.Device)
		file, text string
		want       error
	}{
		{nil, "cpu1/clos", "4", syscall.EINVAL},
		{nil, "cpu1/clos", "-1", syscall.EINVAL},
		{nil, "cpu9/clos", "1", syscall.EINVAL},
		{nil, "cpu1/clos", "3", nil},
		{nil, "package0/turbo_freq", "1", syscall.EINVAL}, // priorities do not count
		{nil, "package0/turbo_freq", "on", syscall.EINVAL},
		{nil, "package0/priority_type", "1", syscall.EINVAL},
		{nil, "package0/core_power", "1", nil},
		{nil, "package0/frequency", "1", fs.ErrNotExist},
		{nil, "package-1/core_power", "1", fs.ErrNotExist},
		{func(d *fakespeed.Device) { d.Package(0).CorePower, d.Package(0).Turbo = "1", "1" }, "package0/core_power", "0", syscall.EBUSY},
		{func(d *fakespeed.Device) { d.Locked = true }, "package0/core_power", "1", syscall.EPERM},
		{func(d *fakespeed.Device) { d.Locked = true }, "cpu1/clos", "1", syscall.EPERM},
		{func(d *fakespeed.Device) { d.Err = fs.ErrNotExist }, "package0/core_power", "1", syscall.ENXIO},
		{func(d *fakespeed.Device) { d.Err = fs.ErrNotExist }, "cpu1/clos", "1", syscall.ENXIO},
	} {
		root, d := speedRoot(t)
		if tc.set != nil {
			tc.set(d)
		}
		if err := root.WriteFile(speed+tc.file, tc.text); !errors.Is(err, tc.want) {
			t.Errorf("%s %q: %v, want %v", tc.file, tc.text, err, tc.want)
		}
		if tc.want != nil {
			continue
		}
		if text, err := fs.ReadFile(root.FS(), speed+tc.file); err != nil || strings.TrimSpace(string(text)) != tc.text {
			t.Errorf("%s: %q, %v", tc.file, text, err)
		}
	}
	root, d := speedRoot(t)
	d.Package(0).Turbo = ""
	if _, err := fs.Stat(root.FS(), speed+"package0/turbo_freq"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("turbo: %v", err)
	}
	if power.Over(root) != root {
		t.Error("the files are laid over a tree of a test")
	}
}
