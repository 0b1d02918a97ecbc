package kernel

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
