package fakekernel

import (
	"io/fs"
	"testing"
)

// Files is what a program does to a kernel's files: kernel.Files.
type Files interface {
	FS() fs.FS
	WriteFile(name, data string) error
	Mkdir(name string) error
	Rmdir(name string) error
}

// Mortal is Files under which the program dies at a change: before it, or once it has taken
// effect.
type Mortal struct {
	Files
	At    int // the number of the change, from 1
	After bool
	Count *int // changes so far
}

// Killed is what a program that dies panics with.
type Killed struct{}

func (m Mortal) change(do func() error) error {
	*m.Count++
	if *m.Count == m.At && !m.After {
		panic(Killed{})
	}
	err := do()
	if *m.Count == m.At {
		panic(Killed{})
	}
	return err
}

// WriteFile writes to a file, or dies.
func (m Mortal) WriteFile(name, data string) error {
	return m.change(func() error { return m.Files.WriteFile(name, data) })
}

// Mkdir makes a directory, or dies.
func (m Mortal) Mkdir(name string) error {
	return m.change(func() error { return m.Files.Mkdir(name) })
}

// Rmdir removes a directory, or dies.
func (m Mortal) Rmdir(name string) error {
	return m.change(func() error { return m.Files.Rmdir(name) })
}

// Survives runs a program, and reports whether it came to its end; it dies otherwise.
func Survives(program func()) (alive bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(Killed); !ok {
				panic(r)
			}
		}
	}()
	program()
	return true
}

// KillAtEach runs a program that is killed before one of its changes, and one that is killed after it: the first change,
// or one soon after, and each step-th from there on, until they survive. They are to make least changes or more.
func KillAtEach(t *testing.T, step, least int, run func(at int, after bool) (alive bool)) {
	t.Helper()
	for at, alive := 1+len(t.Name())%step, false; !alive; at += step {
		for _, after := range []bool{false, true} {
			alive = killAt(t, at, after, run)
		}
		if alive && at < least {
			t.Errorf("%d changes: the program does little", at)
		}
	}
}

// killAt ends the test, and says where the program was killed, if that went wrong.
func killAt(t *testing.T, at int, after bool, run func(at int, after bool) (alive bool)) bool {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Fatalf("killed at change %d, after it: %v", at, after)
		}
	}()
	return run(at, after)
}
