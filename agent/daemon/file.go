package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/agent/config"
	"berth.dev/berth/kernel"
)

// file is the configuration file. What watches it is the inotify(7) of its
// directory: editors and installers put a new file in its place.
type file struct {
	name    string
	changed chan struct{}
	notify  *os.File // nil without a file
}

// openFile starts to watch; "" is no file.
func openFile(name string) (*file, error) {
	f := &file{name: name, changed: make(chan struct{}, 1)}
	if name == "" {
		return f, nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch configuration: %w", err)
	}
	f.notify = os.NewFile(uintptr(fd), "inotify")
	const events = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(name), events); err != nil {
		return nil, errors.Join(fmt.Errorf("watch configuration %s: %w", filepath.Dir(name), err), f.notify.Close())
	}
	return f, nil
}

// read reads the configuration, with its text. A file that a user other than root and the
// agent's could change is refused: it says what the agent does.
func (f *file) read(checks ...func(*config.NodeConfig) error) (*config.NodeConfig, []byte, error) {
	if f.name == "" {
		return config.Default(), nil, nil
	}
	if err := CheckFile(f.name); err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	text, err := ReadFile(f.name)
	if err != nil {
		return nil, nil, err
	}
	c, err := parse(text, f.name, checks...)
	return c, text, err
}

// owner is the user to whom the file belongs.
func (f *file) owner() int {
	info, err := os.Stat(f.name)
	if err != nil {
		return os.Geteuid()
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// replace puts a text in the place of the file's, in one step, and returns how that is
// undone. What the file's name links to is replaced, so that the link stays.
func (f *file) replace(text []byte) (undo func() error, err error) {
	if f.name == "" {
		return nil, errors.New("the agent has no configuration file to keep it in: start it with --config FILE")
	}
	var former []byte
	name, err := filepath.EvalSymlinks(f.name)
	if err == nil {
		err = CheckFile(f.name)
	}
	if err == nil {
		former, err = os.ReadFile(name)
	}
	if err == nil {
		err = rewrite(name, text)
	}
	if err != nil {
		return nil, fmt.Errorf("keep the configuration in %s: %w; if something else writes that file, change it there: the agent follows it", f.name, err)
	}
	return func() error { return rewrite(name, former) }, nil
}

// rewrite gives a file another text, and keeps its mode and owner. Whenever it is killed,
// the file has one of the texts.
func rewrite(name string, text []byte) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	next := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".berth")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a killed agent
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && err == nil && (int(stat.Uid) != os.Geteuid() || int(stat.Gid) != os.Getegid()) {
		err = f.Chown(int(stat.Uid), int(stat.Gid))
	}
	if err == nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(next, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return nil
}

// CheckFile reports why the agent would refuse a file as its configuration: a user other
// than root and its own could change it. A pipe without a name passes, such as /dev/stdin:
// the process that started the agent opened it.
func CheckFile(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if _, err := filepath.EvalSymlinks(name); err != nil && info.Mode().Type() == os.ModeNamedPipe {
		return nil
	}
	return kernel.CheckTrustedFile(name)
}

// Follow calls changed whenever a configuration file may have another text, or the signal
// comes (nil is never), until the context ends.
func Follow(ctx context.Context, name string, again <-chan os.Signal, changed func()) error {
	f, err := openFile(name)
	if err != nil {
		return err
	}
	go f.watch(ctx)
	for {
		select {
		case <-ctx.Done():
			return f.close()
		case <-again:
			changed()
		case <-f.changed:
			changed()
		}
	}
}

// ReadTrustedConfig reads a configuration file that only root and this process's user can
// change: it says what a service does.
func ReadTrustedConfig(name string) (*config.NodeConfig, error) {
	f := file{name: name}
	c, _, err := f.read()
	return c, err
}

// ReadConfig reads a configuration file.
func ReadConfig(name string) (*config.NodeConfig, error) {
	text, err := ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parse(text, name)
}

func parse(text []byte, name string, checks ...func(*config.NodeConfig) error) (*config.NodeConfig, error) {
	c, err := config.Parse(text, name, checks...)
	if err != nil {
		return nil, fmt.Errorf("read configuration:\n%w", err)
	}
	return c, nil
}

// maxConfig is the greatest size of a configuration file, in bytes.
const maxConfig = 4 << 20

// pipePatience is how long a configuration that comes through a pipe may take.
const pipePatience = 10 * time.Second

// ReadFile returns the text of a configuration file. One that has no end, such as
// /dev/zero or a pipe that stays open, is an error; nobody at the other end of a pipe is
// not waited for.
func ReadFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	_ = f.SetReadDeadline(time.Now().Add(pipePatience)) // files on a disk have none, and come to their end
	return ReadText(f, name)
}

// ReadText returns the text of a configuration, to its end; name is for errors. One of
// more than 4 MiB is an error.
func ReadText(r io.Reader, name string) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(text) > maxConfig {
		return nil, fmt.Errorf("read configuration %s: more than %d bytes; name the right file", name, maxConfig)
	}
	return text, nil
}

// watch tells changed of anything that happens in the directory, so that a file
// reached by a symbolic link there is seen too, until the context ends.
func (f *file) watch(ctx context.Context) {
	if f.notify == nil {
		return
	}
	defer context.AfterFunc(ctx, func() { f.notify.Close() })()
	buf := make([]byte, 4096)
	for {
		if _, err := f.notify.Read(buf); err != nil {
			return
		}
		poke(f.changed)
	}
}

func (f *file) close() error {
	if f.notify == nil {
		return nil
	}
	if err := f.notify.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
