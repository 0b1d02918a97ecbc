package features

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Dir is where NFD's worker looks for files.
const Dir = "/etc/kubernetes/node-feature-discovery/features.d"

// FileName is Berth's file in it.
const FileName = "berth"

// Write writes the features into a directory that NFD's worker reads. They count until
// expiry: whoever stops writing has no features after it. The file is there whole or not
// at all; the worker skips names that begin with a dot.
func Write(dir string, f Features, expiry time.Time) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write node features in %s: %w", dir, err)
		}
	}()
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("not a directory")
	case !trusted(info):
		return errors.New("it belongs to another user, who could change it; chown root it")
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to it (mode %#o); chmod 755 it", info.Mode().Perm())
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	text := "# what this node has for placing; berth-node writes this file\n# +expiry-time=" + expiry.UTC().Format(time.RFC3339) + "\n" +
		strings.Join(f.Lines(), "\n") + "\n"
	const fresh = "." + FileName + ".new"
	if err := root.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := root.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = root.Rename(fresh, FileName)
	}
	return err
}

// trusted reports whether a file is root's or this user's.
func trusted(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int(stat.Uid) == os.Geteuid())
}

// Path is the file in a directory.
func Path(dir string) string { return filepath.Join(dir, FileName) }
