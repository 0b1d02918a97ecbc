package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// change is what a process that is to be killed says before each change: the
// workload that it is about, and what all of them have.
type change struct {
	ID   string
	Held map[string]*place.Grant
}

// TestNodeKilled kills processes at random points of their changes. Giving
// everything back then leaves the tree as it was before Berth; opening the node
// instead leaves all grants as they were, but for that of the unfinished change.
func TestNodeKilled(t *testing.T) {
	onlyOn(t, "server-order")
	kills := 5
	if thorough() {
		kills = 15
	}
	h := newHost(t)
	before := h.settings()
	rng := rand.New(rand.NewPCG(4, 4))
	for i := range kills {
		last := h.kill(i, rng)
		when := fmt.Sprintf("kill %d, in a change of %s", i, last.ID)
		if i%5 == 4 {
			if diff := cmp.Diff(before, h.widened(before, h.restore())); diff != "" {
				t.Errorf("%s: restored (-before +after):\n%s", when, diff)
			}
			continue
		}
		h.undisturbed(when, last)
		n := h.open()
		h.settled(when, n)
		held := grants(h.list(n))
		delete(held, last.ID)
		delete(last.Held, last.ID)
		if diff := cmp.Diff(last.Held, held, cmp.Comparer((*place.Grant).Equal)); diff != "" {
			t.Errorf("%s: others' grants (-before +after):\n%s", when, diff)
		}
		n.Close()
		if t.Failed() {
			return
		}
	}
}

// kill has a process change the node, kills it at a random point of its second
// or third change, and returns which that was.
func (h *host) kill(seed int, rng *rand.Rand) change {
	h.t.Helper()
	cmd := h.command(h.t, h.base, "change a node")
	cmd.Env = append(cmd.Env, "BERTH_TEST_DIR="+h.opt.Dir, "BERTH_TEST_SEED="+strconv.Itoa(seed), "BERTH_TEST_PID="+strconv.Itoa(h.worker))
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	var last change
	read := func() bool {
		ok := lines.Scan()
		if ok {
			last = change{} // a map is added to
			if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
				h.t.Fatalf("%v: %s", err, lines.Text())
			}
		}
		return ok
	}
	if !read() {
		h.t.Fatal("nothing was changed")
	}
	began := time.Now()
	if !read() {
		h.t.Fatalf("nothing more was changed than %s", last.ID)
	}
	time.Sleep(rand.N(2 * time.Since(began)))
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		h.t.Fatal(err)
	}
	for read() {
	}
	return last
}

func (h *host) populated(group string) bool {
	return strings.Contains(h.text(h.t, group, "cgroup.events"), "populated 1")
}

// undisturbed checks, before anybody has tidied up, that others' own CPUs are
// still theirs alone. A group without processes, as one just made is, runs nowhere.
func (h *host) undisturbed(when string, last change) {
	h.t.Helper()
	for id, g := range last.Held {
		for _, group := range h.groups() {
			if id != last.ID && !g.Lent && group != "berth/"+id && h.populated(group) && h.cpus(group).Overlaps(g.Own) {
				h.t.Errorf("%s: %s is on %s, of which %s has %s", when, group, h.cpus(group), id, g.Own)
			}
		}
	}
}

// widened is got with those sets empty again that were so and cannot be made so
// while they hold processes, before Linux 7: they have what the top has.
func (h *host) widened(before, got map[string]string) map[string]string {
	top := map[string]string{"cpuset.cpus": h.online().String(), "cpuset.mems": h.mems("").String()}
	for name, was := range before {
		if wide, ok := top[path.Base(name)]; ok && was == "" && got[name] == wide && !atLeast(7, 0) {
			got[name] = ""
		}
	}
	return got
}

func grants(all []agent.Workload) map[string]*place.Grant {
	held := map[string]*place.Grant{}
	for _, w := range all {
		held[w.ID()] = w.Grant
	}
	return held
}

// changeNode changes a node at random until it is killed.
func changeNode(t *testing.T) {
	ctx := context.Background()
	number := func(name string) int {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	n, err := agent.Open(ctx, agent.Options{Dir: os.Getenv("BERTH_TEST_DIR"), Settings: agent.Settings{Confine: []string{"*.slice"}}})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, uint64(number("BERTH_TEST_SEED"))))
	for {
		all, err := n.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		spec := randomSpec(rng, number("BERTH_TEST_PID"))
		c := change{ID: spec.Request.ID, Held: grants(all)}
		if err := json.NewEncoder(os.Stdout).Encode(c); err != nil {
			t.Fatal(err)
		}
		if err := changeOne(ctx, n, rng, spec, all); err != nil {
			t.Fatalf("%s: %v", spec.Request.ID, err)
		}
	}
}

// randomSpec is one of four workloads: two with own CPUs, a group that is there
// already, and a process of another group.
func randomSpec(rng *rand.Rand, pid int) agent.Spec {
	switch rng.IntN(4) {
	case 0:
		return ask("api", place.LSE, 1+rng.IntN(3), 0)
	case 1:
		db := ask("db", place.LSE, 1+rng.IntN(3), 1)
		db.Limits = cgroup.Limits{Weight: 200 + rng.IntN(2), MemoryMax: 1 << 20}
		return db
	case 2:
		web := ask("web", place.LS, 1, rng.IntN(2))
		web.Group, web.Limits = "web.slice", cgroup.Limits{Weight: 300 + rng.IntN(2)}
		return web
	}
	batch := agent.Spec{Request: place.Request{ID: "batch", Class: place.BE, Milli: 500 * rng.IntN(3)}, PID: pid}
	batch.Limits.IOWeight = 100 * rng.IntN(3)
	return batch
}

// changeOne places what has no place, and else resizes, moves or releases it.
func changeOne(ctx context.Context, n *agent.Node, rng *rand.Rand, spec agent.Spec, all []agent.Workload) error {
	i := slices.IndexFunc(all, func(w agent.Workload) bool { return w.ID() == spec.Request.ID })
	choice := rng.IntN(3)
	switch {
	case i < 0:
		_, err := n.Place(ctx, spec)
		return err
	case choice == 0 && spec.PID == 0:
		return n.Release(ctx, spec.Request.ID, agent.WhenEmpty)
	case choice == 1 && spec.Request.Class == place.LSE:
		// Nobody else is in the upper half of a node.
		cores := map[string][]string{"api": {"2,10", "3,11", "2-3,10-11"}, "db": {"6,14", "7,15", "6-7,14-15"}}[spec.Request.ID]
		_, err := n.Move(ctx, spec.Request.ID, cpuset.MustParse(cores[rng.IntN(len(cores))]), cpuset.Set{})
		return err
	}
	_, err := n.Resize(ctx, spec)
	return err
}
