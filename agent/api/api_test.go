package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
	"berth.dev/berth/place/berth"
	"berth.dev/berth/watch"
)

// fake is a Node and a View in memory: the real policy, no kernel.
type fake struct {
	state *place.State
	specs map[string]agent.Spec
	fail  error
	asked agent.Spec
	by    Peer
	mode  config.GuardMode // of the guard

	proposed Proposal
}

func newFake(t testing.TB) *fake {
	t.Helper()
	m := fakekernel.Short(t, "1s2n2c2t")
	topology, err := place.NewTopology(m)
	if err != nil {
		t.Fatal(err)
	}
	s, err := place.Start(berth.Policy{}, topology, place.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &fake{state: s, specs: map[string]agent.Spec{}}
}

func (b *fake) workload(s *place.State, id string) (w agent.Workload, err error) {
	g, ok := s.Grant(id)
	if !ok {
		return w, &place.NotHeldError{ID: id}
	}
	w = agent.Workload{Spec: b.specs[id], Grant: g, Mems: g.Mems, Backend: "none", Since: time.Unix(1000, 0).UTC()}
	w.CPUs, _ = s.CPUs(id)
	return w, nil
}

func (b *fake) draft(ctx context.Context, spec agent.Spec) (s *place.State, err error) {
	b.asked = spec
	b.by, _ = PeerOf(ctx)
	if b.fail != nil {
		return nil, b.fail
	}
	decide := place.Place
	if _, held := b.state.Grant(spec.Request.ID); held {
		decide = place.Resize
	}
	offer, err := decide(berth.Policy{}, b.state, &spec.Request)
	if err != nil {
		return nil, err
	}
	return b.state.Commit(offer)
}

func (b *fake) Place(ctx context.Context, spec agent.Spec) (w agent.Workload, err error) {
	if _, held := b.state.Grant(spec.Request.ID); held {
		return w, &place.HeldError{ID: spec.Request.ID}
	}
	s, err := b.draft(ctx, spec)
	if err != nil {
		return w, err
	}
	b.state, b.specs[spec.Request.ID] = s, spec
	return b.workload(s, spec.Request.ID)
}

func (b *fake) Preview(ctx context.Context, spec agent.Spec) (w agent.Workload, p kernel.Plan, err error) {
	s, err := b.draft(ctx, spec)
	if err != nil {
		return w, nil, err
	}
	w, err = b.workload(s, spec.Request.ID)
	return w, kernel.Plan{{Path: "a/cpuset.cpus", Value: w.CPUs.String(), Format: kernel.List}}, err
}

func (b *fake) PlaceTogether(ctx context.Context, specs []agent.Spec) ([]agent.Workload, error) {
	before, all := b.state, []agent.Workload(nil)
	for _, spec := range specs {
		w, err := b.Place(ctx, spec)
		if err != nil {
			b.state = before
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

func (b *fake) PreviewTogether(ctx context.Context, specs []agent.Spec) ([]agent.Workload, kernel.Plan, error) {
	before := b.state
	all, err := b.PlaceTogether(ctx, specs)
	b.state = before
	return all, kernel.Plan{{Path: "a/cpuset.cpus", Value: fmt.Sprint(len(all)), Format: kernel.List}}, err
}

func (b *fake) Resize(ctx context.Context, spec agent.Spec) (w agent.Workload, err error) {
	if _, held := b.state.Grant(spec.Request.ID); !held {
		return w, &place.NotHeldError{ID: spec.Request.ID}
	}
	s, err := b.draft(ctx, spec)
	if err != nil {
		return w, err
	}
	b.state, b.specs[spec.Request.ID] = s, spec
	return b.workload(s, spec.Request.ID)
}

func (b *fake) Move(ctx context.Context, id string, cpus, mems cpuset.Set) (agent.Workload, error) {
	spec := b.specs[id]
	spec.CPUs, spec.Mems = cpus, mems
	return b.Resize(ctx, spec)
}

func (b *fake) Release(_ context.Context, id string, leaving agent.Leaving) error {
	if b.fail != nil && leaving != agent.Kill {
		return b.fail
	}
	s, err := b.state.Release(id)
	if err == nil {
		b.state = s
	}
	return err
}

func (b *fake) Get(_ context.Context, id string) (agent.Workload, error) {
	if b.fail != nil {
		return agent.Workload{}, b.fail
	}
	return b.workload(b.state, id)
}

func (b *fake) List(context.Context) (all []agent.Workload, err error) {
	for g := range b.state.Grants() {
		w, err := b.workload(b.state, g.ID)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, b.fail
}

func (b *fake) About(context.Context) (About, error) {
	return About{Backend: "none", Policy: "berth", Waiting: []Waiting{{ID: "late", Group: "a/late", Reason: "no room"}}}, nil
}

func (b *fake) Machine(context.Context) (Machine, error) {
	m := MachineOf(b.state)
	return m, nil
}

func (b *fake) Config(context.Context) (Config, error) {
	return Config{File: "node.yaml", Config: config.Default()}, nil
}

func (b *fake) Stats(context.Context) (Stats, error) {
	rate := 0.5
	return Stats{Time: time.Unix(1000, 0).UTC(), Workloads: []Figures{{ID: "a", Figures: []Figure{
		{Quantity: watch.CPUTime, Value: 10, Rate: &rate},
		{Quantity: watch.IORead, Part: watch.Part{Kind: watch.Device, ID: watch.DeviceID(8, 0)}, Value: 4096},
	}}}}, nil
}

// serve starts a server and returns its socket.
func serve(t testing.TB, b *fake, h *History) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(socket, -1)
	if err != nil {
		t.Fatal(err)
	}
	s, bounded := Door{Host: Named("agent"), Conns: 64}.Server(l, (&Server{Node: b, View: b, Guardian: b, Configs: b, History: h}).Handler())
	go s.Serve(bounded)
	t.Cleanup(func() { s.Close() })
	return socket
}

func dial(t testing.TB, socket string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func spec(id string, class place.Class, milli int) agent.Spec {
	return agent.Spec{Request: place.Request{ID: id, Class: class, Milli: milli}}
}

// Through the wire everything is as without it.
func TestClientIsANode(t *testing.T) {
	t.Parallel()
	far := newFake(t)
	c := dial(t, serve(t, far, NewHistory(8, 0)))
	near := newFake(t)
	var nodes = []Node{near, c}
	same := func(step string, ask func(Node) (any, error)) {
		t.Helper()
		want, wantErr := ask(nodes[0])
		got, err := ask(nodes[1])
		if diff := cmp.Diff(text(t, want), text(t, got)); diff != "" {
			t.Errorf("%s (-near +far):\n%s", step, diff)
		}
		if fmt.Sprint(wantErr) != fmt.Sprint(err) {
			t.Errorf("%s: error %v, far %v", step, wantErr, err)
		}
	}
	ctx := t.Context()
	same("list none", func(n Node) (any, error) { all, err := n.List(ctx); return len(all), err })
	same("place", func(n Node) (any, error) { return n.Place(ctx, spec("a", place.LSR, 2000)) })
	same("place again", func(n Node) (any, error) { return n.Place(ctx, spec("a", place.LSR, 2000)) })
	same("too much", func(n Node) (any, error) { return n.Place(ctx, spec("b", place.LSR, 99000)) })
	same("odd name", func(n Node) (any, error) { return n.Place(ctx, spec("b:x/../y.slice/ü?#%2F", place.BE, 0)) })
	same("odd name", func(n Node) (any, error) { return n.Get(ctx, "b:x/../y.slice/ü?#%2F") })
	same("dots", func(n Node) (any, error) { return n.Get(ctx, "..") })
	same("resize", func(n Node) (any, error) { return n.Resize(ctx, spec("a", place.LSR, 1000)) })
	same("resize none", func(n Node) (any, error) { return n.Resize(ctx, spec("z", place.LSR, 1000)) })
	explain := spec("c", place.LSR, 1000)
	explain.Request.Explain = true
	same("preview", func(n Node) (any, error) { w, _, err := n.Preview(ctx, explain); return w.Grant, err })
	same("preview's plan", func(n Node) (any, error) { _, plan, err := n.Preview(ctx, explain); return plan, err })
	if !far.asked.Request.Explain {
		t.Error("the question for reasons was lost on the way")
	}
	together := []agent.Spec{spec("d", place.LSR, 1000), spec("e", place.LS, 500)}
	together[0].Request.Explain, together[1].Request.Explain = true, true
	same("preview together", func(n Node) (any, error) { all, _, err := n.PreviewTogether(ctx, together); return all, err })
	same("its plan", func(n Node) (any, error) { _, plan, err := n.PreviewTogether(ctx, together); return plan, err })
	same("together", func(n Node) (any, error) { return n.PlaceTogether(ctx, together) })
	same("together again", func(n Node) (any, error) { return n.PlaceTogether(ctx, together) })
	same("list", func(n Node) (any, error) { return n.List(ctx) })
	same("release", func(n Node) (any, error) { return nil, n.Release(ctx, "a", agent.WhenEmpty) })
	same("release again", func(n Node) (any, error) { return nil, n.Release(ctx, "a", agent.WhenEmpty) })
	if !far.asked.Request.Explain {
		t.Error("the question for reasons was lost on the way")
	}
	if far.by.PID != syscall.Getpid() || far.by.UID != syscall.Getuid() {
		t.Errorf("the server was asked by %v, not by this process", far.by)
	}
	s, err := c.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := s.Difference(far.state); diff != "" {
		t.Errorf("State: %s", diff)
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every typed error arrives as what it was.
func TestErrorsOverTheWire(t *testing.T) {
	t.Parallel()
	b := newFake(t)
	c := dial(t, serve(t, b, NewHistory(8, 0)))
	set := cpuset.MustParse("1-3")
	for _, want := range []error{
		&place.NotHeldError{ID: "a"}, &place.HeldError{ID: "a"}, &agent.OccupiedError{ID: "a", PIDs: []int{4, 5}},
		&agent.StuckError{ID: "a", Left: []kernel.Alive{{PID: 4, State: "D"}, {PID: 5, State: "D", Frozen: "sys/fs/cgroup/freezer/x"}}},
		&place.InvalidError{ID: "a", Reason: "r"}, &place.CPUsError{Asked: 3, Available: 2, Milli: true}, &place.SMTError{Asked: 3, PerCore: 2, Available: 1},
		&place.NUMAError{Nodes: set, Reason: "r"}, &place.MemoryError{Resource: "memory", Asked: 1 << 60, Available: 5}, &place.DeviceError{Device: "gpu", Reason: "r"},
		&place.FloorError{CPUs: set}, &place.ConflictError{ID: "a", CPUs: set, Reason: "r"}, &place.RejectedError{ID: "a", Reason: "r"},
		&place.StaleError{Offered: 1, Current: 2}, &agent.BusyError{Dir: "/d"}, &agent.OwnedError{Dir: "d", Other: "o", State: "s", UID: 5},
		&agent.MissingError{Object: "process 5"}, &agent.GroupError{Group: "g", Reason: "r"}, &kernel.NotSupportedError{Feature: "f", Reason: "r", Remedy: "m"},
		&kernel.ChangedError{Path: "p", Written: "w", Current: "c", Original: "o"}, &kernel.StepError{Step: kernel.Step{Path: "p", Value: "1"}, Err: syscall.EBUSY, Hint: "h"},
		&agent.CorruptError{File: "f", Cause: errors.New("c")}, &RequestError{Status: 418, Reason: "r", Remedy: "m"},
		context.DeadlineExceeded, context.Canceled, syscall.ENOSPC,
	} {
		b.fail = fmt.Errorf("around: %w", want)
		_, err := c.Get(t.Context(), "a")
		var far *Error
		if !errors.As(err, &far) {
			t.Errorf("%T: not an Error: %v", want, err)
			continue
		}
		if err.Error() != b.fail.Error() {
			t.Errorf("%T: says %q, not %q", want, err, b.fail)
		}
		if got := errors.Unwrap(far); fmt.Sprintf("%T", got) != fmt.Sprintf("%T", want) || got.Error() != want.Error() {
			t.Errorf("%T: arrives as %T %v", want, got, got)
		}
		if far.Problem.Remedy == "" || far.Problem.Title == "" || far.Problem.Status < 400 {
			t.Errorf("%T: %+v lacks status, title or remedy", want, far.Problem)
		}
	}
	b.fail = &kernel.StepError{Err: fmt.Errorf("write: %w", syscall.EBUSY)}
	if _, err := c.Get(t.Context(), "a"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("%v is not EBUSY", err)
	}
	b.fail = &kernel.NotSupportedError{}
	if _, err := c.Get(t.Context(), "a"); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("%v is not ErrNotSupported", err)
	}
	b.fail = errors.New("without a type")
	if _, err := c.Get(t.Context(), "a"); err == nil || err.Error() != "without a type" || errors.Unwrap(err) != nil {
		t.Errorf("%v", err)
	}
}

func TestNoAgent(t *testing.T) {
	t.Parallel()
	_, err := Dial(t.Context(), filepath.Join(t.TempDir(), "none"))
	var none *NoAgentError
	if !errors.As(err, &none) || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("%v is no NoAgentError of ENOENT", err)
	}
}

// ask sends a raw request and returns status and body.
func ask(t testing.TB, h http.Handler, method, target, body string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://agent"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	w := &recorder{header: http.Header{}}
	h.ServeHTTP(w, asked(r, os.Geteuid()))
	return w.status, w.header, w.body.String()
}

// asked is a request of a user.
func asked(r *http.Request, uid int) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), peerKey{}, Peer{PID: 1, UID: uid}))
}

// recorder keeps an answer; it flushes and has deadlines, as a connection.
type recorder struct {
	header   http.Header
	status   int
	body     strings.Builder
	deadline time.Time
}

func (r *recorder) Header() http.Header                 { return r.header }
func (r *recorder) WriteHeader(status int)              { r.status = status }
func (r *recorder) Flush()                              {}
func (r *recorder) SetWriteDeadline(at time.Time) error { r.deadline = at; return nil }
func (r *recorder) Write(text []byte) (n int, e error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.body.Write(text)
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	b := newFake(t)
	h := (&Server{Node: b, View: b, History: NewHistory(8, 0)}).Handler()
	good := `{"request":{"id":"a","class":"LS"}}`
	for _, tc := range []struct {
		method, target, body string
		status               int
		says                 string
	}{
		{"POST", "/v1/workloads", `{"request":{"id":"a","class":"LS","cpus":3}}`, 400, `unknown field \"request.cpus\"`},
		{"POST", "/v1/workloads", `{"request":{"id":"a"},"x":1}`, 400, `unknown field \"x\"`},
		{"POST", "/v1/workloads", `{"Request":{"id":"a","class":"LS"}}`, 400, `unknown field \"Request\"`},
		{"POST", "/v1/workloads", `{"request":{"id":"a","CLASS":"LS"}}`, 400, `unknown field \"request.CLASS\"`},
		{"POST", "/v1/workloads", `{"request":{"id":"a","devices":[{"KIND":"gpu","count":1}]}}`, 400, `unknown field \"request.devices[0].KIND\"`},
		{"POST", "/v1/workloads", `{"request":{"id":"a"},"request":{"id":"b"}}`, 400, `duplicate field \"request\"`},
		{"POST", "/v1/workloads", `{"request":{"id":"a","class":"LSX"}}`, 400, "LSX"},
		{"POST", "/v1/workloads", good + good, 400, "after top-level value"},
		{"POST", "/v1/workloads", "", 400, "unexpected end"},
		{"POST", "/v1/workloads", `[]`, 400, "cannot unmarshal"},
		{"POST", "/v1/workloads", `{}`, 400, "no id"},
		{"POST", "/v1/workloads", `{"request":{"id":"a"},"cpus":"7-3"}`, 400, "7-3"},
		{"POST", "/v1/workloads", `{"request":{"id":"a"},"group":"../../etc"}`, 400, "not a name below the base"},
		{"POST", "/v1/workloads", `{"request":{"id":"a"},"group":"/etc"}`, 400, "not a name below the base"},
		{"POST", "/v1/workloads", `{"request":{"id":"a"},"pid":-1}`, 400, "negative process id"},
		{"POST", "/v1/workloads", `{"request":{"id":"` + strings.Repeat("x", 300) + `"}}`, 400, "longer than"},
		{"POST", "/v1/workloads", `"` + strings.Repeat("x", maxBody) + `"`, 413, "larger than"},
		{"POST", "/v1/groups", `{"specs":[` + strings.Repeat(good+",", maxSpecs) + good + `]}`, 400, "specs has 1025 workloads; at most 1024"},
		{"POST", "/v1/workloads?explain=1", good, 400, "not of type boolean"},
		{"POST", "/v1/workloads?kill=true", good, 400, "unknown here"},
		{"POST", "/v1/workloads?explain=true&explain=true", good, 400, "twice"},
		{"PUT", "/v1/workloads/b", good, 400, `workload \"b\"`},
		{"GET", "/v1/events?after=-1", "", 400, "not of type integer"},
		{"PATCH", "/v1/workloads", good, 405, "GET or POST"},
		{"DELETE", "/v1/workloads", "", 405, "GET or POST"},
		{"POST", "/v1/machine", "", 405, "GET"},
		{"GET", "/", "", 404, "nothing is at"},
		{"GET", "/v2/workloads", "", 404, "nothing is at"},
		{"GET", "/v1/workloads/a/b", "", 404, "nothing is at"},
		{"GET", "/v1/workloads/../machine", "", 400, "shortest form"},
		{"GET", "/v1//workloads", "", 400, "shortest form"},
		{"GET", "/v1/workloads/", "", 400, "shortest form"},
		{"GET", "/v1/workloads/%2E%2E", "", 404, "holds nothing"},
		{"GET", "/v1/workloads/%2Fetc%2Fpasswd", "", 404, `/etc/passwd`},
		{"GET", "/v1/workloads/a%00b", "", 404, "holds nothing"},
	} {
		status, header, text := ask(t, h, tc.method, tc.target, tc.body)
		if status != tc.status || !strings.Contains(text, tc.says) {
			t.Errorf("%s %s %.60s: %d %s, want %d and %q in it", tc.method, tc.target, tc.body, status, text, tc.status, tc.says)
		}
		var p Problem
		if err := json.Unmarshal([]byte(text), &p); err != nil || p.Remedy == "" || header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %s is no problem with a remedy (%v)", tc.method, tc.target, text, err)
		}
	}
	if b.state.Len() != 0 {
		t.Errorf("%d workloads were placed by requests that were refused", b.state.Len())
	}
}

