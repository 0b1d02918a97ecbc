package guard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/watch"
)

// crowded is a host whose hog drives svc/web out of the cache, or takes the way to memory, as
// long as it has more of them than the kernel that the test plays shows.
type crowded struct {
	*model
	root    string
	memory  bool
	counted map[string]map[watch.Quantity]float64
	last    watch.Time
}

// line is what the hog's group of resctrl has, else the default group.
func (c *crowded) line(resource string) string {
	for _, group := range []string{resctrl.GuardGroup(c.hog), ""} {
		text, err := os.ReadFile(filepath.Join(c.root, fakekernel.ResctrlDir, group, "schemata"))
		if err != nil {
			continue
		}
		s, _ := resctrl.ParseSchemata(string(text))
		return s.Line(resource).String()
	}
	return ""
}

func (c *crowded) cut() bool {
	if c.memory {
		return c.line("MB") != "MB:0=100;1=100"
	}
	return c.line("L3") != "L3:0=7ff;1=7ff"
}

func (c *crowded) Tick(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	to, err := c.model.Tick(now, to)
	s := (now - c.last).Seconds()
	c.last = now
	hurts := c.hogging() && !c.cut()
	traffic := 0.0
	for _, g := range []string{c.web, c.hog} {
		cpi, mpki, occupancy, moves, use := 1.0, 2.0, 8e6, 1e9, 1.0
		switch {
		case g == c.web && hurts && c.memory:
			cpi, mpki = 3, 2
		case g == c.web && hurts:
			cpi, mpki, occupancy = 3, 20, 1e6
		case g == c.hog && !c.hogging():
			occupancy, moves, use = 0, 0, 0
		case g == c.hog:
			occupancy, moves, use = 2e6, 4e9, 2.9
			if hurts {
				occupancy, moves = 2e7, 18e9
			}
		}
		if !c.memory {
			moves /= 10
		}
		of := c.counted[g]
		if of == nil {
			of = map[watch.Quantity]float64{}
			c.counted[g] = of
		}
		of[watch.Cycles] += use * 3e9 * s
		of[watch.Instructions] += use * 3e9 / cpi * s
		of[watch.LLCMisses] += use * 3e9 / cpi * mpki / 1000 * s
		of[watch.Bandwidth] += moves * s
		traffic += of[watch.Bandwidth]
		subject := watch.Subject{Scope: watch.Group, Name: g}
		for _, q := range []watch.Quantity{watch.Cycles, watch.Instructions, watch.LLCMisses} {
			to = append(to, watch.Sample{Time: now, Subject: subject, Quantity: q, Value: of[q]})
		}
		subject.Part = watch.Part{Kind: watch.Cache}
		to = append(to, watch.Sample{Time: now, Subject: subject, Quantity: watch.LLCOccupancy, Value: occupancy},
			watch.Sample{Time: now, Subject: subject, Quantity: watch.Bandwidth, Value: of[watch.Bandwidth]})
	}
	return append(to, watch.Sample{Time: now, Subject: watch.Subject{Part: watch.Part{Kind: watch.Cache}}, Quantity: watch.Bandwidth, Value: traffic}), err
}

func (c *crowded) TickNear(now watch.Time, to []watch.Sample) ([]watch.Sample, error) { return to, nil }

