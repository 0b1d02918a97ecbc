package actuate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakenet"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/traffic"
)

// linked is a host with network devices, of which eth0 and eth1 have network classes, and eth2 has
// none. Group batch/a is of class bulk.
type linked struct {
	*host
	net     *fakenet.Network
	calls   traffic.Calls // in its place, or nil
	unified string
}

func newLinked(t *testing.T, layout string) *linked {
	t.Helper()
	h := &linked{host: newHost(t, layout), unified: "sys/fs/cgroup"}
	if layout == "hybrid" {
		h.unified += "/unified"
	}
	h.net = fakenet.New(h.k.FS(), "eth0", "eth1", "eth2")
	root := traffic.Lay(h.host.root(), h.net)
	var plan kernel.Plan
	for _, device := range []string{"eth0", "eth1"} {
		htb := "sys/net/" + device + "/htb"
		plan = append(plan, kernel.Step{Op: kernel.Mkdir, Path: htb}, kernel.Step{Path: htb + "/0001", Value: "rate 12500000 ceil 12500000 prio 0"},
			kernel.Step{Path: htb + "/0002", Value: "rate 7500000 ceil 12500000 prio 3"}, kernel.Step{Path: htb + "/4f21", Value: "rate 1250000 ceil 6250000 prio 7"})
	}
	plan = append(plan, kernel.Step{Path: h.mark("batch/a"), Value: "6be7:4f21"})
	if _, err := kernel.Apply(root, plan, nil); err != nil {
		t.Fatal(err)
	}
	h.tree = h.now()
	return h
}

func (h *linked) mark(group string) string { return traffic.MarkFile(path.Join(h.unified, group)) }

func (h *linked) root() *kernel.Root {
	if h.calls != nil {
		return traffic.Lay(h.host.root(), h.calls)
	}
	return traffic.Lay(h.host.root(), h.net)
}

func (h *linked) open() *Host {
	h.t.Helper()
	got, err := Open(Options{Root: h.root(), Dir: h.state})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { got.lock.Close() })
	return got
}

// shown is what devices and groups have: classes of the guard, and marks.
func (h *linked) shown() map[string]string {
	h.t.Helper()
	all := map[string]string{}
	root := traffic.Lay(h.host.root(), h.net).FS()
	for _, name := range []string{"sys/net/eth0/htb/fff0", "sys/net/eth0/htb/fff1", "sys/net/eth1/htb/fff0", h.mark("batch/a"), h.mark("batch/b"), h.mark("batch/b/c")} {
		text, err := fs.ReadFile(root, name)
		if err == nil && strings.TrimSpace(string(text)) != "none" {
			name = strings.TrimPrefix(strings.TrimPrefix(name, h.unified+"/"), "sys/net/")
			all[name] = strings.TrimSpace(string(text))
		}
	}
	return all
}

func send(group, device string, bytes int64) control.Action {
	return control.Action{
		Remedy: detect.SendCap, Group: group, Victim: "svc/web", Suspect: group, Resource: detect.Network,
		Share: control.Share{Send: bytes, Device: device, Used: 10e6},
	}
}

