package lab

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/fork"
	"berth.dev/berth/internal/labtest"
)

// The test binary is its own child: "__child HOW", or that of a role.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "__child" {
		behave(os.Args[2])
		os.Exit(0)
	}
	if len(os.Args) == 4 && os.Args[1] == "__web" {
		playWeb(os.Args[2], os.Args[3])
	}
	labtest.Main(m)
}

func behave(how string) {
	in := bufio.NewReader(os.Stdin)
	switch how {
	case "echo":
		_, _ = io.Copy(os.Stdout, in)
	case "die":
		fmt.Fprintln(os.Stderr, "the disk is on fire")
		os.Exit(7)
	case "babble":
		fmt.Println("{not json")
		_, _ = io.Copy(io.Discard, in)
	case "silent":
		_, _ = io.Copy(io.Discard, in)
	case "orphan": // becomes a parent that is killed without warning
		c, err := childConfig{name: "grandchild", exe: os.Args[0], args: []string{"__child", "silent"}}.start(fork.NewParent())
		if err != nil {
			panic(err)
		}
		fmt.Println(c.pid())
		select {}
	}
}

func startChild(t *testing.T, how string) *child {
	t.Helper()
	parent := fork.NewParent()
	c, err := childConfig{name: how, exe: os.Args[0], args: []string{"__child", how}}.start(parent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.kill(); parent.Close() })
	return c
}

func TestChildSpeaksLines(t *testing.T) {
	t.Parallel()
	c := startChild(t, "echo")
	for i := range 3 {
		if err := c.send(i); err != nil {
			t.Fatal(err)
		}
		var got int
		if err := c.receive(t.Context(), startLimit, &got); err != nil || got != i {
			t.Fatalf("got %d, %v; want %d", got, err, i)
		}
	}
}

func TestChildThatEndsSaysWhy(t *testing.T) {
	t.Parallel()
	c := startChild(t, "die")
	err := c.receive(t.Context(), startLimit, new(int))
	for _, want := range []string{"die ended", "exit status 7", "the disk is on fire"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
	c.kill() // again, after it has ended
}

func TestChildThatBabblesOrIsSilent(t *testing.T) {
	t.Parallel()
	if err := startChild(t, "babble").receive(t.Context(), startLimit, new(int)); err == nil || !strings.Contains(err.Error(), "babble") {
		t.Errorf("error %v, want one that names the child", err)
	}
	if err := startChild(t, "silent").receive(t.Context(), time.Millisecond, new(int)); err == nil || !strings.Contains(err.Error(), "did not answer") {
		t.Errorf("error %v, want one that says it did not answer", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := startChild(t, "silent").receive(ctx, startLimit, new(int)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
}

// A child dies with its parent even if the parent is killed outright.
func TestChildDiesWithItsParent(t *testing.T) {
	t.Parallel()
	c := startChild(t, "orphan")
	var grandchild int
	if err := c.receive(t.Context(), startLimit, &grandchild); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(grandchild, 0); err != nil {
		t.Fatalf("grandchild %d: %v before its parent died", grandchild, err)
	}
	c.kill()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if gone(grandchild) {
			return
		}
	}
	_ = syscall.Kill(grandchild, syscall.SIGKILL)
	t.Errorf("grandchild %d outlived its parent", grandchild)
}

// gone reports whether a process has ended; nobody may have waited for it yet.
func gone(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "Z")
}

func TestRequestLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := openRequestLog(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for block := range 2 {
		path := fmt.Sprintf("/proc/self/fd/%d", l.file().Fd())
		if err := os.WriteFile(path, []byte("seq,due_ns\n0,5\n1,9\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.add(block, "baseline'"); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	want := "block,scenario,seq,due_ns\n0,baseline',0,5\n0,baseline',1,9\n1,baseline',0,5\n1,baseline',1,9\n"
	if got := readLog(t, dir); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// readLog is the text of the request log in a folder, which holds nothing else.
func readLog(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, RequestsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%d files in the folder, want the log alone", len(left))
	}
	return string(text)
}
