package agent

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fakenet"
	"berth.dev/berth/internal/fakespeed"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// fate is what happens to a process at one of its changes, of the kernel's
// files and of the records, counted together.
type fate struct {
	count, at int
	after     bool  // the change takes effect before
	err       error // it fails with this; nil kills the process
	each      func()
}

func (f *fate) change(do func() error) error {
	f.count++
	hit := f.count == f.at
	if hit && f.err != nil {
		return f.err
	}
	if hit && !f.after {
		panic(fakekernel.Killed{})
	}
	err := do()
	if f.each != nil {
		f.each()
	}
	if hit {
		panic(fakekernel.Killed{})
	}
	return err
}

// doomed are the kernel's files for a process with a fate.
type doomed struct {
	*fakekernel.Kernel
	*fate
}

func (d doomed) WriteFile(name, data string) error {
	return d.change(func() error { return d.Kernel.WriteFile(name, data) })
}

func (d doomed) Mkdir(name string) error {
	return d.change(func() error { return d.Kernel.Mkdir(name) })
}

func (d doomed) Rmdir(name string) error {
	return d.change(func() error { return d.Kernel.Rmdir(name) })
}

// doom opens a node without settling it, for a process with a fate.
func (h *host) doom(f *fate) *Node {
	h.t.Helper()
	net, speed := h.net, h.speed
	h.files = doomed{h.k, f}
	if net, ok := net.(*fakenet.Network); ok {
		h.net = doomedNet{net, f}
	}
	if device, ok := speed.(*fakespeed.Device); ok {
		h.speed = doomedSpeed{device, f}
	}
	n, err := newNode(h.options())
	h.files, h.net, h.speed = h.k, net, speed
	if err != nil {
		h.t.Fatal(err)
	}
	n.touch = func(string) error { return f.change(func() error { return nil }) }
	return n
}

// survives runs do and reports whether it came to its end; if not, the process
// is dead.
func survives(n *Node, do func()) (alive bool) {
	if alive = fakekernel.Survives(do); !alive && n.held != nil {
		n.held.close()
	}
	return alive
}

// killedAtEach is fakekernel.KillAtEach with fates.
func killedAtEach(t *testing.T, step, least int, run func(f *fate) (alive bool)) {
	t.Helper()
	fakekernel.KillAtEach(t, step, least, func(at int, after bool) bool { return run(&fate{at: at, after: after}) })
}

// restoredAfter has a process with a fate do something, and restores everything.
func (h *host) restoredAfter(f *fate, do func(*Node)) (alive bool) {
	h.t.Helper()
	n := h.doom(f)
	if alive = survives(n, func() { do(n) }); alive {
		n.Close()
	}
	opt := h.options()
	opt.Keep = false
	if items, err := Restore(context.Background(), opt); err != nil {
		h.t.Fatalf("restore: %v\n%v", err, items)
	}
	return alive
}

// isRestored checks that of some files each is there that was before, with the same words, and no other one.
func (h *host) isRestored(before map[string]string, about func(name string) bool) {
	h.t.Helper()
	words := func(text string) []string { return slices.Sorted(strings.FieldsSeq(text)) }
	now := h.tree()
	for name, text := range before {
		if about(name) && !slices.Equal(words(now[name]), words(text)) {
			h.t.Errorf("/%s is %q, was %q", name, now[name], text)
		}
	}
	for name := range now {
		if _, was := before[name]; !was && about(name) {
			h.t.Errorf("/%s is left", name)
		}
	}
}

// op is something that a process does to a node.
type op struct {
	name string
	id   string
	do   func(*Node) error
}

