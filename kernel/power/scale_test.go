package power

import (
	"cmp"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
)

// The limit goes up at once, and down after the hold, to the most that was needed meanwhile.
func TestScaleNext(t *testing.T) {
	t.Parallel()
	s := &Scale{Busy: 50, Hold: "6s"}
	level := Level{}
	for i, step := range []struct {
		windows []Window
		want    int
	}{
		{nil, 100}, // nothing is known yet
		{[]Window{{0.2, 1}, {0.1, 1}}, 100},
		{[]Window{{0.3, 1}, {0.1, 1}}, 100},
		{[]Window{{0.1, 1}, {0.1, 1}}, 60}, // 6 s; the most was 0.3 of the clock, 0.6 at half the time
		{[]Window{{0.5, 0.6}, {0.1, 0.6}}, 60},
		{[]Window{{0.1, 0.6}, {0.1, 0.6}}, 60},
		{[]Window{{0.1, 0.6}, {0.1, 0.6}}, 60},
		{[]Window{{0.51, 0.6}, {0.1, 0.6}}, 65}, // at once; and the hold begins anew
		{[]Window{{0.1, 0.65}}, 65},
		{[]Window{{0.1, 0.65}}, 65},
		{nil, 65}, // nothing is known: it stays, and the hold begins anew
		{[]Window{{0.1, 0.65}}, 65},
		{[]Window{{0, 0.65}}, 65},
		{[]Window{{0, 0.65}}, 20},         // 0.13 of 1, by steps of 5 percent; no less than least
		{[]Window{{0.99, 0.2}}, 90},       // it may need any amount: the most
		{[]Window{{0.8, 0.9}}, 90},        // it would need more than the most
		{[]Window{{math.NaN(), 0.9}}, 90}, // no figure
	} {
		if level = s.Next(level, step.windows, ScaleEvery, 20, []int{100, 90}[min(i/14, 1)]); level.Percent != step.want {
			t.Errorf("window %d, %v: %d%%, want %d%%", i, step.windows, level.Percent, step.want)
		}
	}
}

// pool plays CPUs of a host that do work at the clocks that the limits of a profile leave them.
type pool struct {
	host    *Host
	profile Profile
	cpus    cpuset.Set
	least   int
	most    int
}

func (p *pool) windows(level Level, work []float64) (all []Window) {
	for _, policy := range p.host.Policies {
		limit := float64(p.profile.limit(policy, level.Percent)) / float64(policy.Most)
		for cpu := range policy.CPUs.All() {
			all = append(all, Window{Busy: min(work[cpu]/limit, 1), Limit: limit})
		}
	}
	return all
}

// On each driver and with any profile: a level is within its bounds; under constant work it
// comes to rest, where no CPU is busier than it may be unless the limit is at the most, and one
// step less would not be enough where the driver takes any frequency; it does not go down
// before the hold is over; and more work is never answered by less clock.
func TestScaleProperties(t *testing.T) {
	t.Parallel()
	for driver, layout := range fakekernel.PowerHosts() {
		if layout.PerPolicy == 0 {
			continue
		}
		_, root := played(t, driver)
		host := read(t, root)
		rng := rand.New(rand.NewPCG(7, uint64(len(driver))))
		for range 400 {
			text := func(low, high int) string {
				return []string{"10%", "20%", "40%", "60%", "80%", "100%"}[low+rng.IntN(high-low)]
			}
			p := &pool{host: host, cpus: host.Online(), profile: Profile{Scale: &Scale{Busy: 20 + rng.IntN(76), Hold: "10s"}}}
			if rng.IntN(2) == 0 {
				p.profile.Scale.Floor = text(0, 3)
			}
			if rng.IntN(2) == 0 {
				p.profile.Max = text(3, 6)
			}
			if err := (&Config{Profiles: map[string]Profile{"p": p.profile}}).Validate(); err != nil {
				t.Fatal(err)
			}
			p.least, p.most = host.Levels(p.cpus, p.profile)
			if p.least < 1 || p.least > p.most || p.most > 100 {
				t.Fatalf("%s, %+v: levels from %d to %d", driver, p.profile, p.least, p.most)
			}
			work := make([]float64, p.cpus.Len())
			level := Level{}
			for range 1 + rng.IntN(4) {
				for i := range work {
					work[i] = rng.Float64() * rng.Float64()
				}
				p.settle(t, driver, &level, work)
			}
			more := append([]float64(nil), work...)
			more[0] = 1
			if a, b := p.profile.Scale.Next(level, p.windows(level, work), ScaleEvery, p.least, p.most), p.profile.Scale.Next(level, p.windows(level, more), ScaleEvery, p.least, p.most); b.Percent < a.Percent {
				t.Fatalf("%s, %+v: more work, less clock: %d%%, %d%%", driver, p.profile, a.Percent, b.Percent)
			}
		}
	}
}

