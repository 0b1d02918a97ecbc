package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/place"
)

// The first thread of the process stays the main goroutine's: it cannot end, as those of tests do that change a
// thread, and /proc/self tells of it.
func init() { runtime.LockOSThread() }

// A full disk lets nothing new be placed, and keeps nobody from taking away.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	ctx := context.Background()
	for what, takeAway := range map[string]func(*Node) error{
		"release": func(n *Node) error { return n.Release(ctx, "api", Kill) },
		"restore": func(n *Node) error { _, err := n.Restore(ctx); return err },
	} {
		h := newHost(t, fakekernel.V1())
		before := h.tree()
		mountSmall(t, h.state)
		n := h.open()
		h.place(n, spec("api", place.LSE, 1000, 0))
		placed := h.tree()
		fill(t, filepath.Join(h.state, "ballast"))
		if _, err := n.Place(ctx, spec("more", place.BE, 100, 0)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: placed on a full disk: %v", what, err)
		}
		h.sameTree(placed)
		if err := takeAway(n); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		h.sameTree(before)
		if all, err := n.List(ctx); err != nil || len(all) > 0 {
			t.Errorf("%s: left %v, %v", what, all, err)
		}
	}
}

// The same with a disk on which every write of a record fails, at whichever it begins.
func TestFullDiskInjected(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for what, takeAway := range map[string]func(*Node) error{
		"release": func(n *Node) error { return n.Release(ctx, "api", Kill) },
		"restore": func(n *Node) error { _, err := n.Restore(ctx); return err },
	} {
		for layout, l := range layouts() {
			h := newHost(t, l)
			before := h.tree()
			n := h.open()
			h.place(n, spec("api", place.LSE, 1000, 0))
			placed := h.tree()
			for room := 0; ; room++ { // for so many writes
				left := room
				n.touch = func(op string) error {
					if left--; op == "write" && left < 0 {
						return &fs.PathError{Op: op, Path: "record", Err: syscall.ENOSPC}
					}
					return nil
				}
				_, err := n.Place(ctx, spec("more", place.BE, 100, 0))
				if err == nil {
					if room == 0 {
						t.Errorf("%s, %s: nothing was written", what, layout)
					}
					break
				}
				if !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("%s, %s: room for %d writes: %v", what, layout, room, err)
				}
				h.sameTree(placed)
			}
			n.touch = nil
			if err := n.Release(ctx, "more", Kill); err != nil {
				t.Fatal(err)
			}
			n.touch = func(op string) error {
				if op == "write" {
					return &fs.PathError{Op: op, Path: "record", Err: syscall.ENOSPC}
				}
				return nil
			}
			if err := takeAway(n); err != nil {
				t.Errorf("%s, %s: %v", what, layout, err)
			}
			h.sameTree(before)
			if all, err := n.List(ctx); err != nil || len(all) > 0 {
				t.Errorf("%s, %s: left %v, %v", what, layout, all, err)
			}
		}
	}
}

// A workload whose place is gone is told of once its new place, or its end, is on record: what a
// later node finds and tells was not told before. Each change of the records fails in turn.
func TestReplacedIsToldOnceNoted(t *testing.T) {
	t.Parallel()
	for kind, allowed := range map[EventKind]string{Changed: "4-7", Dropped: "7"} {
		failed := 0
		for room, alive := 0, false; !alive; room++ {
			h := newHost(t, layouts()["v2"])
			first := h.open()
			h.place(first, spec("api", place.LSE, 2000, 0))
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			h.opt.Config.Allowed, h.events = cpuset.MustParse(allowed), nil
			n, err := newNode(h.options())
			if err != nil {
				t.Fatal(err)
			}
			left := room
			n.touch = func(op string) error {
				if left--; left < 0 {
					return &fs.PathError{Op: op, Path: "record", Err: syscall.EIO}
				}
				return nil
			}
			err = n.change(t.Context(), func(*transaction) error { return nil })
			alive = err == nil
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
			told := slices.Contains(h.kinds(), kind)
			if !told {
				failed++
			}
			h.events = nil
			h.open()
			if again := slices.Contains(h.kinds(), kind); told && again || alive && !told {
				t.Errorf("%v, room for %d changes: told %v, and then %v", kind, room, told, again)
			}
		}
		if failed == 0 {
			t.Errorf("%v: nothing failed before it was told", kind)
		}
	}
}

// mountSmall mounts a file system of 64 KiB that this thread alone sees. The thread
// ends with the test.
func mountSmall(t *testing.T, dir string) {
	t.Helper()
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		t.Skipf("needs a mount namespace of its own: %v", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		t.Skip(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Skipf("needs to mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}

// fill writes a file until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 512))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
