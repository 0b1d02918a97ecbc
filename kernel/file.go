package kernel

// Readers that sample often keep the kernel's text files open, and cut their text without
// allocating.

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Dir is a directory held by its descriptor: it stays the same directory when
// another one takes its name.
type Dir struct {
	fd   int
	path string
}

// OpenDir opens a directory.
func OpenDir(path string) (Dir, error) {
	fd, err := ignoreEINTR(func() (int, error) {
		return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return Dir{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return Dir{fd, path}, nil
}

// Open opens a file of the directory for reading.
func (d Dir) Open(name string) (File, error) { return openAt(d.fd, File{dir: d.path, name: name}) }

// OpenFile opens a file for reading.
func OpenFile(path string) (File, error) { return openAt(unix.AT_FDCWD, File{name: path}) }

func openAt(dir int, f File) (File, error) {
	var err error
	f.fd, err = ignoreEINTR(func() (int, error) { return openat(dir, f.name) })
	if err != nil {
		return File{}, &fs.PathError{Op: "open", Path: f.Path(), Err: err}
	}
	return f, nil
}

// Has says whether a name exists in the directory; in one that was removed none
// does.
func (d Dir) Has(name string) bool {
	return unix.Faccessat(d.fd, name, unix.F_OK, 0) == nil
}

// Close lets the directory go.
func (d Dir) Close() error { return unix.Close(d.fd) }

// File is an open file. An os.File would be put into the runtime's poller, since
// the kernel's files can be polled, and asks for more after a short read.
type File struct {
	fd int
	// dir is "" for a file that was opened without a Dir.
	dir, name string
}

// Path returns the name that the file was opened with.
func (f File) Path() string {
	if f.dir == "" {
		return f.name
	}
	return f.dir + "/" + f.name
}

// Read returns the whole text in buf, or in a larger one, which it returns too.
// Nothing is allocated where buf has room for one byte more than the text.
func (f File) Read(buf []byte) (text, grown []byte, err error) {
	if len(buf) == 0 {
		buf = make([]byte, 4096)
	}
	for {
		n, err := pread(f.fd, buf, 0)
		switch {
		case err != nil:
			return nil, buf, &fs.PathError{Op: "read", Path: f.Path(), Err: err}
		case n < len(buf):
			return buf[:n], buf, nil
		}
		buf = make([]byte, 2*len(buf))
	}
}

// The system calls below do not tell the scheduler of the runtime. The kernel answers from
// memory in microseconds; to make ready for a wait costs as much, and wakes other threads.

func pread(fd int, buf []byte, at int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(at), 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

func openat(dir int, name string) (int, error) {
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return 0, err
	}
	fd, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(path)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

// ReadAll is Read for files that are lists, such as cgroup.threads and
// /proc/schedstat: of those the kernel returns a page at a time, however large buf
// is.
func (f File) ReadAll(buf []byte) (text, grown []byte, err error) {
	if len(buf) == 0 {
		buf = make([]byte, 4096)
	}
	for size := 0; ; {
		if size == len(buf) {
			buf = append(buf, make([]byte, len(buf))...)
		}
		n, err := pread(f.fd, buf[size:], size)
		switch {
		case err != nil:
			return nil, buf, &fs.PathError{Op: "read", Path: f.Path(), Err: err}
		case n == 0:
			return buf[:size], buf, nil
		}
		size += n
	}
}

// Close closes the file.
func (f File) Close() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOSE, uintptr(f.fd), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// readFile is ReadAll of a file that is read once.
func readFile(path string, buf []byte) (text, grown []byte, err error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, buf, err
	}
	defer f.Close()
	return f.ReadAll(buf)
}

func ignoreEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// Subdirectories returns the names of the directories in one, in order; a negative most is all of
// them. Of more than most it returns some, at least most and fewer than most + 1024, and leaves the others unread:
// who may make directories there may have made any number.
func Subdirectories(dir string, most int) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	for most < 0 || len(names) < most {
		entries, err := f.ReadDir(1024)
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return names, nil
}

// Cut returns what is before and after the first sep; without one, all is before.
func Cut(text []byte, sep byte) (before, after []byte) {
	i := bytes.IndexByte(text, sep)
	if i < 0 {
		return text, nil
	}
	return text[:i], text[i+1:]
}

// Word returns the first white-space separated word and what follows it.
func Word(text []byte) (word, rest []byte) {
	start := 0
	for start < len(text) && isSpace(text[start]) {
		start++
	}
	end := start
	for end < len(text) && !isSpace(text[end]) {
		end++
	}
	return text[start:end], text[end:]
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' }

// Uint reads a decimal number.
func Uint(text []byte) (uint64, error) { return strconv.ParseUint(string(text), 10, 64) }
