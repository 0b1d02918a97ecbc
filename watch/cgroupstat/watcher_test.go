package cgroupstat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func mkdir(t testing.TB, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func watchDirs(t testing.TB, c WatcherConfig) *Watcher {
	t.Helper()
	w, err := NewWatcher(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// next returns that many events as text, "+a" and "-a".
func next(t testing.TB, w *Watcher, count int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []string
	for range count {
		e, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		sign := "+"
		if e.Vanished {
			sign = "-"
		}
		got = append(got, sign+e.Path)
	}
	return got
}

// quiet fails if there is an event to come.
func quiet(t *testing.T, w *Watcher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if e, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one event too many: %+v, %v", e, err)
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mkdir(t, root+"/b/y", root+"/a")
	if err := os.WriteFile(root+"/cpu.stat", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w := watchDirs(t, WatcherConfig{Root: root})
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"present at the start", func() error { return nil }, []string{"+a", "+b", "+b/y"}},
		{"a tree at once", func() error { return os.MkdirAll(root+"/c/d/e", 0o755) }, []string{"+c", "+c/d", "+c/d/e"}},
		{"removed from below", func() error { return os.RemoveAll(root + "/c") }, []string{"-c/d/e", "-c/d", "-c"}},
		{"made anew", func() error { return errors.Join(os.Remove(root+"/a"), os.Mkdir(root+"/a", 0o755)) }, []string{"-a", "+a"}},
		{"below one made anew", func() error { return os.Mkdir(root+"/a/x", 0o755) }, []string{"+a/x"}},
		{"renamed", func() error { return os.Rename(root+"/b", root+"/z") }, []string{"-b/y", "-b", "+z", "+z/y"}},
		{"below a renamed one", func() error { return os.Mkdir(root+"/z/q", 0o755) }, []string{"+z/q"}},
		{"a file", func() error { return os.WriteFile(root+"/a/cpu.max", nil, 0o644) }, nil},
		{"a link", func() error { return os.Symlink(root+"/z", root+"/link") }, nil},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, next(t, w, len(step.want))); diff != "" {
			t.Fatalf("%s:\n%s", step.name, diff)
		}
		quiet(t, w)
	}
	if w.lacking {
		t.Error("a group has no watch")
	}
}

// Groups has all that came and went by then, without a wait.
func TestGroupsByNow(t *testing.T) {
	t.Parallel()
	root := t.TempDir() + "/root"
	mkdir(t, root+"/a")
	w := watchDirs(t, WatcherConfig{Root: root, Rescan: time.Hour})
	long := fmt.Sprintf("%0100d", 0)
	for _, step := range []struct {
		name  string
		do    func() error
		count int // -1 without a root
		last  string
	}{
		{"present at the start", func() error { return nil }, 1, "a"},
		{"a group", func() error { return os.Mkdir(root+"/a/b", 0o755) }, 1, "a/b"},
		{"one in that", func() error { return os.Mkdir(root+"/a/b/c", 0o755) }, 1, "a/b/c"},
		{"a file", func() error { return os.WriteFile(root+"/a/cpu.max", nil, 0o644) }, 1, "a/b/c"},
		{"more than one read gives", func() error {
			var errs []error
			for i := range 200 {
				errs = append(errs, os.MkdirAll(fmt.Sprintf("%s/%s%03d", root, long, i), 0o755))
			}
			return errors.Join(errs...)
		}, 201, "a/b/c"},
		{"made anew", func() error { return errors.Join(os.RemoveAll(root+"/a"), os.Mkdir(root+"/a", 0o755)) }, 201, "a"},
		{"the root goes", func() error { return os.Rename(root, root+"x") }, -1, ""},
		{"the root is back", func() error { return os.Rename(root+"x", root) }, 201, "a"},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		got, err := w.Groups()
		if (err != nil) != (step.count < 0) || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s: %v", step.name, err)
		}
		if err == nil && (len(got) != step.count || got[len(got)-1] != step.last) {
			t.Fatalf("%s: %d groups, want %d, the last %s: %v", step.name, len(got), step.count, step.last, got)
		}
	}
}

