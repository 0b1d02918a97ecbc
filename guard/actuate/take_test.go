package actuate

import (
	"os"
	"strings"
	"testing"

	"berth.dev/berth/guard/control"
)

// A tree that a Host has is not taken a second time, and who it was is not in the lock once it is free.
func TestTakenOnce(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		g, err := Open(Options{Root: h.root()})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if items, err := g.Take(h.state); err != nil || len(items) > 0 {
				t.Errorf("take: %v, %v", items, err)
			}
		}
		name, err := lockFile(h.root(), g.tree())
		if err != nil {
			t.Fatal(err)
		}
		for _, held := range []bool{true, false} {
			if !held {
				if err := g.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if text, err := os.ReadFile(name); err != nil || strings.Contains(string(text), h.state) != held {
				t.Errorf("held %v: the lock has %q, %v", held, text, err)
			}
		}
	})
}

// The undo log of a guard that ends goes, unless it has notes, or a line that cannot be read: what that notes may be
// active.
func TestUndoLogAtTheEnd(t *testing.T) {
	t.Parallel()
	eachLayout(t, func(t *testing.T, h *host) {
		name := UndoLogFile(h.state)
		there := func() bool {
			_, err := os.Stat(name)
			return err == nil
		}
		act := func(change bool, damage bool) {
			t.Helper()
			g := h.open()
			var changed []control.Change
			if change {
				var err error
				if changed, err = g.Apply(t.Context(), headroom(5000000)); err != nil || len(changed) == 0 {
					t.Fatal(changed, err)
				}
			}
			if damage {
				text, err := os.ReadFile(name)
				first, rest, _ := strings.Cut(string(text), "\n")
				if err == nil {
					err = os.WriteFile(name, []byte(first+"\n\x00\x00{\"seq\":\n"+rest), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if act(false, false); there() {
			t.Error("it stays though nothing is noted")
		}
		if act(true, true); !there() {
			t.Fatal("it is gone, with what it notes")
		}
		g, err := Open(Options{Root: h.root(), Dir: h.state})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Restore(); err == nil || len(g.Notes()) > 0 {
			t.Errorf("restored with %d notes left: %v", len(g.Notes()), err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if !there() {
			t.Error("a line that could not be read is gone")
		}
		h.same(h.tree)
	})
}
