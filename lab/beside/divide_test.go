package beside

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
)

// divided is a host whose CPU allocates caches, with threads 100 and 101 of the tenant and 200
// of the neighbour.
type divided struct {
	t    *testing.T
	dir  string
	k    *fakekernel.Kernel
	root *kernel.Root
	log  *kernel.UndoLog
}

func newDivided(t *testing.T, cpu string) *divided {
	t.Helper()
	r := fakekernel.ResctrlCPUs()[cpu]
	l := fakekernel.V2()
	l.Resctrl = &r
	h := &divided{t: t, dir: t.TempDir()}
	var err error
	if h.k, err = fakekernel.New(h.dir, l); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.k.Start("100"), h.k.Start("101"), h.k.Start("200")); err != nil {
		t.Fatal(err)
	}
	h.root = kernel.NewRoot(h.dir, h.k)
	h.log = h.open()
	return h
}

func (h *divided) open() *kernel.UndoLog {
	log, err := kernel.OpenUndoLog(h.root, filepath.Join(h.dir, "undo"), "berth lab")
	if err != nil {
		h.t.Fatal(err)
	}
	return log
}

func (h *divided) apply(d *division) (func() error, error) {
	return d.apply(h.root, func(r lab.Role) ([]int, error) {
		if r == lab.Tenant {
			return []int{100, 101}, nil
		}
		return []int{200}, nil
	}, func(p kernel.Plan) (func() error, error) { return kernel.Apply(h.root, p, h.log) })
}

var padding = regexp.MustCompile("= +") // of numbers

// groups are the lines and threads of all groups that there are.
func (h *divided) groups() map[string]string {
	all := map[string]string{}
	files, err := filepath.Glob(filepath.Join(h.dir, fakekernel.ResctrlDir, "*", "schemata"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, file := range append(files, filepath.Join(h.dir, fakekernel.ResctrlDir, "schemata")) {
		text := ""
		for _, name := range []string{file, filepath.Join(filepath.Dir(file), "tasks")} {
			data, err := os.ReadFile(name)
			if err != nil {
				h.t.Fatal(err)
			}
			ids := strings.Fields(padding.ReplaceAllString(string(data), "="))
			if name != file {
				slices.Sort(ids)
			}
			text += strings.Join(ids, " ") + "\n"
		}
		all[filepath.Base(filepath.Dir(file))] = text
	}
	return all
}

// Settings are written, the threads follow, and all of it is gone afterwards: taken back by the
// run, or, where that was killed, by whoever finds its undo log.
func TestDivision(t *testing.T) {
	t.Parallel()
	h := newDivided(t, "skylake")
	before := h.groups()
	const mb = "MB:0=100;1=100"
	for cell, want := range map[string][2]string{ // L3 of 11 ways, and MB, of tenant and neighbour
		oneWay:         {"L3:0=001;1=001 " + mb + "\n100 101\n", "L3:0=7fe;1=7fe " + mb + "\n200\n"},
		twoWays:        {"L3:0=003;1=003 " + mb + "\n100 101\n", "L3:0=7fc;1=7fc " + mb + "\n200\n"},
		halfTheWays:    {"L3:0=01f;1=01f " + mb + "\n100 101\n", "L3:0=7e0;1=7e0 " + mb + "\n200\n"},
		mostWays:       {"L3:0=3ff;1=3ff " + mb + "\n100 101\n", "L3:0=400;1=400 " + mb + "\n200\n"},
		someBandwidth:  {"", "L3:0=7ff;1=7ff MB:0=50;1=50\n200\n"},
		leastBandwidth: {"", "L3:0=7ff;1=7ff MB:0=10;1=10\n200\n"},
	} {
		for _, killed := range []bool{false, true} {
			undo, err := h.apply(named(t, cell))
			if err != nil {
				t.Errorf("%s: %v", cell, err)
				continue
			}
			now := h.groups()
			if diff := cmp.Diff(want, [2]string{now[groupPrefix+lab.Tenant], now[groupPrefix+lab.Neighbour]}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", cell, diff)
			}
			if killed {
				h.log = h.open()
				_, err = h.log.Undo(func(kernel.Step) bool { return true })
			} else {
				err = undo()
			}
			if diff := cmp.Diff(before, h.groups()); err != nil || diff != "" {
				t.Errorf("%s, killed %v: %v, left behind (-before +after):\n%s", cell, killed, err, diff)
			}
		}
	}
}

func named(t *testing.T, name string) *division {
	t.Helper()
	i := slices.IndexFunc(cache.cells, func(c cell) bool { return c.name == name })
	if i < 0 || cache.cells[i].division == nil {
		t.Fatalf("no division %q", name)
	}
	return cache.cells[i].division
}

// On each CPU a cell is run and leaves nothing, or is refused with the reason before a write.
func TestDivisionOnCPUs(t *testing.T) {
	t.Parallel()
	for cpu := range fakekernel.ResctrlCPUs() {
		h := newDivided(t, cpu)
		before := h.groups()
		for _, c := range cache.cells {
			if c.division == nil {
				continue
			}
			can := c.division.check(h.root.FS())
			undo, err := h.apply(c.division)
			if !errors.Is(err, can) && (err == nil || can == nil || err.Error() != can.Error()) || err != nil && !errors.Is(err, kernel.ErrNotSupported) {
				t.Errorf("%s, %s: %v, foretold %v", cpu, c.name, err, can)
			}
			if err == nil {
				err = undo()
				if len(h.groups()) != len(before) {
					t.Errorf("%s, %s: %v", cpu, c.name, h.groups())
				}
			}
			if diff := cmp.Diff(before, h.groups()); diff != "" {
				t.Errorf("%s, %s: %v (-before +after):\n%s", cpu, c.name, err, diff)
			}
		}
	}
	h := newDivided(t, "zen2")
	if _, err := h.apply(named(t, someBandwidth)); err != nil || !strings.Contains(h.groups()[groupPrefix+lab.Neighbour], "MB:0=64;1=64") {
		t.Errorf("8 GB/s on a CPU that counts in eighths: %v %v", err, h.groups())
	}
}

// What cannot be is a typed error, and nothing is left.
func TestDivisionRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cpu, cell string
		make      []string
		want      string
	}{
		"no CLOSID left":     {"skylake", oneWay, []string{"a", "b", "c", "d", "e", "f", "g"}, "needs 2 groups of resctrl, and 8 of the CPU's 8 CLOSIDs are in use"},
		"one left of two":    {"skylake", oneWay, []string{"a", "b", "c", "d", "e", "f"}, "needs 2 groups of resctrl, and 7 of"},
		"no bandwidth limit": {"", leastBandwidth, nil, "does not limit memory bandwidth"},
	} {
		h := newDivided(t, "skylake")
		if c.cpu == "" {
			r := fakekernel.ResctrlCPUs()["skylake"]
			r.Lines = r.Lines[:1]
			l := fakekernel.V2()
			l.Resctrl = &r
			h.dir = t.TempDir()
			k, err := fakekernel.New(h.dir, l)
			if err != nil {
				t.Fatal(err)
			}
			h.root = kernel.NewRoot(h.dir, k)
		}
		for _, group := range c.make {
			if err := h.k.Mkdir(fakekernel.ResctrlDir + "/" + group); err != nil {
				t.Fatal(err)
			}
		}
		before := h.groups()
		_, err := h.apply(named(t, c.cell))
		if !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, h.groups()); diff != "" {
			t.Errorf("%s left (-before +after):\n%s", name, diff)
		}
	}
	// Without resctrl the cells are skipped with the reason of the host.
	x := Cache()
	x.fsys = fstest.MapFS{"proc/self/mountinfo": {}, "proc/cpuinfo": {Data: []byte("vendor_id\t: x\nflags\t\t: hypervisor\n")}}
	for _, c := range cache.cells {
		if c.division == nil {
			continue
		}
		if !x.cannot(c) {
			t.Errorf("%s is not skipped", c.name)
		}
		if err := x.prepareDivided(c.division, nil, nil); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "hypervisor") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// What ways and bandwidth bring and cost is said where cells with them were run; elsewhere they
