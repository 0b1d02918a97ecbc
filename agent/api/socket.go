package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"berth.dev/berth/kernel"
)

// InUseError is a socket on which somebody listens.
type InUseError struct{ Path string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("listen on %s: somebody does already; stop that agent, or choose another socket", e.Path)
}

// Listen listens on a Unix socket that only this user may use (mode 0600) and, if
// gid is not negative, that group (0660), if it can get there (*UnreachableError). A socket on which nobody listens any
// more is replaced, one in use is an *InUseError; anything else of that name is an
// error and stays. So is a directory that another user than this one and root could change.
// Closing removes the socket.
func Listen(path string, gid int) (net.Listener, error) {
	if err := trusted(path); err != nil {
		return nil, err
	}
	if err := clear(path); err != nil {
		return nil, err
	}
	if err := reachable(path, gid); err != nil {
		return nil, err
	}
	// Nobody can connect before the mode is right: the socket is made in a
	// directory of its own.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".sock-")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer os.RemoveAll(dir)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	s := &socket{UnixListener: l, path: path}
	if err := s.install(filepath.Join(dir, "s"), gid); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return s, nil
}

// CheckSocket reports why Listen would fail at a path, as long as nobody listens there.
func CheckSocket(path string, gid int) error {
	info, err := os.Lstat(path)
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on %s: something else has that name; move it away", path)
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err == nil && !dir.IsDir() {
		err = fmt.Errorf("%s is no directory", filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w; make the directory", path, err)
	}
	if err := trusted(path); err != nil {
		return err
	}
	return reachable(path, gid)
}

// trusted checks that no other user than this one and root can change the directory of a path: that
// user could put a link in the new socket's place, and another file would get its mode and group.
func trusted(path string) error {
	if err := kernel.CheckTrustedFile(filepath.Dir(path)); err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	return nil
}

// clear makes sure that nobody listens at path and nothing of value is there.
func clear(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on %s: something else has that name; move it away", path)
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		return errors.Join(&InUseError{path}, c.Close())
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("listen on %s: look who does already: %w", path, err)
}

// UnreachableError is a directory on the way to a socket that the socket's group
// may not search.
type UnreachableError struct {
	Path, Dir string
	GID       int
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("listen on %s: group %d does not get there through %s; chgrp %d %s and chmod g+x it, or choose a socket elsewhere",
		e.Path, e.GID, e.Dir, e.GID, e.Dir)
}

// reachable checks that a group may search the directories down to a path. Access
// control lists are not looked at.
func reachable(path string, gid int) error {
	if gid < 0 {
		return nil
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", path, err)
		}
		search := fs.FileMode(0o001)
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Gid) == gid {
			search = 0o010
		}
		if info.Mode()&search == 0 {
			return &UnreachableError{path, dir, gid}
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// socket is a listener that removes its file, if that is still its own.
type socket struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// install gives the socket its mode and its name.
func (s *socket) install(made string, gid int) (err error) {
	mode := fs.FileMode(0o600)
	if gid >= 0 {
		mode = 0o660
		if err := os.Chown(made, -1, gid); err != nil {
			return err
		}
	}
	if err := os.Chmod(made, mode); err != nil {
		return err
	}
	if s.file, err = os.Lstat(made); err != nil {
		return err
	}
	return os.Rename(made, s.path)
}

// Addr is the path.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close ends listening and removes the socket.
func (s *socket) Close() error {
	err := s.UnixListener.Close()
	if info, statErr := os.Lstat(s.path); statErr == nil && os.SameFile(info, s.file) {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

type peerKey struct{}

// PeerOf returns who made the request of a context; ok is false if the kernel does
// not tell.
func PeerOf(ctx context.Context) (p Peer, ok bool) {
	p, ok = ctx.Value(peerKey{}).(Peer)
	return p, ok
}

// peer is the process that connected, or listens, at the other end.
func peer(c net.Conn) (Peer, error) {
	cred, err := kernel.ReadPeer(c)
	return Peer{PID: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid)}, err
}

// PagePath is where the status page's own socket is: beside that of the API.
func PagePath(socket string) string { return filepath.Join(filepath.Dir(socket), "page.sock") }

// SocketPath is where a user's agent listens unless it is configured otherwise:
// /run/berth/agent.sock for root, see kernel.RunDir for others.
func SocketPath(uid int, xdgRuntimeDir string) string {
	return filepath.Join(kernel.RunDir(uid, xdgRuntimeDir), "agent.sock")
}
