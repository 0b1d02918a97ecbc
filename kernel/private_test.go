package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
)

// privateHome is a directory in /tmp, which is root's and sticky.
func privateHome(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := CheckPrivateDir(dir); err != nil {
		t.Skipf("directories of tests are not private here: %v", err)
	}
	return dir
}

func TestMakePrivateDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(privateHome(t), "a/b")
	for range 2 {
		if err := MakePrivateDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Dir(dir))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestPrivateDirRefused(t *testing.T) {
	t.Parallel()
	root := os.Geteuid() == 0
	for what, tt := range map[string]struct {
		prepare func(home, dir string) error // dir is home/berth/node
		says    string
		asRoot  bool
	}{
		"a file":                {func(_, dir string) error { return os.WriteFile(dir, nil, 0o600) }, "not a directory", false},
		"a link":                {func(home, dir string) error { return os.Symlink(home, dir) }, "not a directory", false},
		"open to others":        {func(_, dir string) error { return open(dir) }, "go-w", false},
		"open to others around": {func(_, dir string) error { return open(filepath.Dir(dir)) }, "go-w", false},
		"another's":             {func(_, dir string) error { return given(dir) }, "another user", true},
		"another's around":      {func(_, dir string) error { return given(filepath.Dir(dir)) }, "another user", true},
		"another's link around": {func(home, dir string) error {
			link := filepath.Dir(dir)
			if err := os.Rename(link, home+"/own"); err != nil {
				return err
			}
			if err := os.Symlink(home+"/own", link); err != nil {
				return err
			}
			return os.Lchown(link, 65534, 65534)
		}, "another user", true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if tt.asRoot && !root {
				t.Skip("needs root to give files away")
			}
			home := privateHome(t)
			dir := filepath.Join(home, "berth/node")
			if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := tt.prepare(home, dir); err != nil {
				t.Fatal(err)
			}
			if err := MakePrivateDir(dir); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v; want %q", err, tt.says)
			}
		})
	}
}

// TestMakePrivateDirBehindLink asks for a directory in one of another user's, who has put
// a link there: nothing is made where that leads.
func TestMakePrivateDirBehindLink(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	home := privateHome(t)
	theirs, victim := home+"/theirs", home+"/victim"
	err := errors.Join(given(theirs), os.Mkdir(victim, 0o755), os.Symlink(victim, theirs+"/state"), os.Lchown(theirs+"/state", 65534, 65534))
	if err != nil {
		t.Fatal(err)
	}
	if err := MakePrivateDir(theirs + "/state/a/node"); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Error(err)
	}
	if made, err := os.ReadDir(victim); len(made) > 0 || err != nil {
		t.Errorf("made where the link leads: %v, %v", made, err)
	}
}

// open lets everyone write, given gives a directory to someone else.
func open(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o722)
}

func given(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.Chown(dir, 65534, 65534)
}

// What root set up around it is trusted: a link as of /var/run.
func TestPrivateDirBehindLink(t *testing.T) {
	t.Parallel()
	home := privateHome(t)
	if err := os.MkdirAll(home+"/real/node", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", home+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := CheckPrivateDir(home + "/link/node"); err != nil {
		t.Error(err)
	}
}

