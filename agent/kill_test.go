package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// crashes is how many kills a test does: BERTH_CRASHES, or few.
func crashes(t testing.TB, few int) int {
	t.Helper()
	text := os.Getenv("BERTH_CRASHES")
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// diary is a file to which a process that will be killed writes what it does.
type diary struct{ *os.File }

func (d diary) note(format string, args ...any) {
	if _, err := fmt.Fprintf(d, format+"\n", args...); err != nil {
		panic(err)
	}
}

// noted are the files of a kernel whose changes are in a diary.
type noted struct {
	real
	diary
}

func (n noted) WriteFile(name, data string) error {
	err := n.real.WriteFile(name, data)
	if err == nil {
		n.note("write %s %s", name, strings.TrimSpace(data))
	}
	return err
}

func (n noted) Mkdir(name string) error {
	err := n.real.Mkdir(name)
	if err == nil {
		n.note("mkdir %s", name)
	}
	return err
}

func (n noted) Rmdir(name string) error {
	err := n.real.Rmdir(name)
	if err == nil {
		n.note("rmdir %s", name)
	}
	return err
}

// owners are the exclusive CPUs by workload; one without any has the empty set.
type owners map[string]cpuset.Set

func ownersOf(all []Workload) owners {
	o := owners{}
	for _, w := range all {
		o[w.ID()] = w.Grant.Own
	}
	return o
}

// releasing are the workloads whose processes are being killed: they go as soon as these have
// ended, whoever changes something then.
func releasing(all []Workload) (ids []string) {
	for _, w := range all {
		if w.Releasing {
			ids = append(ids, w.ID())
		}
	}
	return ids
}

// TestVictim is not a test but the process that TestRealKills kills: it places,
// changes and releases until then.
func TestVictim(t *testing.T) {
	group := os.Getenv("BERTH_VICTIM")
	if group == "" {
		t.Skip("started by TestRealKills")
	}
	ctx := context.Background()
	root, err := kernel.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(os.Getenv("BERTH_DIARY"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	seed, _ := strconv.ParseUint(os.Getenv("BERTH_SEED"), 10, 64)
	rng := rand.New(rand.NewPCG(seed, 0))
	d := diary{file}
	h := &realHost{TB: t, real: newReal(root, group)}
	h.opt = Options{Root: kernel.NewRoot("/", noted{h.real, d}), Dir: os.Getenv("BERTH_STATE"), Machine: h.machine(), Settings: Settings{Confine: []string{"*"}}, Keep: seed%2 == 0}
	d.note("ready")
	n := h.open()
	for {
		o := h.op(rng)
		d.note("begin %s", o.id)
		err := o.do(n)
		all, listErr := n.List(ctx)
		if listErr != nil {
			t.Fatalf("%s: %v, %v", o.name, err, listErr)
		}
		text, _ := json.Marshal(ownersOf(all))
		d.note("going %s", strings.Join(releasing(all), " "))
		d.note("done %s", text)
	}
}

// op is something at random to do.
func (h *realHost) op(rng *rand.Rand) op {
	ctx := context.Background()
	s := []Spec{spec("batch", place.BE, 100, 0), spec("api", place.LSE, 1000, 0), spec("web", place.LS, 100, 0)}[rng.IntN(3)]
	id := s.Request.ID
	if id == "web" {
		s.Group = "web"
	}
	s.Limits = cgroup.Limits{Weight: 100 * (1 + rng.IntN(3)), MemoryMax: 1 << 30}
	switch rng.IntN(5) {
	case 0, 1:
		if s.Group == "" {
			s.PID = h.sleeper()
		}
		return op{"place", id, func(n *Node) error { _, err := n.Place(ctx, s); return err }}
	case 2:
		return op{"resize", id, func(n *Node) error { _, err := n.Resize(ctx, s); return err }}
	case 3:
		first, _ := h.opt.Machine.Online.First()
		return op{"move", id, func(n *Node) error { _, err := n.Move(ctx, id, cpuset.MustOf(first), cpuset.Set{}); return err }}
	}
	return op{"release", id, func(n *Node) error { return n.Release(ctx, id, Kill) }}
}

// A process that changes a node on the live kernel is killed at random instants.
// Either restoring gives back every value, or opening again finds every grant
// but the one that was being changed as before, and the kernel as the records say.
// At no point of the diary is an owned CPU anybody else's. BERTH_CRASHES is how
// many kills instead of 2.
func TestRealKills(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	h := newRealHost(t)
	for _, c := range realControllers {
		if err := os.Mkdir(path.Join(h.dir(c), "web"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.write("cpuset/"+h.group+"/web/cpuset.mems", "0")
	h.write("cpuset/"+h.group+"/web/cpuset.cpus", h.opt.Machine.Online.String())
	h.opt.Confine = []string{"*"}
	k := &killing{realHost: h, rng: rand.New(rand.NewPCG(5, 5)), original: h.values(), held: owners{}}
	kills := crashes(t, 2)
	for i := range kills {
		k.once(i)
		if t.Failed() {
			t.Fatalf("at kill %d", i+1)
		}
	}
	t.Logf("%d kills, in the middle of a change %d, restored %d, opened again %d; %d writes of CPUs", kills, k.amid, k.restored, kills-k.restored, k.writes)
}

// killing is what TestRealKills knows.
type killing struct {
	*realHost
	rng      *rand.Rand
	original map[string]string
	held     owners // as last opened
	going    []string

	amid, restored, writes int
}

func (k *killing) once(i int) {
	k.Helper()
	book := filepath.Join(k.TempDir(), "diary")
	if err := os.WriteFile(book, nil, 0o600); err != nil {
		k.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$")
	cmd.Env = append(os.Environ(), "BERTH_VICTIM="+k.group, "BERTH_DIARY="+book, "BERTH_STATE="+k.opt.Dir, fmt.Sprintf("BERTH_SEED=%d", i))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := fork.Start(cmd); err != nil {
		k.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if text, _ := os.ReadFile(book); len(text) > 0 {
			break
		}
		if time.Now().After(deadline) {
			k.Fatal("the process does not start")
		}
	}
	time.Sleep(time.Duration(k.rng.IntN(100_000)) * time.Microsecond)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
		k.Fatalf("the process ended by itself: %s", out.String())
	}
	k.look(i, book)
}

// look compares what is there after a kill with the diary.
func (k *killing) look(i int, book string) {
	k.Helper()
	d := k.read(book)
	if d.doing != "" {
		k.amid++
	}
	if i%4 == 3 {
		k.restored++
		n, err := newNode(k.opt)
		if err != nil {
			k.Fatal(err)
		}
		if _, err := n.Restore(context.Background()); err != nil {
			k.Errorf("restore: %v", err)
		}
		if diff := cmp.Diff(k.original, k.values()); diff != "" {
			k.Errorf("restored (-want +got):\n%s", diff)
		}
		d.check(k, owners{})
		k.held, k.going = owners{}, nil
		n.Close()
		return
	}
	n := k.open()
	defer n.Close()
	all, err := n.List(context.Background())
	if err != nil {
		k.Fatal(err)
	}
	now := ownersOf(all)
	d.check(k, now)
	was, is := owners{}, owners{}
	for id, own := range d.held {
		was[id] = own
	}
	for id, own := range now {
		is[id] = own
	}
	for _, id := range append(d.going, d.doing) {
		delete(was, id)
		delete(is, id)
	}
	if diff := cmp.Diff(was, is); diff != "" {
		k.Errorf("while %q was changed, others (-before +after):\n%s", d.doing, diff)
	}
	if repairs, err := n.Reconcile(context.Background()); err != nil || len(repairs) > 0 {
		k.Errorf("while %q was changed: the kernel differs from the books: %v, %v", d.doing, repairs, err)
	}
	entries, _ := os.ReadDir(path.Join(k.dir("cpuset"), ownGroup))
	for _, e := range entries {
		if _, ok := now[e.Name()]; e.IsDir() && !ok {
			k.Errorf("group %s is left over", e.Name())
		}
	}
	if all, err = n.List(context.Background()); err != nil {
		k.Fatal(err)
	}
	k.held, k.going = ownersOf(all), releasing(all)
}

// entries are what a diary says: by change, the writes.
type entries struct {
	held   owners // at the end, before what was being done
	doing  string // the workload that was being changed, "" for none
	going  []string
	states []owners
	writes [][]string // of each change, after the state of the same number
}

func (k *killing) read(book string) entries {
	k.Helper()
	f, err := os.Open(book)
	if err != nil {
		k.Fatal(err)
	}
	defer f.Close()
	d := entries{held: k.held, going: k.going, states: []owners{k.held}, writes: [][]string{nil}}
	for s := bufio.NewScanner(f); s.Scan(); {
		word, rest, _ := strings.Cut(s.Text(), " ")
		switch word {
		case "begin":
			d.doing = rest
		case "going":
			d.going = strings.Fields(rest)
		case "done":
			d.doing, d.held = "", owners{}
			if err := json.Unmarshal([]byte(rest), &d.held); err != nil {
				k.Fatal(err)
			}
			d.states, d.writes = append(d.states, d.held), append(d.writes, nil)
		case "write", "mkdir", "rmdir":
			last := len(d.writes) - 1
			d.writes[last] = append(d.writes[last], s.Text())
		}
	}
	return d
}

// check goes through the writes: at no point is a CPU that a workload owns,
// before or after, both its own and in the set of another group with processes.
// A group has some from when one is attached, or when its change has ended.
func (d entries) check(k *killing, after owners) {
	k.Helper()
	states := append(d.states, after)
	cpus, occupied := map[string]cpuset.Set{}, map[string]bool{}
	own := path.Join("sys/fs/cgroup/cpuset", k.group)
	occupied["web"] = true // placed or confined
	for id := range k.held {
		occupied[k.groupOf(id)] = true
	}
	for i, writes := range d.writes {
		for _, line := range writes {
			f := strings.Fields(line)
			dir := strings.TrimPrefix(path.Dir(f[1]), own+"/")
			switch {
			case f[0] == "rmdir":
				gone := strings.TrimPrefix(f[1], own+"/")
				delete(cpus, gone)
				delete(occupied, gone)
			case path.Base(f[1]) == cpusFile && dir != ownGroup && len(f) == 3:
				k.writes++
				cpus[dir] = cpuset.MustParse(f[2])
			case path.Base(f[1]) == "cgroup.procs":
				occupied[dir] = true
			}
			for _, state := range states[i : i+2] {
				for id, owned := range state {
					if !occupied[k.groupOf(id)] {
						continue
					}
					mine := owned.Intersect(cpus[k.groupOf(id)])
					for other, theirs := range cpus {
						if other != k.groupOf(id) && occupied[other] && mine.Overlaps(theirs) {
							k.Errorf("after %q, %s and %s are both on %s", line, id, other, mine.Intersect(theirs))
						}
					}
				}
			}
		}
		for id := range states[i+1] {
			occupied[k.groupOf(id)] = true
		}
	}
}

func (k *killing) groupOf(id string) string {
	if id == "web" {
		return "web"
	}
	return ownGroup + "/" + id
}
