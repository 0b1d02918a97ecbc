package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"strconv"
	"syscall"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// private is where a manager listens, below the folder of what is only for this boot.
const private = "systemd/private"

// manager returns what connects a user to the manager of a tree; nil if there is none: the
// tree is of a system that does not run.
func manager(dir string, uid int) func(context.Context) (*sd.Conn, error) {
	switch live := path.Clean(dir) == "/"; {
	case live && uid == 0:
		return sd.NewSystemdConnectionContext
	case live:
		// Without a manager of her own, none of a user's groups can be a unit's.
		if _, err := os.Stat(os.Getenv("XDG_RUNTIME_DIR") + "/" + private); err == nil {
			return sd.NewUserConnectionContext
		}
	case uid == 0:
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil
		}
		socket, err := openSocket(root, uid)
		if err != nil {
			_ = root.Close()
			return nil
		}
		_ = socket.Close() // systemd may make it anew
		return func(ctx context.Context) (*sd.Conn, error) { return connectTo(ctx, root, uid) }
	}
	return nil
}

// openSocket opens (O_PATH) where the manager of a tree listens: a socket of a user, to which no link
// leads out of the tree.
func openSocket(root *os.Root, uid int) (*os.File, error) {
	f, err := root.OpenFile("run/"+private, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode().Type() != fs.ModeSocket || int(stat.Uid) != uid {
			err = fmt.Errorf("%s is not a socket of user %d", f.Name(), uid)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// connectTo connects a user to the manager of a tree. Who listens must be the user's, too.
func connectTo(ctx context.Context, root *os.Root, uid int) (*sd.Conn, error) {
	return sd.NewConnection(func() (*dbus.Conn, error) {
		socket, err := openSocket(root, uid)
		if err != nil {
			return nil, err
		}
		defer socket.Close()
		// By its name it might be another one by now.
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", socket.Name(), err)
		}
		if err := listens(conn, uid); err != nil {
			return nil, fmt.Errorf("%s: %w", socket.Name(), errors.Join(err, conn.Close()))
		}
		bus, err := dbus.NewConn(conn, dbus.WithContext(ctx))
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if err := bus.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(uid))}); err != nil {
			return nil, errors.Join(err, bus.Close())
		}
		return bus, nil
	})
}

// listens returns an error unless a process of a user listens at the other end.
func listens(conn net.Conn, uid int) error {
	peer, err := kernel.ReadPeer(conn)
	if err == nil && int(peer.Uid) != uid {
		err = fmt.Errorf("a process of user %d listens, not one of %d", peer.Uid, uid)
	}
	return err
}

// running reports whether systemd runs (sd_booted(3)) and has control groups in v2. A copy of a
// host's files has no groups.
func running(fsys fs.FS) bool {
	if _, err := fs.Stat(fsys, "run/systemd/system"); err != nil {
		return false
	}
	dir, err := fsys.Open(mount)
	if err != nil {
		return false
	}
	defer dir.Close()
	f, ok := dir.(*os.File)
	var is unix.Statfs_t
	return ok && unix.Fstatfs(int(f.Fd()), &is) == nil && is.Type == unix.CGROUP2_SUPER_MAGIC
}

// connect returns the manager. An error of it, or of its calls that never reached systemd or had no
// answer, is a *ConnectionError.
func (f *Files) connect(ctx context.Context) (Bus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.bus.(interface{ Connected() bool })
	if f.bus != nil && (!ok || c.Connected()) {
		return calls{f.bus}, nil
	}
	if err := ctx.Err(); err != nil { // while others connected
		return nil, &ConnectionError{fmt.Errorf("connect to systemd: %w", err)}
	}
	// The context that one dials with ends the connection: that of a caller only until there is one.
	ctx, done := context.WithTimeout(ctx, answer)
	defer done()
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	bus, err := f.dial(lasting)
	switch {
	case !stop():
		return nil, &ConnectionError{fmt.Errorf("connect to systemd: no answer: %w", ctx.Err())}
	case err != nil:
		end()
		return nil, &ConnectionError{err}
	}
	f.bus = bus
	return calls{bus}, nil
}
