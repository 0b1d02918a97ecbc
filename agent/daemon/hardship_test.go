package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
)

// smallDisk is set in the process that has a mount namespace of its own.
const smallDisk = "BERTH_TEST_SMALL_DISK"

// The disk of the records is full when a group comes: it waits and says why, nothing is
// half done, and it is placed once there is space. The disk is a file system of 64 KiB
// that only another process of this test sees.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getenv(smallDisk) != "" {
		testFullDisk(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), smallDisk+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &ended):
		t.Skipf("needs user and mount namespaces of its own: %v", err)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	case !strings.Contains(string(out), "--- PASS: TestFullDisk"):
		t.Errorf("it was not tested:\n%s", out)
	}
}

func testFullDisk(t *testing.T) {
	h := newHost(t, one+"agent: {stateDir: /state, rescan: 1s}\n")
	state := filepath.Join(h.dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", state, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Skipf("needs to mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(state, syscall.MNT_DETACH) })
	h.opt.RestoreOnExit = true
	h.mkdir("a1")
	h.mkdir("a2")
	fresh := tree(t, h.k)
	if err := h.k.Rmdir("sys/fs/cgroup/cpuset/a2"); err != nil { // not yet where CPUs are given
		t.Fatal(err)
	}
	r := h.run()
	r.await(agent.Placed, "a:a1")

	ballast := filepath.Join(state, "ballast")
	fill(t, ballast)
	placed := tree(t, h.k)
	if err := h.k.Mkdir("sys/fs/cgroup/cpuset/a2"); err != nil {
		t.Fatal(err)
	}
	empty := tree(t, h.k)
	if e := r.await(agent.Refused, "a:a2"); !strings.Contains(e.Text, "no space left on device") {
		t.Errorf("refused: %q", e.Text)
	}
	r.until(func(a api.About) bool {
		return len(a.Waiting) == 1 && a.Waiting[0].ID == "a:a2" && strings.Contains(a.Waiting[0].Reason, "no space left on device")
	})
	if diff := cmp.Diff(empty, tree(t, h.k)); diff != "" {
		t.Errorf("half done (-want +got):\n%s", diff)
	}
	if len(empty) <= len(placed) {
		t.Error("a2 has no files")
	}
	all, err := r.List(t.Context())
	if err != nil || len(all) != 1 || all[0].ID() != "a:a1" {
		t.Errorf("placed are %v, %v", all, err)
	}
	// Who asks itself hears why.
	var answer *api.Error
	if _, err := r.Place(t.Context(), agent.Spec{Request: request("mine")}); !errors.As(err, &answer) || api.KindOf(err) != "disk-full" {
		t.Errorf("placed on a full disk: %v, of kind %s", err, api.KindOf(err))
	}

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r.await(agent.Placed, "a:a2")
	r.until(func(a api.About) bool { return len(a.Waiting) == 0 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fresh, tree(t, h.k)); diff != "" {
		t.Errorf("given back (-want +got):\n%s", diff)
	}
}

// fill writes a file until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 1000 {
		if _, err = f.Write(make([]byte, 1024)); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filled the disk: %v", err)
	}
}

// storm changes the configuration over and over until it is told to end: what is
// given to a workload, to whom, and the node itself.
func (h *host) storm(r *running, hangup chan<- os.Signal) (end func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			conf := strings.Replace(one, "weight: 200", fmt.Sprintf("weight: %d", 200+i%7), 1)
			switch i % 4 {
			case 1:
				conf = strings.ReplaceAll(conf, "/a*", "/b*")
			case 2:
				conf += fmt.Sprintf("reserved: %d\n", i/4%2)
			case 3:
				conf += "nonsense: 1\n"
			}
			h.configure(conf)
			select {
			case hangup <- syscall.SIGHUP:
			case <-ctx.Done():
			}
		}
	}()
	return func() { cancel(); <-done }
}

// The agent ends amid a storm of reloads: everything is given back, wherever it was.
func TestRestoreAmidReloads(t *testing.T) {
	t.Parallel()
	for reloads := range 8 {
		h := newHost(t, one)
		for _, name := range []string{"a1", "a2", "b1"} {
			h.mkdir(name)
		}
		before := tree(t, h.k)
		hangup := make(chan os.Signal)
		h.opt.Reload, h.opt.RestoreOnExit = hangup, true
		r := h.run()
		end := h.storm(r, hangup)
		for range reloads {
			r.await(api.Reloaded, "")
		}
		if err := r.stop(); err != nil {
			t.Errorf("after %d reloads: %v", reloads, err)
		}
		end()
		if diff := cmp.Diff(before, tree(t, h.k)); diff != "" {
			t.Errorf("after %d reloads (-want +got):\n%s", reloads, diff)
		}
	}
}

