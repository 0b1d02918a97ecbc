package guest

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// part is what a value is of.
type part struct {
	quantity watch.Quantity
	of       watch.Part
}

// samples are one reading of a group.
type samples map[part]float64

// reader opens everything that is told of a group.
func reader(t *testing.T, group string) *cgroupstat.Reader {
	t.Helper()
	tree := cgroupstat.Tree{Version: 2, Controllers: []string{"cpu", "cpuset", "io", "memory", "pids"}, Dir: "/" + v2}
	r, err := cgroupstat.Open([]cgroupstat.Tree{tree}, group)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// sample reads a group.
func sample(t *testing.T, group string) samples {
	t.Helper()
	read, err := reader(t, group).Read(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	values := samples{}
	for _, s := range read {
		values[part{s.Quantity, s.Subject.Part}] = s.Value
	}
	return values
}

// since subtracts an earlier reading.
func (s samples) since(before samples) samples {
	change := samples{}
	for of, value := range s {
		change[of] = value - before[of]
	}
	return change
}

// TestGroupSignals says which signals this kernel has.
func TestGroupSignals(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	tr.group(t, "signals")
	var absent []string
	for _, status := range reader(t, "signals").Signals() {
		if status.Err != nil {
			t.Logf("%v", status.Err)
			absent = append(absent, status.Signal.String())
		}
	}
	var want []string
	if !atLeast(6, 6) {
		want = append(want, cgroupstat.ThrottlingAny.String())
	}
	if _, err := os.Stat("/proc/pressure/irq"); err != nil { // CONFIG_IRQ_TIME_ACCOUNTING
		want = append(want, cgroupstat.IRQPressure.String())
	}
	if diff := cmp.Diff(want, absent); diff != "" {
		t.Errorf("absent signals (-want +got):\n%s", diff)
	}
}

// TestGroupMemory reads the statistics of a group with memory on one node, that
// is then frozen.
func TestGroupMemory(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	g := tr.group(t, "memory")
	tr.set(t, g, cgroup.Limits{Mems: cpuset.MustOf(1)})
	tr.child(t, g, "hold memory")
	tr.set(t, g, cgroup.Limits{Frozen: cgroup.On})
	await(t, func() bool { return sample(t, "memory")[part{quantity: watch.Frozen}] == 1 }) // some time after the kernel was told
	got := sample(t, "memory")
	const most = heldBytes * 9 / 10
	for _, check := range []struct {
		of       part
		min, max float64
	}{
		{part{quantity: watch.Memory}, heldBytes, 2 * heldBytes},
		{part{quantity: watch.MemoryAnon}, heldBytes, 2 * heldBytes},
		{part{watch.MemoryAnon, watch.Part{Kind: watch.Node, ID: 1}}, heldBytes, 2 * heldBytes},
		{part{watch.MemoryAnon, watch.Part{Kind: watch.Node, ID: 2}}, 0, heldBytes - most},
		{part{watch.MemoryFile, watch.Part{Kind: watch.Node, ID: 1}}, 0, heldBytes},
		{part{quantity: watch.PageFaults}, 1, heldBytes},
		{part{quantity: watch.Tasks}, 1, 100},
		{part{quantity: watch.CPUTime}, 1e-3, 100},
		{part{quantity: watch.CPUUser}, 0, 100},
		{part{quantity: watch.CPUSystem}, 0, 100},
		{part{quantity: watch.CPUSome}, 0, 100},
		{part{quantity: watch.MemoryFull}, 0, 100},
		{part{quantity: watch.IOFull}, 0, 100},
		{part{quantity: watch.Populated}, 1, 1},
		{part{quantity: watch.Frozen}, 1, 1},
		{part{quantity: watch.MemoryOOMKills}, 0, 0},
	} {
		if value, ok := got[check.of]; !ok || value < check.min || value > check.max {
			t.Errorf("%v %v: %v (%v), want %v to %v", check.of.quantity, check.of.of, value, ok, check.min, check.max)
		}
	}
}

// TestGroupOOM has the kernel kill for a group's limit.
func TestGroupOOM(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	g := tr.group(t, "oom")
	tr.set(t, g, cgroup.Limits{MemoryMax: heldBytes / 2})
	cmd := tr.command(t, g, "hold memory")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if n, _ := out.Read(make([]byte, 1)); n > 0 {
		t.Error("it holds twice the limit")
		cmd.Process.Kill()
	}
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("holding twice the limit: %v, want it killed", err)
	}
	got := sample(t, "oom")
	if kills, hits := got[part{quantity: watch.MemoryOOMKills}], got[part{quantity: watch.MemoryMax}]; kills != 1 || hits < 1 {
		t.Errorf("%v kills, %v times at the limit; want 1 and more than 0", kills, hits)
	}
}

// TestGroupIO writes a known amount.
func TestGroupIO(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	g := tr.group(t, "io")
	plan, err := g.Attach(os.Getpid())
	tr.apply(t, plan, err)
	writeDisk(t, nullDisk, 4*diskBlock)
	var major, minor int
	if _, err := fmt.Sscanf(blockDevice(t, nullDisk), "%d:%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	device := watch.Part{Kind: watch.Device, ID: watch.DeviceID(major, minor)}
	got := sample(t, "io")
	bytes, writes := got[part{watch.IOWritten, device}], got[part{watch.IOWrites, device}]
	if bytes != 4*diskBlock || writes != 4 {
		t.Errorf("%v bytes in %v writes, want %d in 4: %v", bytes, writes, 4*diskBlock, got)
	}
}
