package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/place"
)

// A limit that the kernel refuses one workload, or that it has lost, keeps neither that from its
// other limits, nor others from theirs, nor the node from being recovered. It is told once, is no
// repair, and is tried again; who asks for it is refused it.
func TestLimitRefusedToOne(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		for _, group := range []string{"", "theirs"} {
			if group != "" && name != "v2" {
				continue
			}
			t.Run(name+group, func(t *testing.T) {
				t.Parallel()
				h, ctx := newHost(t, layout), context.Background()
				if group != "" {
					if err := h.k.Mkdir("sys/fs/cgroup/" + group); err != nil {
						t.Fatal(err)
					}
				}
				file := func(w Workload, names ...string) string {
					for name := range h.tree() {
						if slices.Contains(w.Dirs, path.Dir(name)) && slices.Contains(names, path.Base(name)) {
							return name
						}
					}
					t.Fatalf("%v has none of %v", w.Dirs, names)
					return ""
				}
				one, other := spec("one", place.LS, 0, 9000100), spec("other", place.LS, 0, 9000101)
				one.Limits = cgroup.Limits{Weight: 50, MemoryMax: 1 << 30}
				other.Limits, one.Group = one.Limits, group
				n := h.open()
				first, second := h.place(n, one), h.place(n, other)
				bad := file(first, "memory.max", "memory.limit_in_bytes")
				want := map[string]string{}
				for _, good := range []string{file(first, "cpu.weight", "cpu.shares"), file(second, "memory.max", "memory.limit_in_bytes"), bad} {
					want[good] = h.file(good)
				}
				meddle := func() {
					t.Helper()
					for good := range want {
						if err := h.k.WriteFile(good, "8192"); err != nil {
							t.Fatal(err)
						}
					}
				}
				// The node dies amid a change, and somebody changes all.
				refuses := bad
				h.files = unwilling{h.k, func(name string) bool { return name == refuses }}
				if err := errors.Join(n.Close(), os.WriteFile(filepath.Join(h.state, dirtyFile), nil, 0o600)); err != nil {
					t.Fatal(err)
				}
				meddle()
				h.events = nil
				n = h.open()
				if _, err := n.List(ctx); err != nil {
					t.Fatal(err)
				}
				is := func(when string) {
					t.Helper()
					for good, text := range want {
						if got := h.file(good); (got == text) != (good != refuses) {
							t.Errorf("%s: %s is %q, was %q", when, good, got, text)
						}
					}
				}
				is("recovered")
				for range 5 {
					h.repairsNothing(n, "again")
				}
				meddle()
				if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) != 2 {
					t.Errorf("repairs %v, %v", repairs, err)
				}
				is("compared")
				h.place(n, spec("new", place.LSE, 1000, 9000102))
				told := 0
				for _, e := range h.events {
					if strings.HasPrefix(e.Text, `workload "one" goes without a limit: `) && strings.Contains(e.Text, bad) && e.Kind == Failed {
						told++
					}
				}
				if told != 1 {
					t.Errorf("told %d times: %v", told, h.events)
				}
				asks := slowOf(one)
				asks.Limits.MemoryMax = 1 << 29
				var refused *kernel.StepError
				if _, err := n.Resize(ctx, asks); !errors.As(err, &refused) || refused.Step.Path != bad {
					t.Errorf("who asks: %v", err)
				}
				refuses = ""
				h.now = h.now.Add(lastTry)
				if _, err := n.Reconcile(ctx); err != nil {
					t.Error(err)
				}
				is("willing again")
			})
		}
	}
}

// unwillingFile is a file or directory that the kernel refuses to write, and how often that was tried.
type unwillingFile struct {
	h       *host
	refuses bool
	tries   int
}

func (h *host) refuse(file string) *unwillingFile {
	r := &unwillingFile{h: h, refuses: true}
	h.files = unwilling{h.k, func(name string) bool {
		if name == file {
			r.tries++
		}
		return r.refuses && name == file
	}}
	return r
}

// compare has a node compare so many times. What is refused is no repair.
func (r *unwillingFile) compare(t *testing.T, n *Node, times int) {
	t.Helper()
	for range times {
		r.h.now = r.h.now.Add(firstTry)
		if repairs, err := n.Reconcile(t.Context()); err != nil || r.refuses && len(repairs) > 0 {
			t.Fatalf("repairs %v, %v", repairs, err)
		}
	}
}

