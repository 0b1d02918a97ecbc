package balloons_test

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/balloons"
)

func lists(texts ...string) []cpuset.Set {
	var out []cpuset.Set
	for _, text := range texts {
		out = append(out, set(text))
	}
	return out
}

// hybrid is a machine of two P cores of two threads (0-3) and four E cores (4-7).
func hybrid() *machine.Machine {
	m := &machine.Machine{Online: set("0-7")}
	for i := range 8 {
		kind := machine.KindP
		if i > 3 {
			kind = machine.KindE
		}
		m.CPUs = append(m.CPUs, machine.CPU{ID: i, Kind: kind})
	}
	for i, cpus := range lists("0-1", "2-3", "4", "5", "6", "7") {
		m.Domains = append(m.Domains, machine.Domain{Kind: machine.Core, ID: i, CPUs: cpus, KernelID: i})
	}
	return m
}

func isolated(m *machine.Machine, cpus string) *machine.Machine {
	m.Isolated = set(cpus)
	return m
}

func must(form string) *machine.Machine {
	m, err := machine.Short(form)
	if err != nil {
		panic(err)
	}
	return m
}

func shares(level balloons.Level) balloons.Policy {
	return only(balloons.Type{ShareIdle: level})
}

func cpuOptions() []option {
	x := func(ty balloons.Type) balloons.Policy { return only(ty) }
	one := []step{add("a", "x", 1000)}
	gpu := place.Config{Devices: []place.Device{{Name: "gpu", Nodes: set("1")}}}
	nics := place.Config{Devices: []place.Device{{Name: "gpu", Nodes: set("1")}, {Name: "nic", Nodes: set("0")}}}
	return []option{
		{name: "shareIdleCPUsInSame", with: shares(balloons.CoreLevel), without: x(balloons.Type{}), conf: place.Config{Floor: set("0,16")}, steps: one, want: "a=1,17"},
		{name: "hideHyperthreads", with: x(balloons.Type{HideHyperthreads: true}), without: x(balloons.Type{}), steps: []step{add("a", "x", 4000)}, want: "a=1-2", pools: "x/0=1-2,17-18"},
		{
			name: "hint hide-hyperthreads", with: x(balloons.Type{}), without: x(balloons.Type{HideHyperthreads: true}), want: "a=1-2,16-17 b=1-2,16",
			steps: []step{add("a", "x", 3000), add("b", "x", 1000).with(func(r *place.Request) { r.Hints[balloons.HintHide] = "true" })},
		},
		{
			name: "cpuClass", with: x(balloons.Type{CPUClass: "turbo"}), without: x(balloons.Type{}), steps: one, want: "a=16", classes: "turbo=16",
		},
		{
			name: "idleCPUClass", with: balloons.Policy{IdleCPUClass: "slow", Types: only(balloons.Type{}).Types}, without: only(balloons.Type{}),
			steps: one, want: "a=16", classes: "slow=0-15,17-31",
		},
		{
			name: "cpuClass of reserved", conf: place.Config{Reserved: set("0")}, want: "", classes: "calm=0",
			with: x(balloons.Type{Name: "reserved", CPUClass: "calm"}), without: x(balloons.Type{Name: "reserved"}),
		},
		{
			name: "branches of a type", with: x(balloons.Type{Branches: balloons.Spread, PreferNew: true}), without: x(balloons.Type{PreferNew: true}),
			steps: some(2, "a", "x", 2000), want: "a0=8,24 a1=4,20",
		},
		{
			name: "branches of the policy", with: balloons.Policy{Branches: balloons.Spread, Types: only(balloons.Type{}).Types}, without: only(balloons.Type{}),
			steps: some(1, "a", "x", 2000), want: "a0=8,24",
		},
		{
			name: "branches of a type before the policy's", with: balloons.Policy{Branches: balloons.Spread, Types: only(balloons.Type{Branches: balloons.Pack}).Types},
			without: balloons.Policy{Branches: balloons.Spread, Types: only(balloons.Type{}).Types}, steps: some(1, "a", "x", 2000), want: "a0=1,17",
		},
		{name: "cores of a type", with: x(balloons.Type{Cores: balloons.Spread}), without: x(balloons.Type{}), steps: []step{add("a", "x", 4000)}, want: "a=1-3,16"},
		{
			name: "cores of the policy", with: balloons.Policy{Cores: balloons.Spread, Types: only(balloons.Type{}).Types}, without: only(balloons.Type{}),
			steps: []step{add("a", "x", 4000)}, want: "a=1-3,16",
		},
		{
			name: "cores of a type before the policy's", with: balloons.Policy{Cores: balloons.Spread, Types: only(balloons.Type{Cores: balloons.Pack}).Types},
			without: balloons.Policy{Cores: balloons.Spread, Types: only(balloons.Type{}).Types}, steps: []step{add("a", "x", 4000)}, want: "a=1-2,17-18",
		},
		{name: "preferCloseToDevices", with: x(balloons.Type{PreferNear: []string{"gpu"}}), without: x(balloons.Type{}), conf: gpu, steps: one, want: "a=8"},
		{
			name: "the more important device", with: x(balloons.Type{PreferNear: []string{"nic", "gpu"}}), without: x(balloons.Type{PreferNear: []string{"gpu", "nic"}}),
			conf: nics, steps: one, want: "a=16",
		},
		{
			name: "left to the type that is close", conf: place.Config{Devices: []place.Device{{Name: "gpu", Nodes: set("0")}}}, steps: []step{add("a", "y", 1000)}, want: "a=8",
			with:    balloons.Policy{Types: []balloons.Type{{Name: "x", PreferNear: []string{"gpu"}}, {Name: "y"}, {Name: "default"}}},
			without: balloons.Policy{Types: []balloons.Type{{Name: "x"}, {Name: "y"}, {Name: "default"}}},
		},
		{name: "preferIsolCpus", machine: isolated(must(two), "9"), with: x(balloons.Type{PreferIsolated: true}), without: x(balloons.Type{}), steps: one, want: "a=9"},
		{name: "preferCoreType", machine: hybrid(), with: x(balloons.Type{PreferCoreKind: machine.KindE}), without: x(balloons.Type{}), steps: []step{add("a", "x", 2000)}, want: "a=4-5"},
		{
			name: "preferred cores are left to those who prefer them", machine: hybrid(), steps: []step{add("a", "y", 1000)}, want: "a=4",
			with:    balloons.Policy{Types: []balloons.Type{{Name: "x", PreferCoreKind: machine.KindP}, {Name: "y"}, {Name: "default"}}},
			without: balloons.Policy{Types: []balloons.Type{{Name: "x"}, {Name: "y"}, {Name: "default"}}},
		},
	}
}

