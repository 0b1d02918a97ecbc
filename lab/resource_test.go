package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

func isolationOf(t *testing.T, r Resource) Spec {
	t.Helper()
	e, err := IsolationOf(r)
	if err == nil {
		err = e.Use("quick")
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestResourcesAreValid(t *testing.T) {
	t.Parallel()
	for _, r := range Resources() {
		e := isolationOf(t, r)
		if err := e.Validate(); err != nil {
			t.Errorf("%s: %v", r, err)
		}
		if e.Preset != "quick" || e.Length() > 3*60e9 {
			t.Errorf("%s takes %s", r, e.Length())
		}
	}
	if diff := cmp.Diff(valid(t), isolationOf(t, CPU)); diff != "" {
		t.Errorf("cpu is not the default (-want +got):\n%s", diff)
	}
	if _, err := IsolationOf("gpu"); err == nil || !strings.Contains(err.Error(), "cpu, memory, io, net") {
		t.Errorf("unknown resource: %v, want an error that names the known ones", err)
	}
}

func TestResourcesRefuse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		of     Resource
		want   string
		spoils func(*Spec)
	}{
		{CPU, `resource "gpu"`, func(e *Spec) { e.Resource = "gpu" }},
		{CPU, "memoryMax: only where the resource is memory, not cpu", func(e *Spec) { e.Scenarios[3].Isolation.MemoryMax = 1 << 20 }},
		{CPU, "scenario weighted: guard: only where the resource is net", func(e *Spec) { e.Scenarios[3].Isolation = Isolation{Guard: true} }},
		{Net, "scenario net-first: guard: only where the resource is net, and without settings", func(e *Spec) { e.Scenarios[5].Isolation.Guard = true }},
		{CPU, "ioWeight: only where", func(e *Spec) { e.Scenarios[3].Isolation.IOWeight = 1 }},
		{CPU, `scheduler "bfq"`, func(e *Spec) { e.Scenarios[3].Isolation.Scheduler = "bfq" }},
		{CPU, `kernel "cache" does not press on cpu: want spin`, func(e *Spec) { e.Neighbour.Kernel, e.Resource = "cache", "" }},
		{Memory, `does not press on memory: want cache`, func(e *Spec) { e.Neighbour.Kernel = "read" }},
		{Memory, "ioMax: only where the resource is io", func(e *Spec) { e.Scenarios[3].Isolation.IOMax = 1 }},
		{Memory, "memoryHigh -1: want", func(e *Spec) { e.Scenarios[3].Isolation.MemoryHigh = -1 }},
		{IO, `does not press on io: want read`, func(e *Spec) { e.Neighbour.Kernel = "cache" }},
		{IO, `scheduler "cfq"`, func(e *Spec) { e.Scenarios[4].Isolation.Scheduler = "cfq" }},
		{IO, "ioWeight 10001: want 1 to 10000", func(e *Spec) { e.Scenarios[5].Isolation.IOWeight = 10_001 }},
		{IO, "memoryLow: only where the resource is memory", func(e *Spec) { e.Scenarios[5].Isolation.MemoryLow = 1 }},
		{IO, "netTenant, netNeighbour: only where the resource is net, not io", func(e *Spec) { e.Scenarios[5].Isolation.NetTenant.Priority = 1 }},
		{IO, "linkRate 1Mbit: resource net has one", func(e *Spec) { e.LinkRate = 1e6 }},
		{Net, "linkRate 0bit: resource net has one", func(e *Spec) { e.LinkRate = 0 }},
		{Net, `does not press on net: want send`, func(e *Spec) { e.Neighbour.Kernel = "spin" }},
		{Net, "9 is not 1 (first) to 8", func(e *Spec) { e.Scenarios[5].Isolation.NetTenant.Priority = 9 }},
		{Net, "the floors add up to", func(e *Spec) { e.Scenarios[5].Isolation.NetTenant.Floor.Percent = 90 }},
		{Net, "leave receive, receiveTogether and receiveFrom out", func(e *Spec) { e.Scenarios[5].Isolation.NetNeighbour.Receive = 8e6 }},
	} {
		e := isolationOf(t, tc.of)
		tc.spoils(&e)
		neighbour := e.Neighbour.Kernel
		if err := e.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s beside %s: error %v, want %q", tc.of, neighbour, err, tc.want)
		}
	}
}

// playedDisk has a number, and says which schedulers it was given.
type playedDisk struct{ given []string }

func (*playedDisk) Path() string   { return "/dev/loop7" }
func (*playedDisk) Number() string { return "7:7" }
func (d *playedDisk) Schedule(with string) error {
	d.given = append(d.given, with)
	return nil
}

