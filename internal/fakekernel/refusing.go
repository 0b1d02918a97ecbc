package fakekernel

import "io/fs"

// Refusing is a tree in which opening one file fails with an error of the kernel's.
type Refusing struct {
	fs.FS
	Name string
	Err  error
}

// Open implements fs.FS.
func (r Refusing) Open(name string) (fs.File, error) {
	if name == r.Name {
		return nil, &fs.PathError{Op: "read", Path: name, Err: r.Err}
	}
	return r.FS.Open(name)
}