// A suspect gets a class of its own with the floor and the priority of its class, and a lower
// ceiling on one device; that of others stays. What comes after the last step is as before.
func TestSends(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	before := map[string]string{"batch/a/berth.net_class": "6be7:4f21"}
	with := func(more ...string) map[string]string {
		all := map[string]string{"batch/a/berth.net_class": "6be7:4f21"}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	type step struct {
		do   control.Action
		back bool
		want map[string]string
	}
	for name, c := range map[string]struct {
		layouts []string
		steps   []step
	}{
		"of a class: its copy on the other device": {[]string{"v2", "hybrid"}, []step{
			{send("batch/a", "eth0", 5e6), false, with("batch/a/berth.net_class", "6be7:fff0", "eth0/htb/fff0", "rate 1250000 ceil 5000000 prio 7", "eth1/htb/fff0", "rate 1250000 ceil 6250000 prio 7")},
			{send("batch/a", "eth0", 2e6), false, with("batch/a/berth.net_class", "6be7:fff0", "eth0/htb/fff0", "rate 1250000 ceil 2000000 prio 7", "eth1/htb/fff0", "rate 1250000 ceil 6250000 prio 7")},
			{send("batch/a", "eth0", 2e6), true, before},
		}},
		"never below the floor of the class": {[]string{"v2"}, []step{
			{send("batch/a", "eth0", 1e6), false, with("batch/a/berth.net_class", "6be7:fff0", "eth0/htb/fff0", "rate 1250000 ceil 1250000 prio 7", "eth1/htb/fff0", "rate 1250000 ceil 6250000 prio 7")},
			{send("batch/a", "eth0", 1e6), true, before},
		}},
		"never above the ceiling of the class": {[]string{"v2"}, []step{
			{send("batch/a", "eth1", 9e6), false, with("batch/a/berth.net_class", "6be7:fff0", "eth1/htb/fff0", "rate 1250000 ceil 6250000 prio 7", "eth0/htb/fff0", "rate 1250000 ceil 6250000 prio 7")},
			{send("batch/a", "eth1", 9e6), true, before},
		}},
		"of no class: none of the floor that all others have": {[]string{"v2"}, []step{
			{send("batch/b", "eth0", 5e6), false, with("batch/b/berth.net_class", "6be7:fff0", "eth0/htb/fff0", "rate 1000 ceil 5000000 prio 3")},
			{send("batch/b/c", "eth0", 4e6), false, with("batch/b/berth.net_class", "6be7:fff0", "eth0/htb/fff0", "rate 1000 ceil 5000000 prio 3", "batch/b/c/berth.net_class", "6be7:fff1", "eth0/htb/fff1", "rate 1000 ceil 4000000 prio 3")},
			{send("batch/b", "eth0", 5e6), true, with("batch/b/c/berth.net_class", "6be7:fff1", "eth0/htb/fff1", "rate 1000 ceil 4000000 prio 3")},
			{send("batch/b/c", "eth0", 4e6), true, before},
		}},
	} {
		for _, layout := range c.layouts {
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				h := newLinked(t, layout)
				g := h.open()
				for i, s := range c.steps {
					var err error
					if s.back {
						_, err = g.Revert(ctx, s.do)
					} else {
						was := h.shown()
						promised, err := g.Preview(ctx, s.do)
						if diff := cmp.Diff(was, h.shown()); diff != "" {
							t.Errorf("step %d: the preview has changed:\n%s", i, diff)
						}
						did, err2 := g.Apply(ctx, s.do)
						if err := errors.Join(err, err2); err != nil || len(did) == 0 || !cmp.Equal(did, promised) {
							t.Fatalf("step %d: promised %v, did %v: %v", i, promised, did, err)
						}
						if again, err := g.Preview(ctx, s.do); err != nil || len(again) > 0 {
							t.Errorf("step %d once more: %v, %v", i, again, err)
						}
					}
					if diff := cmp.Diff(s.want, h.shown()); err != nil || diff != "" {
						t.Errorf("step %d (-want +got): %v\n%s", i, err, diff)
					}
				}
				if notes := g.Notes(); len(notes) > 0 {
					t.Errorf("in the end noted: %v", notes)
				}
				h.same(h.tree)
			})
		}
	}
}