func ops(rng *rand.Rand) []op {
	ctx := context.Background()
	add := func(s Spec) op {
		return op{"place " + s.Request.ID, s.Request.ID, func(n *Node) error { _, err := n.Place(ctx, s); return err }}
	}
	api, db := spec("api", place.LSE, 2000, 9000101), spec("db", place.LSE, 1000+1000*rng.IntN(2), 9000102)
	db.Limits = cgroup.Limits{Weight: 200, MemoryMax: 1 << 20}
	batch := spec("batch", place.BE, 500, 9000100)
	web := spec("web", place.LS, 1000, 0)
	web.Group = "web.slice"
	web.Limits = cgroup.Limits{Weight: 300}
	best, plain := spec("web", place.BE, 1000, 0), spec("web", place.LS, 1000, 0)
	resize := func(name string, s Spec) op {
		return op{name, s.Request.ID, func(n *Node) error { _, err := n.Resize(ctx, s); return err }}
	}
	bigger := api
	bigger.Request.Milli = 1000 + 1000*rng.IntN(3)
	bigger.Limits.Weight = 50 * rng.IntN(3)
	release := func(id string) op {
		return op{"release " + id, id, func(n *Node) error { return n.Release(ctx, id, Kill) }}
	}
	move := func(id, cpus string) op {
		return op{"move " + id, id, func(n *Node) error {
			_, err := n.Move(ctx, id, cpuset.MustParse(cpus), cpuset.Set{})
			return err
		}}
	}
	return []op{
		add(batch), add(api), add(db), add(web),
		resize("resize api", bigger),
		resize("web becomes best effort", best), resize("web becomes sensitive", plain),
		move("api", "6-7"), move("db", "4-5"), move("api", "2-3"),
		{"release api, keeping its processes", "api", func(n *Node) error { return n.Release(ctx, "api", Keep) }},
		add(api), release("api"), release("db"), release("web"), release("batch"),
	}
}

// world is a host with groups that are not Berth's, and a log of who is where.
type world struct {
	*host
	cpusets  string // the directory of the cpuset hierarchy
	original map[string]string
	log      []map[string]cpuset.Set // after each change: CPUs of populated groups
}

func newWorld(t testing.TB, l fakekernel.Layout) *world {
	w := &world{host: newHost(t, l), cpusets: "sys/fs/cgroup"}
	w.opt.Confine = []string{"*"}
	if len(l.V1) > 0 {
		w.cpusets = "sys/fs/cgroup/cpuset"
	}
	dirs := []string{w.cpusets}
	if len(l.V1) > 0 {
		dirs = dirs[:0]
		for _, list := range l.V1 {
			dirs = append(dirs, "sys/fs/cgroup/"+list)
		}
		if l.V2 != "" {
			dirs = append(dirs, l.V2)
		}
	}
	for _, dir := range dirs {
		for _, name := range []string{"system.slice", "system.slice/sshd.service", "web.slice"} {
			if err := w.k.Mkdir(dir + "/" + name); err != nil {
				t.Fatal(err)
			}
			if dir == w.cpusets && len(l.V1) > 0 {
				w.write(dir+"/"+name+"/cpuset.mems", "0-1")
				w.write(dir+"/"+name+"/cpuset.cpus", "0-7")
			}
		}
	}
	if err := w.k.Exit("9000103"); err != nil {
		t.Fatal(err)
	}
	w.populate()
	dir, file := w.cpuDir()
	if file == "cpu.weight" {
		w.write(dir+"/cgroup.subtree_control", "+cpu")
	}
	w.write(dir+"/web.slice/"+file, webWeight)
	w.original = w.tree()
	return w
}

// webWeight is the weight or the shares of web.slice, before Berth.
const webWeight = "250"

// cpuDir is the directory of the hierarchy with the cpu controller, and file the one of
// a group's weight there.
func (w *world) cpuDir() (dir, file string) {
	for dir, file := range map[string]string{"sys/fs/cgroup/cpu": "cpu.shares", "sys/fs/cgroup/cpu,cpuacct": "cpu.shares"} {
		if _, err := os.Stat(path.Join(w.dir, dir)); err == nil {
			return dir, file
		}
	}
	return "sys/fs/cgroup", "cpu.weight"
}