// openDir is a temporary directory that everybody may search.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestListen(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	path := filepath.Join(dir, "s")
	first, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	var inUse *InUseError
	if _, err := Listen(path, -1); !errors.As(err, &inUse) {
		t.Errorf("a second listener: %v, want an InUseError", err)
	}
	// A killed agent leaves its socket.
	first.(*socket).UnixListener.Close()
	second, err := Listen(path, syscall.Getgid())
	if err != nil {
		t.Fatalf("a socket on which nobody listens: %v", err)
	}
	if mode := modeOf(t, path); mode != 0o660 {
		t.Errorf("with a group the mode is %o", mode)
	}
	if err := first.Close(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("closing the old listener took the new one's socket: %v", err)
	} else {
		c.Close()
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("%v stay behind", left)
	}
	third, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if mode := modeOf(t, path); mode != 0o600 {
		t.Errorf("the mode is %o", mode)
	}
}

// A group gets its socket only where it can reach it.
func TestListenForGroup(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	path, gid := filepath.Join(dir, "s"), syscall.Getgid()
	for _, tc := range []struct {
		mode os.FileMode
		ok   bool
	}{{0o700, false}, {0o710, true}, {0o701, false}, {0o755, true}} {
		if err := os.Chmod(dir, tc.mode); err != nil {
			t.Fatal(err)
		}
		l, err := Listen(path, gid)
		var unreachable *UnreachableError
		if errors.As(err, &unreachable) == tc.ok || tc.ok != (err == nil) {
			t.Errorf("in a directory of mode %o: %v", tc.mode, err)
		}
		if err == nil {
			l.Close()
		}
		if unreachable != nil && unreachable.Dir != dir {
			t.Errorf("it blames %s", unreachable.Dir)
		}
	}
	if l, err := Listen(filepath.Join(dir, "none", "s"), gid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in no directory: %v, %v", l, err)
	}
}

