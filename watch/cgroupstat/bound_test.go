package cgroupstat

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// strangers bounds a tree as if it were another user's.
func strangers(most int) Bounds {
	return Bounds{Max: most, Trusts: func(uint32) bool { return false }}
}

func many(dir string, count int) (dirs []string) {
	for i := range count {
		dirs = append(dirs, fmt.Sprintf("%s/%04d", dir, i))
	}
	return dirs
}

// listed is what a new Watcher tells of a tree without waiting.
func listed(t *testing.T, root string, b Bounds) ([]string, []Crowd) {
	t.Helper()
	w := watchDirs(t, WatcherConfig{Root: root, Bounds: b})
	groups, err := w.Groups()
	if err != nil {
		t.Fatal(err)
	}
	return groups, w.Crowds()
}

func TestGroups(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mkdir(t, root+"/b/y", root+"/b/x/deep", root+"/a")
	mkdir(t, many(root+"/c", 20)...)
	leaves := append([]string{"a", "b/x/deep", "b/y"}, many("c", 20)...)
	for _, tc := range []struct {
		name   string
		root   string
		bounds Bounds
		groups []string
		crowds []Crowd
	}{
		{"trusted", root, Bounds{Max: 1}, leaves, []Crowd{}},
		{"not more than may be", root, strangers(27), leaves, []Crowd{}},
		{"one more", root, strangers(26), []string{}, []Crowd{{Path: ".", UID: os.Geteuid(), Seen: 27, Kept: 1}}},
		{"counted in part", root, strangers(1), []string{}, []Crowd{{Path: ".", UID: os.Geteuid(), Seen: 4, Kept: 1}}},
		{"no group", root + "/a", Bounds{}, []string{}, []Crowd{}},
	} {
		groups, crowds := listed(t, tc.root, tc.bounds)
		if diff := cmp.Diff(tc.groups, groups) + cmp.Diff(tc.crowds, crowds); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
}

// delegated makes directories of other users below a root that is trusted.
func delegated(t testing.TB, root string, owners map[string]int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give directories to other users")
	}
	for dir, uid := range owners {
		mkdir(t, filepath.Join(root, dir))
		if err := os.Chown(filepath.Join(root, dir), uid, -1); err != nil {
			t.Fatal(err)
		}
	}
}

// A subtree that is crowded is one group; those of others, the same user's among them,
// are listed as they would be without it. Who owns what is below makes no difference.
func TestGroupsAreFair(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	delegated(t, root, map[string]int{"crowd": 65534, "small": 65534, "other": 1000})
	mkdir(t, append(many(root+"/crowd", 300), root+"/small/a", root+"/other/b/c", root+"/shared/d")...)
	if err := os.Chown(root+"/crowd/0007", 12345, -1); err != nil {
		t.Fatal(err)
	}
	mkdir(t, many(root+"/crowd/0007", 10)...)
	groups, crowds := listed(t, root, Bounds{})
	if diff := cmp.Diff([]string{"crowd", "other/b/c", "shared/d", "small/a"}, groups); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Crowd{{Path: "crowd", UID: 65534, Seen: 311, Kept: 1}}, crowds); diff != "" {
		t.Error(diff)
	}
}

func TestPopulated(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"v2":           {map[string]string{"cgroup.events": "populated 1\nfrozen 0\n", "cgroup.procs": ""}, true},
		"v2, empty":    {map[string]string{"cgroup.events": "populated 0\nfrozen 0\n", "cgroup.procs": ""}, false},
		"v1":           {map[string]string{"cgroup.procs": "1\n2\n"}, true},
		"v1, empty":    {map[string]string{"cgroup.procs": ""}, false},
		"cannot tell":  {nil, true},
		"odd contents": {map[string]string{"cgroup.events": "unpopulated 0\n"}, true},
	} {
		dir := t.TempDir()
		for file, text := range tc.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := Populated(dir); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// crowded reads events up to that of a crowd.
func crowded(t *testing.T, w *Watcher) (c Crowd, before []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		e, err := w.Next(ctx)
		switch {
		case err != nil:
			t.Fatalf("after %v: %v", before, err)
		case e.Crowd != nil:
			return *e.Crowd, before
		case e.Vanished:
			before = append(before, "-"+e.Path)
		default:
			before = append(before, "+"+e.Path)
		}
	}
}

