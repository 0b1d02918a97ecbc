package guest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/place"
)

// weighed has io.cost take the disk for half of what it is, so that io.cost alone decides.
const weighed = `
classes:
  gold: [{devices: [vda], weight: 1000}]
  slow: [{devices: [vda], weight: 100}]
cost:
- devices: [vda]
  min: 100
  max: 100
  model: {readBPS: 1G, readSeqIOPS: 25, readRandIOPS: 25, writeBPS: 1G, writeSeqIOPS: 25, writeRandIOPS: 25}
`

// prioritized says whose operations mq-deadline hands to the disk first.
const prioritized = `
classes:
  gold: [{priority: best-effort/4}]
  slow: [{priority: idle}]
`

// little is a part of the disk that who has half of it is far from.
const little = 0.3

// TestIOWeight has two workloads read a disk by weights of 10 to 1.
func TestIOWeight(t *testing.T) {
	onlyOn(t, "2s4n")
	if got := slowShare(t, weighed, 25); got > little {
		t.Errorf("with a tenth of the weight, its share of the disk is %.2f", got)
	}
}

// TestIOPriority has the operations of one workload wait for those of another.
func TestIOPriority(t *testing.T) {
	onlyOn(t, "2s4n")
	schedule(t, "mq-deadline")
	if got := slowShare(t, prioritized, asked(t).Disk.IOPS); got > little {
		t.Errorf("with the priority idle, its share of the disk is %.2f", got)
	}
}

// slowShare has two workloads of the classes gold and slow read the virtio disk, and returns what
// part of all reads the second one got while the disk made as many as it can, about full per second:
// the least of three windows, or the first that is little.
// Where the guest never gets so far, the test is skipped.
func slowShare(t *testing.T, classes string, full int) float64 {
	t.Helper()
	h := newHost(t)
	config, err := blockio.Parse([]byte(classes), "classes")
	if err != nil {
		t.Fatal(err)
	}
	h.opt.Classes = agent.ClassConfig{IO: config}
	ctx := context.Background()
	n := h.open()
	names := [2]string{"gold", "slow"}
	var pids [2]int
	for i, name := range names {
		pids[i] = h.child(t, h.base.Child("session.slice/one"), "read at random")
		h.place(n, agent.Spec{
			Request: place.Request{ID: name, Class: place.LS}, PID: pids[i], Classes: map[agent.ClassKind]string{agent.IOClass: name},
		})
	}
	if _, err := n.Reconcile(ctx); err != nil { // io.cost is on by now: the weights of the disk
		t.Fatal(err)
	}
	share, busy, most := 1.0, 0, 0.0
	for try := 0; try < 40 && busy < 3 && share > little; try++ {
		time.Sleep(time.Second) // what is under way
		before, began := [2]float64{readOps(t, pids[0]), readOps(t, pids[1])}, time.Now()
		time.Sleep(2 * time.Second)
		a, b := readOps(t, pids[0])-before[0], readOps(t, pids[1])-before[1]
		rate := (a + b) / time.Since(began).Seconds()
		t.Logf("%.0f and %.0f reads, %.0f per second", a, b, rate)
		most = max(most, rate)
		// A host that gives the guest too little of its CPU does not keep the disk busy: there is
		// nothing to share. One that stops it for a while has what has waited share alike then.
		if rate > 0.8*float64(full) {
			busy, share = busy+1, min(share, b/(a+b))
		}
	}
	for _, name := range names {
		if err := n.Release(ctx, name, agent.Kill); err != nil {
			t.Fatal(err)
		}
	}
	if busy == 0 {
		t.Skipf("the disk was never as busy as it can be: %.0f reads per second at most, of %d", most, full)
	}
	return share
}

// randomBlock is what readAtRandom reads at once, in bytes.
const randomBlock = 4 << 10

// readAtRandom reads the virtio disk past the page cache, on and on, from more places at a time than
// the disk takes.
func readAtRandom(ready func()) error {
	const places, blocks = 16, 64 << 20 / randomBlock
	fd, err := unix.Open(path.Join("/dev", virtioDisk), unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for range places {
		go func() {
			data, err := unix.Mmap(-1, 0, randomBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			for err == nil {
				_, err = unix.Pread(fd, data, rand.Int64N(blocks)*randomBlock)
			}
			failed <- err
		}()
	}
	ready()
	return <-failed
}

// readOps is how many blocks a process has read with readAtRandom.
func readOps(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(line, "read_bytes:"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n / randomBlock
		}
	}
	t.Fatalf("no read_bytes of process %d", pid)
	return 0
}

// schedule gives the virtio disk an I/O scheduler until the test ends.
func schedule(t *testing.T, scheduler string) {
	t.Helper()
	file := "/sys/block/" + virtioDisk + "/queue/scheduler"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(text))
	was := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "[") })
	if was < 0 {
		t.Fatalf("%s: %q, want the scheduler in use in brackets", file, text)
	}
	set := func(scheduler string) {
		if err := os.WriteFile(file, []byte(scheduler), 0); err != nil {
			t.Errorf("%s: %v", scheduler, err)
		}
	}
	set(scheduler)
	t.Cleanup(func() { set(strings.Trim(words[was], "[]")) })
}
