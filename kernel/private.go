package kernel

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// MakePrivateDir makes a directory (mode 0700) with those around it, and then
// checks it: see CheckPrivateDir. In a directory that CheckPrivateDir would refuse around
// it nothing is made: a link there may lead anywhere.
func MakePrivateDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := makePrivate(dir, uint32(os.Geteuid())); err != nil {
		return err
	}
	return CheckPrivateDir(dir)
}

func makePrivate(dir string, uid uint32) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	around := filepath.Dir(dir)
	err := makePrivate(around, uid)
	if err == nil {
		err = checkPrivate(around, uid, false)
	}
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil // since then, or a link that leads nowhere: the check says
	}
	return err
}

// CheckPrivateDir refuses a directory in which another user than this one and root
// could make a file: one that is not this user's, that others may write to, or that lies
// in one of those; a symbolic link included. Any user may have made /tmp/berth-UID.
// All directories and symbolic links by which it is found are checked; of those around it,
// ones with the sticky bit (as /tmp) are accepted.
func CheckPrivateDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return checkPrivate(dir, uint32(os.Geteuid()), true)
}

// CheckTrustedFile refuses a file that another user than this one and root could change
// or replace. It follows symbolic links, each of which is checked, with the directories by
// which it is found and leads on.
func CheckTrustedFile(name string) error {
	if !filepath.IsAbs(name) { // not filepath.Abs: ".." after a link is around where that leads
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		name = dir + "/" + name
	}
	return checkPrivate(name, uint32(os.Geteuid()), false)
}

// checkPrivate checks all by which a path from the root is found, what it names first. Private
// is true if that is to be a directory of this user's.
func checkPrivate(name string, uid uint32, private bool) error {
	all, err := resolve(name, !private)
	if err != nil {
		return err
	}
	for i, c := range slices.Backward(all) {
		if err := c.check(uid, private && i == len(all)-1); err != nil {
			return err
		}
	}
	return nil
}

// component is a directory, a symbolic link or a file on the way of a path.
type component struct {
	name string
	info fs.FileInfo // of a link itself
}

// maxLinks is how many symbolic links a path may lead through (path_resolution(7)).
const maxLinks = 40

// resolve returns all by which the kernel finds what a path from the root names, in that
// order: "/", each directory and symbolic link on the way, and what is at its end. A link
// there is followed if follow is true.
func resolve(name string, follow bool) ([]component, error) {
	info, err := os.Lstat("/")
	if err != nil {
		return nil, err
	}
	all := []component{{"/", info}}
	dir, links := "/", 0
	for rest := strings.Split(name, "/"); len(rest) > 0; {
		next := rest[0]
		rest = rest[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			dir = filepath.Dir(dir)
			continue
		}
		at := filepath.Join(dir, next)
		if info, err = os.Lstat(at); err != nil {
			return nil, err
		}
		all = append(all, component{at, info})
		if info.Mode().Type() != fs.ModeSymlink || len(rest) == 0 && !follow {
			dir = at
			continue
		}
		if links++; links > maxLinks {
			return nil, &fs.PathError{Op: "resolve", Path: name, Err: syscall.ELOOP}
		}
		to, err := os.Readlink(at)
		if err != nil {
			return nil, err
		}
		if filepath.IsAbs(to) {
			dir = "/"
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return all, nil
}

// check refuses a component that another user than uid and root could change; a private one is to
// be a directory of uid's.
func (c component) check(uid uint32, private bool) error {
	stat, ok := c.info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: its owner is not known", c.name)
	}
	remedy := "choose another place (XDG_RUNTIME_DIR, --state)"
	if !private {
		remedy = "chown it, or choose another place"
	}
	mode := c.info.Mode()
	sticky := mode.IsDir() && mode&fs.ModeSticky != 0 && !private
	switch {
	case stat.Uid != uid && (private || stat.Uid != 0):
		return fmt.Errorf("%s: belongs to another user (%d), who could change what is in it; %s", c.name, stat.Uid, remedy)
	case private && !mode.IsDir():
		return fmt.Errorf("%s: not a directory", c.name)
	case mode.Type() != fs.ModeSymlink && mode.Perm()&0o022 != 0 && !sticky:
		return fmt.Errorf("%s: others may write to it (mode %#o); chmod go-w it", c.name, mode.Perm())
	}
	return nil
}

// OpenPrivateFile opens a file, made with mode 0600 if flag has os.O_CREATE, and
// checks what it has opened: a regular file of this user's, with one name and closed
// to others. It follows no symbolic link and does not wait for the other end of a pipe. Its
// directory is the caller's to check (CheckPrivateDir).
func OpenPrivateFile(name string, flag int) (*os.File, error) {
	// The file is not truncated before it is known to be this user's.
	f, err := os.OpenFile(name, flag&^os.O_TRUNC|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	switch {
	case errors.Is(err, syscall.ELOOP):
		return nil, &alienError{name, "a symbolic link, which is not followed"}
	case errors.Is(err, syscall.EISDIR):
		return nil, &alienError{name, "a directory, not a regular file"}
	case err != nil:
		return nil, err
	}
	if err = checkPrivateFile(f); err == nil && flag&os.O_TRUNC != 0 {
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// alienError is a file that this user has not made.
type alienError struct{ name, rule string }

func (e *alienError) Error() string { return e.name + ": " + e.rule }

func checkPrivateFile(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return &alienError{f.Name(), "not a regular file"}
	case !ok || int(stat.Uid) != os.Geteuid():
		return &alienError{f.Name(), "belongs to another user"}
	case stat.Nlink > 1:
		return &alienError{f.Name(), "has another name (hard link), and so may be another file"}
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s: others may open it (mode %#o); chmod 600 it", f.Name(), info.Mode().Perm())
	}
	return nil
}

// ReadPrivateFile returns the text of a file that OpenPrivateFile takes.
func ReadPrivateFile(name string) ([]byte, error) {
	f, err := OpenPrivateFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// WritePrivateFile writes the text of a file that OpenPrivateFile takes or makes.
func WritePrivateFile(name string, text []byte) error {
	f, err := OpenPrivateFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// ReplacePrivateFile writes the text of a file, or makes it, in one step: a process that is
// killed leaves the former text or this one.
func ReplacePrivateFile(name string, text []byte) error {
	err := WritePrivateFile(name+".new", text)
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	return err
}

// ReplaceFile writes a file that all may read, replacing what is there in one
// step: a crash leaves the old file or the new one. Its errors name the file.
func ReplaceFile(path string, write func(io.Writer) error) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name()) // gone already when all went well
	err = write(temp)
	if err == nil {
		err = temp.Chmod(0o644)
	}
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// LockFile opens a file as OpenPrivateFile does, made if need be, and takes its lock
// (flock(2)) for as long as it is open, or waits for it. While another process has it and
// wait is false the error is syscall.EWOULDBLOCK. A process that can open a file can lock
// it. So a lock is a file of mode 0600, never a directory or file that others may read.
func LockFile(name string, wait bool) (*os.File, error) {
	f, err := OpenPrivateFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := lock(f, wait); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
	}
	return f, nil
}

func lock(f *os.File, wait bool) error {
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	_, err := ignoreEINTR(func() (int, error) { return 0, syscall.Flock(int(f.Fd()), how) })
	return err
}

// Unlock gives a lock back and closes its file. Closing alone would leave the lock to a
// process that is being started, which has the file until it executes its program.
func Unlock(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}
