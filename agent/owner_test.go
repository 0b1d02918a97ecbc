package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
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

// claimed asserts that a node may not place, because of a state directory, and that a preview
// says the same.
func claimed(t *testing.T, n *Node, state string) {
	t.Helper()
	s := spec("other", place.LSE, 2000, 9000101)
	_, err := n.Place(context.Background(), s)
	var c *OwnedError
	if !errors.As(err, &c) || c.State != state || c.UID != os.Getuid() || !strings.Contains(err.Error(), strconv.Quote(state)) {
		t.Errorf("placed beside %s: %v", state, err)
	}
	var previewed *OwnedError
	if _, _, again := n.Preview(context.Background(), s); c != nil && (!errors.As(again, &previewed) || *previewed != *c) {
		t.Errorf("previewed beside %s: %v, placed: %v", state, again, err)
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
			if err := a.Release(ctx, "api", Kill); err != nil {
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
		b.site.Top = path.Dir(base)
		if _, err := b.root.Mark(dir, mine.String()); err != nil {
			t.Fatal(err)
		}
		claimed(t, b, a.opt.Dir)
		if marks, err := b.root.MarksOf(base); len(marks) > 0 || err != nil {
			t.Errorf("%s: refused, and yet marked %v, %v", what, marks, err)
		}
		reader := h.reader()
		reader.opt.Dir = filepath.Join(filepath.Dir(h.state), "yet to come")
		var c *OwnedError
		if _, _, err := reader.Preview(t.Context(), spec("other", place.LSE, 2000, 9000101)); dir == within && (!errors.As(err, &c) || c.State != a.opt.Dir) {
			t.Errorf("%s: previewed by one that only reads: %v", what, err)
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
		claimed := errors.As(b.look(ctx, func(*transaction) error { return b.checkOwnership() }), new(*OwnedError))
		opt.Dir = tc.dir
		if ok, err := RemoveMark(opt); ok != tc.ok || err != nil {
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

func TestMarksThatCount(t *testing.T) {
	t.Parallel()
	const root, user, other = 0, 1000, 65534
	for _, tt := range []struct {
		text         string
		setter, self int
		want         bool
	}{
		{"1:2 0 /run/berth/node", root, root, true},
		{"1:2 0 /run/berth/node", root, user, true},   // root's around a user's
		{"1:2 0 /run/berth/node", user, root, false},  // a user who says to be root
		{"1:2 0 /run/berth/node", user, other, false}, // to another one
		{"1:2 1000 /d", user, user, true},
		{"1:2 1000 /d", user, other, true},
		{"1:2 1000 /d", root, user, true},
		{"1:2 1000 /d", user, root, false}, // no user keeps CPUs from root
		{"1:2 1000 /d", root, root, false},
		{"1:2 65534 /d", user, other, false}, // a user who speaks for another one
		{"1:2 65534 /d", other, user, true},
		{"", root, root, true},
		{"junk", root, user, true},
		{"junk", user, user, false},
		{"1:2 0 /run/berth/node", kernel.Anyone, root, false},
		{"junk", kernel.Anyone, root, false},
		{"1:2 -5 /d", root, root, true},
		{"1:2 0 relative", user, root, false},
		{"1:2 1000 relative", user, user, false},
		{"1:2 1000 /" + strings.Repeat("d", maxPath), user, user, false},
	} {
		if got := parseMark(tt.text).trusted(tt.setter, tt.self); got != tt.want {
			t.Errorf("%.60q that user %d can have set, for user %d: %v", tt.text, tt.setter, tt.self, got)
		}
	}
}

// A user marks a group that was delegated to it, in every way there is. Root places all the
// same; another user's node, and that user's own, take from it what is true.
func TestMarksOfStrangers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to give a group to another user")
	}
	const stranger = 65534
	theirs := filepath.Join(fakekernel.MemoryDir(t), "theirs")
	if err := errors.Join(os.Mkdir(theirs, 0o700), makeRecord(theirs), os.Chown(theirs, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	their, err := markOf(theirs)
	if err != nil || their.uid != stranger {
		t.Fatal(their, err)
	}
	for what, text := range map[string]string{
		"the truth": their.String(), "as root": "1:1 0 /var/tmp/berth", "junk": "\x1b[2J$(id)", "as a third": "1:1 1000 /run/user/1000/berth/node",
		"too long": "1:1 65534 /" + strings.Repeat("x", 1<<13),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, fakekernel.V1())
			n := h.neighbour(t, "a")
			dir := n.Bases()[0] + "/delegated"
			if err := h.k.Mkdir(dir); err != nil {
				t.Fatal(err)
			}
			real := filepath.Join(h.dir, dir)
			err := errors.Join(os.Chown(real, stranger, stranger), syscall.Setxattr(real, "user.berth.node", []byte(text), 0))
			if err != nil {
				t.Skipf("the test's directory cannot be marked so: %v", err)
			}
			h.place(n, spec("api", place.LSE, 2000, 9000100))
			if err := n.Release(t.Context(), "api", Kill); err != nil {
				t.Fatal(err)
			}
			other := h.neighbour(t, "b")
			other.uid = 1000
			_, _, seen := other.Preview(t.Context(), spec("api", place.LSE, 2000, 9000101))
			_, err = other.Place(t.Context(), spec("api", place.LSE, 2000, 9000101))
			var owned, previewed *OwnedError
			if errors.As(seen, &previewed) != errors.As(err, &owned) || owned != nil && *previewed != *owned {
				t.Errorf("previewed: %v, placed: %v", seen, err)
			}
			if counts := what == "the truth"; errors.As(err, &owned) != counts || counts && (owned.UID != stranger || owned.State != theirs) {
				t.Errorf("another user's node: %v", err)
			}
		})
	}
}

// subtrees are the kernel's files, with directories that look like another user's, and how often each is
// listed.
type subtrees struct {
	*fakekernel.Kernel
	theirs []string
	listed map[string]int
}

func (s subtrees) FS() fs.FS { return subtreesFS{s.Kernel.FS(), s} }

type subtreesFS struct {
	fs.FS
	of subtrees
}

func (f subtreesFS) ReadDir(name string) ([]fs.DirEntry, error) {
	f.of.listed[name]++
	all, err := fs.ReadDir(f.FS, name)
	for i, e := range all {
		uid := uint32(0)
		if slices.ContainsFunc(f.of.theirs, func(dir string) bool { return kernel.Within(path.Join(name, e.Name()), dir) }) {
			uid = 1000
		}
		all[i] = entryOf{e, uid}
	}
	return all, err
}

// entryOf is an entry of a directory whose owner is a user.
type entryOf struct {
	fs.DirEntry
	uid uint32
}

func (o entryOf) Info() (fs.FileInfo, error) {
	info, err := o.DirEntry.Info()
	return infoOf{info, o.uid}, err
}

type infoOf struct {
	fs.FileInfo
	uid uint32
}

func (o infoOf) Sys() any { return &syscall.Stat_t{Uid: o.uid} }

// However many groups another user makes, root's node looks at some of them only, and at all of root's; a
// user's node, for which other users' marks count, at all.
func TestOverlapOfManyGroups(t *testing.T) {
	t.Parallel()
	h := newHost(t, fakekernel.V2())
	listed := map[string]int{}
	h.files = subtrees{h.k, nil, listed}
	base := h.open().Bases()[0]
	crowd, few := base+"/crowd", base+"/few"
	dirs := []string{crowd, few, few + "/one", base + "/roots"}
	for i := range 20 {
		dirs = append(dirs, fmt.Sprintf("%s/%02d", crowd, i))
		for j := range 12 {
			dirs = append(dirs, fmt.Sprintf("%s/%02d/%02d", crowd, i, j))
		}
	}
	for _, dir := range dirs {
		if err := h.k.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
	}
	h.files = subtrees{h.k, []string{crowd, few}, listed}
	n := h.open()
	own, err := markOf(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[int]int{0: mostOfStranger, 1000: 1 + 20 + 20*12} {
		n.uid = uid
		clear(listed)
		if err := n.overlap(own, n.root.Unmark); err != nil {
			t.Errorf("user %d: %v", uid, err)
		}
		looks := 0
		for dir, times := range listed {
			if kernel.Within(dir, crowd) {
				looks += times
			}
		}
		if looks != want || listed[few] != 1 || listed[few+"/one"] != 1 || listed[base+"/roots"] != 1 {
			t.Errorf("user %d looks at %d groups of another user, want %d; at %d, %d and %d elsewhere", uid, looks, want, listed[few], listed[few+"/one"], listed[base+"/roots"])
		}
	}
}

// A user's node sees root's, around it and within it.
func TestRootsMarkCountsForUsers(t *testing.T) {
	t.Parallel()
	h := newHost(t, fakekernel.V1())
	n := h.neighbour(t, "a")
	h.place(n, spec("api", place.LSE, 2000, 9000100))
	marks, err := n.root.MarksOf(n.Bases()[0])
	if err != nil || len(marks) == 0 {
		t.Fatal(marks, err)
	}
	seen := marks[len(marks)-1] // as every user sees it
	if os.Geteuid() == 0 && (len(marks) != 2 || marks[0] != seen || seen.Setter != 0) {
		t.Errorf("root's marks: %v", marks)
	}
	if m := parseMark(seen.Text); m.uid != os.Geteuid() || m.path != n.opt.Dir || !m.trusted(seen.Setter, 65534) {
		t.Errorf("mark %+v does not count for others", m)
	}
	other := h.neighbour(t, "b")
	other.uid = 65534
	claimed(t, other, n.opt.Dir)
}

// What another user's mark names is not looked at: root would open files there.
func TestAbandonedOfAnotherUser(t *testing.T) {
	t.Parallel()
	h := newHost(t, fakekernel.V1())
	n := h.neighbour(t, "a")
	dir := t.TempDir() // empty: it would count as abandoned
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := markOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	unmarked := false
	unmark := func() error { unmarked = true; return nil }
	if n.uid++; n.abandoned(m, unmark) || unmarked {
		t.Error("looked into another user's directory")
	}
	n.uid--
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if n.abandoned(m, unmark) || unmarked {
		t.Error("looked into a directory that others may write to")
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if !n.abandoned(m, unmark) || !unmarked {
		t.Error("its own is not seen to be abandoned")
	}
}

func TestOwnedErrorIsSafeToPrint(t *testing.T) {
	t.Parallel()
	e := &OwnedError{Dir: "d", Other: "d/e", State: "/\x1b]0;x\a$(reboot)\n" + strings.Repeat("y", maxPath), UID: 7}
	text := e.Error()
	if strings.ContainsAny(text, "\x1b\a\n") || len(text) > 1000 || strings.Contains(text, "--state /") || !strings.Contains(text, "user 7") {
		t.Errorf("%q", text)
	}
}
