// Package attack attacks berth as a local user would, against the real kernel, and does what
// the pages tell a reader on a host without systemd. It has tests only.
//
// Each test runs in a box: mount, PID, network, IPC and control group namespaces of its
// own, with /run, /tmp and /var/tmp of its own, below a sub-group of every hierarchy of
// the host. All processes of a box die with its first process; the host's own mounts
// and groups are not touched. A box needs root.
package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fakekernel"
)

// What a process of the test binary is for: see TestMain.
const (
	stageEnv = "BERTH_TEST_BOX" // enter, init or test
	groupEnv = "BERTH_TEST_BOX_GROUP"
	ownEnv   = "BERTH_TEST_BOX_OWN"   // with a mount point: the group below which that of the box is
	berthEnv = "BERTH_TEST_BOX_BERTH" // where berth was built
)

const (
	berth  = "/opt/berth"  // the program under attack, in a box
	attack = "/opt/attack" // this test binary, in a box
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], trickPrefix) {
		os.Exit(playTrick(strings.TrimPrefix(os.Args[1], trickPrefix), os.Args[2:]))
	}
	var err error
	switch os.Getenv(stageEnv) {
	case "enter":
		err = enterBox()
	case "init":
		err = initBox()
	default:
		code := m.Run()
		removeBuild()
		os.Exit(code)
	}
	fmt.Fprintln(os.Stderr, "box:", err)
	os.Exit(1)
}

// box is the machine in which a test attacks berth as root runs it.
type box struct {
	*testing.T
	ctx context.Context
}

// boxed runs a test in a box of its own: body runs there, as root and below the first
// process of the box.
func boxed(t *testing.T, body func(b *box)) {
	t.Helper()
	if os.Getenv(stageEnv) == "test" {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		body(&box{t, ctx})
		return
	}
	if testing.Short() || os.Getenv("BERTH_TEST_ATTACKS") == "0" {
		t.Skip("attacks take minutes together, and disturb other tests on this host; BERTH_TEST_ATTACKS is 0, or this is a short run")
	}
	if os.Geteuid() != 0 {
		t.Skip("a box needs root: it has namespaces, mounts and control groups of its own")
	}
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	fakekernel.LockHost(t, fakekernel.Alone)
	group := fmt.Sprintf("berth-box-%d-%s", os.Getpid(), t.Name())
	all, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeGroups(all, group); err != nil {
			t.Error(err)
		}
	})
	if err := makeGroups(all, group); err != nil {
		t.Skipf("a box needs a sub-group in each hierarchy of control groups: %v", err)
	}
	// The box dies with this thread, which the test keeps.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), stageEnv+"=enter", groupEnv+"="+group, berthEnv+"="+program)
	for _, h := range all {
		cmd.Env = append(cmd.Env, ownEnv+h.at+"="+h.own)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("%s", out)
	case !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Errorf("it was not tested:\n%s", out)
	default:
		t.Logf("%s", out)
	}
}

var (
	builds    sync.Once
	buildDir  string
	buildErr  error
	berthName = "berth"
)

// build returns the path of berth, built once for all boxes.
func build() (string, error) {
	builds.Do(func() {
		if buildDir, buildErr = os.MkdirTemp("", "berth-attack"); buildErr != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", buildDir+"/"+berthName, "berth.dev/berth/cmd/berth")
		if out, err := cmd.CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("build berth: %w\n%s", err, out)
		}
	})
	return filepath.Join(buildDir, berthName), buildErr
}

func removeBuild() {
	if buildDir != "" {
		_ = os.RemoveAll(buildDir)
	}
}

// hierarchy is one mounted tree of control groups.
type hierarchy struct {
	at      string // its mount point
	kind    string // cgroup or cgroup2
	options string // for mount(2): the controllers of a v1 hierarchy
	own     string // the group of this process
}

func (h hierarchy) dir(group string) string { return path.Join(h.at, h.own, group) }

// hierarchies returns those of this process.
func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	own := map[string]string{} // by controllers
	for line := range strings.Lines(string(groups)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			own[parts[1]] = parts[2]
		}
	}
	var all []hierarchy
	for line := range strings.Lines(string(mounts)) {
		words := strings.Fields(line)
		if len(words) < 4 || words[2] != "cgroup" && words[2] != "cgroup2" {
			continue
		}
		h := hierarchy{at: words[1], kind: words[2], own: own[""]}
		if h.kind == "cgroup" {
			var names []string
			for option := range strings.SplitSeq(words[3], ",") {
				if !slices.Contains([]string{"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "noatime", "xattr", "clone_children"}, option) {
					names = append(names, option)
				}
			}
			h.options = strings.Join(names, ",")
			at, ok := own[h.options]
			if !ok {
				return nil, fmt.Errorf("%s: /proc/self/cgroup does not name %q", h.at, h.options)
			}
			h.own = at
		}
		all = append(all, h)
	}
	if len(all) == 0 {
		return nil, errors.New("no control groups are mounted")
	}
	return all, nil
}

