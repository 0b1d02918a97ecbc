package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch/cgroupstat"
)

// host is a machine that a test simulates: 8 CPUs on 2 nodes, cgroup v1.
type host struct {
	t    testing.TB
	dir  string
	k    *fakekernel.Kernel
	file string
	opt  Options
	mu   sync.Mutex
	fail error  // what writes of cpuset.cpus get
	ends string // group that vanishes before its CPUs are written
}

// WriteFile fails where the test wants it to.
func (h *host) WriteFile(name, data string) error {
	h.mu.Lock()
	fail := h.fail
	if h.ends != "" && name == cpusets+h.ends+"/cpuset.cpus" {
		for _, c := range []string{"cpu,cpuacct", "memory", "cpuset"} {
			fail = errors.Join(fail, h.k.Rmdir("sys/fs/cgroup/"+c+"/"+h.ends))
		}
		h.ends = ""
	}
	h.mu.Unlock()
	if fail != nil && strings.HasSuffix(name, "/cpuset.cpus") {
		return fail
	}
	return h.k.WriteFile(name, data)
}

func (h *host) failWith(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail = err
}

// files is the fake kernel with writes that may fail.
type files struct {
	*fakekernel.Kernel
	h *host
}

func (f files) WriteFile(name, data string) error { return f.h.WriteFile(name, data) }

const cpusets = "sys/fs/cgroup/cpuset/"

func newHost(t testing.TB, conf string) *host {
	t.Helper()
	dir := fakekernel.MemoryDir(t)
	h := &host{t: t, dir: filepath.Join(dir, "root"), file: filepath.Join(dir, "etc", "node.yaml")}
	for _, d := range []string{h.dir, filepath.Dir(h.file)} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l := fakekernel.V1()
	l.V1, l.Own, l.CPUs, l.Mems = []string{"cpu,cpuacct", "cpuset", "memory"}, "/", "0-7", "0-1"
	var err error
	if h.k, err = fakekernel.New(h.dir, l); err != nil {
		t.Fatal(err)
	}
	m := fakekernel.Short(t, "1s2n2c2t")
	h.configure(conf)
	root := kernel.NewRoot(h.dir, files{h.k, h})
	root.Patience = time.Millisecond
	h.opt = Options{Root: root, Machine: m, File: h.file, Socket: filepath.Join(dir, "s")}
	return h
}

