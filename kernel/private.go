package kernel

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// MakePrivateDir makes a directory (mode 0700) with those around it, and then
// checks it: see CheckPrivateDir.
func MakePrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return CheckPrivateDir(dir)
}

// CheckPrivateDir refuses a directory in which someone else than this user and
// root could put something: one that is not this user's, that others may write to,
// or that lies in one of those; a symbolic link included. /tmp/berth-UID may have
// been made by anyone. Directories are looked at from dir up to the first that is
// root's; one in which everyone may only remove what is theirs (the sticky bit, as of
// /tmp) will do there.
func CheckPrivateDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return checkPrivate(dir, uint32(os.Geteuid()), true)
}

func checkPrivate(at string, uid uint32, first bool) error {
	info, err := os.Lstat(at)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: its owner is not known", at)
	}
	link := info.Mode().Type() == fs.ModeSymlink
	sticky := info.Mode()&fs.ModeSticky != 0 && !first
	switch {
	case stat.Uid != uid && (first || stat.Uid != 0):
		return fmt.Errorf("%s: belongs to another user (%d), who could change what is in it; choose another place (XDG_RUNTIME_DIR, --state)", at, stat.Uid)
	case first && !info.IsDir():
		return fmt.Errorf("%s: not a directory", at)
	case !link && info.Mode().Perm()&0o022 != 0 && !sticky:
		return fmt.Errorf("%s: others may write to it (mode %#o); chmod go-w it", at, info.Mode().Perm())
	case link:
		to, err := filepath.EvalSymlinks(at)
		if err != nil {
			return err
		}
		if err := checkPrivate(to, uid, false); err != nil {
			return err
		}
	case stat.Uid != uid || at == filepath.Dir(at):
		return nil
	}
	return checkPrivate(filepath.Dir(at), uid, false)
}
