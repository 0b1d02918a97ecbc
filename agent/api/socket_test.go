package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/testbox"
)

// A socket of another user is not asked, even if its answers look right.
func TestClientBelievesOnlyRootAndItself(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to listen as another user")
	}
	dir, err := os.MkdirTemp("", "berth-peer-") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	var l net.Listener
	err = testbox.As(stranger, func() (err error) {
		l, err = net.Listen("unix", socket)
		return err
	})
	if err != nil {
		t.Skipf("cannot listen as user %d: %v", stranger, err)
	}
	defer l.Close()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute) // it never answers
	defer stop()
	_, err = Dial(ctx, socket)
	var refused *PeerError
	if !errors.As(err, &refused) || refused.UID != stranger || refused.Socket != socket {
		t.Errorf("dialled: %v", err)
	}
}

// An agent that has a socket and does not answer, as one that was stopped, is not waited
// for without end; who stops waiting before has his own reason.
func TestDialSilent(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(openDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := dialWithin(t.Context(), socket, time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "has not answered within 1ms") {
		t.Errorf("silent: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dialWithin(ctx, socket, time.Millisecond); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "answered") {
		t.Errorf("cancelled: %v", err)
	}
}

// A socket has its final mode from the instant at which its name is there: it comes by
// being renamed, out of a directory that is this user's alone.
func TestListenNeverWiderThanAtLast(t *testing.T) {
	// Not parallel: the umask is the process's.
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := openDir(t)
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if _, err := syscall.InotifyAddWatch(fd, dir, syscall.IN_CREATE|syscall.IN_MOVED_TO|syscall.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(filepath.Join(dir, "s"), -1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	buf := make([]byte, 4096)
	n, err := syscall.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for at := 0; at < n; {
		mask, size := binary.NativeEndian.Uint32(buf[at+4:]), int(binary.NativeEndian.Uint32(buf[at+12:])) // inotify(7)
		at += syscall.SizeofInotifyEvent
		name := strings.TrimRight(string(buf[at:at+size]), "\x00")
		at += size
		if name == "s" {
			got = append(got, fmt.Sprintf("%#x", mask))
		}
	}
	if want := []string{fmt.Sprintf("%#x", syscall.IN_MOVED_TO)}; !slices.Equal(got, want) {
		t.Errorf("events of the socket's name are %s, want %s only, a rename", got, want)
	}
	if mode := modeOf(t, filepath.Join(dir, "s")); mode != 0o600 {
		t.Errorf("the mode is %o", mode)
	}
}

// A directory that another user could change gets no socket: that user could put a link in its place, and
// another file would get the socket's mode and group. Root's sticky directories, and a link to an own
// one, are well.
func TestListenInDirectoryOfAnother(t *testing.T) {
	t.Parallel()
	const theirs, open = "belongs to another user (65534)", "others may write to it"
	for what, tc := range map[string]struct {
		prepare func(dir string) error
		says    string // "": it listens
		asRoot  bool
	}{
		"own":                  {func(string) error { return nil }, "", false},
		"another's":            {func(dir string) error { return os.Chown(dir, stranger, stranger) }, theirs, true},
		"writable for a group": {func(dir string) error { return os.Chmod(dir, 0o775) }, open, false},
		"root's, sticky":       {func(dir string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, "", true},
		"another's, sticky": {func(dir string) error {
			return errors.Join(os.Chown(dir, stranger, stranger), os.Chmod(dir, 0o777|os.ModeSticky))
		}, theirs, true},
		"in another's": {func(dir string) error { return os.Chown(filepath.Dir(dir), stranger, stranger) }, theirs, true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if tc.asRoot && os.Geteuid() != 0 {
				t.Skip("needs root to give a directory to another user")
			}
			dir := filepath.Join(openDir(t), "app")
			link := dir + ".link"
			if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink(dir, link)); err != nil {
				t.Fatal(err)
			}
			if err := tc.prepare(dir); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{filepath.Join(dir, "s"), filepath.Join(link, "s")} {
				said := func(err error) bool {
					if tc.says == "" {
						return err == nil
					}
					return err != nil && strings.Contains(err.Error(), "listen on "+path+": ") && strings.Contains(err.Error(), tc.says)
				}
				if err := CheckSocket(path, -1); !said(err) {
					t.Errorf("%s: checked: %v", path, err)
				}
				l, err := Listen(path, -1)
				if !said(err) {
					t.Errorf("%s: %v", path, err)
				}
				if err == nil {
					l.Close()
				}
				if left := names(t, dir); len(left) > 0 {
					t.Errorf("%s: %v are left", path, left)
				}
			}
		})
	}
}