// A root that vanishes takes its groups along, and is found again.
func TestRoot(t *testing.T) {
	t.Parallel()
	root := t.TempDir() + "/root"
	mkdir(t, root+"/a")
	w := watchDirs(t, WatcherConfig{Root: root + "/", Rescan: time.Millisecond})
	if got := next(t, w, 1); got[0] != "+a" {
		t.Fatal(got)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if got := next(t, w, 1); got[0] != "-a" {
		t.Error(got)
	}
	mkdir(t, root+"/b")
	if got := next(t, w, 1); got[0] != "+b" {
		t.Error(got)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		config WatcherConfig
		want   string
	}{
		{"no root", WatcherConfig{}, "no such file"},
		{"no such root", WatcherConfig{Root: dir + "/none"}, "none"},
		{"a file", WatcherConfig{Root: dir + "/file"}, "not a directory"},
		{"negative interval", WatcherConfig{Root: dir, Rescan: -1}, "negative"},
	} {
		if _, err := NewWatcher(tc.config); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if _, err := NewWatcher(WatcherConfig{Root: dir + "/none"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such root: %v, want fs.ErrNotExist", err)
	}
}

// What is emitted, taken together, is the tree, whatever happened meanwhile;
// parents come first and go last.
func TestStorm(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]WatcherConfig{
		"inotify":         {Rescan: time.Hour},
		"with re-scans":   {Rescan: time.Millisecond},
		"without inotify": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			config.Root = root
			w := watchDirs(t, config)
			if name == "without inotify" {
				w.inotify.Close()
				w.inotify = nil
				w.due, w.hurry = time.Now(), time.Millisecond
			}
			var storms sync.WaitGroup
			for seed := range uint64(3) {
				storms.Go(func() { storm(root, seed) })
			}
			storms.Go(func() { // each level appears while the one above is being listed
				for i := range 100 {
					os.MkdirAll(fmt.Sprintf("%s/deep%d/a/b/c/d/e", root, i), 0o755)
				}
			})
			done := make(chan struct{})
			go func() { storms.Wait(); os.Mkdir(root+"/end", 0o755); close(done) }()
			known := follow(t, w, func(path string) bool { return path == "end" })
			<-done
			// The end may be listed ahead of what is still in the queue, or of what this process has had the CPU for.
			for until := time.Now().Add(time.Minute); ; {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				e, err := w.Next(ctx)
				cancel()
				if err == nil {
					apply(t, known, e)
				} else if time.Now().After(until) || cmp.Equal(dirs(t, root), known) {
					break
				}
			}
			if diff := cmp.Diff(dirs(t, root), known); diff != "" {
				t.Errorf("what was told is not the tree:\n%s", diff)
			}
		})
	}
}

// storm makes, moves and removes directories at random.
func storm(root string, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	name := func() string {
		path := root
		for range 1 + random.IntN(3) {
			path += fmt.Sprintf("/%c", 'a'+rune(random.IntN(4)))
		}
		return path
	}
	for range 200 {
		switch random.IntN(8) {
		case 0:
			os.RemoveAll(name())
		case 1:
			os.Rename(name(), name())
		case 2, 3:
			os.Remove(name())
		default:
			os.MkdirAll(name(), 0o755)
		}
	}
}

func follow(t *testing.T, w *Watcher, end func(path string) bool) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	for {
		e, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		apply(t, known, e)
		if end(e.Path) {
			return known
		}
	}
}

func apply(t *testing.T, known map[string]bool, e Event) {
	t.Helper()
	if known[e.Path] != e.Vanished {
		t.Errorf("%+v of a group that is known: %v", e, known[e.Path])
	}
	if e.Vanished {
		delete(known, e.Path)
		for path := range known {
			if strings.HasPrefix(path, e.Path+"/") {
				t.Errorf("%s vanished before %s", e.Path, path)
			}
		}
		return
	}
	known[e.Path] = true
	if parent := filepath.Dir(e.Path); parent != "." && !known[parent] {
		t.Errorf("%s appeared before its parent", e.Path)
	}
}