func modeOf(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestListenLeavesOtherFilesAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(path, -1); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("%v, %v", l, err)
	}
	if text, _ := os.ReadFile(path); string(text) != "precious" {
		t.Errorf("it holds %q", text)
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	h := NewHistory(3, 100)
	add := func(id string) { h.Add(Event{Event: agent.Event{Kind: agent.Placed, ID: id}}) }
	summary := func(events []Event) string {
		var words []string
		for _, e := range events {
			words = append(words, fmt.Sprint(e.Seq, string(e.Kind), e.ID))
		}
		return strings.Join(words, " ")
	}
	for _, id := range []string{"a", "b"} {
		add(id)
	}
	for _, tc := range []struct {
		after uint64
		want  string
	}{
		{0, "101placeda 102placedb"},
		{101, "102placedb"},
		{102, ""},
		{100, "101placeda 102placedb"},
		{5, "100lost 101placeda 102placedb"},    // of an earlier start
		{1000, "100lost 101placeda 102placedb"}, // of one before the clock was set back
	} {
		if got := summary(h.After(tc.after)); got != tc.want {
			t.Errorf("after %d: %s, want %s", tc.after, got, tc.want)
		}
	}
	for _, id := range []string{"c", "d", "e"} {
		add(id)
	}
	for _, tc := range []struct {
		after uint64
		want  string
	}{
		{0, "103placedc 104placedd 105placede"},
		{102, "103placedc 104placedd 105placede"},
		{101, "102lost 103placedc 104placedd 105placede"},
		{105, ""},
	} {
		if got := summary(h.After(tc.after)); got != tc.want {
			t.Errorf("full, after %d: %s, want %s", tc.after, got, tc.want)
		}
	}
}