// TestLockedDirectory locks a directory of undo logs that other users may read, as any of
// them can: neither undo logs nor Restore wait for that.
func TestLockedDirectory(t *testing.T) {
	t.Parallel()
	root, _ := fake(t, fakekernel.V1())
	dir := fakekernel.MemoryDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	stranger, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if err := syscall.Flock(int(stranger.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		j, err := CreateUndoLog(root, dir, "test")
		if err == nil {
			_, err = Restore(root, dir)
			err = errors.Join(err, j.Close())
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("waits for a lock that any user can take")
	}
	if info, err := os.Stat(filepath.Join(dir, logsLock)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the lock: %v, %v", info, err)
	}
}

func TestOpenPrivateFile(t *testing.T) {
	t.Parallel()
	dir := fakekernel.MemoryDir(t)
	victim := filepath.Join(dir, "victim")
	for what, tt := range map[string]struct {
		make func(name string) error
		says string
	}{
		"link":           {func(name string) error { return os.Symlink(victim, name) }, "symbolic link"},
		"hard link":      {func(name string) error { return os.Link(victim, name) }, "hard link"},
		"pipe":           {func(name string) error { return syscall.Mkfifo(name, 0o600) }, "not a regular file"},
		"directory":      {func(name string) error { return os.Mkdir(name, 0o700) }, "directory"},
		"open to others": {func(name string) error { return errors.Join(os.WriteFile(name, nil, 0o600), os.Chmod(name, 0o644)) }, "chmod 600"},
		"another user's": {func(name string) error {
			return errors.Join(os.WriteFile(name, nil, 0o600), os.Chown(name, 65534, 65534))
		}, "another user"},
	} {
		if err := os.WriteFile(victim, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, what)
		if err := tt.make(name); errors.Is(err, os.ErrPermission) {
			continue // only root can
		} else if err != nil {
			t.Fatal(err)
		}
		for _, flag := range []int{os.O_RDONLY, os.O_RDWR | os.O_CREATE | os.O_TRUNC} {
			f, err := OpenPrivateFile(name, flag)
			if err == nil {
				f.Close()
			}
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, want %q", what, err, tt.says)
			}
		}
		if text, err := os.ReadFile(victim); err != nil || string(text) != "kept" {
			t.Errorf("%s: the other file has %q, %v", what, text, err)
		}
	}
}

func TestTrustedFile(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		prepare func(home, name string) error
		says    string // "" is trusted
		asRoot  bool
	}{
		"own":               {func(_, name string) error { return nil }, "", false},
		"open to others":    {func(_, name string) error { return os.Chmod(name, 0o666) }, "go-w", false},
		"sticky and open":   {func(_, name string) error { return os.Chmod(name, 0o666|os.ModeSticky) }, "go-w", false},
		"in an open folder": {func(home, _ string) error { return os.Chmod(home, 0o777) }, "go-w", false},
		"another's":         {func(_, name string) error { return os.Chown(name, 65534, 65534) }, "another user", true},
		"in another's":      {func(home, _ string) error { return os.Chown(home, 65534, 65534) }, "another user", true},
		"gone":              {func(_, name string) error { return os.Remove(name) }, "no such file", false},
		"a link to nowhere": {func(_, name string) error { return relink(name, "/proc/1/does-not-exist") }, "no such file", false},
		"a link to itself":  {func(_, name string) error { return relink(name, name) }, "too many levels of symbolic links", false},
		"links":             {func(home, name string) error { return relinkBy(name, home+"/middle") }, "", false},
		"another's link on the way": {func(home, name string) error {
			return errors.Join(relinkBy(name, home+"/middle"), os.Lchown(home+"/middle", 65534, 65534))
		}, "/middle: belongs to another user", true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if tt.asRoot && os.Geteuid() != 0 {
				t.Skip("needs root to give files away")
			}
			home := privateHome(t)
			name := filepath.Join(home, "node.yaml")
			if err := os.WriteFile(name, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := tt.prepare(home, name); err != nil {
				t.Fatal(err)
			}
			err := CheckTrustedFile(name)
			if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v; want %q", err, tt.says)
			}
		})
	}
}

// TestTrustedFileAroundLink has ".." after a link to a directory, in the name of a file and in
// what a link leads to: it is the directory around the one that the link leads to.
func TestTrustedFileAroundLink(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	home := privateHome(t)
	theirs := home + "/theirs"
	err := errors.Join(given(theirs), os.Mkdir(theirs+"/sub", 0o755), os.WriteFile(theirs+"/node.yaml", nil, 0o644), os.WriteFile(home+"/node.yaml", nil, 0o644),
		os.Symlink("theirs/sub", home+"/dir"), os.Symlink("dir/../node.yaml", home+"/link"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dir/../node.yaml", "link"} {
		if err := CheckTrustedFile(home + "/" + name); err == nil || !strings.Contains(err.Error(), "/theirs: belongs to another user") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// relinkBy makes name a link to a link, between, to what name was.
func relinkBy(name, between string) error {
	return errors.Join(os.Rename(name, name+".own"), os.Symlink(filepath.Base(name)+".own", between), os.Symlink(filepath.Base(between), name))
}

func relink(name, to string) error {
	if err := os.Remove(name); err != nil {
		return err
	}
	return os.Symlink(to, name)
}
