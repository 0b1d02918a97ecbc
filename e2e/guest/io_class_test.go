package guest

import (
	"context"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/sched"
	"berth.dev/berth/place"
)

// ioClasses limit a disk, weigh it by io.cost, and put its processes last.
const ioClasses = `
classes:
  slow:
  - {weight: 50, priority: best-effort/7}
  - {devices: [vd*], writeBPS: 1Mi, weight: 20}
cost: [{devices: [/dev/vda], min: 100, max: 100}]
`

// TestIOClass has a node give this process an I/O class: the disk is as slow as that says, and
// the process has its priority. Released, all is as it was.
func TestIOClass(t *testing.T) {
	onlyOn(t, "2s4n")
	h := newHost(t)
	config, err := blockio.Parse([]byte(ioClasses), "classes")
	if err != nil {
		t.Fatal(err)
	}
	h.opt.Classes = agent.ClassConfig{IO: config}
	ctx := context.Background()
	n := h.open()
	pid := os.Getpid()
	w, err := n.Place(ctx, agent.Spec{
		Request: place.Request{ID: "slow", Class: place.LS}, PID: pid, Classes: map[agent.ClassKind]string{agent.IOClass: "slow"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reconcile(ctx); err != nil { // io.cost is on by now: the weight of the disk
		t.Fatal(err)
	}
	device := blockDevice(t, virtioDisk)
	for name, want := range map[string]string{
		"io.max": device + " rbps=max wbps=1048576 riops=max wiops=max", "io.weight": device + " 20",
	} {
		if got := h.text(t, w.Group, name); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	priority := func() string {
		p, err := kernel.ReadProcess(h.FS(), strconv.Itoa(pid))
		if err != nil {
			t.Fatal(err)
		}
		text, err := fs.ReadFile(sched.Over(h.Root).FS(), sched.IOPriorityFile(pid, p.Start))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	if got := priority(); got != "best-effort/7" {
		t.Errorf("priority: %s", got)
	}
	const rate = 1 << 20
	if took := writeDisk(t, virtioDisk, 2*rate); took < 1900*time.Millisecond {
		t.Errorf("%d bytes at %d bytes/s took %v", 2*rate, rate, took)
	}
	if got := h.text(t, "", blockio.CostQoS); !strings.Contains(got, device+" enable=1") {
		t.Errorf("io.cost.qos: %q", got)
	}
	if err := n.Release(ctx, "slow", agent.Keep); err != nil {
		t.Fatal(err)
	}
	if got := priority(); got == "best-effort/7" {
		t.Errorf("released, its priority is still %s", got)
	}
	if got := h.text(t, "", blockio.CostQoS); !strings.Contains(got, device+" enable=0") {
		t.Errorf("released, io.cost.qos: %q", got)
	}
	if _, err := os.Stat(path.Join("/", v2, w.Group)); err == nil {
		t.Error("the group is left")
	}
}