// A limit that the kernel keeps refusing is written ever more rarely, and at once by who asks.
func TestRefusedLimitWaits(t *testing.T) {
	t.Parallel()
	h, ctx := newHost(t, layouts()["v2"]), context.Background()
	one := spec("one", place.LS, 0, 9000100)
	one.Limits.MemoryMax = 1 << 30
	n := h.open()
	file := h.place(n, one).Dirs[0] + "/memory.max"
	at := h.refuse(file)
	if err := errors.Join(n.Close(), h.k.WriteFile(file, "8192")); err != nil {
		t.Fatal(err)
	}
	n = h.open()
	at.tries = 0
	at.compare(t, n, 20)
	if want := 5; at.tries != want { // after 30, 60, 120, 240 and 480 s
		t.Errorf("written %d times in 600 s, want %d", at.tries, want)
	}
	one.Limits.MemoryMax = 1 << 29
	var refused *kernel.StepError
	for range 2 {
		at.tries = 0
		if _, err := n.Resize(ctx, slowOf(one)); !errors.As(err, &refused) || at.tries != 1 {
			t.Errorf("who asks: written %d times, %v", at.tries, err)
		}
	}
	at.refuses = false
	at.compare(t, n, 1)
	if got := h.file(file); got != "8192" {
		t.Errorf("before it is due: %q", got)
	}
	at.compare(t, n, 20)
	if got, want := h.file(file), "1073741824"; got != want {
		t.Errorf("willing: %q, want %q", got, want)
	}
}

// A refusal is over once the file shows the limit, whoever wrote it: what others change then is
// repaired at the next comparison.
func TestRefusalEnds(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(h *host, n *Node, one Spec, file string) error{
		"asked for": func(_ *host, n *Node, one Spec, _ string) error {
			one.Limits.MemoryMax = 1 << 29
			_, err := n.Resize(context.Background(), slowOf(one))
			return err
		},
		"by another": func(h *host, n *Node, _ Spec, file string) error {
			err := h.k.WriteFile(file, "536870912")
			_, again := n.Reconcile(context.Background())
			return errors.Join(err, again)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, ctx := newHost(t, layouts()["v2"]), context.Background()
			one := spec("one", place.LS, 0, 9000100)
			one.Limits.MemoryMax = 1 << 29
			n := h.open()
			file, refuses := h.place(n, one).Dirs[0]+"/memory.max", true
			h.files = unwilling{h.k, func(name string) bool { return refuses && name == file }}
			if err := errors.Join(n.Close(), h.k.WriteFile(file, "8192")); err != nil {
				t.Fatal(err)
			}
			n = h.open()
			for range 20 { // the next try is an hour away
				h.now = h.now.Add(lastTry)
				if repairs, err := n.Reconcile(ctx); err != nil || len(repairs) > 0 {
					t.Fatalf("repairs %v, %v", repairs, err)
				}
			}
			refuses = false
			if err := write(h, n, one, file); err != nil {
				t.Fatal(err)
			}
			if got, want := h.file(file), "536870912"; got != want {
				t.Fatalf("written: %q, want %q", got, want)
			}
			if err := h.k.WriteFile(file, "4096"); err != nil {
				t.Fatal(err)
			}
			if _, err := n.Reconcile(ctx); err != nil {
				t.Fatal(err)
			}
			if got, want := h.file(file), "536870912"; got != want {
				t.Errorf("changed by others: %q, want %q", got, want)
			}
		})
	}
}

