package daemon

import (
	"errors"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/internal/testbox"
	"berth.dev/berth/kernel"
)

const stranger = 65534

// clientOf is a client whose connections are another user's: they are made by a thread
// of that user's, and passed on by this process.
func clientOf(t *testing.T, uid int, socket string) *api.Client {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to connect as another user")
	}
	relay := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", relay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := testbox.DialAs(uid, socket)
			if err != nil {
				near.Close()
				continue
			}
			pass := func(to, from net.Conn) {
				defer to.Close()
				_, _ = io.Copy(to, from)
			}
			go pass(far, near)
			go pass(near, far)
		}
	}()
	c, err := api.Dial(t.Context(), relay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The user at the other end of the socket decides; the configuration says who is as
// good as root, and can take it back.
func TestAdmins(t *testing.T) {
	t.Parallel()
	h := newHost(t, one)
	h.mkdir("a1")
	for pid, uid := range map[string]int{"9000100": 0, "9000101": stranger} {
		if err := h.k.Start(pid); err != nil {
			t.Fatal(err)
		}
		id := strconv.Itoa(uid)
		if err := h.k.Put("proc/"+pid+"/status", "Uid:\t"+strings.Join([]string{id, id, id, id}, "\t")+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	r := h.run()
	r.await(agent.Placed, "a:a1")
	if err := os.Chmod(h.opt.Socket, 0o666); err != nil { // as if the user were in agent.group
		t.Fatal(err)
	}
	for dir := filepath.Dir(h.opt.Socket); dir != "/dev/shm" && dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := clientOf(t, stranger, h.opt.Socket)
	ctx := t.Context()
	var denied *agent.DeniedError
	refused := func(what string, err error) {
		t.Helper()
		var far *api.Error
		if !errors.As(err, &denied) || denied.UID != stranger || !errors.As(err, &far) || far.Problem.Status != 403 ||
			!strings.Contains(err.Error(), "user 65534 may not") || !strings.Contains(far.Problem.Remedy, "agent.admins") {
			t.Errorf("%s: %v", what, err)
		}
	}
	place := func(id string, pid int) error {
		_, err := c.Place(ctx, agent.Spec{Request: request(id), PID: pid})
		return err
	}
	refused("place root's process", place("mine", 9000100))
	refused("set the guard's mode", c.SetMode(ctx, config.GuardOff))
	refused("release the configuration's", c.Release(ctx, "a:a1", agent.WhenEmpty))
	refused("kill the configuration's", c.Release(ctx, "a:a1", agent.Kill))
	_, err := c.Place(ctx, agent.Spec{Request: request("group"), Group: "a1"})
	refused("name a group", err)
	if _, err := c.Explain(ctx, "a:a1"); err != nil {
		t.Errorf("to look: %v", err)
	}
	if err := place("mine", 9000101); err != nil {
		t.Errorf("place an own process: %v", err)
	}
	if w, err := r.Get(ctx, "mine"); err != nil || w.UID != stranger {
		t.Errorf("it belongs to user %d, %v", w.UID, err)
	}
	if e := r.await(agent.Placed, "mine"); e.By == nil || e.By.UID != stranger {
		t.Errorf("it was placed by %v", e.By)
	}

	h.configure(one + "agent: {admins: [65534]}\n")
	r.await(api.Reloaded, "")
	if err := place("root's", 9000100); err != nil {
		t.Errorf("an admin: %v", err)
	}
	if err := c.SetMode(ctx, config.GuardOff); !errors.Is(err, kernel.ErrNotSupported) { // there is no guard here
		t.Errorf("an admin: %v", err)
	}
	h.configure(one + "agent: {admins: [no-such-user]}\n")
	if e := r.await(api.Kept, ""); !strings.Contains(e.Text, `agent.admins[0]: user "no-such-user"`) {
		t.Errorf("an unknown user: %q", e.Text)
	}
	h.configure(one)
	r.await(api.Reloaded, "")
	refused("once no admin any more", c.SetMode(ctx, config.GuardOff))
	if err := h.k.Exit("9000101"); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(ctx, "mine", agent.WhenEmpty); err != nil {
		t.Errorf("release an own workload: %v", err)
	}
}

func TestAdminsOf(t *testing.T) {
	t.Parallel()
	root, err := user.LookupId("0")
	if err != nil {
		t.Skip(err)
	}
	c := config.Default()
	c.Agent.Admins = []string{root.Username, "1234567"}
	if all, err := adminsOf(c); err != nil || len(all) != 2 || !all[0] || !all[1234567] {
		t.Errorf("%v, %v", all, err)
	}
	c.Agent.Admins = []string{"1", "no-such-user"}
	if all, err := adminsOf(c); err == nil || !strings.Contains(err.Error(), `agent.admins[1]: user "no-such-user"`) {
		t.Errorf("%v, %v", all, err)
	}
	h := newHost(t, "agent: {admins: [no-such-user]}\n")
	if err := Run(t.Context(), h.opt); err == nil || !strings.Contains(err.Error(), "no-such-user") {
		t.Errorf("an agent starts: %v", err)
	}
}
