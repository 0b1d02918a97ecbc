package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Files are Berth's operations on the kernel's files. Names are relative and
// slash-separated, as in io/fs. A Root's directory is one implementation; a fake
// kernel of a test is another.
type Files interface {
	// FS is the tree for readers.
	FS() fs.FS
	// WriteFile hands data to an existing file in a single write, as "echo >"
	// does. It creates nothing.
	WriteFile(name, data string) error
	// Mkdir makes a directory.
	Mkdir(name string) error
	// Rmdir removes an empty directory; a cgroup is empty without processes
	// and children, whatever files it shows.
	Rmdir(name string) error
}

// Root is a directory that stands for "/".
type Root struct {
	Files
	// Patience is how long the removal of a directory waits for killed
	// processes to leave it; 0 stands for two seconds.
	Patience time.Duration
	// Marks is the directory whose directories carry marks (see Mark): the opened
	// one; "" if there are no marks.
	Marks string

	name     string
	isLive   bool
	readOnly bool
}

// Open returns the Root of a directory: "/" for the live host. No name can
// lead out of it. It stays open as long as the process.
func Open(dir string) (*Root, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open root: %w", err)
	}
	if absolute(dir) == "/" {
		return &Root{Files: live{directory{root}}, Marks: "/", name: dir, isLive: true}, nil
	}
	return &Root{Files: directory{root}, Marks: dir, name: dir}, nil
}

// NewRoot returns a Root called name over the given files.
func NewRoot(name string, files Files) *Root { return &Root{Files: files, name: name} }

// Name returns the directory as it was given to Open.
func (r *Root) Name() string { return r.name }

// absolute returns the Root's name so that it means the same in every working
// directory.
func (r *Root) absolute() string { return absolute(r.name) }

func absolute(name string) string {
	if path, err := filepath.Abs(name); name != "" && err == nil {
		return path
	}
	return name
}

type directory struct{ root *os.Root }

func (d directory) FS() fs.FS { return d.root.FS() }

func (d directory) WriteFile(name, data string) error {
	// The kernel's own files ignore O_TRUNC; a tree of plain files needs it.
	f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return writeOnce(f, name, data)
}

func writeOnce(f *os.File, name, data string) error {
	defer f.Close()
	// syscall.Write rather than File.Write, which would offer the rest of a
	// short write a second time, as a value of its own.
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var werr error
	if err := conn.Control(func(fd uintptr) {
		// os.File sets O_NONBLOCK on files that can be polled, as files of control
		// groups can. Newer kernels (7.3, not 6.12) reclaim nothing when such a writer
		// lowers memory.high.
		if werr = syscall.SetNonblock(int(fd), false); werr == nil {
			// A signal interrupts memory.limit_in_bytes of v1 while it reclaims, before the limit is set.
			n, werr = ignoreEINTR(func() (int, error) { return syscall.Write(int(fd), []byte(data)) })
		}
	}); err != nil {
		return err
	}
	switch {
	case werr != nil:
		return &fs.PathError{Op: "write", Path: name, Err: werr}
	case n < len(data):
		return &fs.PathError{Op: "write", Path: name, Err: fmt.Errorf("took %d of %d bytes", n, len(data))}
	}
	return nil
}

func (d directory) Mkdir(name string) error { return d.root.Mkdir(name, 0o755) }

func (d directory) Rmdir(name string) error {
	info, err := d.root.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "rmdir", Path: name, Err: syscall.ENOTDIR}
	}
	return d.root.Remove(name)
}

// live is the live host. Nothing can lead out of it, so that names need not be
// walked element by element.
type live struct{ directory }

func (live) FS() fs.FS { return liveFS{os.DirFS("/").(hostFS)} }

// hostFS is the interface of the value that os.DirFS returns.
type hostFS interface {
	fs.StatFS
	fs.ReadDirFS
	fs.ReadLinkFS
}

// liveFS reads files with as few system calls as there can be: an os.File of the
// kernel's would be put into the runtime's poller and taken out again.
type liveFS struct{ hostFS }

func (liveFS) ReadFile(name string) ([]byte, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	text, _, err := readFile("/"+name, make([]byte, 512))
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		failed.Path = name
	}
	return text, err
}

func (live) WriteFile(name, data string) error {
	f, err := os.OpenFile("/"+name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return writeOnce(f, name, data)
}

// Signal sends a signal to a process: to a real one only on the live host. Files
// of a test with fake processes have a method of this name, too. Any other tree has
// no process to signal, whatever numbers its files show.
func (r *Root) Signal(pid int, sig syscall.Signal) error {
	s, ok := r.Files.(interface {
		Signal(pid int, sig syscall.Signal) error
	})
	switch {
	case ok:
		return s.Signal(pid, sig)
	case r.isLive:
		return syscall.Kill(pid, sig)
	}
	return &NotSupportedError{
		Feature: fmt.Sprintf("signal to process %d", pid), Reason: fmt.Sprintf("%s is not the live host", r.name), Remedy: "open /",
	}
}

// IsLive reports whether the Root is the live host (Open of "/"), whose process
// ids are those of system calls.
func (r *Root) IsLive() bool { return r.isLive }

// ReadText returns the text of a small file below the file system that stands for "/", such as
// "proc/sys/kernel/osrelease", without the white space around it; "" with an error.
func ReadText(fsys fs.FS, name string) (string, error) {
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}

func (r *Root) read(name string) (string, error) {
	data, err := fs.ReadFile(r.FS(), name)
	return strings.TrimSuffix(string(data), "\n"), err
}

// write hands over value as echo does. The newline matters: an empty value
// would otherwise be no write at all.
func (r *Root) write(name, value string) error { return r.WriteFile(name, value+"\n") }

// inode returns the inode of a file or directory. Those of cgroup, resctrl
// and sysfs stay for the life of the object and change when it is made anew;
// those of /proc change at any time, and intel_epb makes the file of a CPU anew with its value
// when that comes online, so there it is 0, unknown.
func (r *Root) inode(name string) (uint64, error) {
	info, err := fs.Stat(r.FS(), name)
	if err != nil {
		return 0, err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && !strings.HasPrefix(name, "proc/") && path.Base(name) != "energy_perf_bias" {
		return stat.Ino, nil
	}
	return 0, nil
}

func (r *Root) patience() time.Duration {
	if r.Patience > 0 {
		return r.Patience
	}
	return 2 * time.Second
}

// bootID returns the identity of the running kernel. It returns an error if the tree
// has none: two boots without a name would look equal.
func (r *Root) bootID() (string, error) {
	const file = "proc/sys/kernel/random/boot_id"
	id, err := r.read(file)
	if err == nil && id == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return "", fmt.Errorf("read /%s, which names the boot: %w; mount /proc with it", file, bare(err))
	}
	return id, nil
}

// startTime returns when a process started; "" if there is no such process or
// file.
func (r *Root) startTime(pid string) string {
	p, _ := ReadProcess(r.FS(), pid)
	return p.Start
}

// Absent reports whether an error says that a file is not there. The open files of a control
// group that was removed answer ENODEV.
func Absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

// IgnoreAbsent returns nil for an error that says that a file is not there, else the error.
func IgnoreAbsent(err error) error {
	if Absent(err) {
		return nil
	}
	return err
}
