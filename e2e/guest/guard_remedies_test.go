package guest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
	"berth.dev/berth/place"
)

// hand is a guard's loop that acts on this kernel while the test says what is found
// and what time it is: so remedies that need a rare disturbance, or minutes, are seen
// at work within a second.
type hand struct {
	*guardTest
	act      *actuate.Host
	loop     *control.Loop
	now      time.Time
	resource detect.Resource
	remedies []detect.Remedy
	strength float64            // of the victim's symptom
	use      map[string]float64 // CPUs, by group
	cpus     cpuset.Set
	before   map[string]string
}

// byHand makes a loop that has some remedies for a resource.
func (g *guardTest) byHand(r detect.Resource, remedies ...detect.Remedy) *hand {
	t := g.t
	t.Helper()
	act, err := actuate.Open(actuate.Options{Root: g.Root, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	h := &hand{guardTest: g, act: act, now: time.Unix(1e9, 0), resource: r, remedies: remedies, use: map[string]float64{}}
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	h.cpus = cpuset.MustParse(strings.TrimSpace(string(online)))
	h.loop, err = control.New(control.Config{Mode: control.Enforce, Now: func() time.Time { return h.now }}, act)
	if err != nil {
		t.Fatal(err)
	}
	h.before = h.knobs()
	t.Cleanup(func() {
		h.loop.Release(t.Context())
		if err := act.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// handGroups are those that the loop knows.
func handGroups() []string {
	return []string{sensitiveGroup, effortTop, effortTop + "/jobs", effortGroup}
}

// knobs are all settings that remedies write, in all groups.
func (h *hand) knobs() map[string]string {
	h.t.Helper()
	all := map[string]string{}
	for _, group := range handGroups() {
		knobs, err := h.base.Child(group).Knobs()
		if err != nil {
			h.t.Fatal(err)
		}
		for _, k := range knobs {
			all[group+"/"+k.File] = k.Value
		}
	}
	return all
}

// Symptom implements control.Symptoms.
func (h *hand) RunDelay(string, string, int) (detect.RunDelay, bool) { return detect.RunDelay{}, false }

func (h *hand) Symptom(group string, r detect.Resource) (detect.Symptom, bool) {
	return detect.Symptom{Strength: h.strength}, group == sensitiveGroup && r == h.resource
}

// step is a window of one second.
func (h *hand) step() []control.Event {
	h.t.Helper()
	h.now = h.now.Add(time.Second)
	in := control.Input{Symptoms: h, Host: control.Host{
		CPUs: h.cpus, Use: float64(h.cpus.Len()), Unavailable: h.act.Unavailable(), NoIdle: h.act.NoIdle(),
	}}
	for _, group := range handGroups() {
		s, err := h.act.Settings(group)
		if err != nil {
			h.t.Fatal(err)
		}
		memory, err := strconv.ParseInt(h.text(h.t, group, "memory.current"), 10, 64)
		if err != nil {
			h.t.Fatal(err)
		}
		w := control.Workload{Group: group, Class: place.BE, CPUs: s.CPUs, Limits: s.Limits, Memory: memory, Use: h.use[group]}
		if group == sensitiveGroup {
			w.Class = place.LS
		}
		in.Workloads = append(in.Workloads, w)
	}
	if h.strength >= 1 {
		in.Findings = []detect.Finding{{Victim: sensitiveGroup, Suspect: effortGroup, Resource: h.resource, Confidence: 0.8, Remedies: h.remedies}}
	}
	events := h.loop.Step(h.t.Context(), in)
	for _, e := range events {
		h.t.Logf("%v", e)
	}
	return events
}

// until takes steps until the loop has said something, and returns that event.
func (h *hand) until(o control.Outcome) control.Event {
	h.t.Helper()
	for range 60 {
		events := h.step()
		if i := slices.IndexFunc(events, func(e control.Event) bool { return e.Outcome == o }); i >= 0 {
			return events[i]
		}
	}
	h.t.Fatalf("no event %v within 60 windows", o)
	return control.Event{}
}

// release gives all back, and compares.
func (h *hand) release() {
	h.t.Helper()
	h.end()
	h.compare()
}

// end gives all back.
func (h *hand) end() {
	h.t.Helper()
	for _, e := range h.loop.Release(h.t.Context()) {
		if e.Outcome != control.Reverted {
			h.t.Errorf("released: %v", e)
		}
	}
}

// compare compares the settings with those before the loop.
func (h *hand) compare() {
	h.t.Helper()
	if diff := cmp.Diff(h.before, h.knobs()); diff != "" {
		h.t.Errorf("after the release (-before +after):\n%s", diff)
	}
	if notes := h.act.Notes(); len(notes) > 0 {
		h.t.Errorf("still noted: %+v", notes)
	}
}

// TestGuardShrinksCPUs takes the victim's CPUs away from a neighbour, whose process
// then may not use them, and gives them back.
func TestGuardShrinksCPUs(t *testing.T) {
	onlyOn(t, "flat8")
	g := newGuardTest(t, cpuset.MustParse("0-7"))
	h := g.byHand(detect.CPU, detect.ShrinkCPUs)
	pid := g.child(t, g.base.Child(effortGroup), "sleep")
	if got := allowed(t, pid); got != cpuset.MustParse("0-7") {
		t.Fatalf("the neighbour may use CPUs %v", got)
	}
	h.strength = 4
	h.until(control.Applied)
	if got := allowed(t, pid); got.Len() != 4 {
		t.Errorf("the neighbour may use CPUs %v, want four", got)
	}
	h.strength = 0.5
	h.until(control.Kept)
	h.until(control.OnTrial) // a tenth of the node, rounded up
	if got := allowed(t, pid); got.Len() != 5 {
		t.Errorf("on trial, the neighbour may use CPUs %v, want five", got)
	}
	h.end()
	if got := allowed(t, pid); got != cpuset.MustParse("0-7") {
		t.Errorf("after the release the neighbour may use CPUs %v", got)
	}
	// Before Linux 7 a set that was empty can be so again only without processes.
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return strings.Contains(g.text(t, effortGroup, "cgroup.events"), "populated 0") })
	if _, err := h.act.Restore(); err != nil {
		t.Error(err)
	}
	h.compare()
}

// TestGuardMemoryHigh has the kernel take the page cache of a neighbour away, down to
// the floor that best-effort work keeps.
func TestGuardMemoryHigh(t *testing.T) {
	onlyOn(t, "2s4n")
	g := newGuardTest(t, cpuset.MustParse("0-31"))
	h := g.byHand(detect.Memory, detect.MemoryHigh)
	g.child(t, g.base.Child(effortGroup), "cache a disk")
	current := func() int64 {
		n, err := strconv.ParseInt(g.text(t, effortGroup, "memory.current"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	had := current()
	if want := int64(80 << 20); had < want { // 90 % of it are more than the floor of 64 MiB
		t.Fatalf("the neighbour has %d bytes, want at least %d", had, want)
	}
	h.strength = 4
	e := h.until(control.Applied)
	high := e.Action.Limits.MemoryHigh
	if now := current(); high > had*91/100 || now > high || now < had/2 {
		t.Errorf("the neighbour had %d bytes, may have %d and has %d", had, high, now)
	}
	h.strength = 0.5
	h.until(control.Kept)
	h.release()
}

// cacheDisk reads 96 MiB of a disk through the page cache, which has them as long as
// somebody has the disk open, unless the kernel wants some of the memory back.
func cacheDisk() error {
	fd, err := unix.Open("/dev/"+nullDisk, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	data := make([]byte, 1<<20)
	for at := 0; at < 96<<20; {
		n, err := unix.Read(fd, data)
		if err != nil {
			return err
		}
		at += n
	}
	return nil
}

// TestGuardIOWeight has two groups read a disk that gives 8 MiB per second (by
// io.cost): the neighbour gets half of it, and less once its weight is lower, where
// the paths of the two diverge.
func TestGuardIOWeight(t *testing.T) {
	onlyOn(t, "2s4n")
	onlyThorough(t)
	g := newGuardTest(t, cpuset.MustParse("0-31"))
	slowDisk(t, g)
	h := g.byHand(detect.IO, detect.IOWeight)
	for _, group := range []string{sensitiveGroup, effortGroup} {
		g.child(t, g.base.Child(group), "read a disk")
	}
	share := func() float64 {
		const busy = 0.8 * 7.5 // MiB per second: the model's costs of a read and of its pages come to 7.5
		for range 20 {
			time.Sleep(500 * time.Millisecond) // what is under way
			before, began := [2]float64{readBytes(t, g, sensitiveGroup), readBytes(t, g, effortGroup)}, time.Now()
			time.Sleep(2 * time.Second)
			a, b := readBytes(t, g, sensitiveGroup)-before[0], readBytes(t, g, effortGroup)-before[1]
			rate := (a + b) / (1 << 20) / time.Since(began).Seconds()
			t.Logf("%.1f MiB and %.1f MiB, %.1f MiB/s", a/(1<<20), b/(1<<20), rate)
			if rate > busy {
				return b / (a + b)
			}
			// The host gave the guest too little of its CPU to keep the disk busy: there was
			// nothing to share.
		}
		t.Fatal("the disk was at no time as busy as it can be")
		return 0
	}
	if got := share(); got < 0.35 || got > 0.65 {
		t.Errorf("the neighbour's share is %.2f, want half", got)
	}
	h.strength = 20
	h.until(control.Applied)
	if got := share(); got > 0.2 {
		t.Errorf("with a tenth of the weight, the neighbour's share is %.2f", got)
	}
	h.strength = 0.5
	h.until(control.Kept)
	h.release()
}

// slowDisk has io.cost share out a disk of 8 MiB per second, until the test ends.
func slowDisk(t *testing.T, g *guardTest) {
	t.Helper()
	device := blockDevice(t, nullDisk)
	for _, line := range []string{
		"io.cost.model " + device + " ctrl=user model=linear rbps=8388608 rseqiops=1000 rrandiops=1000 wbps=8388608 wseqiops=1000 wrandiops=1000",
		"io.cost.qos " + device + " enable=1 ctrl=user rpct=0 wpct=0 min=100 max=100",
	} {
		file, value, _ := strings.Cut(line, " ")
		g.write(t, "", file, value)
	}
	t.Cleanup(func() { g.write(t, "", "io.cost.qos", device+" enable=0") })
}

// readBytes is what a group has read of disks.
func readBytes(t *testing.T, g *guardTest, group string) float64 {
	t.Helper()
	var sum float64
	for word := range strings.FieldsSeq(g.text(t, group, "io.stat")) {
		if text, ok := strings.CutPrefix(word, "rbytes="); ok {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

// readDisk reads a disk past the page cache, on and on.
func readDisk(ready func()) error {
	const atOnce = 64 << 10
	fd, err := unix.Open("/dev/"+nullDisk, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	data, err := unix.Mmap(-1, 0, atOnce, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	ready()
	for i := int64(0); ; i++ {
		if _, err := unix.Pread(fd, data, i%1024*atOnce); err != nil {
			return err
		}
	}
}

// TestGuardYields has somebody else set a knob again and again that the guard holds:
// it sets it twice, then leaves it to them, and gives back nothing of theirs.
func TestGuardYields(t *testing.T) {
	onlyOn(t, "flat8")
	g := newGuardTest(t, cpuset.MustParse("0-7"))
	h := g.byHand(detect.CPU, detect.Weight)
	h.strength = 4
	h.until(control.Applied)
	h.strength = 0.5
	h.until(control.Kept)
	for i := range 3 {
		if got := g.text(t, effortTop, "cpu.idle"); got != "1" {
			t.Fatalf("change %d: cpu.idle is %s, want 1", i+1, got)
		}
		g.write(t, effortTop, "cpu.idle", "0")
		g.write(t, effortTop, "cpu.weight", fmt.Sprint(70+i))
		if i < 2 {
			h.until(control.Restored)
			continue
		}
		if e := h.until(control.Yielded); !e.Alert || !strings.Contains(e.Text, "cpu.idle") {
			t.Errorf("%v, want an alert about cpu.idle", e)
		}
	}
	for range 30 {
		h.step()
	}
	h.before[effortTop+"/cpu.weight"] = "72" // theirs
	h.before[effortTop+"/cpu.weight.nice"] = "2"
	h.release()
	g.write(t, effortTop, "cpu.weight", "100")
}

// TestGuardFloor has an idle neighbour go short beside somebody who wants the whole
// CPU: it gets a weight instead, and with that its floor.
func TestGuardFloor(t *testing.T) {
	onlyOn(t, "virtual4")
	onlyThorough(t)
	g := newGuardTest(t, cpuset.MustOf(2))
	h := g.byHand(detect.CPU, detect.Weight)
	victim, neighbour := g.base.Child(sensitiveGroup), g.base.Child(effortGroup)
	g.child(t, victim, "spin")
	g.child(t, neighbour, "spin")
	share := func() float64 {
		before := [2]time.Duration{usage(t, victim), usage(t, neighbour)}
		time.Sleep(time.Second)
		a, b := usage(t, victim)-before[0], usage(t, neighbour)-before[1]
		return float64(b) / float64(a+b)
	}
	h.use[effortTop], h.strength = 0.5, 4
	h.until(control.Applied)
	idle := share()
	if idle > 0.02 {
		t.Errorf("idle, the neighbour has %.3f of the CPU", idle)
	}
	h.use[effortTop], h.strength = idle, 0.5
	h.until(control.Relaxed)
	if got := share(); got < 0.04 || got > 0.1 {
		t.Errorf("with its floor, the neighbour has %.3f of the CPU, want about 0.05", got)
	}
	h.release()
}