// What a group may send is that of its class, or of that of a group around it, as if nothing were
// active; where nothing can be lowered, it is said why.
func TestSending(t *testing.T) {
	t.Parallel()
	h := newLinked(t, "v2")
	g := h.open()
	if _, err := g.Apply(context.Background(), send("batch/a", "eth0", 2e6)); err != nil {
		t.Fatal(err)
	}
	root := h.root()
	if err := errors.Join(h.k.Mkdir(h.unified+"/batch/a/in"), root.WriteFile("sys/net/eth1/htb/4f21", "none")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		group string
		link  int
		want  control.Sending
	}{
		{"batch/a", 1, control.Sending{Link: 1, Device: "eth0", Floor: 1.25e6, Ceiling: 6.25e6}},
		{"batch/a/in", 1, control.Sending{Link: 1, Device: "eth0", Floor: 1.25e6, Ceiling: 6.25e6}},
		{"batch/a", 2, control.Sending{Link: 2, Device: "eth1", Floor: 1000, Ceiling: 12.5e6}}, // it lacks the class
		{"svc/web", 1, control.Sending{Link: 1, Device: "eth0", Floor: 1000, Ceiling: 12.5e6}},
		{"batch/a", 3, control.Sending{Link: 3, Why: "the link is not divided into network classes"}},
		{"batch/gone", 1, control.Sending{Link: 1, Why: "no such file or directory"}},
		{"../x", 1, control.Sending{Link: 1, Why: "not a path below the root group"}},
	} {
		got := g.Sending(c.group, c.link)
		if c.want.Why != "" && strings.Contains(got.Why, c.want.Why) {
			got.Why = c.want.Why
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s, link %d (-want +got):\n%s", c.group, c.link, diff)
		}
	}
	if _, err := g.Restore(); err != nil || len(g.lowered) > 0 {
		t.Errorf("restored: %v, %v", g.lowered, err)
	}
	v1 := newHost(t, "v1").open()
	if why := v1.Unavailable()[detect.SendCap]; !strings.Contains(why, "cgroup v2 is not mounted") {
		t.Errorf("v1: %q", why)
	}
	played := newHost(t, "v2").open()
	if why := played.Unavailable()[detect.SendCap]; !strings.Contains(why, "this is not the live host") {
		t.Errorf("not live: %q", why)
	}
	if why, ok := g.Unavailable()[detect.SendCap]; ok {
		t.Errorf("v2: %q", why)
	}
}

// Nothing is limited on a device that has no network classes, nor what the v2 tree does not have.
func TestSendRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		layout string
		do     control.Action
		want   string
	}{
		"a device that nobody named": {"v2", send("batch/a", "eth2", 5e6), "eth2 is not divided into network classes"},
		"no device":                  {"v2", send("batch/a", "eth7", 5e6), "eth7 is not divided into network classes"},
		"a group of v1 alone":        {"hybrid", send("batch/b/c", "eth0", 5e6), "the group is not in the tree of cgroup v2"},
		"a group that is gone":       {"v2", send("batch/z", "eth0", 5e6), "no such file or directory"},
		"no group":                   {"v2", send("", "eth0", 5e6), "not a path below"},
	} {
		h := newLinked(t, c.layout)
		if c.layout == "hybrid" {
			if err := h.k.Rmdir(h.unified + "/batch/b/c"); err != nil {
				t.Fatal(err)
			}
		}
		writes := h.net.Writes
		_, err := h.open().Apply(context.Background(), c.do)
		if err == nil || !strings.Contains(err.Error(), c.want) || h.net.Writes != writes || errors.Is(err, fs.ErrNotExist) != (name == "a group that is gone") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if c.do.Share.Device != "eth0" && !errors.Is(err, kernel.ErrNotSupported) {
			t.Errorf("%s: %v is not typed", name, err)
		}
	}
	h := newLinked(t, "v2")
	g := h.open()
	for i := range 15 {
		if err := h.root().WriteFile(fmt.Sprintf("sys/net/eth0/htb/fff%x", i), "rate 1000 ceil 1000 prio 1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Apply(context.Background(), send("batch/a", "eth0", 5e6)); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "all 15 groups that can have one do") {
		t.Errorf("no number is left: %v", err)
	}
}

// dying are calls of which one is the last of a process.
type dying struct {
	*fakenet.Network
	count, at int
	after     bool
}

func (d *dying) last(do func() error) error {
	if d.count++; d.count != d.at {
		return do()
	}
	if d.after {
		_ = do()
	}
	panic(fakekernel.Killed{})
}

func (d *dying) SetClass(by traffic.Mechanism, index int, minor uint16, c traffic.Class) error {
	return d.last(func() error { return d.Network.SetClass(by, index, minor, c) })
}

func (d *dying) RemoveClass(by traffic.Mechanism, index int, minor uint16) error {
	return d.last(func() error { return d.Network.RemoveClass(by, index, minor) })
}

func (d *dying) SetMark(group string, minor uint16) error {
	return d.last(func() error { return d.Network.SetMark(group, minor) })
}