// settle has constant work bring the level to rest.
func (p *pool) settle(t *testing.T, driver string, level *Level, work []float64) {
	t.Helper()
	s := p.profile.Scale
	busiest := func() (busy float64) {
		for _, w := range p.windows(*level, work) {
			busy = max(busy, w.Busy)
		}
		return busy
	}
	const hold = int(10 * time.Second / ScaleEvery)
	lastChange, last := 0, cmp.Or(level.Percent, p.most)
	for i := 1; i <= 6*hold; i++ {
		before, enough := level.Percent, busiest() <= float64(s.Busy)/100
		*level = s.Next(*level, p.windows(*level, work), ScaleEvery, p.least, p.most)
		if level.Percent < p.least || level.Percent > p.most {
			t.Fatalf("%s, %+v: level %d is not within %d and %d", driver, p.profile, level.Percent, p.least, p.most)
		}
		if before != 0 && !enough && level.Percent < before {
			t.Fatalf("%s, %+v: %d%% after %d%% though a CPU is too busy", driver, p.profile, level.Percent, before)
		}
		if level.Percent != last {
			if level.Percent < last && i-lastChange < hold && lastChange > 0 {
				t.Fatalf("%s, %+v: down to %d%% %d windows after the last change", driver, p.profile, level.Percent, i-lastChange)
			}
			lastChange, last = i, level.Percent
		}
	}
	if lastChange > 4*hold {
		t.Fatalf("%s, %+v: still moving, to %d%% in window %d", driver, p.profile, last, lastChange)
	}
	allowed := float64(s.Busy)/100 + 1e-6
	if busiest() > allowed && level.Percent < p.most {
		t.Fatalf("%s, %+v: at rest at %d%% of at most %d%%, busy %.2f", driver, p.profile, level.Percent, p.most, busiest())
	}
	at := *level
	if level.Percent -= levelStep; level.Percent >= p.least && busiest() <= allowed-0.02 && busiest() < fullyBusy && p.profile.Scale.Busy < 90 {
		exact := true // a level that is rounded up to a frequency, or the floor, may be further than one step
		for _, policy := range p.host.Policies {
			exact = exact && p.profile.limit(policy, level.Percent) == policy.Most/100*level.Percent
		}
		if exact {
			t.Fatalf("%s, %+v: at rest at %d%%, and %d%% is enough (busy %.3f)", driver, p.profile, at.Percent, level.Percent, busiest())
		}
	}
	*level = at
}

// With few frequencies the limit is the next one up: rounded down, it would be too little for
// what was measured.
func TestScaleLimit(t *testing.T) {
	t.Parallel()
	_, root := played(t, "acpi-cpufreq") // 1.2, 1.8 and 2.6 GHz
	h := read(t, root)
	for _, tc := range []struct {
		profile     Profile
		level, want int
		least, most int
	}{
		{Profile{Scale: &Scale{}}, 0, 2_600_000, 45, 100},
		{Profile{Scale: &Scale{}}, 50, 1_800_000, 45, 100},
		{Profile{Scale: &Scale{}}, 70, 2_600_000, 45, 100},
		{Profile{Scale: &Scale{}}, 10, 1_200_000, 45, 100},
		{Profile{Scale: &Scale{Floor: "1.5GHz"}}, 10, 1_800_000, 65, 100},
		{Profile{Min: "1.5GHz", Scale: &Scale{}}, 10, 1_800_000, 65, 100},
		{Profile{Max: "2GHz", Scale: &Scale{}}, 100, 1_800_000, 45, 70},
		{Profile{Max: "2GHz", Scale: &Scale{Floor: "1.9GHz"}}, 10, 1_800_000, 65, 70}, // no step is between
	} {
		if got := tc.profile.limit(h.Policies[0], tc.level); got != tc.want {
			t.Errorf("%+v %+v at %d%%: %d kHz, want %d", tc.profile, *tc.profile.Scale, tc.level, got, tc.want)
		}
		if least, most := h.Levels(h.Online(), tc.profile); least != tc.least || most != tc.most {
			t.Errorf("%+v %+v: levels from %d to %d, want %d to %d", tc.profile, *tc.profile.Scale, least, most, tc.least, tc.most)
		}
	}
	_, root = played(t, "virtual")
	if least, most := read(t, root).Levels(cpuset.MustParse("0-1"), Profile{Scale: &Scale{}}); least != 0 || most != 0 {
		t.Errorf("without cpufreq: levels from %d to %d", least, most)
	}
}

