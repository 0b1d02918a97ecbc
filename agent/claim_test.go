package agent

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// neighbour is a node of the same tree with another state directory.
func (h *host) neighbour(t *testing.T, state string) *Node {
	t.Helper()
	opt := h.options()
	if _, err := opt.Root.Mark("sys", "x"); err != nil {
		t.Skipf("the test's directory cannot be marked: %v", err)
	}
	opt.Dir = filepath.Join(filepath.Dir(h.state), state)
	n, err := Open(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// claimed asserts that a node may not place, because of a state directory.
func claimed(t *testing.T, n *Node, state string) {
	t.Helper()
	s := spec("other", place.LSE, 2000, 9000101)
	_, err := n.Place(context.Background(), s)
	var c *ClaimedError
	if !errors.As(err, &c) || c.State != state || c.UID != os.Getuid() || !strings.Contains(err.Error(), "--state "+state) {
		t.Errorf("placed beside %s: %v", state, err)
	}
	if _, _, err := n.Preview(context.Background(), s); c != nil && c.Dir == c.Other && !errors.As(err, &c) {
		t.Errorf("previewed beside %s: %v", state, err)
	}
}

func TestOneNodePerTree(t *testing.T) {
	t.Parallel()
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			h := newHost(t, l)
			a, b := h.neighbour(t, "a"), h.neighbour(t, "b")
			h.place(a, spec("api", place.LSE, 2000, 9000100))
			claimed(t, b, a.opt.Dir)
			if all, err := b.List(ctx); err != nil || len(all) > 0 {
				t.Errorf("the other's list: %v, %v", all, err)
			}
			if err := a.Release(ctx, "api", true); err != nil {
				t.Fatal(err)
			}
			h.place(b, spec("other", place.LSE, 2000, 9000101))
			claimed(t, a, b.opt.Dir)
			if _, err := b.Restore(ctx); err != nil {
				t.Fatal(err)
			}
			h.place(a, spec("api", place.LSE, 2000, 9000102))
		})
	}
}

func TestOneNodePerOverlappingTree(t *testing.T) {
	t.Parallel()
	h := newHost(t, fakekernel.V2())
	a, b := h.neighbour(t, "a"), h.neighbour(t, "b")
	base := a.Bases()[0]
	if err := h.k.Mkdir(base + "/deep"); err != nil {
		t.Fatal(err)
	}
	within := base + "/deep/er"
	if err := h.k.Mkdir(within); err != nil {
		t.Fatal(err)
	}
	mine, err := markOf(a.opt.Dir)
	if err == nil {
		err = makeRecord(a.opt.Dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	for what, dir := range map[string]string{"within": within, "around": path.Dir(base)} {
		g := b.backend.(*groups)
		g.top = path.Dir(base)
		if _, err := b.root.Mark(dir, mine.String()); err != nil {
			t.Fatal(err)
		}
		claimed(t, b, a.opt.Dir)
		if text, err := b.root.MarkOf(base); text != "" || err != nil {
			t.Errorf("%s: refused, and yet marked %q, %v", what, text, err)
		}
		if err := b.root.Unmark(dir, mine.String()); err != nil {
			t.Fatal(err)
		}
	}
	h.place(b, spec("other", place.LSE, 2000, 9000101))
}

// makeRecord makes a state directory look in use.
func makeRecord(dir string) error {
	return os.WriteFile(filepath.Join(dir, "x"+recordExt), nil, 0o600)
}

// A node that was killed before it could remove its mark is in nobody's way once it
// holds nothing.
func TestAbandonedMark(t *testing.T) {
	t.Parallel()
	h := newHost(t, fakekernel.V1())
	a, b := h.neighbour(t, "a"), h.neighbour(t, "b")
	mine, err := markOf(a.opt.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.root.Mark(a.Bases()[0], mine.String()); err != nil {
		t.Fatal(err)
	}
	lock, err := tryLock(a.opt.Dir, lockFile)
	if err != nil {
		t.Fatal(err)
	}
	claimed(t, b, a.opt.Dir) // somebody is at it
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	h.place(b, spec("other", place.LSE, 2000, 9000101))
}

// When a state directory is lost, restoring it gives its tree free.
func TestMarkOfLostState(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := newHost(t, fakekernel.V1())
	a, b := h.neighbour(t, "a"), h.neighbour(t, "b")
	h.place(a, spec("api", place.LSE, 2000, 9000100))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(a.opt.Dir, a.opt.Dir+".lost"); err != nil {
		t.Fatal(err)
	}
	claimed(t, b, a.opt.Dir)
	claimed(t, h.neighbour(t, "a"), a.opt.Dir) // not the one that it was
	opt := h.options()
	opt.Dir = a.opt.Dir
	if _, err := Restore(ctx, opt); err != nil {
		t.Fatal(err)
	}
	h.place(b, spec("other", place.LSE, 2000, 9000101))
}

// Of two nodes that begin at once, at most one places.
func TestNodesBeginAtOnce(t *testing.T) {
	t.Parallel()
	for range 20 {
		h := newHost(t, fakekernel.V1())
		nodes := []*Node{h.neighbour(t, "a"), h.neighbour(t, "b")}
		errs := make([]error, len(nodes))
		var both sync.WaitGroup
		for i, n := range nodes {
			n.opt.Events = func(Event) {}
			both.Go(func() { _, errs[i] = n.Place(context.Background(), spec("api", place.LSE, 1000, 9000100+i)) })
		}
		both.Wait()
		if errs[0] == nil && errs[1] == nil {
			t.Fatal("both have placed")
		}
	}
}

// A mark can be removed without its state directory, which is not made for that.
func TestDisclaim(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := newHost(t, fakekernel.V1())
	a, b := h.neighbour(t, "a"), h.neighbour(t, "b")
	h.place(a, spec("api", place.LSE, 2000, 9000100))
	if err := errors.Join(a.Close(), os.RemoveAll(a.opt.Dir)); err != nil {
		t.Fatal(err)
	}
	opt := h.options()
	for _, tc := range []struct {
		dir string
		ok  bool
	}{{b.opt.Dir, false}, {filepath.Join(filepath.Dir(a.opt.Dir), "typo"), false}, {a.opt.Dir, true}, {a.opt.Dir, false}} {
		claimed := errors.As(b.look(ctx, func(*transaction) error { return b.free() }), new(*ClaimedError))
		opt.Dir = tc.dir
		if ok, err := Disclaim(opt); ok != tc.ok || err != nil {
			t.Errorf("%s: %v, %v; want %v", tc.dir, ok, err, tc.ok)
		}
		if tc.ok && !claimed {
			t.Error("it was not claimed before")
		}
	}
	if _, err := os.Stat(a.opt.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
	h.place(b, spec("other", place.LSE, 2000, 9000101))
}

func TestUnmarkableTree(t *testing.T) {
	t.Parallel()
	h := newHost(t, fakekernel.V1())
	opt := h.options()
	opt.Root = kernel.NewRoot(h.dir, h.files)
	n, err := Open(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	h.place(n, spec("api", place.LSE, 1000, 9000100))
}