// TestShareIdle tells the levels apart, on a machine of two sockets, each of two
// dies of two nodes of two L3 domains of two cores of two threads.
func TestShareIdle(t *testing.T) {
	t.Parallel()
	for level, want := range map[balloons.Level]string{
		balloons.NoLevel:      "32",
		balloons.CoreLevel:    "32",
		balloons.L2Level:      "32",
		balloons.L3Level:      "1,32-33",
		balloons.NUMALevel:    "1-3,32-35",
		balloons.DieLevel:     "1-7,32-39",
		balloons.PackageLevel: "1-15,32-47",
		balloons.SystemLevel:  "1-4,6-63",
	} {
		// CPU 0 is the floor and CPU 5 isolated: they are never shared.
		m := must("2s2d2n2l2c2t")
		if level == balloons.SystemLevel {
			m.Isolated = set("5")
		}
		got := run(t, shares(level), m, place.Config{}, []step{add("a", "x", 1000)})
		if got.workloads != "a="+want {
			t.Errorf("%v: %s, want a=%s", level, got.workloads, want)
		}
	}
}

func TestShareIdleIsWithdrawn(t *testing.T) {
	t.Parallel()
	p := only(balloons.Type{ShareIdle: balloons.L3Level, PreferNew: true})
	steps := []step{add("a", "x", 1000), add("b", "y", 2000)}
	p.Types = append(p.Types, balloons.Type{Name: "y"})
	for n, want := range []string{"", "a=1-3,16-19", "a=2-3,16,18-19 b=1,17", "a=1-3,16-19"} {
		if got := run(t, p, fakekernel.Short(t, two), place.Config{}, append(steps, drop("b"))[:n]); got.workloads != want {
			t.Errorf("after %d steps %q, want %q", n, got.workloads, want)
		}
	}
}