// A client that lost the stream goes on where it was.
func TestEventsResume(t *testing.T) {
	t.Parallel()
	h := NewHistory(8, 0)
	c := dial(t, serve(t, newFake(t), h))
	add := func(id string) { h.Add(Event{Event: agent.Event{Kind: agent.Placed, ID: id}}) }
	add("a")
	var got []string
	var last uint64
	for e, err := range c.Events(t.Context(), 0, true) {
		if err != nil {
			t.Fatal(err)
		}
		got, last = append(got, e.ID), e.Seq
		if e.ID == "b" {
			break
		}
		add("b")
	}
	add("c")
	for e, err := range c.Events(t.Context(), last, false) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.ID)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A client that sends nothing is not waited for, and one that takes nothing of a
// stream neither.
func TestServerHasBounds(t *testing.T) {
	t.Parallel()
	s, _ := Door{}.Server(nil, http.NotFoundHandler())
	if s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.WriteTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 {
		t.Errorf("%+v has no bound somewhere", s)
	}
	h := NewHistory(8, 0)
	h.Add(Event{})
	b := newFake(t)
	w := &recorder{header: http.Header{}}
	r, _ := http.NewRequest("GET", "http://agent/v1/events?follow=false", nil)
	(&Server{Node: b, View: b, Guardian: b, Configs: b, History: h}).Handler().ServeHTTP(w, asked(r, os.Geteuid()))
	if w.deadline.IsZero() {
		t.Error("events are written without a deadline")
	}
}
