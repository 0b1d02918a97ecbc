package guest

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
)

// limitCases are limits with what the files then show.
func limitCases(device string) map[string]struct {
	limits cgroup.Limits
	want   map[string]string
} {
	ms := time.Millisecond
	idle := "1"
	if !atLeast(6, 12) {
		idle = "0"
	}
	none := cgroup.IOMax{Device: device, ReadBPS: -1, WriteBPS: -1, ReadIOPS: -1, WriteIOPS: -1}
	return map[string]struct {
		limits cgroup.Limits
		want   map[string]string
	}{
		"weight":         {cgroup.Limits{Weight: 300}, map[string]string{"cpu.weight": "300"}},
		"idle":           {cgroup.Limits{Idle: cgroup.On}, map[string]string{"cpu.idle": "1", "cpu.weight": idle}},
		"not idle":       {cgroup.Limits{Idle: cgroup.Off, Weight: 50}, map[string]string{"cpu.idle": "0", "cpu.weight": "50"}},
		"quota":          {cgroup.Limits{Quota: 150 * ms}, map[string]string{"cpu.max": "150000 100000"}},
		"short period":   {cgroup.Limits{Quota: 5 * ms, Period: 10 * ms, Burst: 5 * ms}, map[string]string{"cpu.max": "5000 10000", "cpu.max.burst": "5000"}},
		"no quota":       {cgroup.Limits{Quota: cgroup.Unlimited, Burst: cgroup.Unlimited}, map[string]string{"cpu.max": "max 100000", "cpu.max.burst": "0"}},
		"cpus and mems":  {cgroup.Limits{CPUs: cpuset.MustParse("4-5,9"), Mems: cpuset.MustOf(1)}, map[string]string{"cpuset.cpus.effective": "4-5,9", "cpuset.mems.effective": "1"}},
		"root":           {cgroup.Limits{CPUs: cpuset.MustParse("4-7"), Partition: "root"}, map[string]string{"cpuset.cpus.partition": "root", "cpuset.cpus.effective": "4-7"}},
		"isolated":       {cgroup.Limits{CPUs: cpuset.MustParse("4-7"), Partition: "isolated"}, map[string]string{"cpuset.cpus.partition": "isolated"}},
		"member":         {cgroup.Limits{Partition: "member"}, map[string]string{"cpuset.cpus.partition": "member"}},
		"memory":         {cgroup.Limits{MemoryLow: 1<<20 + 1, MemoryHigh: 2<<20 + 1, MemoryMax: 3<<20 + 1}, map[string]string{"memory.low": "1048576", "memory.high": "2097152", "memory.max": "3145728"}},
		"all memory":     {cgroup.Limits{MemoryLow: cgroup.Unlimited, MemoryHigh: cgroup.Unlimited, MemoryMax: cgroup.Unlimited}, map[string]string{"memory.low": "max", "memory.high": "max", "memory.max": "max"}},
		"io weight":      {cgroup.Limits{IOWeight: 200}, map[string]string{"io.weight": "default 200"}},
		"io max":         {cgroup.Limits{IOMax: []cgroup.IOMax{{Device: device, ReadBPS: 1 << 20, WriteBPS: 2 << 20, ReadIOPS: 30, WriteIOPS: 40}}}, map[string]string{"io.max": device + " rbps=1048576 wbps=2097152 riops=30 wiops=40"}},
		"no io max":      {cgroup.Limits{IOMax: []cgroup.IOMax{none}}, map[string]string{"io.max": ""}},
		"processes":      {cgroup.Limits{PIDsMax: 7}, map[string]string{"pids.max": "7"}},
		"any processes":  {cgroup.Limits{PIDsMax: cgroup.Unlimited}, map[string]string{"pids.max": "max"}},
		"frozen":         {cgroup.Limits{Frozen: cgroup.On}, map[string]string{"cgroup.freeze": "1"}},
		"several at one": {cgroup.Limits{Weight: 20, Quota: 5 * ms, CPUs: cpuset.MustOf(2), MemoryMax: 8 << 20, PIDsMax: 9}, map[string]string{"cpu.weight": "20", "cpu.max": "5000 100000", "cpuset.cpus": "2", "memory.max": "8388608", "pids.max": "9"}},
	}
}

// TestLimits sets, reads back and undoes every field of cgroup.Limits.
func TestLimits(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	g := tr.group(t, "limits")
	unset := map[string]bool{}
	for field := range reflect.TypeFor[cgroup.Limits]().Fields() {
		unset[field.Name] = true
	}
	for name, tt := range limitCases(blockDevice(t, nullDisk)) {
		value := reflect.ValueOf(tt.limits)
		maps.DeleteFunc(unset, func(field string, _ bool) bool { return !value.FieldByName(field).IsZero() })
		before, err := g.Knobs()
		if err != nil {
			t.Fatal(err)
		}
		undo := tr.set(t, g, tt.limits)
		for file, want := range tt.want {
			if got := tr.text(t, "limits", file); got != want {
				t.Errorf("%s: %s is %q, want %q", name, file, got, want)
			}
		}
		if err := undo(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		after, err := g.Knobs()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s, undone (-before +after):\n%s", name, diff)
		}
	}
	if len(unset) > 0 {
		t.Errorf("set by no case: %v", slices.Collect(maps.Keys(unset)))
	}
}

// TestIOMax writes twice what a device is limited to per second.
func TestIOMax(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	g := tr.group(t, "io-max")
	const rate = 1 << 20
	tr.set(t, g, cgroup.Limits{IOMax: []cgroup.IOMax{{Device: blockDevice(t, nullDisk), WriteBPS: rate}}})
	tr.attach(t, g, os.Getpid())
	took := writeDisk(t, nullDisk, 2*rate)
	// A slow host makes it longer, never shorter.
	if took < 1900*time.Millisecond {
		t.Errorf("%d bytes at %d bytes/s took %v", 2*rate, rate, took)
	}
	if stat := tr.text(t, "io-max", "io.stat"); !strings.Contains(stat, "wbytes=2097152 ") {
		t.Errorf("io.stat: %q, want wbytes=2097152", stat)
	}
}

// diskBlock is what writeDisk writes at once, in bytes.
const diskBlock = 64 << 10

// writeDisk writes to a disk past the page cache.
func writeDisk(t *testing.T, disk string, bytes int) time.Duration {
	t.Helper()
	fd, err := unix.Open("/dev/"+disk, unix.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	data, err := unix.Mmap(-1, 0, diskBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	began := time.Now()
	for range bytes / diskBlock {
		if _, err := unix.Write(fd, data); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(began)
}
