package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

func TestWithin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, dir string
		want      bool
	}{
		{"a", "a", true},
		{"a/b", "a", true},
		{"a/b/c", "a", true},
		{"a/b/c", "a/b", true},
		{"a", "a/b", false},
		{"ab", "a", false},
		{"ab/c", "a", false},
		{"b/a", "a", false},
		{"b", "a", false},
		{"../a", "..", true},
		{"..a", "..", false},
		// The root of relative paths.
		{"a", ".", true},
		{"a/b", ".", true},
		{".", ".", true},
		{".", "a", false},
		{"/a", ".", false},
		{"/", ".", false},
		// The root of absolute paths.
		{"/a", "/", true},
		{"/a/b", "/", true},
		{"/", "/", true},
		{"/", "/a", false},
		{"a", "/", false},
		{".", "/", false},
		{"/a/b", "/a", true},
		{"/a", "/a", true},
		{"/ab", "/a", false},
		{"/a", "/a/b", false},
		{"/b", "/a", false},
		// No path.
		{"a", "", false},
		{"/a", "", false},
		{".", "", false},
		{"/", "", false},
		{"", "a", false},
		{"", ".", false},
		{"", "/", false},
		{"", "", true},
	} {
		if got := Within(c.name, c.dir); got != c.want {
			t.Errorf("Within(%q, %q) = %v, want %v", c.name, c.dir, got, c.want)
		}
	}
}

func TestCovers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"system.slice", "system.slice", true},
		{"system.slice", "system.slice/ssh", true},
		{"system.slice/ssh*", "system.slice", false},
		{"system.slice/ssh*", "system.slice/sshd", true},
		{"system.slice/ssh*", "system.slice/sshd/a/b", true},
		{"system.slice/ssh*", "system.slice/cron", false},
		{"*/db", "a", false},
		{"*/db", "a/db", true},
		{"*", "a/b", true},
		{"a/*/c", "a", false},
		{"a/*/c", "a/b/c/d", true},
		{"", "a", false},
		{"[", "a", false},
		{"*", "", false},
		{"*", ".", false},
		{"*", "/", false},
		{"/*", "/a/b", true},
		{"*", "/a/b", false},
		// A unit, in whichever slice it is, and what is below it.
		{"nginx.service", "system.slice/nginx.service", true},
		{"nginx.service", "system.slice/nginx.service/worker", true},
		{"nginx.service", "a.slice/a-b.slice/nginx.service", true},
		{"web-*.scope", "system.slice/web-1.scope", true},
		{"a-b.slice", "a.slice/a-b.slice/nginx.service", true},
		{"nginx.service", "nginx.service", true},
		{"nginx.service", "system.slice", false},
		{"nginx.service", "system.slice/mynginx.service", false},
		{"nginx", "system.slice/nginx.service", false},
		{".service", "system.slice/.service", false},
		// Who may make groups in a service or a scope may give them any name.
		{"nginx.service", "user.slice/user-1000.slice/user@1000.service/app.slice/nginx.service", false},
		{"nginx.service", "user.slice/user-1000.slice/session-3.scope/nginx.service", false},
		{"nginx.service", "home/nginx.service", false},
	} {
		if got := Covers(c.glob, c.name); got != c.want {
			t.Errorf("Covers(%q, %q) = %v, want %v", c.glob, c.name, got, c.want)
		}
	}
}

func TestIgnoreAbsent(t *testing.T) {
	t.Parallel()
	for _, err := range []error{fs.ErrNotExist, fmt.Errorf("read x: %w", fs.ErrNotExist), &fs.PathError{Op: "read", Path: "x", Err: syscall.ENODEV}, nil} {
		if got := IgnoreAbsent(err); got != nil {
			t.Errorf("IgnoreAbsent(%v) = %v", err, got)
		}
	}
	if other := errors.New("other"); IgnoreAbsent(other) != other {
		t.Error("IgnoreAbsent hides another error")
	}
}
