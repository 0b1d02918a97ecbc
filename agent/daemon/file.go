package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// read reads the configuration. A file that a user other than root and the agent's could
// change is refused: it says what the agent does.
func (f *file) read() (*config.NodeConfig, error) {
	if f.name == "" {
		return config.Default(), nil
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return ReadConfig(f.name)
}

// check lets a pipe without a name pass, such as /dev/stdin: the process that started the
// agent opened it.
func (f *file) check() error {
	info, err := os.Stat(f.name)
	if err != nil {
		return err
	}
	if _, err := filepath.EvalSymlinks(f.name); err != nil && info.Mode().Type() == os.ModeNamedPipe {
		return nil
	}
	return kernel.CheckTrustedFile(f.name)
}

// ReadConfig reads a configuration file.
func ReadConfig(name string) (*config.NodeConfig, error) {
	text, err := ReadFile(name)
	if err != nil {
		return nil, err
	}
	c, err := config.Parse(text, name)
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
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
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
