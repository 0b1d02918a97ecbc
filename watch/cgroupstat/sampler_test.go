package cgroupstat

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth.dev/berth/watch"
)

// changing is a group whose files a test writes, and a Sampler of it.
type changing struct {
	t   *testing.T
	dir string
	s   *Sampler
	now watch.Time
}

func newChanging(t *testing.T, version int, files map[string]string, tiers ...[]Signal) *changing {
	t.Helper()
	tr := tree(t, version, files)
	c := &changing{t: t, dir: filepath.Join(tr.Dir, "g"), s: NewSampler([]Tree{tr}, tiers...)}
	t.Cleanup(func() {
		if err := c.s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.s.Add("g", 0); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *changing) write(file, text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, file), []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// read is a round: the values by quantity.
func (c *changing) read(tiers ...Request) map[watch.Quantity]float64 {
	c.t.Helper()
	c.now++
	return c.again(tiers...)
}

func (c *changing) again(tiers ...Request) map[watch.Quantity]float64 {
	c.t.Helper()
	samples, failed := c.s.Sample(c.now, nil, tiers...)
	if len(failed) > 0 {
		c.t.Fatal(failed)
	}
	got := map[watch.Quantity]float64{}
	for _, s := range samples {
		if s.Time != c.now {
			c.t.Errorf("%+v: not of now", s)
		}
		got[s.Quantity] = s.Value
	}
	return got
}

func (c *changing) open() (n int) {
	for _, f := range c.s.readers[0].files {
		if f.open {
			n++
		}
	}
	return n
}

// What a group tells is read again once it has used CPU time; until then it is repeated,
// for 16 rounds at most.
func TestRepeatsWhileIdle(t *testing.T) {
	t.Parallel()
	q := Request{Read: SetOf(Usage, Memory, MemoryPressure), Fresh: SetOf(MemoryPressure)}
	for version, usage := range map[int][3]string{
		1: {"cpuacct.usage", "3000000000\n", "3000001000\n"},
		2: {"cpu.stat", "usage_usec 3000000\n", "usage_usec 3000001\n"},
	} {
		files, memory := v2Files(), "memory.current"
		if version == 1 {
			files, memory = v1Files(), "memory.usage_in_bytes"
		}
		c := newChanging(t, version, files, q.Read.signals())
		c.write(usage[0], usage[1])
		c.read(q)
		c.write(memory, "1\n")
		if version == 2 {
			c.write("memory.pressure", "some avg10=0 avg60=0 avg300=0 total=7000000\n")
		}
		got := c.read(q)
		if got[watch.Memory] != 8192 || got[watch.CPUTime] == 0 {
			t.Errorf("v%d: idle: %v, want the memory of before", version, got)
		}
		if version == 2 && got[watch.MemorySome] != 7 {
			t.Errorf("idle: pressure %v is not read", got[watch.MemorySome])
		}
		c.write(usage[0], usage[2])
		if got := c.read(q); got[watch.Memory] != 1 {
			t.Errorf("v%d: it used CPU time: %v, want what it has now", version, got)
		}
		c.write(memory, "2\n")
		rounds := 1
		for c.read(q)[watch.Memory] == 1 && rounds <= refresh {
			rounds++
		}
		if rounds > refresh {
			t.Errorf("v%d: read again after %d rounds, want %d at most", version, rounds, refresh)
		}
	}
}

// A group whose CPU time is not read in a round is not taken for idle.
func TestRepeatsNothingWithoutUsage(t *testing.T) {
	t.Parallel()
	c := newChanging(t, 2, v2Files(), []Signal{Usage, Memory})
	c.read(Request{Read: SetOf(Usage, Memory)})
	c.write("memory.current", "1\n")
	if got := c.read(Request{Read: SetOf(Memory)}); got[watch.Memory] != 1 {
		t.Errorf("%v, want the memory of now", got)
	}
}

// Pressure that cannot have moved is repeated, if it was told in the round before.
func TestRepeatsWhatIsStill(t *testing.T) {
	t.Parallel()
	pressures := SetOf(CPUPressure)
	moving, still := Request{Read: pressures, Fresh: pressures}, Request{Read: pressures, Fresh: pressures, Still: pressures}
	c := newChanging(t, 2, v2Files(), []Signal{CPUPressure})
	c.read(still)
	c.write("cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=9000000\n")
	for range 2 * refresh {
		if got := c.read(still); got[watch.CPUSome] != 2 {
			t.Fatalf("still: %v", got)
		}
	}
	if got := c.read(moving); got[watch.CPUSome] != 9 {
		t.Errorf("moving: %v", got)
	}
	c.write("cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=10000000\n")
	c.read(Request{})
	if got := c.read(still); got[watch.CPUSome] != 10 {
		t.Errorf("still, but not looked at in the round before: %v", got)
	}
}

// A file that is not to stay open is closed, at once or when it is no longer read every
// round; a group that moves to a tier has the files of that open.
func TestOpenFiles(t *testing.T) {
	t.Parallel()
	c := newChanging(t, 2, v2Files(), []Signal{Usage}, []Signal{Usage, Memory, CPUPressure})
	usage, all := Request{Read: SetOf(Usage)}, Request{Read: SetOf(Usage, IO, Tasks), Fresh: SetOf(IO, Tasks)}
	for i, step := range []struct {
		q    Request
		want int
	}{{usage, 1}, {all, 1}, {usage, 1}, {all, 1}, {all, 3}, {all, 3}, {usage, 3}, {usage, 1}} {
		if got := c.read(step.q, usage); c.open() != step.want || got[watch.CPUTime] != 3 {
			t.Errorf("step %d: %d files are open, want %d; %v", i, c.open(), step.want, got)
		}
	}
	for tier, want := range []int{0: 1, 1: 3} {
		if err := c.s.Add("g", tier); err != nil {
			t.Fatal(err)
		}
		c.read(usage, usage)
		if c.read(usage, usage); c.open() != want {
			t.Errorf("tier %d: %d files are open, want %d", tier, c.open(), want)
		}
	}
	if err := c.s.Add("g", 0); err != nil {
		t.Fatal(err)
	}
	c.read(usage, usage)
	if c.read(usage, usage); c.open() != 1 {
		t.Errorf("back in the first tier: %d files are open", c.open())
	}
}

// One that is read twice in a round tells the same twice.
func TestReadsOnceInRound(t *testing.T) {
	t.Parallel()
	q := Request{Read: SetOf(Usage), Fresh: SetOf(Usage)}
	c := newChanging(t, 2, v2Files(), []Signal{Usage})
	c.read(q)
	c.write("cpu.stat", "usage_usec 9\n")
	if got := c.again(q); got[watch.CPUTime] != 3 {
		t.Errorf("%v", got)
	}
	samples, err := c.s.SampleGroup(c.now+1, "g", q, nil)
	if err != nil || len(samples) != 1 || samples[0].Value != 9e-6 {
		t.Errorf("%v, %v", samples, err)
	}
	if _, err := c.s.SampleGroup(c.now+1, "none", q, nil); !errors.Is(err, watch.ErrGone) {
		t.Errorf("a group that is not read: %v", err)
	}
}

// What is asked for quietly is told when it is read, once more when it was not, and no
// more until it is read again.
func TestRepeatsQuietlyOnce(t *testing.T) {
	t.Parallel()
	q := Request{Read: SetOf(Usage, Throttling, Memory), Quiet: SetOf(Throttling)}
	c := newChanging(t, 1, v1Files(), q.Read.signals())
	var told []bool
	for i := range 5 {
		if i == 3 {
			c.write("cpuacct.usage", "4000000000\n")
		}
		got := c.read(q)
		_, there := got[watch.CPUPeriods]
		told = append(told, there)
		if _, there := got[watch.Memory]; !there {
			t.Errorf("round %d: memory is not told", i)
		}
	}
	if want := []bool{true, true, false, true, true}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