// settings checks that the group that is not Berth's has what its workload's class and
// limits say, and else what it had before.
func (w *world) settings(name string, all []Workload) {
	w.t.Helper()
	idle, weight := "0", webWeight
	dir, file := w.cpuDir()
	for _, x := range all {
		switch {
		case x.ID() != "web":
		case x.Spec.Request.Class == place.BE:
			idle, weight = "1", ""
		case x.Spec.Limits.Weight == 300:
			weight = map[string]string{"cpu.weight": "300", "cpu.shares": "3072"}[file]
		}
	}
	tree := w.tree()
	if got := strings.TrimSpace(tree[dir+"/web.slice/cpu.idle"]); got != idle {
		w.t.Errorf("%s: cpu.idle is %q, not %q", name, got, idle)
	}
	if got := strings.TrimSpace(tree[dir+"/web.slice/"+file]); weight != "" && got != weight {
		w.t.Errorf("%s: %s is %q, not %q", name, file, got, weight)
	}
}

// populate starts the processes of the groups that are not Berth's.
func (w *world) populate() {
	w.t.Helper()
	for pid, group := range map[string]string{"9000103": "system.slice/sshd.service", "9000104": "web.slice"} {
		if err := w.k.Start(pid); err != nil {
			w.t.Fatal(err)
		}
		w.write(w.cpusets+"/"+group+"/cgroup.procs", pid)
	}
}

func (w *world) write(name, value string) {
	w.t.Helper()
	if err := w.k.WriteFile(name, value); err != nil {
		w.t.Fatal(err)
	}
}

