package cli

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/golden"
	"berth.dev/berth/watch"
)

// recording is one that a test replays; see testdata/diagnose/README.md.
func recording(name string) string { return filepath.Join("testdata/diagnose", name+".jsonl") }

func TestWatchReplay(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"hog.txt":   {"--replay", recording("hog"), "--once"},
		"stall.txt": {"--replay", recording("hog"), "--once", "--sort", "stall", "-n", "1"},
		"named.txt": {"--replay", recording("quota"), "--sort", "throttled", "demo/api"},
	} {
		out, errs, code := berth(t, append([]string{"watch"}, args...)...)
		if code != exitOK || errs != "" {
			t.Fatalf("%s: status %d: %s", name, code, errs)
		}
		golden.Check(t, "testdata/watch/"+name, out)
	}
}

// What -o json prints of a recording is the recording.
func TestWatchJSON(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(recording("hog"))
	if err != nil {
		t.Fatal(err)
	}
	_, samples, _ := strings.Cut(string(text), "\n")
	out, errs, code := berth(t, "watch", "--replay", recording("hog"), "-o", "json")
	if code != exitOK || out != samples {
		t.Errorf("status %d, %d bytes for %d: %s", code, len(out), len(samples), errs)
	}
}

func TestWatchRefuses(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--sort", "name"}, exitUsage, "it is one of cpu, stall"},
		{[]string{"-n", "0"}, exitUsage, "--top 0"},
		{[]string{"-o", "yaml"}, exitUsage, "it is one of text, json"},
		{[]string{"--interval", "1ms"}, exitUsage, "--interval 1ms"},
		{[]string{"--replay", "none.jsonl"}, exitError, "none.jsonl"},
		{[]string{"--replay", empty}, exitError, "line 1"},
		{[]string{"--replay", recording("hog"), "nobody"}, exitError, "nobody"},
		{[]string{"--root", t.TempDir(), "--once"}, exitError, "observe"},
	} {
		_, errs, code := berth(t, append([]string{"watch"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%v: status %d, %q; want %d and %q", c.args, code, errs, c.code, c.says)
		}
	}
}

// A counter that goes back, or that lacks its last reading, has no rate.
func TestWatchRates(t *testing.T) {
	t.Parallel()
	table := newWatchTable(&observe.Header{}, nil)
	at := func(second watch.Time, used float64) []watch.Sample {
		return []watch.Sample{{Time: second * watch.Second, Subject: watch.Subject{Scope: watch.Group, Name: "a"}, Quantity: watch.CPUTime, Value: used}}
	}
	for i, step := range []struct {
		samples []watch.Sample
		want    float64
	}{
		{at(1, 5), math.NaN()}, {at(2, 6), 1}, {at(4, 7), 0.5}, {at(5, 2), math.NaN()}, {at(6, 2), 0},
	} {
		table.add(step.samples)
		if got := table.groups["a"].level(watch.CPUTime); got != step.want && !(math.IsNaN(got) && math.IsNaN(step.want)) {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
	host := []watch.Sample{{Time: 7 * watch.Second}}
	table.add(host)
	host[0].Time += watch.Second
	table.add(host)
	if table.groups["a"] != nil {
		t.Error("a group that is gone is still shown")
	}
}

// A group that is asked about has a row, however little it does.
func TestWatchAlwaysShows(t *testing.T) {
	t.Parallel()
	table := newWatchTable(&observe.Header{}, nil)
	for second := range watch.Time(3) {
		var samples []watch.Sample
		for i, name := range []string{"a", "b", "c", "idle"} {
			samples = append(samples, watch.Sample{
				Subject: watch.Subject{Scope: watch.Group, Name: name}, Quantity: watch.CPUTime, Time: second * watch.Second, Value: float64(second) * float64(3-i),
			})
		}
		table.add(samples)
	}
	if text := table.text("cpu", 2); strings.Contains(text, "idle ") || strings.Contains(text, "\nc ") {
		t.Errorf("more than two rows:\n%s", text)
	}
	for _, name := range []string{"c", "idle"} {
		table.always = name
		if text := table.text("cpu", 2); !strings.Contains(text, "\n"+name+" ") || !strings.Contains(text, "\na ") || strings.Contains(text, "\nb ") {
			t.Errorf("%s and the busiest are not the rows:\n%s", name, text)
		}
	}
}

// What the hardware tells has a column only if it tells some group's; caches are
// added up.
func TestWatchHardware(t *testing.T) {
	t.Parallel()
	table := newWatchTable(&observe.Header{}, nil)
	at := func(second watch.Time, more ...watch.Sample) {
		samples := []watch.Sample{{Quantity: watch.CPUTime, Value: float64(second)}}
		for _, s := range append(samples, more...) {
			s.Time, s.Subject.Scope, s.Subject.Name = second*watch.Second, watch.Group, "a"
			samples = append(samples, s)
		}
		table.add(samples[1:])
	}
	cache := func(id int, q watch.Quantity, v float64) watch.Sample {
		return watch.Sample{Subject: watch.Subject{Part: watch.Part{Kind: watch.Cache, ID: id}}, Quantity: q, Value: v}
	}
	at(1)
	at(2)
	if text := table.text("cpu", 10); strings.Contains(text, "IPC") || strings.Contains(text, "MEMBW") {
		t.Errorf("columns that nobody fills:\n%s", text)
	}
	for second := watch.Time(3); second < 5; second++ {
		v := float64(second)
		at(second,
			cache(0, watch.LLCOccupancy, 1<<20), cache(1, watch.LLCOccupancy, 2<<20), cache(0, watch.Bandwidth, v*(1<<20)), cache(1, watch.Bandwidth, v*(4<<20)),
			watch.Sample{Quantity: watch.Cycles, Value: 1000 * v}, watch.Sample{Quantity: watch.Instructions, Value: 1250 * v},
			watch.Sample{Quantity: watch.Switches, Value: 40 * v}, watch.Sample{Quantity: watch.Frequency, Value: 2.5e9})
	}
	lines := strings.Split(table.text("cpu", 10), "\n")
	if got, want := strings.Fields(lines[1])[7:], []string{"SWITCH", "IPC", "GHZ", "CACHE", "MEMBW"}; !slices.Equal(got, want) {
		t.Errorf("columns %v, want %v", got, want)
	}
	got := strings.Join(strings.Fields(lines[2]), " ")
	if want := "40 1.25 2.50 " + memoryCell(3<<20) + " " + memoryCell(5<<20); !strings.HasSuffix(got, want) {
		t.Errorf("row %q, want it to end in %q", got, want)
	}
}

// The host's line has the watts that are counted.
func TestWatchWatts(t *testing.T) {
	t.Parallel()
	for want, joules := range map[string][]float64{
		"CPU stall – %\n":                                nil,
		"CPU stall – %, packages 41.5 W\n":               {41.5},
		"CPU stall – %, packages 41.5 W, memory 3.0 W\n": {41.5, 3},
	} {
		table := newWatchTable(&observe.Header{}, nil)
		for second := watch.Time(1); second < 3; second++ {
			samples := []watch.Sample{{Time: second * watch.Second, Quantity: watch.CPUTime}}
			for i, v := range joules {
				samples = append(samples, watch.Sample{Time: second * watch.Second, Quantity: watch.EnergyPackages + watch.Quantity(i), Value: v * float64(second)})
			}
			table.add(samples)
		}
		if text := table.text("cpu", 10); !strings.Contains(text, want) {
			t.Errorf("%q, want %q", text, want)
		}
	}
}