// TestChoice covers the order in which CPUs are chosen.
func TestChoice(t *testing.T) {
	t.Parallel()
	x := only(balloons.Type{PreferNew: true})
	for _, tt := range []struct {
		name  string
		form  string
		p     balloons.Policy
		conf  place.Config
		steps []step
		want  string
	}{
		{name: "narrowest domain that has enough: core", form: two, p: x, steps: []step{add("a", "x", 2000)}, want: "a=1,17"},
		{name: "L3", form: two, p: x, steps: []step{add("a", "x", 7000)}, want: "a=1-3,16-19"},
		// A whole L3 first, and the rest from the other.
		{name: "node", form: two, p: x, steps: []step{add("a", "x", 10000)}, want: "a=1,4-7,17,20-23"},
		{name: "machine", form: two, p: x, steps: []step{add("a", "x", 31000)}, want: "a=1-31"},
		{name: "too many", form: two, p: x, steps: []step{add("a", "x", 32000)}, want: "a=refused"},
		// Half of the first L3 is held: the exact fit is the rest of it, not the next.
		{name: "exact size", form: "1s1n4l4c1t", p: x, conf: place.Config{Floor: set("0-1")}, steps: []step{add("a", "x", 2000), add("b", "x", 4000)}, want: "a=2-3 b=4-7"},
		{name: "grows inside its L3", form: two, p: only(balloons.Type{}), steps: []step{add("a", "x", 3000), add("b", "y", 3000), add("c", "x", 2000)}, want: "a=1-2,16-18 b=8-9,24 c=1-2,16-18"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := tt.p
			p.Types = append(p.Types, balloons.Type{Name: "y", Branches: balloons.Spread})
			if got := run(t, p, fakekernel.Short(t, tt.form), tt.conf, tt.steps); got.workloads != tt.want {
				t.Errorf("%q, want %q (%s)", got.workloads, tt.want, got.pools)
			}
		})
	}
}

func compositeOptions() []option {
	parts := []balloons.Type{{Name: "near0", PreferNear: []string{"d0"}, CPUClass: "c0"}, {Name: "near1", PreferNear: []string{"d1"}, CPUClass: "c1"}, {Name: "default"}}
	conf := place.Config{Devices: []place.Device{{Name: "d0", Nodes: set("0")}, {Name: "d1", Nodes: set("1")}}}
	composite := func(ty balloons.Type) balloons.Policy {
		ty.Name = "x"
		return balloons.Policy{Types: append([]balloons.Type{ty}, parts...)}
	}
	both := balloons.Type{Components: []string{"near0", "near1"}}
	balanced := both
	balanced.BalanceComponents, balanced.PreferNew = true, true
	return []option{
		{name: "components", conf: conf, with: composite(both), without: composite(balloons.Type{}), steps: []step{add("a", "x", 4000)}, want: "a=1,8,17,24", classes: "c0=1,17 c1=8,24"},
		{
			name: "balanceComponents", conf: conf, with: composite(balanced), without: composite(balloons.Type{Components: both.Components, PreferNew: true}),
			steps: some(3, "a", "x", 2000), want: "a0=1,17 a1=8,24 a2=2,18",
		},
	}
}