func dirs(t *testing.T, root string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root {
			rel, _ := filepath.Rel(root, path)
			all[rel] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Without inotify, another directory of the same name is told by its inode.
func TestScanFindsMadeAnew(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mkdir(t, root+"/a/x", root+"/b")
	w := watchDirs(t, WatcherConfig{Root: root})
	next(t, w, 3)
	w.inotify.Close()
	w.inotify = nil
	w.due, w.hurry = time.Now(), time.Millisecond
	// The new one exists before the old one goes, so that it has another inode.
	if err := errors.Join(os.RemoveAll(root+"/a"), os.Rename(root+"/b", root+"/a")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"-b", "-a/x", "-a", "+a"}, next(t, w, 4)); diff != "" {
		t.Error(diff)
	}
}

// Events that the queue lost are found by a full scan.
func TestOverflow(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mkdir(t, root+"/a", root+"/b/c")
	w := watchDirs(t, WatcherConfig{Root: root, Rescan: time.Hour})
	next(t, w, 3)
	// Take the events out of the queue, as if it had overflowed.
	if err := errors.Join(os.RemoveAll(root+"/b"), os.Mkdir(root+"/d", 0o755), os.Remove(root+"/a"), os.Mkdir(root+"/a", 0o755)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64<<10)
	if _, err := w.inotify.Read(buf); err != nil {
		t.Fatal(err)
	}
	w.handle(inotifyEvent{watch: -1, mask: unix.IN_Q_OVERFLOW})
	if diff := cmp.Diff([]string{"-b/c", "-b", "-a", "+a", "+d"}, next(t, w, 5)); diff != "" {
		t.Error(diff)
	}
	mkdir(t, root+"/a/x")
	if got := next(t, w, 1); got[0] != "+a/x" {
		t.Errorf("after the scan: %v", got)
	}
	quiet(t, w)
}

// While watches are lacking scans come at shorter intervals, until one gets them all.
func TestWatchesLacking(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w := watchDirs(t, WatcherConfig{Root: root, Rescan: time.Hour})
	inotify := w.inotify
	w.inotify = nil
	w.scan()
	if !w.lacking || time.Until(w.due) > shortScan {
		t.Errorf("lacking: %v, next scan in %v", w.lacking, time.Until(w.due))
	}
	w.inotify = inotify
	w.scan()
	if w.lacking || time.Until(w.due) < 2*shortScan {
		t.Errorf("after a scan without trouble: lacking: %v, next scan in %v", w.lacking, time.Until(w.due))
	}
}

// A watcher that ends leaves neither goroutine nor descriptor, and a context
// that ended late does not disturb the next one.
func TestCancel(t *testing.T) {
	root := t.TempDir()
	before := runtime.NumGoroutine()
	w := watchDirs(t, WatcherConfig{Root: root})
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	mkdir(t, root+"/a")
	if got := next(t, w, 1); got[0] != "+a" {
		t.Error(got)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if runtime.NumGoroutine() <= before {
			return
		}
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

func FuzzParseInotify(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0x40, 0, 0, 0, 0, 4, 0, 0, 0, 'a', 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0x40, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, data []byte) {
		events, err := parseInotify(data)
		if err == nil && len(data) > 0 && len(events) == 0 {
			t.Error("no events and no error")
		}
		for _, e := range events {
			if strings.Contains(e.name, "\x00") {
				t.Errorf("name %q", e.name)
			}
		}
	})
}

// BenchmarkAppear measures from before mkdir to the event, with 250 groups present:
// in a tree of this host where groups can be made, else in a directory.
func BenchmarkAppear(b *testing.B) {
	root := b.TempDir()
	for _, tree := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if dir, err := os.MkdirTemp(tree, "berth-test-"); err == nil {
			if _, err := os.Stat(dir + "/cgroup.procs"); err == nil {
				root = dir
				b.Cleanup(func() { os.Remove(dir) })
				break
			}
			os.Remove(dir)
		}
	}
	for i := range 250 {
		dir := fmt.Sprintf("%s/g%03d", root, i)
		mkdir(b, dir)
		b.Cleanup(func() { os.Remove(dir) })
	}
	w := watchDirs(b, WatcherConfig{Root: root})
	next(b, w, 250)
	var took []time.Duration
	made := make(chan time.Time)
	for b.Loop() {
		dir := root + "/new"
		go func() {
			start := time.Now()
			os.Mkdir(dir, 0o755)
			made <- start
		}()
		next(b, w, 1)
		end := time.Now()
		took = append(took, end.Sub(<-made))
		os.Remove(dir)
		next(b, w, 1)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
