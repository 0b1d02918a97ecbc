package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fork"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/lab/noise"
)

const netDev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
berth-lab0: 111  2    0    0    0     0          0         0 987654321  4    0    0    0     0       0          0
`

func TestParseSent(t *testing.T) {
	t.Parallel()
	if n, err := parseSent(netDev, linkDevice); err != nil || n != 987654321 {
		t.Errorf("%d, %v", n, err)
	}
	for text, want := range map[string]string{
		"": "no berth-lab0", strings.ReplaceAll(netDev, "berth-lab0", "berth-lab00"): "no berth-lab0",
		"berth-lab0: 1 2 3": "3 counts", strings.ReplaceAll(netDev, "987654321", "-1"): "invalid syntax",
	} {
		if n, err := parseSent(text, linkDevice); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v, want %q", text, n, err, want)
		}
	}
}

func FuzzParseSent(f *testing.F) {
	f.Add(netDev)
	f.Add("berth-lab0:")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseSent(text, linkDevice); err == nil && !strings.Contains(text, fmt.Sprint(n)) {
			t.Errorf("%q has no %d", text, n)
		}
	})
}

// The groups that tell packets apart are those of v2, alone or beside v1.
func TestLinkGroups(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layout.CPUs = "0-1"
			g, _ := playedGroups(t, layout, places{shared: cpuset.MustParse("0-1")}, Options{Groups: true})
			k := &link{}
			k.findGroups(g.group)
			if name == "v1" {
				if _, err := k.plan(Isolation{NetNeighbour: traffic.Share{Priority: 8}}); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "no groups of cgroup v2") {
					t.Errorf("classes: %v, want that they need v2", err)
				}
			} else if !slices.Contains(g.group(Tenant).Dirs(), k.groups[Tenant]) || !slices.Contains(g.group(Neighbour).Dirs(), k.groups[Neighbour]) || k.lacks != nil {
				t.Errorf("%v, %v", k.groups, k.lacks)
			}
			if err := g.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without a link everybody stays where he is.
func TestNoLink(t *testing.T) {
	t.Parallel()
	var k *link
	if k.namespace(Tenant) != nil || k.namespace(generator) != nil {
		t.Error("no link has namespaces")
	}
}

// A strategy is said as one would ask for it.
func TestSharesText(t *testing.T) {
	t.Parallel()
	e := isolationOf(t, Net)
	r := new(Result)
	got := map[string]string{}
	for _, s := range e.Scenarios {
		got[s.Name] = r.command(s)
	}
	const by = "berth run --net-classes FILE --net bulk -- COMMAND, where bulk is "
	want := map[string]string{
		Baseline: "", BaselineAgain: "", Unisolated: "", "idle": "berth run --class BE -- COMMAND",
		"net-ceiling": by + "{ceiling: 50%}",
		"net-first":   by + "{floor: 20%, priority: 8}, beside a service of class first: {floor: 20%, priority: 1}",
		"guarded":     "berth guard --mode enforce --sensitive SERVICE --best-effort GROUP, on a device divided into network classes",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The words say in how many rounds the guard acted, when and how; or why it did not; and what failed.
func TestReadGuard(t *testing.T) {
	t.Parallel()
	const (
		fast   = " That is not how fast it is on a host: it counts windows of the rounds before."
		from   = " Measured is from 2.3 s after the neighbour began on: what tenant and neighbour lose before is in no figure."
		failed = " It met errors in 20 rounds, the first: read cpu.stat."
	)
	broken := Act{At: -0.4, Failed: true, What: "read cpu.stat"}
	capped := Act{At: 0.8, Applied: true, What: "applied send_cap"}
	for name, tc := range map[string]struct {
		acts func(block int) []Act
		want string
	}{
		"acts": {func(block int) []Act {
			return []Act{{At: 0.1, What: "no"}, {At: 0.75 + 0.01*float64(block), Applied: true, What: "applied send_cap"}}
		}, "acted in 20 of 20 rounds, in the median 0.8 s after the neighbour began, and last so: applied send_cap." + fast + from},
		"at times": {func(block int) []Act {
			if block < 3 {
				return []Act{capped}
			}
			return nil
		}, "acted in 3 of 20 rounds, in the median 0.8 s after the neighbour began, and last so: applied send_cap." + fast + from},
		"fails": {func(int) []Act { return []Act{broken, capped} },
			"acted in 20 of 20 rounds, in the median 0.8 s after the neighbour began, and last so: applied send_cap." + fast + failed + from},
		"only fails": {func(int) []Act { return []Act{broken} }, "limited nobody: it found nothing." + failed + from},
		"may not":    {func(int) []Act { return []Act{{At: 1, What: "refused: the link is not divided"}} }, "limited nobody: refused: the link is not divided." + from},
		"nothing":    {func(int) []Act { return nil }, "limited nobody: it found nothing." + from},
	} {
		r := fakeResult(t, map[string]fake{Baseline: {scale: 1}, BaselineAgain: {scale: 1}, Unisolated: {scale: 3, work: 20e6}})
		guarded := isolationOf(t, Net).Scenarios[6]
		r.Experiment.Scenarios = append(r.Experiment.Scenarios[:3:3], guarded)
		for _, round := range r.Rounds {
			if round.Scenario == Unisolated {
				round.Scenario, round.Position, round.Guard = guarded.Name, 3, tc.acts(round.Block)
				r.Rounds = append(r.Rounds, round)
			}
		}
		if a := analysed(t, r); !slices.Contains(a.Reading, "In guarded the guard "+tc.want) {
			t.Errorf("%s: no %q in\n%s", name, tc.want, strings.Join(a.Reading, "\n"))
		}
	}
}

// A round with the guard is longer: it has to notice, and what waits has to be sent. It is announced.
func TestGuardedLength(t *testing.T) {
	t.Parallel()
	e := isolationOf(t, Net)
	cells := (&Testbed{Setup: &Setup{}}).Scenarios(e)
	if c := cells[len(cells)-1]; c.Name != "guarded" || c.Settle != 2500*time.Millisecond || c.Window != 500*time.Millisecond || c.Neighbour || c.Hooks.Settle == nil {
		t.Errorf("guarded: %+v", c)
	}
	if c := cells[2]; c.Settle != 300*time.Millisecond || !c.Neighbour {
		t.Errorf("unisolated: %+v", c)
	}
	e.For, e.Blocks = 0, 10
	if got, want := e.Length(), 6*time.Second+6*time.Second+10*(6*840*time.Millisecond+3040*time.Millisecond); got != want {
		t.Errorf("ten blocks take %s, want %s", got, want)
	}
	if e.Fill(78 * time.Second); e.Blocks != 10 {
		t.Errorf("%d blocks fit into 78 s, want 10 of 7.8 s", e.Blocks)
	}
}

// What went over the link is a part of its rate.
func TestLinkUse(t *testing.T) {
	t.Parallel()
	r := fakeResult(t, map[string]fake{Baseline: {scale: 1}, Unisolated: {scale: 3, work: 20e6}})
	r.Experiment.Resource, r.Experiment.LinkRate = Net, linkRate
	for i := range r.Rounds {
		if round := &r.Rounds[i]; round.Scenario == Unisolated {
			round.LinkBytes = new(0.9 * round.Seconds * float64(linkRate) / 8)
		}
	}
	a, err := Analyse(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range a.Rows {
		switch {
		case row.Scenario == Unisolated:
			if row.LinkUse == nil || *row.LinkUse < 0.899 || *row.LinkUse > 0.901 || row.Work < 19e6 {
				t.Errorf("%+v", row)
			}
		case row.LinkUse != nil:
			t.Errorf("%s: %g of a link that nobody counted", row.Scenario, *row.LinkUse)
		}
	}
}

// The link of a run takes its rate, a class its ceiling; and all of it goes.
func TestLinkForReal(t *testing.T) {
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("network namespaces need root, and this is not a short run")
	}
	t.Parallel()
	fakekernel.LockHost(t, fakekernel.Shared)
	const rate = traffic.Rate(80e6)
	k, err := openLink(rate)
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	closing := func(what ...func() error) {
		t.Cleanup(func() {
			for _, c := range what {
				if err := c(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	closing(k.close)
	undoLog, err := kernel.CreateUndoLog(k.root, t.TempDir()+"/log", "test")
	if err != nil {
		t.Fatal(err)
	}
	closing(undoLog.Close)
	apply := func(plan kernel.Plan, err error) (undo func() error) {
		t.Helper()
		if err == nil {
			undo, err = k.apply(plan, undoLog)
		}
		if errors.Is(err, kernel.ErrNotSupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return undo
	}
	plain := apply(k.plan(Isolation{}))
	pl := places{shared: cpuset.MustOf(0)}
	setup := &Setup{}
	backend, log, err := openBackend(Options{Groups: true, UndoLogDir: t.TempDir() + "/groups"}, pl, setup)
	if errors.Is(err, kernel.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	closing(backend.close, log.Close)
	if k.findGroups(backend.group); k.lacks != nil {
		t.Skip(k.lacks)
	}
	parent := fork.NewParent()
	closing(func() error { parent.Close(); return nil })
	b := &Testbed{opt: Options{Exe: os.Args[0]}, parent: parent, backend: backend, link: k}
	cfg := noise.Config{Kernel: "send", Threads: 2, Intensity: 100, Address: netip.AddrPortFrom(farAddress.Addr(), sinkPort).String()}
	n, err := (&processes{bed: b}).newNeighbour(t.Context(), Neighbour, cfg)
	if err != nil {
		t.Fatal(err)
	}
	// A busy machine may send less than the link takes for a while, and never more.
	fills := func(share float64) {
		t.Helper()
		got := 0.0
		for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
			began := time.Now()
			from, err := k.sent(n.pid())
			time.Sleep(300 * time.Millisecond)
			to, err2 := k.sent(n.pid())
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			if got = 8 * float64(to-from) / time.Since(began).Seconds() / float64(rate); got > 0.8*share && got < 1.1*share {
				return
			}
		}
		t.Errorf("%.2f of the link are sent, want %.2f", got, share)
	}
	fills(1)
	classes := apply(k.plan(Isolation{NetNeighbour: traffic.Share{Ceiling: traffic.Amount{Percent: 30}}}))
	fills(0.3)
	if err := classes(); err != nil {
		t.Error(err)
	}
	fills(1)
	if n.counters.Total() == 0 {
		t.Error("the neighbour counted nothing")
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
	if plan, err := k.plan(Isolation{}); err != nil || len(plan) > 0 {
		t.Errorf("undone, and there is left to do: %v\n%s", err, plan)
	}
	if err := plain(); err != nil {
		t.Error(err)
	}
}