// makeGroups makes the group of a box in every hierarchy, with the CPUs and memory nodes
// of its parent where it would be empty.
func makeGroups(all []hierarchy, group string) error {
	for _, h := range all {
		dir := h.dir(group)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if h.kind == "cgroup2" {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(path.Join(path.Dir(dir), file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(path.Join(dir, file), text, 0)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// removeGroups removes the group of a box with all that was made below it.
func removeGroups(all []hierarchy, group string) error {
	var errs []error
	for _, h := range all {
		deadline := time.Now().Add(10 * time.Second)
		err := removeTree(h.dir(group))
		for err != nil && time.Now().Before(deadline) { // its processes are ending
			time.Sleep(20 * time.Millisecond)
			err = removeTree(h.dir(group))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeTree removes a group with all below it, also where its path is too long for a
// system call.
func removeTree(dir string) error {
	r, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = errors.Join(emptyTree(r), r.Close())
	if err != nil {
		return err
	}
	return syscall.Rmdir(dir)
}

func emptyTree(r *os.Root) error {
	d, err := r.Open(".")
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	err = errors.Join(err, d.Close())
	for _, entry := range entries {
		if err != nil || !entry.IsDir() {
			continue
		}
		var below *os.Root
		if below, err = r.OpenRoot(entry.Name()); err == nil {
			err = errors.Join(emptyTree(below), below.Close())
		}
		if err == nil {
			err = r.Remove(entry.Name())
		}
	}
	return err
}

// enterBox moves this process into the groups of the box and makes them the roots that it
// sees. It goes on as initBox.
func enterBox() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		h.own = os.Getenv(ownEnv + h.at)
		dir := h.dir(os.Getenv(groupEnv))
		if h.kind == "cgroup2" && h.at == "/sys/fs/cgroup" {
			// On v2 a group either holds processes or divides its controllers.
			dir = path.Join(dir, "init")
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path.Join(dir, "cgroup.procs"), []byte("0\n"), 0); err != nil {
			return err
		}
	}
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare control groups: %w", err)
	}
	if err := os.Setenv(stageEnv, "init"); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// initBox makes the file systems of the box, runs the test and reaps what dies.
func initBox() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	if err := mountBox(all); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := errors.Join(os.Setenv(stageEnv, "test"), os.Setenv("TMPDIR", "/tmp")); err != nil {
		return err
	}
	child, err := syscall.ForkExec(attack, os.Args, &syscall.ProcAttr{Dir: "/", Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case pid == child && status.Exited():
			os.Exit(status.ExitStatus())
		case pid == child:
			return fmt.Errorf("the test ended by %v", status.Signal())
		}
	}
}

func mountBox(all []hierarchy) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// In this mount namespace only: the host's own stay mounted.
	if err := syscall.Unmount("/sys/fs/cgroup", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's control groups: %w", err)
	}
	programs := map[string]string{attack: "/proc/self/exe", berth: os.Getenv(berthEnv)}
	texts := map[string][]byte{}
	for to, from := range programs {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		texts[to] = text
	}
	for _, m := range []struct{ at, kind, options string }{
		{"/proc", "proc", ""},
		{"/opt", "tmpfs", "mode=755"},
		{"/run", "tmpfs", "mode=755"},
		{"/tmp", "tmpfs", "mode=1777"},
		{"/var/tmp", "tmpfs", "mode=1777"},
		{"/sys/fs/cgroup", "tmpfs", "mode=755"},
	} {
		if err := syscall.Mount(m.kind, m.at, m.kind, 0, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	for to, text := range texts {
		if err := os.WriteFile(to, text, 0o755); err != nil {
			return err
		}
	}
	for _, h := range all {
		if err := os.MkdirAll(h.at, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(h.kind, h.at, h.kind, 0, h.options); err != nil {
			return fmt.Errorf("mount %s: %w", h.at, err)
		}
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// actor is a user of the box.
type actor struct{ uid int }

var (
	root     = actor{0}
	stranger = actor{65534} // without any group but its own
)

// process is a command that runs in a box.
type process struct {
	*exec.Cmd
	b    *box
	out  *output
	done chan struct{} // closed when it has ended
}

// output is what a process has printed so far, both streams.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts a command as a user; it is killed when the test ends.
func (b *box) start(as actor, argv ...string) *process {
	b.Helper()
	p := &process{Cmd: exec.Command(argv[0], argv[1:]...), b: b, out: &output{}, done: make(chan struct{})}
	p.Stdout, p.Stderr = p.out, p.out
	p.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/tmp", "LANG=C.UTF-8"}
	p.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.uid)}}
	p.WaitDelay = 2 * time.Second
	if err := p.Start(); err != nil {
		b.Fatal(err)
	}
	go func() {
		_ = p.Wait() // its state says how it ended
		close(p.done)
	}()
	b.Cleanup(func() { p.kill() })
	return p
}

// kill ends a process as kill -9 does, and waits for it.
func (p *process) kill() { p.end(syscall.SIGKILL) }

// end sends a signal and waits for the end.
func (p *process) end(sig syscall.Signal) {
	p.b.Helper()
	_ = p.Process.Signal(sig) // it may have ended
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.b.Fatalf("%v still runs 30 s after %v:\n%s", p.Args, sig, p.out)
	}
}

// code waits for the end and returns the exit status, -1 after a signal.
func (p *process) code() int {
	p.b.Helper()
	select {
	case <-p.done:
	case <-time.After(60 * time.Second):
		p.b.Fatalf("%v has not ended after 60 s:\n%s", p.Args, p.out)
	}
	return p.ProcessState.ExitCode()
}

// awaitText waits until a process has printed something.
func (p *process) awaitText(text string) {
	p.b.Helper()
	p.b.await(fmt.Sprintf("%q from %v", text, p.Args), func() bool { return strings.Contains(p.out.String(), text) }, p.out)
}

// await waits until something holds; more is printed when it does not.
func (b *box) await(what string, holds func() bool, more ...fmt.Stringer) {
	b.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("no %s after 30 s\n%v", what, more)
		}
	}
}

// run runs a command as a user to its end.
func (b *box) run(as actor, argv ...string) (out string, code int) {
	b.Helper()
	p := b.start(as, argv...)
	code = p.code()
	return p.out.String(), code
}

// must runs a command of root that is to succeed.
func (b *box) must(argv ...string) string {
	b.Helper()
	out, code := b.run(root, argv...)
	if code != 0 {
		b.Fatalf("%v: exit status %d\n%s", argv, code, out)
	}
	return out
}

// agent starts berth agent with a configuration and waits until it serves.
func (b *box) agent(config string, args ...string) *process {
	b.Helper()
	p := b.start(root, append([]string{berth, "agent", "--config", b.config(config)}, args...)...)
	p.awaitText("msg=started")
	return p
}

// config writes a configuration of the agent, and returns its file.
func (b *box) config(text string) string {
	b.Helper()
	file := filepath.Join(b.TempDir(), "node.yaml")
	b.write(file, "apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n"+text)
	return file
}

// group makes a control group in the hierarchies of some controllers and returns its
// directories. It belongs to owner with all its files.
func (b *box) group(owner actor, name string, controllers ...string) []string {
	b.Helper()
	all, err := hierarchies()
	if err != nil {
		b.Fatal(err)
	}
	var dirs []string
	for _, h := range all {
		if h.kind == "cgroup" && !slices.ContainsFunc(controllers, func(c string) bool {
			return slices.Contains(strings.Split(h.options, ","), c)
		}) {
			continue
		}
		if h.kind == "cgroup2" && h.at != "/sys/fs/cgroup" {
			continue // of a hybrid host, without controllers
		}
		dir := path.Join(h.at, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if text, err := os.ReadFile(path.Join(path.Dir(dir), file)); err == nil {
				b.write(path.Join(dir, file), string(text))
			}
		}
		if owner.uid != 0 {
			entries, err := os.ReadDir(dir)
			if err != nil {
				b.Fatal(err)
			}
			for _, e := range append(entries, nil) {
				at := dir
				if e != nil {
					at = path.Join(dir, e.Name())
				}
				if err := os.Chown(at, owner.uid, owner.uid); err != nil {
					b.Fatal(err)
				}
			}
		}
		dirs = append(dirs, dir)
	}
	if len(dirs) == 0 {
		b.Skipf("no hierarchy of control groups has one of %v", controllers)
	}
	return dirs
}

// join moves a process into groups.
func (b *box) join(p *process, dirs ...string) {
	b.Helper()
	for _, dir := range dirs {
		b.write(path.Join(dir, "cgroup.procs"), strconv.Itoa(p.Process.Pid))
	}
}

// write writes a file as root, made if need be.
func (b *box) write(name, text string) {
	b.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
}

// read reads a file as root, without the space around its text.
func (b *box) read(name string) string {
	b.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// A trick is what a stranger does that no program at hand does: a function of this test
// binary, run in a process of its own.
type trick string

const trickPrefix = "trick:"

var tricks = map[trick]func(args []string) error{}

// newTrick names a function. It is for package variables.
func newTrick(name trick, f func(args []string) error) trick {
	if tricks[name] != nil {
		panic("two tricks are called " + name)
	}
	tricks[name] = f
	return name
}

// with is the command line that plays a trick.
func (t trick) with(args ...string) []string {
	return append([]string{attack, trickPrefix + string(t)}, args...)
}

func playTrick(name string, args []string) int {
	f := tricks[trick(name)]
	if f == nil {
		fmt.Fprintln(os.Stderr, "no trick is called", name)
		return 2
	}
	if err := f(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