// configure replaces the configuration as an editor does.
func (h *host) configure(conf string) {
	h.t.Helper()
	text := "apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n" + conf
	if err := os.WriteFile(h.file+"~", []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(h.file+"~", h.file); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) mkdir(name string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range []string{"cpu,cpuacct", "memory", "cpuset"} {
		if err := h.k.Mkdir("sys/fs/cgroup/" + c + "/" + name); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *host) rmdir(name string) {
	h.t.Helper()
	for _, c := range []string{"cpu,cpuacct", "memory", "cpuset"} {
		if err := h.k.Rmdir("sys/fs/cgroup/" + c + "/" + name); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *host) read(name string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// running is an agent and a client of it.
type running struct {
	*api.Client
	t    testing.TB
	h    *host
	stop func() error
	last uint64
	// started is what it said then.
	started string
}

// run starts the agent; it is stopped at the end of the test, if not before.
func (h *host) run() *running {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		defer close(done) // whoever stops an agent that has ended does not wait
		done <- Run(ctx, h.opt)
	}()
	r := &running{t: h.t, h: h}
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	h.t.Cleanup(func() {
		if err := r.stop(); err != nil {
			h.t.Error(err)
		}
	})
	for {
		c, err := api.Dial(h.t.Context(), h.opt.Socket)
		if err == nil {
			r.Client = c
			r.started = r.await(api.Started, "").Text
			return r
		}
		var none *api.NoAgentError
		if !errors.As(err, &none) {
			h.t.Fatal(err)
		}
		select {
		case err := <-done:
			h.t.Fatalf("the agent ended: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// await waits for an event, and returns it.
func (r *running) await(kind agent.EventKind, id string) api.Event {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	var seen []string
	for e, err := range r.Events(ctx, r.last, true) {
		if err != nil {
			break
		}
		r.last = e.Seq
		if e.Kind == kind && e.ID == id {
			return e
		}
		seen = append(seen, fmt.Sprintf("%s %s %s", e.Kind, e.ID, e.Text))
	}
	r.t.Fatalf("no event %s %s came, but %q", kind, id, seen)
	return api.Event{}
}

// until waits until the agent says something of itself.
func (r *running) until(says func(api.About) bool) {
	r.t.Helper()
	var about api.About
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		var err error
		if about, err = r.About(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
		if says(about) {
			return
		}
	}
	r.t.Fatalf("the agent says %+v", about)
}

const one = `workloads: [{name: a, match: {cgroup: /a*}, class: LSR, cpus: 2, limits: {weight: 200}}]
`

func TestGroupsComeAndGo(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	h.mkdir("a1")
	h.mkdir("b1")
	r := h.run()
	r.await(agent.Placed, "a:a1")
	if got := h.read(cpusets + "a1/cpuset.cpus"); got != "1,5" {
		t.Errorf("a1 has CPUs %s", got)
	}
	if got := h.read("sys/fs/cgroup/cpu,cpuacct/a1/cpu.shares"); got != "2048" {
		t.Errorf("a1 has %s shares", got)
	}
	if got := h.read(cpusets + "b1/cpuset.cpus"); got != "" {
		t.Errorf("b1, which is no workload, has CPUs %s", got)
	}
	h.mkdir("a2")
	r.await(agent.Placed, "a:a2")
	h.rmdir("a1")
	r.await(agent.Released, "a:a1")
	all, err := r.List(t.Context())
	if err != nil || len(all) != 1 || all[0].ID() != "a:a2" {
		t.Errorf("left are %v, %v", all, err)
	}
	e, err := r.Explain(t.Context(), "a:a2")
	if err != nil || !e.Recorded || len(e.Why.Decisions) == 0 {
		t.Errorf("a2 is not explained: %+v, %v", e, err)
	}
}

// Groups that confine names are where kubernetes.confineTo says, of an agent as of a plugin.
func TestConfineTo(t *testing.T) {
	t.Parallel()
	h := newHost(t, "reserved: '0'\nconfine: [/system]\nkubernetes: {confineTo: reserved}\nworkloads: [{name: a, match: {cgroup: /a}, class: LSE, cpus: 2}]\n")
	h.mkdir("system")
	for file, value := range map[string]string{"mems": "0-1", "cpus": "0-7"} {
		if err := h.k.WriteFile(cpusets+"system/cpuset."+file, value); err != nil {
			t.Fatal(err)
		}
	}
	h.mkdir("a")
	r := h.run()
	r.await(agent.Placed, "a:a")
	if got := h.read(cpusets + "system/cpuset.cpus"); got != "0" {
		t.Errorf("system has CPUs %s, want the reserved 0", got)
	}
}

// Who runs in a container may be root there, and call a group like a unit of the host's: it gets no place
// by that name.
func TestNamedInContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t, "workloads: [{name: web, match: {unit: web.service}, class: LSR, cpus: 2}]\n")
	for _, name := range []string{"", "/web.service", "/a.slice", "/a.slice/web.service"} {
		if name == "" {
			h.mkdir("docker")
		}
		h.mkdir("docker/" + strings.Repeat("ab", 32) + name)
	}
	h.mkdir("web.service")
	r := h.run()
	if e := r.await(agent.Failed, ""); !strings.Contains(e.Text, "web.service\" is not a workload web: who runs in a container chose its name, as it lies in one; ") {
		t.Error(e.Text)
	}
	r.await(agent.Placed, "web:web.service")
	all, err := r.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("placed are %v, %v", all, err)
	}
}

// Who chose the name of a group is told by the outermost group around it that others may write: in a
// container there may be any number of those.
func TestNamedBy(t *testing.T) {
	t.Parallel()
	const container = "docker/abababababababababababababababababababababababababababababababab"
	dir := func(uid, mode uint32) *fstest.MapFile {
		return &fstest.MapFile{Mode: fs.ModeDir | fs.FileMode(mode), Sys: &syscall.Stat_t{Uid: uid, Gid: 7, Mode: syscall.S_IFDIR | mode}}
	}
	fsys := fstest.MapFS{
		"cpu/docker": dir(0, 0o755), "cpu/" + container: dir(0, 0o755), "cpu/" + container + "/a": dir(0, 0o777), "cpu/" + container + "/b": dir(1000, 0o755),
		"cpu/u": dir(1000, 0o755), "cpu/u/v": dir(1001, 0o755), "cpu/w": dir(0, 0o775), "cpu/w/x": dir(1000, 0o755), "cpu/r": dir(0, 0o755),
	}
	for group, want := range map[string]string{
		"web.service": "", "r/web.service": "", "r/gone/web.service": "", container: "", "u": "",
		container + "/web.service": "who runs in a container", container + "/a/web.service": "who runs in a container",
		container + "/b/web.service": "who runs in a container", "u/web.service": "user 1000", "u/v/web.service": "user 1000",
		"w/web.service": `a user who may write "w", of group 7 and mode 0775,`, "w/x/web.service": `a user who may write "w", of group 7 and mode 0775,`,
	} {
		if by, _ := namedBy(fsys, "cpu", "", group); by != want {
			t.Errorf("%s: %q, want %q", group, by, want)
		}
	}
}

// A group that was removed and made anew at once is written to anew.
func TestGroupMadeAnew(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	h.mkdir("a1")
	r := h.run()
	r.await(agent.Placed, "a:a1")
	h.rmdir("a1")
	h.mkdir("a1")
	r.await(agent.Placed, "a:a1")
	if got := h.read(cpusets + "a1/cpuset.cpus"); got == "" {
		t.Error("it has no CPUs")
	}
}

func TestRestartKeepsDecisions(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	before := tree(t, h.k)
	h.mkdir("a1")
	fresh := tree(t, h.k)
	r := h.run()
	r.await(agent.Placed, "a:a1")
	if _, err := r.Place(t.Context(), agent.Spec{Request: request("mine")}); err != nil {
		t.Fatal(err)
	}
	want, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	placed := tree(t, h.k)
	r = h.run()
	got, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plain(t, want), plain(t, got)); diff != "" {
		t.Errorf("workloads after a restart (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(placed, tree(t, h.k)); diff != "" {
		t.Errorf("tree after a restart (-want +got):\n%s", diff)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	// What the configuration no longer has is released at the next start, what a
	// client placed stays.
	h.configure("")
	r = h.run()
	all, err := r.List(t.Context())
	if err != nil || len(all) != 1 || all[0].ID() != "mine" {
		t.Errorf("left are %v, %v", all, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	h.opt.RestoreOnExit = true
	if err := h.run().stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fresh, tree(t, h.k)); diff != "" {
		t.Errorf("tree after --restore-on-exit (-want +got):\n%s", diff)
	}
	h.rmdir("a1")
	if diff := cmp.Diff(before, tree(t, h.k)); diff != "" {
		t.Errorf("tree at the end (-want +got):\n%s", diff)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	h.run()
	var busy *agent.BusyError
	if err := Run(t.Context(), h.opt); !errors.As(err, &busy) {
		t.Errorf("a second agent of the same state: %v, want a BusyError", err)
	}
	other := newHost(t, "")
	other.opt.Socket = h.opt.Socket
	var inUse *api.InUseError
	if err := Run(t.Context(), other.opt); !errors.As(err, &inUse) {
		t.Errorf("a second agent at the same socket: %v, want an InUseError", err)
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	h.mkdir("a1")
	h.mkdir("b1")
	r := h.run()
	r.await(agent.Placed, "a:a1")
	changed := func(name string) bool { return h.read("sys/fs/cgroup/cpu,cpuacct/"+name+"/cpu.shares") != "1024" }

	h.configure(one + "nonsense: 1\n")
	if e := r.await(api.Kept, ""); !strings.Contains(e.Text, "nonsense") {
		t.Errorf("refused with %q", e.Text)
	}
	c, err := r.Config(t.Context())
	if err != nil || !strings.Contains(c.Refused, "nonsense") || len(c.Config.Workloads) != 1 {
		t.Errorf("in force is %+v, %v", c, err)
	}
	if err := os.Remove(h.file); err != nil {
		t.Fatal(err)
	}
	r.await(api.Kept, "")

	// A policy, CPUs or globs that this host cannot have are refused, too.
	for _, bad := range []string{"allowed: 64-65\n", "confine: [/x/**]\n", "reserved: 0-7\nfloor: 0-7\n" + "allowed: 12\n"} {
		h.configure(one + bad)
		r.await(api.Kept, "")
	}

	h.configure(strings.Replace(one, "weight: 200", "weight: 300", 1) + "agent: {socket: /run/other.sock}\n")
	r.await(agent.Changed, "a:a1")
	if e := r.await(api.Reloaded, ""); !strings.Contains(e.Text, "limits.weight: 200 -> 300") || !strings.Contains(e.Text, "agent.socket") {
		t.Errorf("reloaded: %q", e.Text)
	}
	if got := h.read("sys/fs/cgroup/cpu,cpuacct/a1/cpu.shares"); got != "3072" {
		t.Errorf("a1 has %s shares", got)
	}
	if c, err = r.Config(t.Context()); err != nil || c.Refused != "" || len(c.Pending) != 1 {
		t.Errorf("in force is %+v, %v", c, err)
	}
	// Another value waits instead of the first, and nothing once it is as at the start.
	for _, step := range []struct {
		agent   string
		pending []string
	}{
		{"agent: {socket: /run/third.sock}\n", []string{"/run/third.sock"}},
		{"agent: {socket: /run/third.sock, rescan: 77s}\n", []string{"1m17s", "/run/third.sock"}},
		{"", nil},
	} {
		h.configure(one + step.agent)
		r.await(api.Reloaded, "")
		c, err := r.Config(t.Context())
		if err != nil || len(c.Pending) != len(step.pending) {
			t.Errorf("with %q, pending are %q, %v", step.agent, c.Pending, err)
			continue
		}
		for i, want := range step.pending {
			if !strings.Contains(c.Pending[i], want) {
				t.Errorf("with %q, pending are %q", step.agent, c.Pending)
			}
		}
	}

	h.configure(strings.ReplaceAll(one, "a*", "b*"))
	r.await(agent.Released, "a:a1")
	r.await(agent.Placed, "a:b1")
	r.await(api.Reloaded, "")
	if changed("a1") || !changed("b1") {
		t.Errorf("shares of a1 and b1: changed %v and %v", changed("a1"), changed("b1"))
	}
}

// A change of the CPUs that may be had moves only who must move, and says who.
// A group that becomes another workload by a reload is in every list meanwhile.
func TestReloadRenames(t *testing.T) {
	t.Parallel()
	const groups, conf = 30, "workloads: [{name: %s, match: {cgroup: /a*}, class: BE}]\n"
	h := newHost(t, fmt.Sprintf(conf, "x"))
	for i := range groups {
		h.mkdir(fmt.Sprintf("a%02d", i))
	}
	r := h.run()
	r.until(func(a api.About) bool {
		all, err := r.List(t.Context())
		return err == nil && len(all) == groups
	})
	done := make(chan struct{})
	var lister sync.WaitGroup
	lister.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if all, err := r.List(t.Context()); err != nil || len(all) != groups {
				t.Errorf("amid a reload %d are listed, %v", len(all), err)
				return
			}
		}
	})
	for i := range 4 {
		h.configure(fmt.Sprintf(conf, []string{"y", "x"}[i%2]))
		r.await(api.Reloaded, "")
	}
	close(done)
	lister.Wait()
}

func TestReloadMovesFewest(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	h.mkdir("a1")
	h.mkdir("a2")
	r := h.run()
	r.await(agent.Placed, "a:a2")
	stays, err := r.Get(t.Context(), "a:a2")
	if err != nil {
		t.Fatal(err)
	}
	moves, err := r.Get(t.Context(), "a:a1")
	if err != nil {
		t.Fatal(err)
	}
	h.configure(one + fmt.Sprintf("reserved: %q\n", moves.Grant.Own))
	e := r.await(api.Reloaded, "")
	if !strings.Contains(e.Text, "1 moves: a:a1 from") {
		t.Errorf("reloaded: %q", e.Text)
	}
	if now, err := r.Get(t.Context(), "a:a2"); err != nil || now.Grant.Own != stays.Grant.Own {
		t.Errorf("a2 moved from %s to %s, %v", stays.Grant.Own, now.Grant.Own, err)
	}
}

// What is protected is not confined with what is around it, from a reload on.
func TestReloadProtects(t *testing.T) {
	t.Parallel()
	const conf = one + "confine: [/c]\n"
	h := newHost(t, conf)
	for _, name := range []string{"c", "c/p", "c/q"} {
		h.mkdir(name)
		for file, value := range map[string]string{"mems": "0-1", "cpus": "0-7"} {
			if err := h.k.WriteFile(cpusets+name+"/cpuset."+file, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.mkdir("a1")
	r := h.run()
	r.await(agent.Placed, "a:a1")
	cpus := func() [3]string {
		return [3]string{h.read(cpusets + "c/cpuset.cpus"), h.read(cpusets + "c/p/cpuset.cpus"), h.read(cpusets + "c/q/cpuset.cpus")}
	}
	if diff := cmp.Diff([3]string{"0,2-4,6-7", "0,2-4,6-7", "0,2-4,6-7"}, cpus()); diff != "" {
		t.Errorf("confined (-want +got):\n%s", diff)
	}
	h.configure(conf + "protected: [/c/p/**]\n")
	r.await(api.Reloaded, "")
	if diff := cmp.Diff([3]string{"0-7", "0-7", "0,2-4,6-7"}, cpus()); diff != "" {
		t.Errorf("protected (-want +got):\n%s", diff)
	}
}

// What fails is told, and tried again.
func TestFailedPlacementIsRetried(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	r := h.run()
	h.failWith(syscall.ENOSPC)
	h.mkdir("a1")
	waits := func(because string) func(api.About) bool {
		return func(a api.About) bool { return len(a.Waiting) == 1 && strings.Contains(a.Waiting[0].Reason, because) }
	}
	r.until(waits("no space left"))
	h.failWith(nil)
	r.await(agent.Placed, "a:a1")
	r.until(func(a api.About) bool { return len(a.Waiting) == 0 })
}

// A group that vanishes between two writes leaves nothing behind, and holds up
// nobody.
func TestGroupVanishesAmidWrites(t *testing.T) {
	t.Parallel()
	h := newHost(t, one+"agent: {rescan: 1s}\n")
	before := tree(t, h.k)
	h.ends = "a1"
	h.opt.RestoreOnExit = true
	r := h.run()
	h.mkdir("a1")
	if e := r.await(agent.Refused, "a:a1"); !strings.Contains(e.Text, "no such file") {
		t.Errorf("refused with %q", e.Text)
	}
	h.mkdir("a2")
	r.await(agent.Placed, "a:a2")
	r.until(func(a api.About) bool { return len(a.Waiting) == 0 })
	if all, err := r.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("placed are %v, %v", all, err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	h.rmdir("a2")
	if diff := cmp.Diff(before, tree(t, h.k)); diff != "" {
		t.Errorf("tree at the end (-want +got):\n%s", diff)
	}
}

// Clients that send half a request, or listen to no answer, hold up nobody.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	r := h.run()
	for i := range 50 {
		c, err := net.Dial("unix", h.opt.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		request := "POST /v1/workloads HTTP/1.1\r\nHost: agent\r\nContent-Length: 1000000\r\n\r\n{"
		if i%2 == 0 {
			request = "GET /v1/events HTTP/1.1\r\nHost: agent\r\n\r\n"
		}
		if _, err := c.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Place(t.Context(), agent.Spec{Request: request("mine")}); err != nil {
		t.Fatal(err)
	}
	r.await(agent.Placed, "mine")
}

// Who finds no room gets it as soon as there is some.
func TestWaitingGetsRoom(t *testing.T) {
	t.Parallel()
	h := newHost(t, strings.Replace(one, "cpus: 2", "cpus: 4", 1))
	h.mkdir("a1")
	r := h.run()
	r.await(agent.Placed, "a:a1")
	h.mkdir("a2")
	r.await(agent.Refused, "a:a2")
	h.rmdir("a1")
	r.await(agent.Placed, "a:a2")
}

func TestConflictingWriterIsYieldedTo(t *testing.T) {
	t.Parallel()
	h := newHost(t, one+"agent: {rescan: 1s, yieldAfter: 1}\n")
	h.mkdir("a1")
	r := h.run()
	r.await(agent.Placed, "a:a1")
	const file = cpusets + "a1/cpuset.cpus"
	meddle := func() {
		if err := h.k.WriteFile(file, "7"); err != nil {
			t.Fatal(err)
		}
	}
	meddle()
	r.await(agent.Repaired, "")
	if got := h.read(file); got == "7" {
		t.Error("it was not repaired")
	}
	meddle()
	r.await(agent.Yielded, "")
	if got := h.read(file); got != "7" {
		t.Errorf("it was not left to who keeps writing it, but is %s", got)
	}
	w, err := r.Get(t.Context(), "a:a1")
	if err != nil || !slices.ContainsFunc(w.Notes, func(n string) bool { return strings.Contains(n, "cpuset.cpus is left to someone else") }) {
		t.Errorf("the workload notes %q, %v", w.Notes, err)
	}
}

func TestCorruptRecord(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	h.mkdir("a1")
	r := h.run()
	r.await(agent.Placed, "a:a1")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	var record string
	filepath.WalkDir(h.dir, func(name string, _ os.DirEntry, _ error) error {
		if strings.HasSuffix(name, ".grant.json") {
			record = name
		}
		return nil
	})
	if record == "" {
		record = filepath.Join(agent.StateDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR")))
		t.Fatalf("no record below %s, maybe in %s", h.dir, record)
	}
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = h.run()
	r.last = 0
	if e := r.await(agent.Failed, ""); !strings.Contains(e.Text, record) {
		t.Errorf("failed: %q", e.Text)
	}
	if e := r.await(agent.Refused, "a:a1"); !strings.Contains(e.Text, record) {
		t.Errorf("refused: %q", e.Text)
	}
	if text, err := os.ReadFile(record); err != nil || string(text) != "{" {
		t.Errorf("the record is not kept: %q, %v", text, err)
	}
}

// Who changed something through the API is in the events.
func TestEventsTellWho(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	r := h.run()
	if _, err := r.Place(t.Context(), agent.Spec{Request: request("mine")}); err != nil {
		t.Fatal(err)
	}
	if e := r.await(agent.Placed, "mine"); e.By == nil || e.By.PID != os.Getpid() {
		t.Errorf("it was placed by %v", e.By)
	}
}

func TestSupervisorIsTold(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	socket := filepath.Join(filepath.Dir(h.dir), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h.opt.Supervisor = Supervisor{Socket: socket, Watchdog: 20 * time.Millisecond}
	hangup := make(chan os.Signal, 1)
	h.opt.Reload = hangup
	heard := make(chan string, 1<<16) // all of it: an agent that is not listened to waits
	go func() {
		buf := make([]byte, 512)
		for {
			n, err := l.Read(buf)
			if err != nil {
				return
			}
			heard <- string(buf[:n])
		}
	}()
	hear := func(want string) {
		t.Helper()
		late := time.After(time.Minute)
		for {
			select {
			case line := <-heard:
				if strings.HasPrefix(line, want) {
					return
				}
			case <-late:
				t.Fatalf("waiting for %s", want)
			}
		}
	}
	r := h.run()
	hear("READY=1")
	hear("WATCHDOG=1")
	hangup <- syscall.SIGHUP
	hear("RELOADING=1\nMONOTONIC_USEC=")
	hear("READY=1")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	hear("STOPPING=1")
}

// A storm of changes of the file is one look at it, a tenth of a second after the last.
func TestReloadStorm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, "")
		history := api.NewHistory(16, 0)
		k := newKeeper(discard(), history)
		l := newLoop(k, agent.Options{Root: h.opt.Root, Machine: h.opt.Machine, Dir: filepath.Join(h.dir, "state")}, config.Default())
		ctx, cancel := context.WithCancel(t.Context())
		if err := l.open(ctx); err != nil {
			t.Fatal(err)
		}
		changed := make(chan struct{}, 1)
		reads := 0
		src := sources{
			file: changed, groups: make(chan cgroupstat.Event),
			read:   func() (*config.NodeConfig, []byte, error) { reads++; return nil, nil, errors.New("half written") },
			follow: func(map[string]string, map[string]cpuset.Set) error { return nil },
			tell:   Supervisor{}.tell,
		}
		done := make(chan error)
		go func() { done <- l.run(ctx, src) }()
		for range 1000 {
			poke(changed)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if reads != 1 {
			t.Errorf("a storm of 1000 changes was %d looks", reads)
		}
		// The same complaint is not repeated.
		for range 3 {
			poke(changed)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		kept := 0
		for _, e := range history.After(0) {
			if e.Kind == api.Kept {
				kept++
			}
		}
		if reads != 4 || kept != 1 {
			t.Errorf("%d looks and %d complaints, want 4 and 1", reads, kept)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := k.close(); err != nil {
			t.Error(err)
		}
	})
}

// What cannot be shown ends the agent.
func TestWebFails(t *testing.T) {
	t.Parallel()
	h := newHost(t, "agent: {metrics: \"off\"}\n")
	broken := errors.New("broken")
	h.opt.Web = func(context.Context, api.Server) (http.Handler, error) { return nil, broken }
	if err := Run(t.Context(), h.opt); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	// The next one finds nothing in its way.
	h.opt.Web = nil
	if r := h.run(); strings.Contains(r.started, "http") {
		t.Errorf("with metrics off it listens %s", r.started)
	}
}

func TestIDOf(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("kubepods.slice/", 20)
	for _, tc := range []struct{ path, want string }{
		{"batch.slice/x", "w:batch.slice/x"},
		{long + "a", "w:~f6e2b6d9e247a375"},
	} {
		if got := idOf("w", tc.path); got != tc.want {
			t.Errorf("id of %s is %s, want %s", tc.path, got, tc.want)
		}
	}
	if idOf("w", long+"a") == idOf("w", long+"b") {
		t.Error("two groups have one id")
	}
	spec := agent.Spec{Request: request(idOf("w", long))}
	if err := spec.Validate(); err != nil {
		t.Error(err)
	}
}

func TestPreview(t *testing.T) {
	t.Parallel()
	h := newHost(t, strings.Replace(one, "cpus: 2", "cpus: 4", 1))
	for _, name := range []string{"a1", "a2", "b1"} {
		h.mkdir(name)
	}
	before := tree(t, h.k)
	drafts, err := Preview(t.Context(), h.opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(drafts) != 2 || drafts[0].ID != "a:a1" || drafts[0].Own.Len() != 4 || drafts[1].Err == nil {
		t.Errorf("drafts are %+v", drafts)
	}
	if diff := cmp.Diff(before, tree(t, h.k)); diff != "" {
		t.Errorf("a preview changed something (-before +after):\n%s", diff)
	}
}

// What the configuration asks for is the same once it was on record: nobody is resized at a
// restart.
func TestSpecOnRecordIsTheSame(t *testing.T) {
	t.Parallel()
	conf, err := config.Parse([]byte(`
apiVersion: berth.dev/v1alpha1
kind: NodeConfig
classes: {BE: {idle: true, memoryHigh: 4Gi, quota: 2}}
workloads:
- name: api
  match: {unit: nginx.service}
  class: LSE
  cpus: 2.5
  bind: FullPCPUs
  exclusive: PCPULevel
  strategy: MostAllocated
  nodes: 0
  memory: 2Gi
  limits: {quota: max, burst: 0s, memoryMax: max, memoryLow: 1Gi, ioWeight: 50}
- {name: batch, match: {cgroup: /batch/*}, class: BE, limits: {idle: false, burst: 20ms, quota: 500m}}
`), "n.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l := newLoop(nil, agent.Options{}, conf)
	for i := range conf.Workloads {
		spec := l.specOf(conf, &group{path: "a/b", entry: &conf.Workloads[i], id: "x:a/b"})
		text, err := json.Marshal(spec)
		var kept agent.Spec
		if err = errors.Join(err, json.Unmarshal(text, &kept)); err != nil {
			t.Fatal(err)
		}
		if !kept.SameAs(&spec) {
			t.Errorf("%s: on record it is\n%+v, asked for is\n%+v", spec.Request.ID, kept, spec)
		}
		kept.Limits.IOWeight++
		if kept.SameAs(&spec) {
			t.Errorf("%s: another I/O weight is the same", spec.Request.ID)
		}
	}
}