// From the finding to the lines of the kernel, and back once the hog has ended: the suspect has
// a group of its own with half of what it had, the victim is well, and nothing is left.
func TestCacheIsCut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		memory   bool
		resource detect.Resource
		action   string
		line     string
	}{
		"ways":      {false, detect.LLC, "cache_ways batch/hog: 6 ways", "L3:0=3f;1=3f"},
		"bandwidth": {true, detect.MemoryBandwidth, "bandwidth_cap batch/hog: 50 %", "MB:0=50;1=50"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			layout := fakekernel.V2()
			cpu := fakekernel.ResctrlCPUs()["skylake"]
			layout.Resctrl, layout.CPUs = &cpu, "0-3"
			k, err := fakekernel.New(dir, layout)
			if err != nil {
				t.Fatal(err)
			}
			root := kernel.NewRoot(dir, k)
			groups, err := cgroup.Detect(root)
			if err != nil {
				t.Fatal(err)
			}
			groups.Hierarchies[0].Own = ""
			base, err := groups.Base(cgroup.CPU, cgroup.CPUSet)
			if err != nil {
				t.Fatal(err)
			}
			for pid, group := range map[string]string{"100": "svc/web", "101": "batch/hog"} {
				plan, err := base.Child(group).Create()
				if err == nil {
					_, err = kernel.Apply(root, plan, nil)
				}
				if err := errors.Join(err, k.Start(pid), k.WriteFile(base.Child(group).Dirs()[0]+"/cgroup.procs", pid)); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Test(t, func(t *testing.T) {
				host, err := actuate.Open(actuate.Options{Root: root, Dir: filepath.Join(dir, "run/guard")})
				if err != nil {
					t.Fatal(err)
				}
				m := &crowded{model: newModel(), root: dir, memory: c.memory, counted: map[string]map[watch.Quantity]float64{}}
				m.noProbe, m.hogs, m.ends, m.idle = errTooDear, 3*time.Minute, 6*time.Minute, true // it takes no CPU away
				o := m.options(control.Enforce)
				o.Sensors, o.Actuator, o.PeakBandwidth = m, host, 20e9
				during := ""
				acted, failed := []control.Event{}, []error{}
				o.Acted = func(e control.Event) {
					if acted = append(acted, e); e.Outcome == control.Kept && during == "" {
						line, _, _ := strings.Cut(c.line, ":")
						during = m.line(line)
					}
				}
				o.Failed = func(err error) { failed = append(failed, err) }
				r, err := New(o)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
				defer cancel()
				if err := r.Run(ctx); err != nil || len(failed) > 0 {
					t.Errorf("%v, %v", err, failed)
				}
				if len(acted) < 2 || acted[0].Action == nil || acted[0].Action.String() != c.action || acted[0].Resource != c.resource || acted[1].Outcome != control.Kept || !strings.HasSuffix(outcomes(acted), "on_trial relaxed") || during != c.line {
					t.Errorf("lines %q, want %q; events %v", during, c.line, acted)
				}
				if m.cut() || len(host.Notes()) > 0 {
					t.Errorf("in the end %q %q, noted %v", m.line("L3"), m.line("MB"), host.Notes())
				}
				if left, err := os.ReadDir(filepath.Join(dir, fakekernel.ResctrlDir)); err != nil || len(left) == 0 {
					t.Error(err)
				} else {
					for _, e := range left {
						if strings.HasPrefix(e.Name(), resctrl.GuardPrefix) {
							t.Errorf("%s is there still", e.Name())
						}
					}
				}
				if err := host.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// counting is a host that notes whose caches are read.
type counting struct {
	*model
	read []string
}

func (c *counting) Cache(group string) control.Cache {
	c.read = append(c.read, group)
	return control.Cache{Ways: 11}
}
func (c *counting) Follow() error { return nil }
func (c *counting) Monitor(_, _ []string) (actuate.Monitoring, error) {
	return actuate.Monitoring{}, nil
}

// What a suspect has of caches is read once in a slow window, and known in the short ones; of groups
// that nobody accuses nothing is read.
func TestCachesAreReadSeldom(t *testing.T) {
	t.Parallel()
	m := &counting{model: newModel()}
	o := m.options(control.Enforce)
	o.Sensors, o.Actuator = m, m
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{m.web, m.hog, m.other} {
		r.known.all[group] = &member{Workload: Workload{Group: group}}
		r.slow.detector.Track(detect.Workload{Group: group})
	}
	r.known.sort()
	subject := func(group string) watch.Subject {
		return watch.Subject{Scope: watch.Group, Name: group, Part: watch.Part{Kind: watch.Device, ID: 8 << 20}}
	}
	for second := range watch.Time(3) {
		var samples []watch.Sample
		for _, group := range r.known.names {
			samples = append(samples, watch.Sample{Time: second * watch.Second, Subject: subject(group), Quantity: watch.IORead, Value: float64(second) * 1e6})
		}
		r.slow.detector.Observe(samples)
		r.slow.detector.Judge(second * watch.Second)
	}
	cache := detect.Finding{Victim: m.web, Suspect: m.hog, Resource: detect.LLC}
	disk := detect.Finding{Victim: m.web, Suspect: m.hog, Resource: detect.IO}
	for _, c := range []struct {
		about         []detect.Finding
		full          bool
		read          int
		ways, devices string // the groups of which they are known
	}{
		{nil, true, 0, "", ""},
		{[]detect.Finding{cache, cache}, true, 1, m.hog, ""},
		{[]detect.Finding{cache}, false, 0, m.hog, ""},
		{nil, false, 0, m.hog, ""},
		{[]detect.Finding{disk}, true, 0, "", m.hog + " " + m.web},
	} {
		m.read = nil
		var ways, devices []string
		for _, w := range r.workloads(c.about, 3*watch.Second, c.full) {
			if w.Cache.Ways > 0 {
				ways = append(ways, w.Group)
			}
			if len(w.Devices) > 0 {
				devices = append(devices, w.Group)
			}
		}
		if len(m.read) != c.read || strings.Join(ways, " ") != c.ways || strings.Join(devices, " ") != c.devices {
			t.Errorf("%v, slow %v: read %v, known of %v, devices of %v", c.about, c.full, m.read, ways, devices)
		}
	}
}