// Each strategy about memory and I/O is in force on the right role, or refused with the
// reason where the kernel has it not; afterwards all is as before.
func TestResourceSettings(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pl := places{shared: cpuset.MustParse("0-1")}
			layout.CPUs = "0-1"
			g, _ := playedGroups(t, layout, pl, Options{Groups: true})
			b := &Testbed{places: pl, Setup: &Setup{}, backend: g, disk: &playedDisk{}}
			for _, tc := range []struct {
				iso    Isolation
				of     Role
				v1, v2 Knob // no file: not supported
			}{
				{Isolation{MemoryMax: 32 << 20}, Neighbour, Knob{File: "memory.limit_in_bytes", Value: "33554432"}, Knob{File: "memory.max", Value: "33554432"}},
				{Isolation{MemoryHigh: 32 << 20}, Neighbour, Knob{}, Knob{File: "memory.high", Value: "33554432"}},
				{Isolation{MemoryLow: 64 << 20}, Tenant, Knob{}, Knob{File: "memory.low", Value: "67108864"}},
				{Isolation{IOWeight: 10}, Neighbour, Knob{File: "blkio.bfq.weight", Value: "10"}, Knob{File: "io.weight", Value: "default 10"}},
				{Isolation{IOMax: 8 << 20}, Neighbour, Knob{File: "blkio.throttle.read_bps_device", Value: "7:7 8388608"}, Knob{File: "io.max", Value: "7:7 rbps=8388608 wbps=max riops=max wiops=max"}},
			} {
				want, before := tc.v1, knobsOf(t, g, tc.of)
				if name == "v2" || name == "hybrid" && strings.HasPrefix(tc.v2.File, "io.") { // as it is on the played one
					want = tc.v2
				}
				settings, err := b.settings(Scenario{Isolation: tc.iso})
				if err != nil {
					t.Fatal(err)
				}
				change, err := g.plan(settings, false)
				if want.File == "" {
					if !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "v1") {
						t.Errorf("%+v: %v, want that v1 has it not", tc.iso, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%+v: %v", tc.iso, err)
					continue
				}
				undo, err := change.apply()
				if err != nil {
					t.Errorf("%+v: %v", tc.iso, err)
					continue
				}
				if got := knobsOf(t, g, tc.of)[want.File]; got != want.Value {
					t.Errorf("%+v: %s of the %s = %q, want %q", tc.iso, want.File, tc.of, got, want.Value)
				}
				if err := undo(); err != nil {
					t.Errorf("%+v: undo: %v", tc.iso, err)
				}
				if diff := cmp.Diff(before, knobsOf(t, g, tc.of)); diff != "" {
					t.Errorf("%+v: after undo (-before +now):\n%s", tc.iso, diff)
				}
			}
			if err := g.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without control groups there is no limit of memory or I/O.
func TestResourcesNeedGroups(t *testing.T) {
	t.Parallel()
	b := &Testbed{Setup: &Setup{}, disk: &playedDisk{}}
	for _, iso := range []Isolation{{MemoryMax: 1 << 20}, {MemoryLow: 1 << 20}, {IOWeight: 10}, {IOMax: 1 << 20}} {
		s, err := b.settings(Scenario{Isolation: iso})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := openAttributes(places{}).plan(s, false); !errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("%+v: %v, want not supported", iso, err)
		}
	}
	for _, r := range []Resource{Memory, IO, Net} {
		e := isolationOf(t, r)
		if _, err := Plan(e, Options{Unprivileged: true}); err == nil || !strings.Contains(err.Error(), "--unprivileged") {
			t.Errorf("%s: %v, want that it needs control groups", r, err)
		}
	}
}

// The disk's scheduler is another one for the length of a round.
func TestSchedulerOfARound(t *testing.T) {
	t.Parallel()
	d := &playedDisk{}
	b := &Testbed{disk: d}
	hooks := b.schedule(Isolation{Scheduler: bfq, IOWeight: 1})
	r := &Running{}
	if err := hooks.Settle(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	during := len(d.given)
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"bfq", "none"}, d.given); diff != "" || during != 1 {
		t.Errorf("%d given while it ran; in all (-want +got):\n%s", during, diff)
	}
	if b.schedule(Isolation{IOMax: 1}).Settle != nil {
		t.Error("a strategy without a scheduler changes it")
	}
}

// Files whose pages are to be reclaimed lie on a disk.
func TestOnDisk(t *testing.T) {
	t.Parallel()
	if err := OnDisk("/dev/shm"); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("/dev/shm: %v", err)
	} else if err == nil {
		t.Error("/dev/shm: not refused")
	}
	name, other := filepath.Join(t.TempDir(), "cached"), filepath.Join(t.TempDir(), "other")
	for range 2 { // the second time a killed run has left it
		if err := holes(name); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(name); err != nil || info.Size() != cachedFile {
			t.Errorf("%v, %v", info, err)
		}
	}
	// Another user, whose folder it is, has put a link there.
	if err := errors.Join(os.Remove(name), os.WriteFile(other, []byte("theirs"), 0o600), os.Symlink(other, name)); err != nil {
		t.Fatal(err)
	}
	if err := holes(name); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(other); string(text) != "theirs" {
		t.Errorf("what a link leads to has %d bytes, %v", len(text), err)
	}
	if info, err := os.Lstat(name); err != nil || info.Size() != cachedFile {
		t.Errorf("%v, %v", info, err)
	}
}

// A disk needs no controller of I/O, unless something is limited.
func TestDiskWithoutIO(t *testing.T) {
	t.Parallel()
	layout := fakekernel.V2()
	layout.CPUs = "0-1"
	g, _ := playedGroups(t, layout, places{shared: cpuset.MustParse("0-1")}, Options{})
	b := &Testbed{Setup: &Setup{}, backend: g}
	path, err := b.Disk()
	if errors.Is(err, kernel.ErrNotSupported) && !strings.Contains(err.Error(), "io controller") {
		t.Skip(err)
	}
	if err != nil || !strings.HasPrefix(path, "/dev/") {
		t.Errorf("disk %q, %v", path, err)
	}
	if err := errors.Join(b.Close(), g.close()); err != nil {
		t.Error(err)
	}
}
