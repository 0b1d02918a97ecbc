package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakespeed"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/place"
)

// speedHost has 8 CPUs in 2 packages with Intel Speed Select, two of each core.
func speedHost(t testing.TB) (*host, *fakespeed.Device) {
	t.Helper()
	l, p := layouts()["v2"], fakekernel.PowerHosts()["intel_pstate"]
	p.CPUs, p.Packages, p.Threads = 8, 2, 2
	l.Power = &p
	h := newHost(t, l)
	h.opt.Classes.Power = &power.Config{Profiles: map[string]power.Profile{
		"first":  {Like: "performance", SpeedSelect: &power.SpeedSelect{Turbo: true}},
		"second": {SpeedSelect: &power.SpeedSelect{Priority: 1}},
		"last":   {SpeedSelect: &power.SpeedSelect{Priority: 3}},
	}}
	d := fakespeed.New(h.k.FS(), 8, 2, 2)
	h.speed = d
	return h, d
}

// speedSpec asks for CPUs and a profile.
func speedSpec(id, cpus, profile string) Spec {
	s := powered(spec(id, place.LSE, 1000*cpuset.MustParse(cpus).Len(), 0), profile)
	s.CPUs = cpuset.MustParse(cpus)
	return s
}

// state is that of a device: the packages, and the priority of each CPU.
func state(zero, one, priorities string) map[string]string {
	all := map[string]string{"package 0": zero, "package 1": one}
	for cpu, priority := range strings.Split(priorities, "") {
		all[fmt.Sprint("CPU ", cpu)] = priority
	}
	return all
}