// processes starts again what was killed.
func (w *world) processes() {
	for pid := 9000100; pid < 9000103; pid++ {
		if _, err := fs.Stat(w.k.FS(), "proc/"+strconv.Itoa(pid)); err != nil {
			if err := w.k.Start(strconv.Itoa(pid)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// look adds to the log where the processes may run.
func (w *world) look() {
	at := map[string]cpuset.Set{}
	w.populated(w.cpusets, at)
	w.log = append(w.log, at)
}

func (w *world) populated(dir string, at map[string]cpuset.Set) {
	entries, err := os.ReadDir(path.Join(w.dir, dir))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "user.slice" {
			continue
		}
		child := dir + "/" + e.Name()
		if procs, _ := kernel.ReadText(w.k.FS(), child+"/cgroup.procs"); procs != "" {
			for _, file := range []string{"cpuset.cpus.effective", cpusFile} {
				if text, err := kernel.ReadText(w.k.FS(), child+"/"+file); err == nil {
					at[strings.TrimPrefix(child, w.cpusets+"/")] = cpuset.MustParse(text)
					break
				}
			}
		}
		w.populated(child, at)
	}
}

// owned are the exclusive CPUs of each workload's group.
func owned(all []Workload) map[string]cpuset.Set {
	own := map[string]cpuset.Set{}
	for _, w := range all {
		if !w.Grant.Own.IsEmpty() {
			own[w.Group] = w.Grant.Own
		}
	}
	return own
}

// exclusive checks the log: at no instant was a CPU that a workload owns,
// before or after, both there and somewhere else.
func (w *world) exclusive(name string, before, after []Workload) {
	w.t.Helper()
	a, b := owned(before), owned(after)
	for i, at := range w.log {
		for group, cpus := range at {
			own := a[group].Union(b[group]).Intersect(cpus)
			if own.IsEmpty() {
				continue
			}
			for other, theirs := range at {
				if other != group && own.Overlaps(theirs) {
					w.t.Errorf("%s: after change %d, %s and %s are both on %s", name, i+1, group, other, own.Intersect(theirs))
				}
			}
		}
	}
	w.log = nil
}

func (w *world) list(n *Node) []Workload {
	w.t.Helper()
	all, err := n.List(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// except returns the workloads but one, as far as others must not change them.
func except(all []Workload, id string) []Workload {
	var rest []Workload
	for _, w := range all {
		if w.ID() != id {
			w.CPUs, w.Grant = cpuset.Set{}, bareGrant(&w)
			rest = append(rest, w)
		}
	}
	return rest
}

func bareGrant(w *Workload) *place.Grant {
	g := *w.Grant
	g.Why = nil
	return &g
}

// settled opens the node anew and checks that the kernel is as the records say.
func (w *world) settled(name string) (*Node, []Workload) {
	w.t.Helper()
	n := w.open()
	all := w.list(n)
	repairs, err := n.Reconcile(context.Background())
	if err != nil || len(repairs) > 0 {
		w.t.Errorf("%s: after opening again, the kernel differs from the books: %v, %v", name, repairs, err)
	}
	w.settings(name, all)
	groups := map[string]bool{}
	for _, x := range all {
		groups[x.Group] = true
	}
	for _, parent := range []string{ownGroup, idleGroup} {
		entries, _ := os.ReadDir(path.Join(w.dir, w.cpusets, parent))
		for _, e := range entries {
			if e.IsDir() && !groups[parent+"/"+e.Name()] {
				w.t.Errorf("%s: group %s is left over", name, e.Name())
			}
		}
	}
	return n, all
}

// restored gives everything back and checks that it is.
func (w *world) restored(name string) {
	w.t.Helper()
	n, err := newNode(w.options())
	if err != nil {
		w.t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Restore(context.Background()); err != nil {
		w.t.Errorf("%s: restore: %v", name, err)
	}
	w.emptied(n)
	w.processes()
	want, got := w.original, w.tree()
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Fatalf("%s: restore (-want +got):\n%s", name, diff)
	}
}

// emptied restores once more while the groups that are not Berth's are empty: a
// v2 set that was empty cannot be made so again while it holds processes.
func (w *world) emptied(n *Node) {
	w.t.Helper()
	if err := w.k.Exit("9000103"); err != nil {
		w.t.Fatal(err)
	}
	if err := w.k.Exit("9000104"); err != nil {
		w.t.Fatal(err)
	}
	if _, err := n.Restore(context.Background()); err != nil {
		w.t.Errorf("restore: %v", err)
	}
	w.populate()
}

// Wherever a process is killed, opening again leaves every other grant as it
// was and the kernel as the records say; giving everything back leaves the tree
// as it was before Berth. BERTH_CRASHES is how many kills instead of 12.
func TestKilledAtRandomPoints(t *testing.T) {
	t.Parallel()
	kills := crashes(t, 12)
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(7, uint64(len(name))))
			w := newWorld(t, layout)
			for done := 0; done < kills/3+1; {
				if w.killOnce(rng) {
					done++
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

// killOnce does something and is killed meanwhile; false if it came to its end.
func (w *world) killOnce(rng *rand.Rand) (died bool) {
	w.processes()
	n := w.open()
	before := w.list(n)
	n.Close()
	all := ops(rng)
	o := all[rng.IntN(len(all))]
	f := &fate{at: 1 + rng.IntN(30), after: rng.IntN(2) == 0, each: w.look}
	name := fmt.Sprintf("%s, killed at %d, after %v", o.name, f.at, f.after)
	doomed := w.doom(f)
	died = !survives(doomed, func() { _ = o.do(doomed) })
	if died && rng.IntN(4) == 0 {
		w.exclusive(name, before, before)
		w.restored(name)
		return died
	}
	n, after := w.settled(name)
	defer n.Close()
	w.exclusive(name, before, after)
	if diff := cmp.Diff(except(before, o.id), except(after, o.id), cmp.Comparer(func(a, b cpuset.Set) bool { return a == b })); diff != "" {
		w.t.Errorf("%s: other workloads (-before +after):\n%s", name, diff)
	}
	return died
}

// Each operation is killed before and after its every change, of the kernel's
// files and of the records. Opening again comes to either what was before or
// what was to be. Without BERTH_CRASHES each operation is killed once, at a change
// that depends on the layout.
func TestKilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	every := os.Getenv("BERTH_CRASHES") != ""
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(11, uint64(name[len(name)-1])))
			for i, changes := range newWorld(t, layout).changes() {
				first, last := 1, changes
				if !every {
					first = 1 + rng.IntN(changes)
					last = first
				}
				sides := []bool{false, true}
				if !every {
					sides = []bool{rng.IntN(2) == 0}
				}
				for at := first; at <= last; at++ {
					for _, after := range sides {
						if !newWorld(t, layout).killAt(i, at, after) {
							t.Errorf("operation %d: change %d of %d kills nobody", i, at, changes)
						}
						if t.Failed() {
							return
						}
					}
				}
			}
		})
	}
}

// changes does all operations and returns of how many changes each is.
func (w *world) changes() (counts []int) {
	w.t.Helper()
	f := &fate{}
	n := w.doom(f)
	defer n.Close()
	for _, o := range ops(fixed()) {
		w.processes()
		f.count = 0
		if err := o.do(n); err != nil {
			w.t.Fatalf("%s: %v", o.name, err)
		}
		counts = append(counts, f.count)
	}
	return counts
}

func fixed() *rand.Rand { return rand.New(rand.NewPCG(3, 3)) }

// killAt does the operations up to number i, and that one until it is killed.
func (w *world) killAt(i, at int, after bool) (died bool) {
	w.t.Helper()
	all := ops(fixed())
	var before []Workload
	if i == 0 { // the operation stores the settings of the node, too
		w.processes()
	} else {
		n := w.open()
		for _, o := range all[:i] {
			w.processes()
			if err := o.do(n); err != nil {
				w.t.Fatalf("%s: %v", o.name, err)
			}
		}
		w.processes()
		before = w.list(n)
		n.Close()
	}
	f := &fate{at: at, after: after, each: w.look}
	name := fmt.Sprintf("%s, killed at %d, after %v", all[i].name, at, after)
	doomed := w.doom(f)
	died = !survives(doomed, func() {
		if err := all[i].do(doomed); err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	})
	n, now := w.settled(name)
	defer n.Close()
	w.exclusive(name, before, now)
	same := cmp.Comparer(func(a, b cpuset.Set) bool { return a == b })
	if diff := cmp.Diff(except(before, all[i].id), except(now, all[i].id), same); diff != "" {
		w.t.Errorf("%s: other workloads (-before +after):\n%s", name, diff)
	}
	return died
}

// An error from any change leaves everything as it was. BERTH_CRASHES tries every
// change; else it is one of forty.
func TestErrorsLeaveEverythingAsItWas(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, layout)
			rng := rand.New(rand.NewPCG(3, 3))
			stride, sample := 1, rand.New(rand.NewPCG(13, uint64(name[len(name)-1])))
			if os.Getenv("BERTH_CRASHES") == "" {
				stride = 40
			}
			for _, o := range ops(rng) {
				for at := 1 + sample.IntN(stride); ; at += stride {
					if w.failOnce(o, at, []error{syscall.ENOSPC, syscall.EBUSY, syscall.EINVAL, syscall.EPERM}[at%4]) {
						break
					}
					if t.Failed() {
						return
					}
				}
			}
			w.restored("at the end")
		})
	}
}

