package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

// tree turns file names and texts into a file system. A text "-> X" is a link.
func delegationTree(files map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, text := range files {
		if target, isLink := strings.CutPrefix(text, "-> "); isLink {
			fsys[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
			continue
		}
		fsys[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	return fsys
}

const (
	vendor = "usr/lib/systemd/system/user@.service"
	etc    = "etc/systemd/system/user@.service.d/"
	lib    = "usr/lib/systemd/system/user@.service.d/"
	run    = "run/systemd/system/user@.service.d/"
)

// TestConfigured holds what systemd 252 made of the same files
// (systemd --test --system with SYSTEMD_UNIT_PATH, "DelegateControllers").
func TestConfigured(t *testing.T) {
	t.Parallel()
	set := func(lines ...string) string { return "[Service]\n" + strings.Join(lines, "\n") + "\n" }
	tests := map[string]struct {
		files map[string]string
		want  string
	}{
		"the unit alone":             {nil, "cpu memory pids"},
		"a list adds":                {map[string]string{etc + "10-a.conf": set("Delegate=cpuset")}, "cpu cpuset memory pids"},
		"etc hides lib":              {map[string]string{lib + "50-x.conf": set("Delegate=io"), etc + "50-x.conf": set("Delegate=cpuset")}, "cpu cpuset memory pids"},
		"empty resets":               {map[string]string{etc + "50-x.conf": set("Delegate=", "Delegate=io")}, "io"},
		"no, then a list":            {map[string]string{etc + "50-x.conf": set("Delegate=no"), run + "60-x.conf": set("Delegate=io")}, "io"},
		"yes is all":                 {map[string]string{etc + "50-x.conf": set("Delegate=yes"), run + "60-x.conf": set("Delegate=io")}, "cpu cpuset io memory pids"},
		"On":                         {map[string]string{etc + "50-x.conf": set("Delegate=On")}, "cpu cpuset io memory pids"},
		"0":                          {map[string]string{etc + "50-x.conf": set("Delegate=0")}, ""},
		"masked by a link":           {map[string]string{etc + "50-x.conf": "-> /dev/null", run + "50-x.conf": set("Delegate=io")}, "cpu memory pids"},
		"masked by an empty file":    {map[string]string{etc + "50-x.conf": "", run + "50-x.conf": set("Delegate=io")}, "cpu memory pids"},
		"name decides, not place":    {map[string]string{etc + "10-x.conf": set("Delegate=cpuset"), lib + "50-x.conf": set("Delegate=", "Delegate=io")}, "io"},
		"service.d by name":          {map[string]string{"etc/systemd/system/service.d/90-x.conf": set("Delegate=", "Delegate=cpuset"), lib + "50-x.conf": set("Delegate=io")}, "cpuset"},
		"user@.service.d hides it":   {map[string]string{"etc/systemd/system/service.d/50-x.conf": set("Delegate=", "Delegate=cpuset"), lib + "50-x.conf": set("Delegate=io")}, "cpu io memory pids"},
		"joined lines and comments":  {map[string]string{etc + "x.conf": set(`Delegate = io bogus \`, "# c", " cpuset", "; Delegate=no", "#Delegate=no", "[Unit]", "Delegate=no")}, "cpu cpuset io memory pids"},
		"no such word or key":        {map[string]string{etc + "x.conf": set("delegate=io", "Delegate=io,cpuset", "Delegate=CPU Cpuset")}, "cpu memory pids"},
		"quoted":                     {map[string]string{etc + "x.conf": set(`Delegate="io" cpuset`)}, "cpu cpuset io memory pids"},
		"names that are no drop-in":  {map[string]string{etc + "x": set("Delegate=io"), etc + ".h.conf": set("Delegate=io"), etc + "y.conf~": set("Delegate=io")}, "cpu memory pids"},
		"unit in etc":                {map[string]string{"etc/systemd/system/user@.service": set("Delegate=pids")}, "pids"},
		"outside of a section":       {map[string]string{etc + "x.conf": "Delegate=io\n"}, "cpu memory pids"},
		"capitals sort first":        {map[string]string{etc + "B.conf": set("Delegate=io"), etc + "a.conf": set("Delegate=")}, ""},
		"garbage":                    {map[string]string{etc + "x.conf": "\x00\xff[Service\nDelegate\n=\n\\\n"}, "cpu memory pids"},
		"our own":                    {map[string]string{DelegationPath: string(dropIn(true))}, "cpu cpuset io memory pids"},
		"another's reset after ours": {map[string]string{DelegationPath: string(dropIn(true)), etc + "99-x.conf": set("Delegate=cpu", "Delegate=", "Delegate=cpu")}, "cpu"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fsys := delegationTree(test.files)
			fsys[vendor] = &fstest.MapFile{Data: []byte(set("User=%i", "Delegate=pids memory cpu"))}
			s, err := InspectDelegation(fsys, "")
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(s.Configured, " "); got != test.want {
				t.Errorf("configured %q, systemd says %q", got, test.want)
			}
		})
	}
}

// host is a machine with systemd, cgroup v2 and one user logged in.
func delegationHost(has string, more map[string]string) fstest.MapFS {
	files := map[string]string{
		vendor:                      "[Service]\nDelegate=pids memory cpu\n",
		"proc/1/comm":               "systemd\n",
		"run/systemd/system/x.conf": "",
		"usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-255.so":                           "",
		"sys/fs/cgroup/cgroup.controllers":                                                    "cpuset cpu io memory hugetlb pids\n",
		"sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/cgroup.controllers":       has + "\n",
		"sys/fs/cgroup/user.slice/user-1000.slice/session-1.scope/cgroup.controllers":         "\n",
		"sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/cgroup.threads": "",
	}
	for name, text := range more {
		files[name] = text
	}
	return delegationTree(files)
}

func TestState(t *testing.T) {
	t.Parallel()
	const v2, all, few = "sys/fs/cgroup", "cpuset cpu io memory pids", "cpu memory pids"
	ours := map[string]string{DelegationPath: string(dropIn(false))}
	changed := strings.Replace(string(dropIn(false)), "Delegate=", "Delegate=hugetlb ", 1)
	noUser := delegationHost(few, ours)
	for name := range noUser {
		if strings.Contains(name, "user.slice") {
			delete(noUser, name)
		}
	}
	tests := map[string]struct {
		fsys   fs.FS
		v2     string
		want   DelegationState
		file   FileState
		reason string
	}{
		"fresh host":          {delegationHost(few, nil), v2, DelegationAbsent, FileAbsent, "user@.service delegates cpu memory pids, not cpuset io"},
		"applied":             {delegationHost(all, ours), v2, DelegationApplied, FileOurs, "1 user manager has: cpu cpuset io memory pids"},
		"installed":           {delegationHost(few, ours), v2, DelegationInstalled, FileOurs, "user@1000.service without cpuset io"},
		"nobody logged in":    {noUser, v2, DelegationInstalled, FileOurs, "no user manager runs"},
		"by another file":     {delegationHost(all, map[string]string{etc + "delegate.conf": "[Service]\nDelegate=yes\n"}), v2, DelegationApplied, FileAbsent, "1 user manager"},
		"by chance":           {delegationHost(all, nil), v2, DelegationAbsent, FileAbsent, "not cpuset io"},
		"customised":          {delegationHost(few, map[string]string{DelegationPath: changed}), v2, DelegationCustomised, FileCustomised, "not as Berth wrote it"},
		"customised, works":   {delegationHost(all, map[string]string{DelegationPath: changed}), v2, DelegationApplied, FileCustomised, "1 user manager"},
		"a link":              {delegationHost(few, map[string]string{DelegationPath: "-> /dev/null"}), v2, DelegationCustomised, FileCustomised, "not as Berth"},
		"taken back":          {delegationHost(few, map[string]string{DelegationPath: string(dropIn(false)), etc + "99.conf": "[Service]\nDelegate=no\n"}), v2, DelegationInstalled, FileOurs, "99.conf"},
		"one manager behind":  {delegationHost(all, map[string]string{DelegationPath: string(dropIn(false)), "sys/fs/cgroup/user.slice/user-0.slice/user@0.service/cgroup.controllers": "cpu pids"}), v2, DelegationInstalled, FileOurs, "user@0.service without cpuset io memory"},
		"kernel without io":   {delegationHost("cpuset cpu memory pids", map[string]string{DelegationPath: string(dropIn(false)), "sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory pids"}), v2, DelegationApplied, FileOurs, "does not offer io"},
		"old systemd":         {delegationHost(few, map[string]string{DelegationPath: string(dropIn(false)), "usr/lib/systemd/libsystemd-shared-241.so": ""}), v2, DelegationInstalled, FileOurs, "systemd 241"},
		"v1 only":             {delegationHost(few, nil), "", DelegationNotApplicable, FileAbsent, "v1"},
		"hybrid":              {delegationHost(few, map[string]string{"sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n"}), "sys/fs/cgroup/unified", DelegationNotApplicable, FileAbsent, "v1"},
		"another init":        {delegationTree(map[string]string{"proc/1/comm": "process_api\n", vendor: "[Service]\nDelegate=cpu\n"}), "", DelegationNotApplicable, FileAbsent, "process 1 is process_api"},
		"image":               {delegationTree(map[string]string{vendor: "[Service]\nDelegate=cpu\n"}), "", DelegationAbsent, FileAbsent, "delegates cpu, not cpuset io memory pids"},
		"image, installed":    {delegationTree(ours), "", DelegationInstalled, FileOurs, "when the tree is booted"},
		"empty":               {delegationTree(nil), "", DelegationAbsent, FileAbsent, "delegates nothing"},
		"an older version's":  {delegationHost(few, map[string]string{DelegationPath: older()}), v2, DelegationInstalled, FileOutdated, "user@1000.service"},
		"an unreadable value": {delegationHost(few, map[string]string{DelegationPath: "\x00"}), v2, DelegationCustomised, FileCustomised, "not as Berth"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := InspectDelegation(test.fsys, test.v2)
			if err != nil {
				t.Fatal(err)
			}
			if s.State != test.want || s.File != test.file || !strings.Contains(s.Reason, test.reason) {
				t.Errorf("got %q, file %q, reason %q\nwant %q, %q, %q", s.State, s.File, s.Reason, test.want, test.file, test.reason)
			}
		})
	}
}

// older is a drop-in that another version of Berth might have written.
func older() string {
	head, body := "# An older text.\n", "[Service]\nDelegate=cpu cpuset io memory pids\n"
	return head + fingerprintKey + fingerprint([]byte(head+body)) + "\n" + body
}

func TestInspectErrors(t *testing.T) {
	t.Parallel()
	broken := delegationHost("cpu", map[string]string{"sys/fs/cgroup/cgroup.controllers/x": ""})
	delete(broken, "sys/fs/cgroup/cgroup.controllers")
	tests := map[string]struct {
		fsys fs.FS
		want string
	}{
		"a directory as drop-in":     {delegationHost("cpu", map[string]string{etc + "x.conf/y": ""}), "x.conf"},
		"a directory as controllers": {broken, "cgroup.controllers"},
	}
	for name, test := range tests {
		if _, err := InspectDelegation(test.fsys, "sys/fs/cgroup"); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func TestIsOurs(t *testing.T) {
	t.Parallel()
	good := string(dropIn(true))
	for _, text := range []string{good, string(dropIn(false)), older()} {
		if !isOurs([]byte(text)) {
			t.Errorf("not recognised:\n%s", text)
		}
	}
	for _, text := range []string{
		"", "\n", fingerprintKey, good + "\n", "x" + good, " " + good, strings.ToUpper(good),
		strings.Replace(good, "cpuset ", "", 1), strings.TrimSuffix(good, "\n"),
		strings.Replace(good, "sha256:", "sha256:0", 1), "[Service]\nDelegate=cpu cpuset io memory pids\n",
	} {
		if isOurs([]byte(text)) {
			t.Errorf("taken for ours:\n%s", text)
		}
	}
}

func inspect(t *testing.T, root string) Delegation {
	t.Helper()
	s, err := InspectDelegation(os.DirFS(root), "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func enable(t *testing.T, root string) DelegationChange {
	t.Helper()
	c, err := inspect(t, root).Enable()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(root); err != nil {
		t.Fatal(err)
	}
	return c
}

func disable(t *testing.T, root string) DelegationChange {
	t.Helper()
	c, err := inspect(t, root).Disable()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(root); err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	fakekernel.Plant(t, filepath.Join(root, name), text)
}

func TestEnableDisable(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	enable(t, root)
	info, err := os.Stat(filepath.Join(root, DelegationPath))
	if err != nil || info.Mode() != 0o644 {
		t.Fatalf("drop-in: %v, %v", info.Mode(), err)
	}
	dir := filepath.Dir(filepath.Join(root, DelegationPath))
	if info, err = os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Fatalf("directory: %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if s := inspect(t, root); s.State != DelegationInstalled {
		t.Errorf("after enable: %q, %s", s.State, s.Reason)
	}
	if c := enable(t, root); c.Nothing == "" {
		t.Error("a second enable does something")
	}
	disable(t, root)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory after disable: %v", err)
	}
	if c := disable(t, root); c.Nothing == "" {
		t.Error("a second disable does something")
	}
}

func TestDisableKeepsOthers(t *testing.T) {
	t.Parallel()
	t.Run("a directory that was there", func(t *testing.T) {
		t.Parallel()
		root := t.TempDir()
		dir := filepath.Dir(filepath.Join(root, DelegationPath))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		enable(t, root)
		disable(t, root)
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	})
	t.Run("a file that came later", func(t *testing.T) {
		t.Parallel()
		root := t.TempDir()
		enable(t, root)
		write(t, root, etc+"99-x.conf", "[Service]\n")
		disable(t, root)
		if _, err := os.Stat(filepath.Join(root, etc, "99-x.conf")); err != nil {
			t.Error(err)
		}
	})
}

func TestUpgradeKeepsMadeDir(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	head := madeDirLine + "\n"
	write(t, root, DelegationPath, head+fingerprintKey+fingerprint([]byte(head))+"\n")
	if s := inspect(t, root); s.File != FileOutdated {
		t.Fatalf("file %q", s.File)
	}
	enable(t, root)
	got, err := os.ReadFile(filepath.Join(root, DelegationPath))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(dropIn(true)), string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mine := "[Service]\nDelegate=cpu\n"
	write(t, root, DelegationPath, mine)
	s := inspect(t, root)
	if _, err := s.Enable(); !errors.Is(err, ErrDelegationCustomised) {
		t.Errorf("enable: %v", err)
	}
	if _, err := s.Disable(); !errors.Is(err, ErrDelegationCustomised) {
		t.Errorf("disable: %v", err)
	}
	if got, _ := os.ReadFile(filepath.Join(root, DelegationPath)); string(got) != mine {
		t.Errorf("file is now %q", got)
	}
	write(t, root, "proc/1/comm", "init\n")
	if err := os.Remove(filepath.Join(root, DelegationPath)); err != nil {
		t.Fatal(err)
	}
	if _, err := inspect(t, root).Enable(); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("enable without systemd: %v", err)
	}
}

// TestChangedMeanwhile changes the file between decision and write.
func TestChangedMeanwhile(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	on, err := inspect(t, root).Enable()
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, DelegationPath, "mine")
	if err := on.Apply(root); !errors.Is(err, ErrDelegationCustomised) {
		t.Errorf("enable: %v", err)
	}
	if entries, _ := os.ReadDir(filepath.Join(root, etc)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if err := os.Remove(filepath.Join(root, DelegationPath)); err != nil {
		t.Fatal(err)
	}
	enable(t, root)
	off, err := inspect(t, root).Disable()
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, DelegationPath, "mine")
	if err := off.Apply(root); !errors.Is(err, ErrDelegationCustomised) {
		t.Errorf("disable: %v", err)
	}
	if got, _ := os.ReadFile(filepath.Join(root, DelegationPath)); string(got) != "mine" {
		t.Errorf("file is now %q", got)
	}
}

// TestLinkOutOfRoot lets a link in the tree point out of it.
func TestLinkOutOfRoot(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(root, "etc")); err != nil {
		t.Fatal(err)
	}
	c, err := inspect(t, root).Enable()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(root); err == nil {
		t.Error("wrote out of the root")
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("outside: %v", entries)
	}
}

func FuzzDelegateValues(f *testing.F) {
	f.Add(dropIn(true))
	f.Add([]byte("[Service]\nDelegate=a\\\n#\nb\n"))
	f.Add([]byte("[\n]\n=\\"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, c := range merge(delegateValues(text)) {
			if len(lacking([]string{c})) != len(wanted())-1 {
				t.Errorf("controller %q", c)
			}
		}
		_ = isOurs(text)
	})
}