// A limit that cannot even be planned, as the kernel has lost what it is made by, is that
// workload's alone as well.
func TestLimitLostByOne(t *testing.T) {
	t.Parallel()
	h, ctx := newHost(t, layouts()["v2"]), context.Background()
	idle := spec("idle", place.LS, 0, 9000100)
	idle.Limits.Idle = cgroup.On
	other := spec("other", place.LS, 0, 9000101)
	other.Limits.Weight = 50
	n := h.open()
	h.place(n, idle)
	w := h.place(n, other)
	weight := w.Dirs[0] + "/cpu.weight"
	if err := errors.Join(n.Close(), os.WriteFile(filepath.Join(h.state, dirtyFile), nil, 0o600), h.k.WriteFile(weight, "77")); err != nil {
		t.Fatal(err)
	}
	for name := range h.tree() {
		if path.Base(name) == "cpu.idle" {
			if err := os.Remove(filepath.Join(h.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.events = nil
	n = h.open()
	if _, err := n.List(ctx); err != nil {
		t.Fatal(err)
	}
	if got := h.file(weight); got != "50" {
		t.Errorf("the other has weight %q", got)
	}
	if !slices.ContainsFunc(h.events, func(e Event) bool { return strings.HasPrefix(e.Text, `workload "idle" goes without a limit: `) }) {
		t.Errorf("told %v", h.events)
	}
}

// unwillingLine refuses one line of a file.
type unwillingLine struct {
	*fakekernel.Kernel
	line *string
}

func (u unwillingLine) WriteFile(name, data string) error {
	if *u.line != "" && strings.HasPrefix(data, *u.line) {
		return syscall.EIO
	}
	return u.Kernel.WriteFile(name, data)
}

// A line of a file that the kernel refuses hides no repair of another one.
func TestLineRefused(t *testing.T) {
	t.Parallel()
	h, ctx := ioHost(t, fakekernel.V2(), "classes: {slow: [{devices: [vda, sda], readBPS: 1M}]}"), context.Background()
	refused := ""
	h.files = unwillingLine{h.k, &refused}
	n := h.open()
	w := h.place(n, ofIO(spec("api", place.LS, 0, 9000100), "slow"))
	file := w.Dirs[0] + "/io.max"
	for line, repaired := range map[string]string{"8:0 ": "254:0 ", "254:0 ": "8:0 "} {
		refused, h.now = line, h.now.Add(lastTry)
		if err := errors.Join(h.k.WriteFile(file, "254:0 rbps=5"), h.k.WriteFile(file, "8:0 rbps=5")); err != nil {
			t.Fatal(err)
		}
		repairs, err := n.Reconcile(ctx)
		if err != nil || len(repairs) != 1 || repairs[0].Path != file || !strings.HasPrefix(repairs[0].Wanted, repaired) {
			t.Errorf("%s refused: %+v, %v", line, repairs, err)
		}
	}
}

// What is left of a plan that could not be undone is an error, not something that a workload goes
// without.
func TestOnlyRefused(t *testing.T) {
	t.Parallel()
	refused, other := &kernel.StepError{Err: os.ErrPermission}, errors.New("other")
	for _, tc := range []struct {
		err  error
		want *kernel.StepError
	}{
		{refused, refused}, {errors.Join(refused, nil), refused}, {errors.Join(errors.Join(refused), nil), refused},
		{errors.Join(refused, other), nil}, {errors.Join(other, refused), nil}, {other, nil}, {nil, nil},
	} {
		if got := onlyRefused(tc.err); got != tc.want {
			t.Errorf("%v: %v", tc.err, got)
		}
	}
}

// A class that the kernel keeps refusing is tried ever more rarely, too, and at once by who asks.
func TestRefusedClassWaits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		h     *host
		class func(*Spec)
		file  func(w Workload) string
		undo  func(h *host, file string) error
		again bool // another workload may ask for it
	}{
		"cache": {
			classHost(t, "skylake", nil), func(s *Spec) { s.SetClass(CacheClass, "gold") },
			func(Workload) string { return rc + "/" + resctrl.Prefix + "gold" }, func(h *host, file string) error { return h.k.Rmdir(file) }, true,
		},
		"power": {
			powerHost(t, "intel_pstate", 1), func(s *Spec) { s.SetClass(PowerClass, "full") },
			func(w Workload) string { return cpus + "/cpufreq/policy" + w.Grant.Own.String() + "/scaling_governor" },
			func(h *host, file string) error { return h.k.WriteFile(file, "powersave") }, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, ctx := tc.h, context.Background()
			one := spec("one", place.LSR, 1000, 9000100)
			tc.class(&one)
			n := h.open()
			file := tc.file(h.place(n, one))
			is := func() (is bool) {
				t.Helper()
				info, err := fs.Stat(h.k.FS(), file)
				return err == nil && (info.IsDir() || strings.TrimSpace(h.file(file)) == "performance")
			}
			at := h.refuse(file)
			if !is() {
				t.Fatalf("%s is not as the class says", file)
			}
			if err := errors.Join(n.Close(), tc.undo(h, file)); err != nil {
				t.Fatal(err)
			}
			n = h.open()
			at.tries = 0
			at.compare(t, n, 20)
			if want := 5; at.tries != want { // after 30, 60, 120, 240 and 480 s
				t.Errorf("tried %d times in 600 s, want %d", at.tries, want)
			}
			if tc.again {
				other := spec("other", place.LSR, 1000, 9000101)
				tc.class(&other)
				for range 2 {
					at.tries = 0
					_, err := n.Place(ctx, other)
					if _, is := errors.AsType[*ClassError](err); !is || at.tries != 1 {
						t.Errorf("who asks: tried %d times, %v", at.tries, err)
					}
				}
			}
			at.refuses = false
			at.compare(t, n, 1)
			if is() {
				t.Error("tried before it is due")
			}
			at.compare(t, n, 20)
			if !is() {
				t.Errorf("willing: %s is not as the class says", file)
			}
		})
	}
}
