package agent

import (
	"context"
	"errors"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/place"
)

// A class that the configuration no longer defines is an error for who asks for it, and for
// nobody else: the workload that has it goes without, and a note says so.
func TestClassNoLongerDefined(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for kind, tc := range map[ClassKind]struct{ with, without ClassConfig }{
		CacheClass: {classConfig(t, classes), classConfig(t, strings.ReplaceAll(classes, "gold", "silver"))},
		IOClass:    {ioConfig(t, "classes: {gold: [{weight: 20}, {priority: idle}]}"), ioConfig(t, "classes: {silver: [{weight: 30}]}")},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			l := layouts()["v2"]
			r := fakekernel.ResctrlCPUs()["skylake"]
			l.Resctrl, l.Weights = &r, "bfq"
			h := newHost(t, l)
			if err := h.k.PlugDisk("sda", "8:0", "bfq"); err != nil {
				t.Fatal(err)
			}
			h.opt.Classes = tc.with
			n := h.open()
			gold := spec("gold", place.LS, 0, 9000100)
			gold.SetClass(kind, "gold")
			h.place(n, gold)
			h.place(n, spec("other", place.LS, 0, 9000101))
			n.Close()
			h.opt.Classes = tc.without
			n = h.open()
			if _, err := n.Reconcile(ctx); err != nil {
				t.Errorf("reconcile: %v", err)
			}
			w, err := n.Get(ctx, "gold")
			if err != nil || !strings.Contains(strings.Join(w.Notes, ";"), `class "gold": it is not defined any more`) {
				t.Errorf("notes %q, %v", w.Notes, err)
			}
			h.place(n, spec("third", place.LSE, 1000, 9000102))
			h.release(n, "other")
			gold.PID = 0
			var undefined *ClassError
			if _, err := n.Resize(ctx, gold); !errors.As(err, &undefined) {
				t.Errorf("asked for again: %v", err)
			}
			if kind == IOClass {
				if got := h.ioFiles(w)["io.bfq.weight"]; got != "default 100" {
					t.Errorf("weight %s", got)
				}
				if got := h.file(priorityFile(9000100)); got != "none" {
					t.Errorf("priority %s", got)
				}
			} else if _, there := h.tree()[rc+"/berth-gold/"]; there {
				t.Error("its group is there still")
			}
			h.release(n, "gold")
		})
	}
}

// The word none is no class, that of the class of service neither.
func TestNoClass(t *testing.T) {
	t.Parallel()
	h := ioHost(t, fakekernel.V2(), "classes: {slow: [{priority: idle}]}\nservice: {BE: slow}")
	n := h.open()
	s := spec("api", place.BE, 0, 9000100)
	for _, step := range []struct{ class, want string }{{"", "idle"}, {"none", "none"}, {"", "idle"}, {"slow", "idle"}, {"none", "none"}} {
		s.SetClass(IOClass, step.class)
		var err error
		if s.PID != 0 {
			h.place(n, s)
		} else {
			_, err = n.Resize(context.Background(), s)
		}
		s.PID = 0
		if got := h.file(priorityFile(9000100)); got != step.want || err != nil {
			t.Errorf("class %q: %s, want %s; %v", step.class, got, step.want, err)
		}
	}
	if err := mayHave(WithCaller(context.Background(), Caller{UID: 1000}), "resize", &s); err == nil {
		t.Error("another user may opt out")
	}
}