// widened is got with those v2 sets empty again that were so before and cannot be
// made so again while they hold processes.
func widened(before, got map[string]string) map[string]string {
	for name, text := range got {
		if before[name] == "" && text != "" && (text == before[name+".effective"]) {
			got[name] = ""
		}
	}
	return got
}

// failOnce reports whether the operation went well.
func (w *world) failOnce(o op, at int, cause error) (done bool) {
	w.t.Helper()
	w.processes()
	n := w.open()
	before := w.list(n)
	n.Close()
	tree := w.tree()
	name := fmt.Sprintf("%s, %v at %d", o.name, cause, at)
	f := &fate{at: at, err: cause, each: w.look}
	doomed := w.doom(f)
	err := o.do(doomed)
	doomed.Close()
	if err != nil && f.count < at {
		w.t.Fatalf("%s: %v", name, err)
	}
	isRelease := strings.HasPrefix(o.name, "release")
	if err != nil && !isRelease {
		if diff := cmp.Diff(tree, widened(tree, w.tree())); diff != "" {
			w.t.Errorf("%s: %v: the tree is not as before (-before +after):\n%s", name, err, diff)
		}
	}
	n, after := w.settled(name)
	defer n.Close()
	w.exclusive(name, before, after)
	id := o.id
	if err != nil && !isRelease {
		id = "" // all are as before
	}
	if diff := cmp.Diff(except(before, id), except(after, id), cmp.Comparer(func(a, b cpuset.Set) bool { return a == b })); diff != "" {
		w.t.Errorf("%s: %v: workloads (-before +after):\n%s", name, err, diff)
	}
	return err == nil || isRelease && len(except(after, o.id)) == len(after)
}