// change no figure, and why they were not is said.
func TestDivisionWords(t *testing.T) {
	t.Parallel()
	times := map[string]float64{alone: 1, quietBeside: 1, sameCache: 2, otherCache: 1, oneWay: 3, twoWays: 2, halfTheWays: 1.2, mostWays: 1, someBandwidth: 1.5, leastBandwidth: 1.1}
	work := map[string]float64{sameCache: 1, oneWay: 1, twoWays: 0.95, halfTheWays: 0.8, mostWays: 0.5, someBandwidth: 0.5, leastBandwidth: 0.1}
	with := stored(t, Cache(), 20, times, work)
	without := Cache()
	*without = *with
	without.Rounds = slices.DeleteFunc(slices.Clone(with.Rounds), func(r lab.Round) bool { return cache.divides(r.Scenario) })
	without.Skipped = []lab.Skipped{{Scenario: oneWay, Reason: "resctrl is not mounted"}}
	for _, tc := range []struct {
		x            *Experiment
		want, never  []string
		cells, kinds int
	}{
		{with, []string{"Half the ways, against same cache: CPU time per request: ", "p99: ×0.596", "the neighbour's work: ×0.8", "Least bandwidth, against same cache"}, []string{"cannot be measured here: resctrl"}, 10, 4},
		{without, []string{"bring cannot be measured here: resctrl is not mounted."}, []string{"Half the ways"}, 4, 3},
	} {
		v, err := tc.x.view()
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(cacheWords(v), "\n")
		for _, want := range tc.want {
			if !strings.Contains(text, want) {
				t.Errorf("lacks %q:\n%s", want, text)
			}
		}
		for _, never := range tc.never {
			if strings.Contains(text, never) {
				t.Errorf("has %q:\n%s", never, text)
			}
		}
		if len(v.Cells) != tc.cells || len(v.Figures) != tc.kinds {
			t.Errorf("%d cells, %d figures, want %d and %d", len(v.Cells), len(v.Figures), tc.cells, tc.kinds)
		}
	}
}