// Who wants to restore while an agent is there waits for it, and changes nothing; when
// it has ended amid its reloads, they give everything back.
func TestRestoreBesideReloads(t *testing.T) {
	t.Parallel()
	h := newHost(t, one+"agent: {stateDir: /state}\n")
	h.mkdir("a1")
	h.mkdir("b1")
	before := tree(t, h.k)
	hangup := make(chan os.Signal)
	h.opt.Reload = hangup
	r := h.run()
	r.await(agent.Placed, "a:a1")
	dir := filepath.Join(h.dir, "state")
	end := h.storm(r, hangup)
	restore := func(ctx context.Context) error {
		n, err := agent.Open(ctx, agent.Options{Root: h.opt.Root, Machine: h.opt.Machine, Dir: dir})
		if err != nil {
			return err
		}
		defer n.Close()
		_, err = n.Restore(ctx)
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := restore(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("restored beside an agent: %v", err)
	}
	r.await(api.Reloaded, "")
	// A reload that gives a group another workload releases the old one before it places the
	// new one: for a moment there is none.
	var all []agent.Workload
	for began := time.Now(); len(all) == 0 && time.Since(began) < time.Minute; {
		var err error
		if all, err = r.List(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	end()
	if len(all) == 0 {
		t.Error("nothing was placed")
	}
	if err := restore(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, tree(t, h.k)); diff != "" {
		t.Errorf("restored (-want +got):\n%s", diff)
	}
}

// A client that is cut off again and again, and asks for what came after its last
// event, has each event once.
func TestEventsResume(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	r := h.run()
	const changes = 40
	done := make(chan error, 1)
	go func() {
		var err error
		for i := range changes {
			id := fmt.Sprint("w", i)
			_, placing := r.Place(t.Context(), agent.Spec{Request: request(id)})
			err = errors.Join(err, placing, r.Release(t.Context(), id, agent.WhenEmpty))
		}
		done <- err
	}()
	got := map[uint64]int{}
	var order []uint64
	released := 0
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for cut := 1; released < changes; cut = cut%7 + 1 {
		n := 0
		for e, err := range r.Events(ctx, r.last, true) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == api.Lost {
				t.Errorf("told of a gap: %q", e.Text)
			}
			got[e.Seq]++
			order = append(order, e.Seq)
			r.last = e.Seq
			if e.Kind == agent.Released {
				released++
			}
			if n++; n == cut || released == changes {
				break
			}
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i, seq := range order {
		if got[seq] != 1 || i > 0 && seq != order[i-1]+1 {
			t.Fatalf("event %d came %d times, after event %d", seq, got[seq], order[max(i, 1)-1])
		}
	}
	if len(order) < 2*changes {
		t.Errorf("%d events", len(order))
	}
}

// A client that was away for longer than events are kept, or since an earlier start, is
// told so, and then has all that are kept.
func TestEventsNoLongerKept(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	d, err := start(t.Context(), h.opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, d.close()); err != nil {
			t.Error(err)
		}
	})
	c, err := api.Dial(t.Context(), h.opt.Socket)
	if err != nil {
		t.Fatal(err)
	}
	begin := uint64(d.started.UnixMicro())
	for range 2 * historySize {
		d.history.Add(api.Event{Event: agent.Event{Kind: agent.Repaired}})
	}
	for what, tc := range map[string]struct {
		after uint64
		lost  bool
		want  int // kept ones, at least
	}{
		"away for too long":                        {begin + 5, true, historySize},
		"of an earlier start":                      {begin - 1e6, true, historySize},
		"before the clock was set back":            {begin + 3600e6, true, historySize},
		"away for a moment":                        {begin + historySize + historySize/2, false, historySize / 2},
		"new, who has missed nothing that matters": {0, false, historySize},
	} {
		var all []api.Event
		for e, err := range c.Events(t.Context(), tc.after, false) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
		if lost := len(all) > 0 && all[0].Kind == api.Lost; lost != tc.lost {
			t.Errorf("%s: told of a gap: %t", what, lost)
		}
		kept := 0
		for i, e := range all {
			if e.Kind != api.Lost {
				kept++
			}
			if i > 0 && e.Seq != all[i-1].Seq+1 {
				t.Errorf("%s: event %d comes after %d", what, e.Seq, all[i-1].Seq)
			}
		}
		if kept < tc.want || kept > historySize {
			t.Errorf("%s: %d events, want %d", what, kept, tc.want)
		}
	}
}
