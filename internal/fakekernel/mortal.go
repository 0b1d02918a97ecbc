package fakekernel

import "io/fs"

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

type killed struct{}

func (m Mortal) change(do func() error) error {
	*m.Count++
	if *m.Count == m.At && !m.After {
		panic(killed{})
	}
	err := do()
	if *m.Count == m.At {
		panic(killed{})
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

// Survives runs a program with Mortal files, and reports whether it came to its end.
func Survives(program func()) (alive bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(killed); !ok {
				panic(r)
			}
		}
	}()
	program()
	return true
}
