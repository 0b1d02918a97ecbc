package fakekernel

import (
	"testing"
	"time"
)

// user is a test that ends when it is told to.
type user struct {
	testing.TB
	has chan struct{}
	end func()
}

func (u *user) Cleanup(f func()) { u.end = f }

// use begins a test that uses the host.
func use(t *testing.T, how Use) *user {
	u := &user{TB: t, has: make(chan struct{})}
	go func() {
		LockHost(u, how)
		close(u.has)
	}()
	return u
}

func (u *user) waits(t *testing.T) {
	t.Helper()
	select {
	case <-u.has:
		t.Error("it has the host, want it to wait")
	case <-time.After(100 * time.Millisecond):
	}
}

// Tests share the host; one that needs it alone waits for them, and has its turn before
// tests that come later.
func TestLockHost(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	one, two := use(t, Shared), use(t, Shared)
	<-one.has
	<-two.has
	alone := use(t, Alone)
	one.end()
	alone.waits(t)
	late := use(t, Shared)
	late.waits(t)
	two.end()
	<-alone.has
	late.waits(t)
	alone.end()
	<-late.has
	late.end()
}