// Killed before or after each call, the next guard puts all of it back.
func TestSendKilled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for at := 1; ; at++ {
		for _, after := range []bool{false, true} {
			h := newLinked(t, "v2")
			d := &dying{Network: h.net, at: at, after: after}
			h.calls = d
			g := h.open()
			alive := fakekernel.Survives(func() {
				for _, a := range []control.Action{send("batch/a", "eth0", 5e6), send("batch/b", "eth0", 3e6), send("batch/a", "eth0", 2e6)} {
					if _, err := g.Apply(ctx, a); err != nil {
						t.Error(err)
					}
				}
				if _, err := g.Revert(ctx, send("batch/a", "eth0", 2e6)); err != nil {
					t.Error(err)
				}
			})
			if alive {
				if at < 9 {
					t.Fatalf("only %d calls", at-1)
				}
				return
			}
			_ = g.lock.Close()
			h.calls = nil
			next := h.open()
			if _, err := next.Restore(); err != nil {
				t.Fatalf("call %d, %v: %v", at, after, err)
			}
			if diff := cmp.Diff(map[string]string{"batch/a/berth.net_class": "6be7:4f21"}, h.shown()); diff != "" || len(next.Notes()) > 0 {
				t.Errorf("call %d, %v: noted %v (-want +got):\n%s", at, after, next.Notes(), diff)
			}
			h.same(h.tree)
		}
	}
}

// The writer of classes sees and changes them as if the guard had done nothing, and what the guard
// applies again is by what they are then.
func TestSendBelow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	h := newLinked(t, "v2")
	g := h.open()
	uncovered := 0
	base := g.Base(func() { uncovered++ })
	a := send("batch/a", "eth0", 5e6)
	if _, err := g.Apply(ctx, a); err != nil {
		t.Fatal(err)
	}
	text, err := fs.ReadFile(base.FS(), h.mark("batch/a"))
	if err != nil || strings.TrimSpace(string(text)) != "6be7:4f21" {
		t.Errorf("the mark is %q, %v", text, err)
	}
	config := &traffic.Config{
		Devices: map[string]traffic.LinkConfig{"eth0": {Rate: 100e6}}, Classes: map[string]traffic.Share{"x": {Priority: 1}},
	}
	net, err := traffic.Read(base.FS(), config)
	if err != nil {
		t.Fatal(err)
	}
	l, err := config.Layout(net)
	if err != nil {
		t.Fatal(err)
	}
	if plan := l.Plan().String(); strings.Contains(plan, "fff0") {
		t.Errorf("the writer of classes would remove the guard's:\n%s", plan)
	}
	if err := base.WriteFile("sys/net/eth0/htb/4f21", "rate 1250000 ceil 3000000 prio 6"); err != nil {
		t.Fatal(err)
	}
	if got := h.shown(); uncovered != 1 || got["eth0/htb/fff0"] != "" {
		t.Errorf("uncovered %d times, there is %v", uncovered, got)
	}
	if _, err := g.Apply(ctx, a); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"batch/a/berth.net_class": "6be7:fff0", "eth0/htb/fff0": "rate 1250000 ceil 3000000 prio 6", "eth1/htb/fff0": "rate 1250000 ceil 6250000 prio 7"}
	if diff := cmp.Diff(want, h.shown()); diff != "" {
		t.Errorf("again (-want +got):\n%s", diff)
	}
	// Another class of the group itself.
	if err := base.WriteFile(h.mark("batch/a"), "none"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Apply(ctx, a); err != nil || uncovered != 2 {
		t.Errorf("uncovered %d times: %v", uncovered, err)
	}
	if got := h.shown()["eth0/htb/fff0"]; got != "rate 1000 ceil 5000000 prio 3" {
		t.Errorf("of no class: %q", got)
	}
	// The last class goes, and with it the discipline.
	if err := base.Rmdir("sys/net/eth0/htb"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Revert(ctx, a); err != nil {
		t.Error(err)
	}
	if got := h.shown(); len(got) > 0 || len(g.Notes()) > 0 {
		t.Errorf("left: %v, noted %v", got, g.Notes())
	}
	// A device that has another name by then is found all the same.
	if err := base.Mkdir("sys/net/eth2/htb"); err != nil {
		t.Fatal(err)
	}
	info, err := fs.Stat(base.FS(), "sys/net/eth2/htb")
	if err != nil {
		t.Fatal(err)
	}
	h.net.Rename("eth2", "wan0")
	if got := kernel.Renamed(base.FS(), "sys/net/eth2/htb", info.Sys().(*syscall.Stat_t).Ino); got != "sys/net/wan0/htb" {
		t.Errorf("renamed: %q", got)
	}
}
