package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/place"
)

// unwilling is a kernel that refuses what is done to some files.
type unwilling struct {
	*fakekernel.Kernel
	refuses func(name string) bool
}

func (u unwilling) do(name string, op func() error) error {
	if u.refuses(name) {
		return syscall.EIO
	}
	return op()
}

func (u unwilling) WriteFile(name, data string) error {
	return u.do(name, func() error { return u.Kernel.WriteFile(name, data) })
}

func (u unwilling) Mkdir(name string) error {
	return u.do(name, func() error { return u.Kernel.Mkdir(name) })
}

func (u unwilling) Rmdir(name string) error {
	return u.do(name, func() error { return u.Kernel.Rmdir(name) })
}

// A workload of which the kernel refuses what its class has keeps neither the node from being
// recovered, nor another workload from its class or a new one from its place. It is told once.
func TestClassRefusedToOne(t *testing.T) {
	t.Parallel()
	gold, bulk := rc+"/"+resctrl.Prefix+"gold", rc+"/"+resctrl.Prefix+"bulk"
	governor := func(cpu string) string { return cpus + "/cpufreq/policy" + cpu + "/scaling_governor" }
	for name, tc := range map[string]struct {
		h          *host
		class      func(*Spec)
		bad, good  func(one, other Workload) string // files
		undo       func(h *host, file string) error
		want, told string // in good; in the event
	}{
		"power": {
			h:     powerHost(t, "intel_pstate", 1),
			class: func(s *Spec) { s.SetClass(PowerClass, "full") },
			bad:   func(one, _ Workload) string { return governor(one.Grant.Own.String()) },
			good:  func(_, other Workload) string { return governor(other.Grant.Own.String()) },
			undo:  func(h *host, file string) error { return h.k.WriteFile(file, "powersave") },
			want:  "performance", told: `workload "one" goes without: `,
		},
		"priority": {
			h:     ioHost(t, fakekernel.V2(), costText),
			class: func(s *Spec) { s.SetClass(IOClass, "last") },
			bad:   func(_, _ Workload) string { return priorityFile(9000100) },
			good:  func(_, _ Workload) string { return priorityFile(9000101) },
			undo:  func(h *host, file string) error { return h.k.WriteFile(file, "none") },
			want:  "best-effort/7", told: `workload "one" goes without: `,
		},
		"cache": {
			h:     classHost(t, "skylake", nil),
			class: func(s *Spec) { s.SetClass(CacheClass, map[string]string{"one": "gold", "other": "bulk"}[s.Request.ID]) },
			bad:   func(_, _ Workload) string { return gold },
			good:  func(_, _ Workload) string { return bulk + "/tasks" },
			undo:  func(h *host, file string) error { return h.k.Rmdir(strings.TrimSuffix(file, "/tasks")) },
			want:  "9000101", told: `workloads of cache class "gold" go without: `,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, ctx := tc.h, context.Background()
			one, other := spec("one", place.LSR, 1000, 9000100), spec("other", place.LSR, 1000, 9000101)
			tc.class(&one)
			tc.class(&other)
			n := h.open()
			first, second := h.place(n, one), h.place(n, other)
			bad, good := tc.bad(first, second), tc.good(first, second)
			// The node dies amid a change, and somebody takes away what the classes have.
			if err := errors.Join(n.Close(), tc.undo(h, bad), tc.undo(h, good), os.WriteFile(filepath.Join(h.state, dirtyFile), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			h.events = nil
			h.files = unwilling{h.k, func(name string) bool { return name == bad }}
			n = h.open()
			if _, err := n.List(ctx); err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(h.file(good)); got != tc.want {
				t.Errorf("the other has %q, want %q", got, tc.want)
			}
			for range 3 {
				if _, err := n.Reconcile(ctx); err != nil {
					t.Error(err)
				}
			}
			h.place(n, spec("new", place.LS, 0, 9000102))
			told := 0
			for _, e := range h.events {
				if strings.Contains(e.Text, tc.told) && e.Kind == Failed {
					told++
				}
			}
			if told == 0 || told > 2 { // of what it is, and of who has it
				t.Errorf("told %d times: %v", told, h.events)
			}
			if name != "cache" {
				return
			}
			var refused *ClassError // who asks for it now
			again := classed(spec("again", place.LSR, 1000, 9000103), "gold")
			if _, err := n.Place(ctx, again); !errors.As(err, &refused) {
				t.Errorf("a new one: %v", err)
			}
		})
	}
}