func watches(w *Watcher) int { return len(w.watches) }

// A subtree that becomes crowded vanishes group by group, but for itself and what is to
// be kept, costs no watch, and is watched again once it is small.
func TestCrowd(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mkdir(t, root+"/a/web", root+"/b")
	w := watchDirs(t, WatcherConfig{
		Root: root, Rescan: 5 * time.Millisecond, Bounds: strangers(10),
		Keep: func(path string) bool { return filepath.Base(path) == "web" },
	})
	if diff := cmp.Diff([]string{"+a", "+a/web", "+b"}, next(t, w, 3)); diff != "" {
		t.Fatal(diff)
	}
	flood := many(root+"/b", 50)
	mkdir(t, flood...)
	mkdir(t, root+"/b/web")
	c, events := crowded(t, w)
	if c.Path != "." || c.UID != os.Geteuid() || c.Seen < 11 || c.Changes {
		t.Errorf("%+v", c)
	}
	known := map[string]bool{"a": true, "a/web": true, "b": true}
	count := func(event string) {
		if path := event[1:]; event[0] == '+' {
			known[path] = true
		} else {
			delete(known, path)
		}
	}
	for _, e := range events {
		count(e)
	}
	if len(events) > 2*10+2 {
		t.Errorf("%d events of a subtree of 10 groups at most: %v", len(events), events)
	}
	for !known["b/web"] { // by this scan or the next
		count(next(t, w, 1)[0])
	}
	if diff := cmp.Diff(map[string]bool{"a/web": true, "b/web": true}, known); diff != "" {
		t.Errorf("what is known:\n%s", diff)
	}
	if crowds := w.Crowds(); watches(w) != 0 || len(crowds) != 1 || crowds[0].Seen < 50 || crowds[0].Kept != 3 {
		t.Errorf("%d watches; crowds %+v", watches(w), crowds)
	}
	// What is to be kept is found, and seen to go.
	mkdir(t, root+"/c/web")
	if err := errors.Join(os.Remove(root+"/a/web"), os.Mkdir(root+"/c/no", 0o755)); err != nil {
		t.Fatal(err)
	}
	got := next(t, w, 2)
	if slices.Sort(got); !slices.Equal(got, []string{"+c/web", "-a/web"}) {
		t.Error(got)
	}
	// Once it is small all groups are there; that one was kept is no news.
	for _, dir := range flood {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	got = next(t, w, 4)
	if slices.Sort(got); !slices.Equal(got, []string{"+a", "+b", "+c", "+c/no"}) {
		t.Error(got)
	}
	quiet(t, w)
	if watches(w) != 7 || len(w.Crowds()) != 0 {
		t.Errorf("%d watches, want 7; crowds %+v", watches(w), w.Crowds())
	}
}

// However often groups come and go, their events between two scans are bounded; other
// subtrees are watched all the time, and the scan finds what is there in the end.
func TestRestless(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	delegated(t, root, map[string]int{"churn": 65534, "calm": 65534})
	w := watchDirs(t, WatcherConfig{Root: root, Rescan: time.Hour, Bounds: Bounds{Max: 10}})
	if got := next(t, w, 2); !slices.Equal(got, []string{"+calm", "+churn"}) {
		t.Fatal(got)
	}
	for range 100 {
		for _, f := range []func(string) error{func(dir string) error { return os.Mkdir(dir, 0o755) }, os.Remove} {
			if err := f(root + "/churn/x"); err != nil {
				t.Fatal(err)
			}
		}
	}
	mkdir(t, root+"/churn/last", root+"/calm/new")
	c, events := crowded(t, w)
	if len(events) > 10 || !slices.Contains(events, "+churn/last") || c.Path != "churn" || !c.Changes || c.UID != 65534 {
		t.Errorf("%+v after %d events", c, len(events))
	}
	if got := next(t, w, 1); got[0] != "+calm/new" {
		t.Errorf("of another subtree: %v", got)
	}
	if watches(w) != 3 { // the root, calm, calm/new
		t.Errorf("%d watches", watches(w))
	}
	mkdir(t, root+"/churn/late")
	quiet(t, w)
	w.scan()
	if got := next(t, w, 1); got[0] != "+churn/late" || watches(w) != 6 {
		t.Errorf("the next scan: %v, %d watches", got, watches(w))
	}
	mkdir(t, root+"/churn/again")
	if got := next(t, w, 1); got[0] != "+churn/again" {
		t.Errorf("after the scan: %v", got)
	}
}

// One user's flood costs no watches, and no group of another is given up for it.
func TestCrowdIsFair(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	delegated(t, root, map[string]int{"crowd": 65534, "calm": 65534})
	mkdir(t, root+"/calm/a", root+"/shared/b")
	mkdir(t, many(root+"/crowd", 3000)...)
	w := watchDirs(t, WatcherConfig{Root: root, Rescan: time.Hour})
	c, events := crowded(t, w)
	want := "subtree crowd of user 65534: 3001 groups or more, 1 of them looked at: it is taken as one group"
	if c.String() != want || !slices.Equal(events, []string{"+calm", "+calm/a", "+crowd", "+shared", "+shared/b"}) {
		t.Errorf("%v after %v", c, events)
	}
	mkdir(t, many(root+"/crowd/more", 100)...)
	mkdir(t, root+"/calm/c")
	if got := next(t, w, 1); got[0] != "+calm/c" {
		t.Error(got)
	}
	quiet(t, w)
	if watches(w) != 6 {
		t.Errorf("%d watches", watches(w))
	}
}

// A directory that is given to another user after it was made is bounded as well, and
// so is one that others may write.
func TestGiven(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	delegated(t, root, nil)
	mkdir(t, root+"/given/a", root+"/later", root+"/open")
	w := watchDirs(t, WatcherConfig{Root: root, Rescan: time.Hour, Bounds: Bounds{Max: 10}})
	next(t, w, 4)
	if err := errors.Join(os.Chown(root+"/given", 65534, -1), os.Chown(root+"/later", 65534, -1), os.Chmod(root+"/open", 0o777)); err != nil {
		t.Fatal(err)
	}
	for i, dir := range []string{"given", "later"} {
		for _, group := range many(root+"/"+dir, 50) {
			mkdir(t, group)
			if err := os.Chown(group, 65534, -1); err != nil {
				t.Fatal(err)
			}
		}
		if i == 0 {
			w.scan()
		}
		if c, _ := crowded(t, w); c.Path != dir || c.Seen > 52 {
			t.Errorf("%+v", c)
		}
	}
	mkdir(t, many(root+"/open", 50)...)
	w.scan()
	for w.scan(); len(w.Crowds()) < 3; w.scan() {
		next(t, w, 1)
	}
	if watches(w) != 1 {
		t.Errorf("%d watches; crowds %+v", watches(w), w.Crowds())
	}
}

// Within bounds, what is told is the tree, whatever happens meanwhile, also where it
// gets crowded and small again all the time.
func TestCrowdStorm(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w := watchDirs(t, WatcherConfig{
		Root: root, Rescan: time.Millisecond, Bounds: strangers(15),
		Keep: func(path string) bool { return strings.HasSuffix(path, "a") },
	})
	done := make(chan struct{})
	go func() {
		storm(root, 1)
		for _, name := range []string{"a", "b", "c", "d"} {
			os.RemoveAll(root + "/" + name)
		}
		os.MkdirAll(root+"/end/of/a", 0o755)
		close(done)
	}()
	known := map[string]bool{}
	next := func(ctx context.Context) error {
		e, err := w.Next(ctx)
		if err != nil || e.Crowd != nil {
			return err
		}
		if known[e.Path] != e.Vanished {
			t.Errorf("%+v of a group that is known: %v", e, known[e.Path])
		}
		if known[e.Path] = true; e.Vanished {
			delete(known, e.Path)
		}
		return nil
	}
	for !known["end/of"] || !known["end/of/a"] { // of is not to be kept: it is known once the subtree is small
		if err := next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	// A scan may have found the end before the watcher has read what vanished.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !maps.Equal(dirs(t, root), known) {
		if err := next(ctx); err != nil {
			t.Fatal(err, cmp.Diff(dirs(t, root), known))
		}
	}
}