// The cores of a workload have the priority and the turbo of its profile, those of the pool theirs:
// with CPUs that change hands they change. What the device shows late is waited for.
func TestSpeedSelect(t *testing.T) {
	t.Parallel()
	for _, mailbox := range []bool{false, true} {
		ctx := context.Background()
		h, d := speedHost(t)
		d.Mailbox, d.Lag = mailbox, 2
		h.opt.Classes.Power.Shared = "last"
		before, files := d.State(), h.settings()
		n := h.open()
		_, plan, err := n.Preview(ctx, speedSpec("api", "2-3", "first"))
		if want := "echo 1 > /sys/devices/system/cpu/speed_select/package0/turbo_freq  # profile first of api"; err != nil || !strings.Contains(plan.String(), want) {
			t.Errorf("preview: %v\n%s", err, plan)
		}
		w := h.place(n, speedSpec("api", "2-3", "first"))
		if diff := cmp.Diff(state("1 ordered 1", "1 ordered 0", "33003333"), d.State()); diff != "" {
			t.Errorf("placed (-want +got):\n%s", diff)
		}
		if len(w.Notes) > 2 || !strings.Contains(w.Notes[1], "its turbo by priority (SST-TF) is that of CPUs 0-1, too") {
			t.Errorf("notes: %q", w.Notes)
		}
		h.repairsNothing(n, "again")
		r, err := n.ClassReport(ctx)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(r.Kinds, func(s ClassSection) bool { return s.Kind == PowerClass })
		for _, c := range r.Kinds[at].Classes {
			want := map[string][]ClassSetting{"first": {{"priority", "0"}, {"turbo by priority", "on"}}, "last": {{"priority", "3"}}}[c.Name]
			for _, setting := range want {
				if !slices.Contains(c.Settings, setting) {
					t.Errorf("%s: %v, want %v", c.Name, c.Settings, setting)
				}
			}
		}
		if _, err := n.Move(ctx, "api", cpuset.MustParse("6-7"), cpuset.Set{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(state("1 ordered 0", "1 ordered 1", "33333300"), d.State()); diff != "" {
			t.Errorf("moved (-want +got):\n%s", diff)
		}
		h.release(n, "api")
		if diff := cmp.Diff(before, d.State()); diff != "" {
			t.Errorf("released (-before +after):\n%s", diff)
		}
		if diff := h.changes(files); len(diff) > 0 || h.undoLog(n).Has(isPowerStep) {
			t.Errorf("released: %q, undo log %v", diff, h.undoLog(n).Has(isPowerStep))
		}
	}
}

// A priority that all have, and turbo for more cores than it is for, bring nothing: notes say so.
func TestSpeedSelectNotes(t *testing.T) {
	t.Parallel()
	h, d := speedHost(t)
	d.Package(0).Domains[0].HighCores = 1
	n := h.open()
	w := h.place(n, speedSpec("api", "2-3", "first"))
	notes := strings.Join(w.Notes, "\n")
	for _, want := range []string{"CPUs 0-1 have priority 0, too, so it brings nothing", "turbo by priority is for 1 cores of CPUs 0-3 at most, and 2 have priority 0 or 1"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes %q, want %q", notes, want)
		}
	}
	// One thread of a core cannot have a priority of its own: the other one is not slowed down.
	h.place(n, speedSpec("half", "4", "last"))
	if diff := cmp.Diff(state("1 ordered 1", "1 ordered 0", "00000000"), d.State()); diff != "" {
		t.Errorf("half a core (-want +got):\n%s", diff)
	}
}

// What other programs have set up is respected, or a profile is refused before anything is written.
func TestSpeedSelectOfOthers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for what, tc := range map[string]struct {
		set     func(*fakespeed.Device)
		want    map[string]string // with the profile; nil is refused
		refusal string
	}{
		"ordered already": {func(d *fakespeed.Device) {
			*d.Package(0) = with(*d.Package(0), "1", "ordered", map[int]int{0: 2, 1: 2, 2: 1, 3: 1})
		}, state("1 ordered 1", "0 proportional 0", "22000000"), ""},
		"left-over priorities": {func(d *fakespeed.Device) {
			*d.Package(0) = with(*d.Package(0), "0", "proportional", map[int]int{0: 3, 1: 3, 2: 1, 3: 1})
		}, state("1 ordered 1", "0 proportional 0", "00000000"), ""},
		"weights":        {func(d *fakespeed.Device) { d.Package(0).CorePower = "1" }, nil, "by weights"},
		"weights beside": {func(d *fakespeed.Device) { d.Package(1).CorePower = "1" }, state("1 ordered 1", "1 proportional 0", "00000000"), ""},
		"domains differ": {func(d *fakespeed.Device) { d.Package(0).Turbo = "differs" }, nil, "set its power domains to differ"},
		"limited clock":  {func(d *fakespeed.Device) { d.Package(0).Most[2] = 2_000_000 }, nil, "cores of priority 2 to 2 GHz"},
		"no turbo":       {func(d *fakespeed.Device) { d.Package(0).Turbo = "" }, nil, "package 0 has none at its performance level"},
		"no priorities":  {func(d *fakespeed.Device) { d.Package(0).CorePower, d.Package(0).Turbo = "", "" }, nil, "SST-CP"},
		"locked":         {func(d *fakespeed.Device) { d.Locked = true }, nil, "not permitted"},
		"no device":      {func(d *fakespeed.Device) { d.Err = fs.ErrNotExist }, nil, "there is no /dev/isst_interface (on a server of Intel"},
		"not root":       {func(d *fakespeed.Device) { d.Err = fs.ErrPermission }, nil, "this user may not use /dev/isst_interface (run as root"},
		"broken":         {func(d *fakespeed.Device) { d.Err = errors.New("mailbox is busy") }, nil, "mailbox is busy"},
	} {
		h, d := speedHost(t)
		tc.set(d)
		before := d.State()
		n := h.open()
		_, err := n.Place(ctx, speedSpec("api", "2-3", "first"))
		switch {
		case tc.want == nil && (err == nil || !strings.Contains(err.Error(), tc.refusal)):
			t.Errorf("%s: %v, want %q", what, err, tc.refusal)
		case tc.want == nil:
			if class, ok := errors.AsType[*ClassError](err); !ok || class.Name != "first" {
				t.Errorf("%s: %#v", what, err)
			}
			if diff := cmp.Diff(before, d.State()); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
			// One that follows from the class of service is left out, and a note says so.
			h.opt.Classes.Power.Service = map[string]string{"LSE": "first"}
			if n.Close(); what == "locked" {
				continue
			}
			s := speedSpec("api", "2-3", "")
			s.Classes = nil
			if w := h.place(h.open(), s); !slices.ContainsFunc(w.Notes, func(text string) bool { return strings.Contains(text, tc.refusal) }) {
				t.Errorf("%s: notes %q", what, w.Notes)
			}
		default:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if diff := cmp.Diff(tc.want, d.State()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
			h.repairsNothing(n, what)
			h.release(n, "api")
			if diff := cmp.Diff(before, d.State()); diff != "" || h.undoLog(n).Has(isPowerStep) {
				t.Errorf("%s, released (-before +after):\n%s", what, diff)
			}
		}
	}
}

// with is a package as another program has set it up.
func with(p power.SpeedPackage, corePower, order string, priority map[int]int) power.SpeedPackage {
	p.CorePower, p.Order, p.Priority = corePower, order, maps.Clone(priority)
	return p
}

// What another program changes is repaired, and left to it if it insists.
func TestSpeedSelectYields(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for what, tc := range map[string]struct {
		change func(*fakespeed.Device) error
		after  map[string]string // with the profile
		left   map[string]string // released
	}{
		"priority":   {func(d *fakespeed.Device) error { return d.SetPriority(2, 2) }, state("1 ordered 1", "0 proportional 0", "00220000"), state("0 proportional 0", "0 proportional 0", "00220000")},
		"turbo":      {func(d *fakespeed.Device) error { return d.SetTurbo(0, false) }, state("1 ordered 0", "0 proportional 0", "00000000"), state("0 proportional 0", "0 proportional 0", "00000000")},
		"order":      {func(d *fakespeed.Device) error { return d.SetOrder(0, false) }, state("1 proportional 1", "0 proportional 0", "00000000"), state("0 proportional 0", "0 proportional 0", "00000000")},
		"priorities": {func(d *fakespeed.Device) error { return errors.Join(d.SetTurbo(0, false), d.SetCorePower(0, false)) }, state("0 proportional 0", "0 proportional 0", "00000000"), state("0 proportional 0", "0 proportional 0", "00000000")},
	} {
		h, d := speedHost(t)
		d.Mailbox = what == "priorities"
		n := h.open()
		h.place(n, speedSpec("api", "2-3", "first"))
		placed := d.State()
		yielded := false
		for time := 1; time <= 6 && !yielded; time++ {
			if err := tc.change(d); err != nil {
				t.Fatal(err)
			}
			repairs, err := n.Reconcile(ctx)
			if err != nil || len(repairs) == 0 {
				t.Fatalf("%s, time %d: %v, %v", what, time, repairs, err)
			}
			yielded = slices.ContainsFunc(repairs, func(r Repair) bool { return r.Yielded })
			if !yielded {
				if diff := cmp.Diff(placed, d.State()); diff != "" {
					t.Errorf("%s, time %d, repaired (-want +got):\n%s", what, time, diff)
				}
			}
		}
		h.repairsNothing(n, what+", yielded")
		if diff := cmp.Diff(tc.after, d.State()); diff != "" || !yielded {
			t.Errorf("%s, yielded %v (-want +got):\n%s", what, yielded, diff)
		}
		h.release(n, "api")
		if diff := cmp.Diff(tc.left, d.State()); diff != "" {
			t.Errorf("%s, released (-want +got):\n%s", what, diff)
		}
	}
}

// Where another program insists that no priorities count, what needs them is not asked for.
func TestSpeedSelectSwitchedOff(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h, d := speedHost(t)
	n := h.open()
	h.place(n, speedSpec("api", "2-3", "second"))
	for yielded := false; !yielded; {
		if err := d.SetCorePower(0, false); err != nil {
			t.Fatal(err)
		}
		repairs, err := n.Reconcile(ctx)
		if err != nil || len(repairs) == 0 {
			t.Fatalf("%v, %v", repairs, err)
		}
		yielded = repairs[0].Yielded
	}
	h.place(n, speedSpec("turbo", "1", "first"))
	if diff := cmp.Diff(state("0 proportional 0", "0 proportional 0", "00110000"), d.State()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	h.release(n, "api")
	h.release(n, "turbo")
	if diff := cmp.Diff(state("0 proportional 0", "0 proportional 0", "00000000"), d.State()); diff != "" {
		t.Errorf("released (-want +got):\n%s", diff)
	}
}

// A core keeps its priority while its CPUs are offline, and gets back what it had once they are there;
// also if the module of the device was away meanwhile.
func TestSpeedSelectOffline(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, away := range []string{"3", "2", "2-3", "module"} {
		h, d := speedHost(t)
		for cpu := range 4 {
			d.Package(0).Priority[cpu] = 1
		}
		d.Package(0).CorePower, d.Package(0).Order = "1", "ordered"
		before := d.State()
		n := h.open()
		h.place(n, speedSpec("api", "2-3", "last"))
		if got := d.State()["CPU 2"]; got != "3" {
			t.Fatalf("priority %s", got)
		}
		if away == "module" {
			d.Err = fs.ErrNotExist
		} else if err := h.k.SetOnline(cpuset.MustParse("0-7").Minus(cpuset.MustParse(away)).String()); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Reconcile(ctx); err != nil {
			t.Errorf("%s: %v", away, err)
		}
		h.release(n, "api")
		if away == "2" || away == "3" { // one CPU is enough to reach the core
			if diff := cmp.Diff(before, d.State()); diff != "" {
				t.Errorf("%s, released (-before +after):\n%s", away, diff)
			}
		}
		d.Err = nil
		if err := h.k.SetOnline("0-7"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Reconcile(ctx); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, d.State()); diff != "" {
			t.Errorf("%s, back (-before +after):\n%s", away, diff)
		}
		n.Close()
		if _, err := Restore(ctx, h.options()); err != nil || h.undoLog(h.open()).Has(isPowerStep) {
			t.Errorf("%s: %v", away, err)
		}
	}
}

// What cannot be restored as CPUs are offline or the device is away stays noted, and is restored once they
// are back.
func TestSpeedSelectRestoredLater(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, away := range []string{"6-7", "4-7", "module"} {
		h, d := speedHost(t)
		before := d.State()
		n := h.open()
		h.place(n, speedSpec("api", "6-7", "second"))
		n.Close()
		if away == "module" {
			d.Err = fs.ErrNotExist
		} else if err := h.k.SetOnline(cpuset.MustParse("0-7").Minus(cpuset.MustParse(away)).String()); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(ctx, h.options()); err == nil {
			t.Errorf("%s: nothing is said", away)
		}
		d.Err = nil
		if err := h.k.SetOnline("0-7"); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(ctx, h.options()); err != nil {
			t.Errorf("%s, back: %v", away, err)
		}
		if diff := cmp.Diff(before, d.State()); diff != "" {
			t.Errorf("%s, back (-before +after):\n%s", away, diff)
		}
	}
}

// doomedSpeed are the calls of a process with a fate.
type doomedSpeed struct {
	*fakespeed.Device
	*fate
}

func (d doomedSpeed) SetPriority(cpu, priority int) error {
	return d.change(func() error { return d.Device.SetPriority(cpu, priority) })
}

func (d doomedSpeed) SetCorePower(pkg int, on bool) error {
	return d.change(func() error { return d.Device.SetCorePower(pkg, on) })
}

func (d doomedSpeed) SetOrder(pkg int, ordered bool) error {
	return d.change(func() error { return d.Device.SetOrder(pkg, ordered) })
}

func (d doomedSpeed) SetTurbo(pkg int, on bool) error {
	return d.change(func() error { return d.Device.SetTurbo(pkg, on) })
}

// Killed before and after each change, amid placing, changing profiles, moving and releasing, restoring
// gives cores their priorities and packages their switches back.
func TestSpeedSelectKilled(t *testing.T) {
	t.Parallel()
	for _, mailbox := range []bool{false, true} {
		t.Run(fmt.Sprint("mailbox ", mailbox), func(t *testing.T) {
			t.Parallel()
			step := 1
			if testing.Short() {
				step = 7
			}
			killedAtEach(t, step, 50, func(f *fate) bool {
				h, d := speedHost(t)
				d.Mailbox = mailbox
				h.opt.Classes.Power.Shared = "last"
				d.Package(1).Priority[4], d.Package(1).Priority[5] = 2, 2
				before, files := d.State(), h.settings()
				alive := h.restoredAfter(f, func(n *Node) { h.throughProfiles(n, speedSpec("api", "2-3", "first"), "6-7", "second", "first") })
				if diff := cmp.Diff(before, d.State()) + cmp.Diff(files, h.settings()); diff != "" {
					t.Errorf("(-before +restored):\n%s", diff)
				}
				return alive
			})
		})
	}
}

// After any sequence of placing, changing, moving and releasing, the device has refused nothing, cores
// without an owner have what they had, and nothing is left to do.
func TestSpeedSelectProperties(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 2))
			h, d := speedHost(t)
			d.Mailbox = seed%2 == 1
			for id := range 2 {
				if p := d.Package(id); rng.IntN(2) == 0 {
					for cpu := range p.Priority {
						p.Priority[cpu] = []int{int(seed) % 4, 2}[cpu/2%2]
					}
					if rng.IntN(2) == 0 {
						p.CorePower, p.Order = "1", "ordered"
					}
				}
			}
			before := d.State()
			n := h.open()
			names := append(h.opt.Classes.Power.Names(), "none")
			for range 25 {
				id := []string{"a", "b", "c"}[rng.IntN(3)]
				s := spec(id, place.LSE, 1000*(1+rng.IntN(2)), 0)
				s.SetClass(PowerClass, names[rng.IntN(len(names))])
				var err error
				switch rng.IntN(4) {
				case 0:
					_, err = n.Place(ctx, s)
				case 1:
					_, err = n.Resize(ctx, s)
				case 2:
					_, err = n.Move(ctx, id, cpuset.MustOf(rng.IntN(8)), cpuset.Set{})
				case 3:
					err = n.Release(ctx, id, Kill)
				}
				if _, ok := errors.AsType[*kernel.StepError](err); ok {
					t.Fatalf("refused: %v", err)
				}
				s2, err := n.State(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for cpu, now := range d.State() {
					var number int
					if _, err := fmt.Sscanf(cpu, "CPU %d", &number); err != nil {
						continue
					}
					// Where priorities did not count before, those left over count as 0 meanwhile.
					free := !s2.Owned().Overlaps(cpuset.MustOf(number, number^1))
					if free && now != before[cpu] && (now != "0" || strings.HasPrefix(before[fmt.Sprint("package ", number/4)], "1")) {
						t.Fatalf("%s has no owner: priority %s, was %s", cpu, now, before[cpu])
					}
				}
				h.now = h.now.Add(time.Hour)
				if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
					t.Fatalf("left to do: %v, %v", repairs, err)
				}
			}
			for _, id := range []string{"a", "b", "c"} {
				_ = n.Release(ctx, id, Kill)
			}
			if diff := cmp.Diff(before, d.State()); diff != "" || h.undoLog(n).Has(isPowerStep) {
				t.Errorf("all released (-before +after):\n%s", diff)
			}
		})
	}
}
