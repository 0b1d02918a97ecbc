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
	"fmt"
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

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/testbox"
)

const (
	berth  = "/opt/berth"  // the program under attack, in a box
	attack = "/opt/attack" // this test binary, in a box
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], trickPrefix) {
		os.Exit(playTrick(strings.TrimPrefix(os.Args[1], trickPrefix), os.Args[2:]))
	}
	testbox.Main()
	code := m.Run()
	removeBuild()
	os.Exit(code)
}

// box is the machine in which a test attacks berth as root runs it.
type box struct {
	*testing.T
	ctx context.Context // ends when the test has taken too long
}

// A box waits for what is to come for as long as its test may take, and no longer than for
// the end of the process that it is to come from: how much CPU time the processes of the
// box get is up to the host.
const boxTime = 5 * time.Minute

// boxed runs a test in a box of its own: body runs there, as root and below the first
// process of the box.
func boxed(t *testing.T, body func(b *box)) {
	t.Helper()
	if testbox.Inside() {
		ctx, cancel := context.WithTimeout(context.Background(), boxTime)
		t.Cleanup(cancel)
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
	made, err := testbox.Make(testbox.Spec{
		Group: fmt.Sprintf("berth-box-%d-%s", os.Getpid(), t.Name()),
		Tmpfs: map[string]os.FileMode{"/opt": 0o755, "/run": 0o755, "/tmp": 0o1777, "/var/tmp": 0o1777},
		Files: map[string]string{attack: "/proc/self/exe", berth: program},
		// Where strangers may read it.
		Program: attack, Dir: "/",
	})
	if err != nil {
		t.Skipf("a box needs a sub-group in each hierarchy of control groups: %v", err)
	}
	t.Cleanup(func() {
		if err := made.Remove(); err != nil {
			t.Error(err)
		}
	})
	// The box dies with this thread, which the test keeps.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd, err := made.Command(t.Context(), "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "TMPDIR=/tmp")
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
	case <-p.b.ctx.Done():
		p.b.Fatalf("%v still runs after %v:\n%s", p.Args, sig, p.out)
	}
}

// code waits for the end and returns the exit status, -1 after a signal.
func (p *process) code() int {
	p.b.Helper()
	select {
	case <-p.done:
	case <-p.b.ctx.Done():
		p.b.Fatalf("%v has not ended:\n%s", p.Args, p.out)
	}
	return p.ProcessState.ExitCode()
}

// awaitText waits until a process has printed something.
func (p *process) awaitText(text string) {
	p.b.Helper()
	p.b.await(fmt.Sprintf("%q from %v", text, p.Args), func() bool {
		ended := false
		select {
		case <-p.done: // all that it printed is there
			ended = true
		default:
		}
		there := strings.Contains(p.out.String(), text)
		if ended && !there {
			p.b.Fatalf("%v has ended without %q:\n%s", p.Args, text, p.out)
		}
		return there
	}, p.out)
}

// await waits until something holds; more is printed when it does not.
func (b *box) await(what string, holds func() bool, more ...fmt.Stringer) {
	b.Helper()
	for ; !holds(); time.Sleep(10 * time.Millisecond) {
		if b.ctx.Err() != nil {
			b.Fatalf("no %s after %v\n%v", what, boxTime, more)
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

// ps is what berth ps prints. It does not count CPU time for a second, as it else does.
func (b *box) ps(args ...string) string {
	b.Helper()
	return b.must(append([]string{berth, "ps", "--interval", "10ms"}, args...)...)
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
	all, err := testbox.Hierarchies()
	if err != nil {
		b.Fatal(err)
	}
	var dirs []string
	for _, h := range all {
		if h.Kind == "cgroup" && !slices.ContainsFunc(controllers, func(c string) bool {
			return slices.Contains(strings.Split(h.Options, ","), c)
		}) {
			continue
		}
		if h.Kind == "cgroup2" && h.At != "/sys/fs/cgroup" {
			continue // of a hybrid host, without controllers
		}
		dir := path.Join(h.At, name)
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