// A window has the limit that the file has now, whoever wrote it.
func TestScaleWindows(t *testing.T) {
	t.Parallel()
	k, root := played(t, "acpi-cpufreq")
	h := read(t, root)
	if err := k.WriteFile("sys/devices/system/cpu/cpufreq/policy2/scaling_max_freq", "1300000"); err != nil {
		t.Fatal(err)
	}
	all, err := h.Windows(root.FS(), cpuset.MustParse("1-3"), map[int]float64{0: 0.1, 1: 0.2, 2: 0.3})
	if err != nil || len(all) != 2 || all[0] != (Window{0.2, 1}) || all[1] != (Window{0.3, 1.2 / 2.6}) {
		t.Errorf("%v, %v", all, err)
	}
	if err := k.SetOnline("0-1"); err != nil { // amid the windows
		t.Fatal(err)
	}
	if all, err = h.Windows(root.FS(), cpuset.MustParse("1-3"), map[int]float64{1: 0.2, 2: 0.3}); err != nil || len(all) != 1 {
		t.Errorf("offline: %v, %v", all, err)
	}
	if err := k.Put("sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", "fast"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Windows(root.FS(), cpuset.MustParse("1"), nil); err == nil || !strings.Contains(err.Error(), `"fast" is no number`) {
		t.Errorf("nonsense: %v", err)
	}
}

func TestScaleConfig(t *testing.T) {
	t.Parallel()
	config := func(p Profile) *Config {
		return &Config{Profiles: map[string]Profile{"p": p}, Shared: "p"}
	}
	for want, p := range map[string]Profile{
		"":                                    {Min: "1GHz", Max: "2GHz", Scale: &Scale{Busy: 20, Floor: "1GHz", Hold: "2s"}},
		"profiles.p.scale.busy: 10: want 20":  {Scale: &Scale{Busy: 10}},
		"profiles.p.scale.busy: 96: want 20":  {Scale: &Scale{Busy: 96}},
		`profiles.p.scale.hold: "1s" is no`:   {Scale: &Scale{Hold: "1s"}},
		`profiles.p.scale.hold: "soon" is no`: {Scale: &Scale{Hold: "soon"}},
		`profiles.p.scale.floor: "low" is no`: {Scale: &Scale{Floor: "low"}},
		"scale.floor: 70% is above max, 60%":  {Max: "60%", Scale: &Scale{Floor: "70%"}},
		"scale.floor: 1GHz is below min":      {Min: "1.1GHz", Scale: &Scale{Floor: "1GHz"}},
	} {
		err := config(p).Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", p.Scale, err, want)
		}
	}
	scaled := config(Profile{Scale: &Scale{}})
	night := &Config{Profiles: scaled.Profiles, Schedules: []Schedule{{From: "22:00", To: "06:00", Reserved: "p"}}}
	if !scaled.Scales() || !night.Scales() || config(Profile{Max: "60%"}).Scales() || (*Config)(nil).Scales() || (&Config{Profiles: scaled.Profiles}).Scales() {
		t.Error("Scales says otherwise")
	}
}

// A window of a pool of 256 CPUs.
func BenchmarkScaleNext(b *testing.B) {
	s, level := &Scale{}, Level{}
	windows := make([]Window, 256)
	for i := range windows {
		windows[i] = Window{Busy: float64(i%90) / 100, Limit: 0.8}
	}
	for b.Loop() {
		level = s.Next(level, windows, ScaleEvery, 20, 100)
	}
	if level.Percent == 0 {
		b.Error("no level")
	}
}
