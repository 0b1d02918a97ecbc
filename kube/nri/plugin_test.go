package nri

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place/berth"
	"berth.dev/berth/podwords"
)

// The new container's CPUs, and the updates that take them from the others, are one answer;
// a stop's answer gives them back.
func TestOneAnswer(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", nil)
	web, db := pod("web", nil), pod("db", exclusive)
	must(t, n.create(web, container(web, "a", 500), 0))
	if got := n.cpus("web.a").String(); got != "0-7" {
		t.Errorf("shared container has %s", got)
	}
	before := n.updates
	must(t, n.create(db, container(db, "b", 4000), 4))
	if got, want := n.all(), map[string]string{"web.a": "0-1,4-5", "db.b": "2-3,6-7"}; !cmp.Equal(got, want) && n.cpus("web.a").Union(n.cpus("db.b")).Len() != 8 {
		t.Errorf("%v", got)
	}
	if n.updates != before+1 {
		t.Errorf("%d updates", n.updates-before)
	}
	must(t, n.stop("db.b"))
	if got := n.cpus("web.a").String(); got != "0-7" {
		t.Errorf("after the stop: %s", got)
	}
	n.asBooks("at the end")
}

// Plain Kubernetes: QoS class and whole CPUs decide, and what is not to be had falls back
// to the shared pool, unless a word requires it.
func TestKubernetesFallsBack(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", nil)
	big := guaranteed(pod("big", nil))
	c := container(big, "a", 4000)
	must(t, n.create(big, c, 4))
	next := guaranteed(pod("next", nil))
	must(t, n.create(next, container(next, "a", 4000), 0))
	if got := n.cpus("next.a"); got != n.shared() || got.Overlaps(n.cpus("big.a")) {
		t.Errorf("the second has %s", got)
	}
	if f := n.heard.kinds(Fallback); len(f) != 1 || !strings.Contains(f[0], "next/a") {
		t.Errorf("events %q", f)
	}
	w, err := n.p.node.Get(context.Background(), "default/next/a")
	must(t, err)
	if w.Spec.Annotations[fallbackKey] == "" {
		t.Error("its record does not say that it fell back")
	}
	must(t, n.stop("big.a")) // it does not move by itself
	if n.cpus("next.a") != n.online {
		t.Errorf("afterwards %s", n.cpus("next.a"))
	}
	n.asBooks("at the end")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", nil)
	for name, c := range map[string]struct {
		words map[string]string
		milli int
		want  string
	}{
		"too-many":  {exclusive, 8000, "not placed: "},
		"strict":    {map[string]string{"berth.dev/strict": "true", "berth.dev/bind": "Full"}, 1000, `"Full" is not one of`},
		"of-a-core": {map[string]string{"berth.dev/strict": "true", "berth.dev/class": "LSE"}, 1000, "impossible"},
	} {
		p := pod(name, c.words)
		if err := n.create(p, container(p, "a", c.milli), 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if all, _ := n.p.node.List(context.Background()); len(all) != 0 || len(n.p.table.containers) != 0 {
		t.Errorf("left behind: %d records, %d containers", len(all), len(n.p.table.containers))
	}
	lax := pod("lax", map[string]string{"berth.dev/bind": "Full", "rdtclass.resource-policy.nri.io": "gold"})
	must(t, n.create(lax, container(lax, "a", 1000), 0))
	must(t, n.create(lax, container(lax, "b", 1000), 0))
	var words []string
	for _, w := range n.heard.kinds(Word) {
		if strings.HasPrefix(w, "lax/") {
			words = append(words, w)
		}
	}
	if len(words) != 2 {
		t.Errorf("two problems of one pod are told as %q", words)
	}
}

// Rules let namespaces say less.
func TestRules(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", func(o *Options) {
		o.Words.Rules = podwords.Rules{{Namespaces: []string{"default"}, Words: nil}}
	})
	p := pod("p", exclusive)
	must(t, n.create(p, container(p, "a", 2000), 0))
	if got := n.cpus("p.a"); got.Len() != 8 {
		t.Errorf("CPUs %s by a word that does not count", got)
	}
}

// At no instant of a long sequence has an exclusive CPU two users: runtime.check looks
// after every single update.
func TestNoTwoUsers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		n := newNode(t, "2s2n4c2t", nil)
		rng := rand.New(rand.NewPCG(seed, 1))
		var there []string
		for i := range 150 {
			if len(there) > 0 && rng.IntN(5) < 2 {
				at := rng.IntN(len(there))
				must(t, n.stop(there[at]))
				there = append(there[:at], there[at+1:]...)
				continue
			}
			p, own, milli := pod(name(i), nil), 0, 100*rng.IntN(10)
			if rng.IntN(2) == 0 {
				own = 2 * (1 + rng.IntN(4))
				milli, p.Annotations = own*1000, exclusive
			} else if rng.IntN(3) == 0 {
				p = bestEffort(p)
				milli = 0
			}
			if err := n.create(p, container(p, "a", milli), own); err == nil {
				there = append(there, p.Name+".a")
			} else if own == 0 {
				t.Errorf("a shared container is refused: %v", err)
			}
		}
		if len(there) < 5 {
			t.Errorf("%d containers are left", len(there))
		}
		n.asBooks(fmt.Sprint("seed ", seed))
		n.end()
	}
}

// A hundred pods that start at once are all placed legally.
func TestHundredAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, "2s2n32c2t", nil)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			p, own := pod(name(i), nil), 0
			if i%2 == 0 {
				p.Annotations, own = exclusive, 2
			}
			if err := n.create(p, container(p, "a", max(100, own*1000)), own); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	n.asBooks("at the end")
	if late := n.heard.kinds(Late); len(late) > 0 {
		t.Errorf("%q", late)
	}
}

// An update of a running container is answered with its own CPUs, whatever CPUs it names.
func TestUpdateContainer(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", nil)
	p := pod("p", map[string]string{"berth.dev/class": "LSE"})
	c := container(p, "a", 2000)
	must(t, n.create(p, c, 2))
	q := pod("q", nil)
	must(t, n.create(q, container(q, "a", 100), 0))
	update := func(res *api.LinuxResources) (*api.UpdateContainerResponse, error) {
		return n.nri.UpdateContainer(context.Background(), &api.UpdateContainerRequest{Pod: p, Container: c, LinuxResources: res})
	}
	res, err := update(&api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "0-7"}})
	must(t, err)
	if got := cpusOf(res.GetUpdate(), c.Id); got != n.cpus(c.Id).String() {
		t.Errorf("an update that names CPUs is answered with %q", got)
	}
	n.boxes[c.Id].own = 4
	res, err = update(container(p, "a", 4000).Linux.Resources)
	must(t, err)
	got := cpuset.MustParse(cpusOf(res.GetUpdate(), c.Id))
	if got.Len() != 4 || !got.Contains(n.cpus(c.Id)) || cpusOf(res.GetUpdate(), "q.a") == "" {
		t.Errorf("resized to 4 CPUs: %s, the other %q", got, cpusOf(res.GetUpdate(), "q.a"))
	}
	if _, err := update(container(p, "a", 20000).Linux.Resources); err == nil || !strings.Contains(err.Error(), "not resized") {
		t.Errorf("20 CPUs: %v", err)
	}
}

// The runtime applies an update of a container that it was asked for after its answer, and may fail to: what the
// container is to leave is had once the runtime tells that it has applied it.
func TestResizedMayStay(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "1s1n4c2t")
	has := map[string]cpuset.Set{}
	opt.Effective = func(group string) (cpuset.Set, bool) {
		is, ok := has[group[strings.LastIndex(group, "/")+1:]]
		return is, ok
	}
	p := open(t, opt)
	ctx := context.Background()
	p.table.synced = true
	start := func(name string, milli int) (*api.PodSandbox, *api.Container) {
		t.Helper()
		q := pod(name, exclusive)
		c := container(q, "a", milli)
		adjust, _, err := p.CreateContainer(ctx, q, c)
		must(t, err)
		has[c.Id] = cpuset.MustParse(adjust.GetLinux().GetResources().GetCpu().GetCpus())
		must(t, p.PostStartContainer(ctx, q, c))
		return q, c
	}
	x, c := start("x", 4000)
	start("z", 2000)
	was := has["x.a"]
	updates, err := p.UpdateContainer(ctx, x, c, container(x, "a", 2000).Linux.Resources)
	must(t, err)
	next := cpuset.MustParse(cpusOf(updates, "x.a"))
	start("y", 2000)
	own := p.table.containers["y.a"].want.cpus
	if next.Len() != 2 || own.IsEmpty() || own != was.Minus(next) {
		t.Fatalf("x shrinks from %s to %s, and y is to have %s", was, next, own)
	}
	if begins := has["y.a"]; begins.IsEmpty() || begins.Overlaps(was) {
		t.Errorf("it begins on %s beside one on %s", begins, was)
	}
	if got := sends(p); len(got) > 0 {
		t.Errorf("sent before the update is applied: %q", got)
	}
	has["x.a"] = next
	must(t, p.PostUpdateContainer(ctx, x, c))
	if got, want := sends(p), []string{"y.a " + own.String()}; !cmp.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
}

func cpusOf(updates []*api.ContainerUpdate, id string) string {
	for _, u := range updates {
		if u.GetContainerId() == id {
			return u.GetLinux().GetResources().GetCpu().GetCpus()
		}
	}
	return ""
}

// A decision that takes too long gives the shared pool, in time for the runtime; the container
// is placed once that is possible.
func TestLate(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	var block atomic.Bool
	block.Store(true)
	n := newNode(t, "1s1n4c2t", func(o *Options) {
		o.Budget = 30 * time.Millisecond
		o.Node.Policy = slow{berth.Policy{}, func() {
			if block.Load() {
				<-free
			}
		}}
	})
	p := pod("p", exclusive)
	must(t, n.create(p, container(p, "a", 2000), 0)) // or it would wait for the decision until the runtime gives up
	if got := n.cpus("p.a"); got != n.online {
		t.Errorf("CPUs %s", got)
	}
	if late := n.heard.kinds(Late); len(late) != 1 {
		t.Errorf("events %q", late)
	}
	q := pod("q", exclusive) // waits for the first, and is late as well
	must(t, n.create(q, container(q, "a", 2000), 0))
	block.Store(false)
	close(free)
	eventually(t, "both have what they ask for", func() bool {
		a, b := n.cpus("p.a"), n.cpus("q.a")
		return a.Len() == 2 && b.Len() == 2 && !a.Overlaps(b)
	})
	r := pod("r", exclusive)
	must(t, n.create(r, container(r, "a", 2000), 2))
	again := slices.DeleteFunc(n.heard.of(Recovered), func(e Event) bool { return e.Pod == "r" }) // which a busy host may have late, too
	if len(again) != 2 {
		t.Errorf("events %+v", again)
	}
	must(t, n.stop("p.a"))
	n.asBooks("at the end")
}

// An update that the runtime fails to apply shows in the kernel, and is sent again; one
// that somebody keeps changing is left alone.
func TestFailedUpdates(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1s1n4c2t", nil)
	web, db := pod("web", nil), pod("db", exclusive)
	must(t, n.create(web, container(web, "a", 500), 0))
	n.mu.Lock()
	n.boxes["web.a"].refusing = true
	n.mu.Unlock()
	must(t, n.create(db, container(db, "b", 4000), 0)) // overlaps: nobody told the plugin
	eventually(t, "drift is seen", func() bool { return len(n.heard.kinds(Drifted)) > 0 })
	n.mu.Lock()
	n.boxes["web.a"].refusing = false
	n.mu.Unlock()
	eventually(t, "repaired", func() bool { return !n.cpus("web.a").IsEmpty() && !n.cpus("web.a").Overlaps(n.cpus("db.b")) })
	n.asBooks("repaired")

	eventually(t, "left alone", func() bool {
		n.mu.Lock()
		n.boxes["web.a"].cpus = n.online
		n.mu.Unlock()
		drifted := n.heard.kinds(Drifted)
		return len(drifted) > 0 && strings.Contains(drifted[len(drifted)-1], "left as it is")
	})
	w, err := n.p.node.Get(context.Background(), "default/web/a")
	must(t, err)
	if notes := strings.Join(w.Notes, "; "); !strings.Contains(notes, "someone else") {
		t.Errorf("notes %q", notes)
	}
}

// A container that a group around it, or a partition, holds back on some of its CPUs is told when the shared
// pool becomes smaller: it runs on all that it was told once it is not held back any more.
func TestHeldBackFollowsThePool(t *testing.T) {
	t.Parallel()
	opt, heard := options(t, "1s1n4c2t")
	held := true
	opt.Effective = func(group string) (cpuset.Set, bool) {
		if held {
			return cpuset.MustParse("0-3"), strings.HasSuffix(group, "web.a")
		}
		return cpuset.MustParse("0-7"), strings.HasSuffix(group, "web.a")
	}
	p, db := besideWeb(t, opt)
	ctx := context.Background()
	rounds := func() (told int) {
		for range 6 {
			told += len(sends(p))
			p.table.containers["web.a"].since = time.Time{}
			p.verify()
		}
		return told
	}
	if told := rounds(); told != 1+p.drift.Limit {
		t.Errorf("it is told what it has %d times, want after its start and %d times more", told, p.drift.Limit)
	}
	reported := heard.kinds(Drifted)
	if last := len(reported) - 1; last != p.drift.Limit || !strings.Contains(reported[last], "it has them once that ends") {
		t.Errorf("told %q", reported)
	}
	if told := rounds(); told > 0 || len(heard.kinds(Drifted)) != len(reported) {
		t.Errorf("it is told %d times more, events %q", told, heard.kinds(Drifted))
	}
	_, updates, err := p.CreateContainer(ctx, db, container(db, "a", 2000))
	must(t, err)
	own := p.table.containers["db.a"].want.cpus
	if rest := cpusOf(updates, "web.a"); own.Len() != 2 || rest != p.online.Minus(own).String() {
		t.Errorf("beside the owner of %s it is told %q", own, rest)
	}
	held = false
	p.table.containers["web.a"].since = time.Time{}
	p.verify()
	if got, want := sends(p), []string{"web.a " + p.online.Minus(own).String()}; !cmp.Equal(got, want) { // as on any other CPUs than its own
		t.Errorf("sent %q, want %q", got, want)
	}
}

// besideWeb opens a plugin with a container of the shared pool that runs, web.a, and returns a pod that is to
// have CPUs of its own.
func besideWeb(t *testing.T, opt Options) (p *Plugin, db *api.PodSandbox) {
	t.Helper()
	p = open(t, opt)
	p.table.synced = true
	web := pod("web", nil)
	_, _, err := p.CreateContainer(t.Context(), web, container(web, "a", 100))
	must(t, err)
	must(t, p.PostStartContainer(t.Context(), web, container(web, "a", 100)))
	return p, pod("db", exclusive)
}

// CPUs that an update on its way still gives to somebody else are had once that is applied:
// until then the container runs in the shared pool.
func TestBusy(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "1s1n4c2t")
	p, db := besideWeb(t, opt)
	ctx := context.Background()
	on := move{"web.a", &resources{cpus: p.online}, false}
	p.table.sending = map[string]cpuset.Set{"web.a": on.to.cpus}
	adjust, updates, err := p.CreateContainer(ctx, db, container(db, "a", 2000))
	must(t, err)
	w, err := p.node.Get(ctx, "default/db/a")
	must(t, err)
	first := cpuset.MustParse(adjust.GetLinux().GetResources().GetCpu().GetCpus())
	if w.CPUs.Len() != 2 || first.Overlaps(w.CPUs) || first.IsEmpty() {
		t.Errorf("it begins on %s, and its own are %s", first, w.CPUs)
	}
	if got := cpusOf(updates, "web.a"); got != first.String() {
		t.Errorf("the other is told %q", got)
	}
	p.table.sendDone([]move{on}) // after the answer: the runtime has it on all CPUs again
	var told []string
	for range 4 {
		for _, lose := range []bool{true, false} {
			some := p.table.outgoing(lose, p.online)
			for _, m := range some {
				told = append(told, m.id+" "+m.to.cpus.String())
			}
			p.table.sendDone(some)
		}
	}
	if want := []string{"web.a " + first.String(), "db.a " + w.CPUs.String()}; !cmp.Equal(told, want) {
		t.Errorf("sent %q, want %q", told, want)
	}
}

// refusing is a runtime that fails some updates, and notes those that it applies.
type refusing struct {
	refuses int // so many
	apply   func(id, cpus string)
	told    []string
}

func (r *refusing) UpdateContainers(all []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	if r.refuses > 0 {
		r.refuses--
		return nil, errors.New("refused")
	}
	for _, u := range all {
		cpus := u.GetLinux().GetResources().GetCpu().GetCpus()
		r.told = append(r.told, u.GetContainerId()+" "+cpus)
		r.apply(u.GetContainerId(), cpus)
	}
	return nil, nil
}

// Where an update fails that takes CPUs from a container, nobody gets these CPUs before the kernel has shown
// that the container has left them.
func TestFailedUpdateIsCompared(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "1s1n4c2t")
	webs := cpuset.MustParse("0-7")
	opt.Effective = func(group string) (cpuset.Set, bool) { return webs, strings.HasSuffix(group, "web.a") }
	p, db := besideWeb(t, opt)
	ctx := context.Background()
	on := move{"web.a", &resources{cpus: p.online}, false}
	p.table.sending = map[string]cpuset.Set{"web.a": on.to.cpus}
	_, _, err := p.CreateContainer(ctx, db, container(db, "a", 2000))
	must(t, err)
	p.table.sendDone([]move{on}) // db runs in the shared pool, and web is to be told once more
	r := &refusing{refuses: 1, apply: func(id, cpus string) {
		if id == "web.a" {
			webs = cpuset.MustParse(cpus)
		}
	}}
	compare := func(after time.Duration) {
		p.table.doubtedAt = time.Now().Add(-after)
		p.table.containers["web.a"].since = p.table.doubtedAt
		p.verify()
	}
	p.send(r)
	p.send(r)             // something wakes it
	compare(-time.Minute) // too soon for the runtime
	if p.send(r); len(r.told) > 0 || r.refuses > 0 {
		t.Errorf("before the kernel was compared, sent %q", r.told)
	}
	compare(2 * settling)
	p.send(r)
	own := p.table.containers["db.a"].want.cpus
	if want := []string{"web.a " + p.online.Minus(own).String(), "db.a " + own.String()}; !cmp.Equal(r.told, want) {
		t.Errorf("sent %q, want %q", r.told, want)
	}
}

func TestValidateOthers(t *testing.T) {
	t.Parallel()
	opt, _ := options(t, "1s1n4c2t")
	p := open(t, opt)
	for owner, ok := range map[string]bool{"50-berth": true, "10-other": false} {
		owners := &api.OwningPlugins{Owners: map[string]*api.FieldOwners{}}
		must(t, owners.ClaimCPUSetCPUs("c", owner))
		err := p.ValidateContainerAdjustment(context.Background(), &api.ValidateContainerAdjustmentRequest{Container: &api.Container{Id: "c"}, Owners: owners})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), owner) {
			t.Errorf("%s: %v", owner, err)
		}
	}
}

// otherPlugin is one that sets CPUs of each new container, or of another one.
type otherPlugin struct{ of string }

func (o *otherPlugin) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if o.of == "" {
		adjust := &api.ContainerAdjustment{}
		adjust.SetLinuxCPUSetCPUs("0")
		return adjust, nil, nil
	}
	update := &api.ContainerUpdate{ContainerId: o.of}
	update.SetLinuxCPUSetCPUs("0")
	return nil, []*api.ContainerUpdate{update}, nil
}

// Beside another plugin that sets CPUs, of the new container or of one that runs, the runtime creates
// nothing, and says which plugin it is.
func TestBesideAnotherPlugin(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]string{"of the new container": "", "of one that runs": "web.a"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "1s1n4c2t", nil)
			web, db := pod("web", nil), pod("db", nil)
			must(t, n.create(web, container(web, "a", 100), 0))
			was := n.cpus("web.a")
			conn, err := net.Dial("unix", n.socket)
			must(t, err)
			s, err := stub.New(&otherPlugin{of}, stub.WithPluginName("other"), stub.WithPluginIdx("10"), stub.WithConnection(conn), stub.WithLogger(quiet{}))
			must(t, err)
			must(t, s.Start(context.Background()))
			t.Cleanup(s.Stop)
			n.connected()
			if err := n.create(db, container(db, "a", 100), 0); err == nil || !strings.Contains(err.Error(), "other") {
				t.Errorf("created: %v", err)
			}
			if n.cpus("web.a") != was || n.has("db.a") {
				t.Errorf("the one that runs has %s, before %s", n.cpus("web.a"), was)
			}
		})
	}
}

// What the kubelet does to a pod's group has what is in force compared.
func TestUpdatePodSandbox(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var is atomic.Value
	opt, heard := options(t, "1s1n4c2t")
	opt.Effective = func(string) (cpuset.Set, bool) { s, ok := is.Load().(cpuset.Set); return s, ok }
	p := open(t, opt)
	p.table.synced = true
	web := pod("web", nil)
	c := container(web, "a", 100)
	_, _, err := p.CreateContainer(ctx, web, c)
	must(t, err)
	is.Store(p.online)
	must(t, p.PostStartContainer(ctx, web, c))
	compared := func() {
		t.Helper()
		select {
		case <-p.verifyNow:
			p.verify()
		case <-time.After(time.Minute):
			t.Fatal("nothing is compared")
		}
	}
	compared() // after the start
	if told := heard.kinds(Drifted); len(told) > 0 {
		t.Fatalf("told %q", told)
	}
	is.Store(cpuset.MustOf(1))
	must(t, p.UpdatePodSandbox(ctx, web, nil, nil))
	compared()
	if told := heard.kinds(Drifted); len(told) != 1 || !strings.Contains(told[0], "web/a: the kernel has CPUs 1 ") {
		t.Errorf("told %q", told)
	}
}

// Without a runtime the plugin tries again, after twice as long each time up to a bound, and soon again after a
// connection that lasted.
func TestBackOff(t *testing.T) {
	t.Parallel()
	opt, heard := options(t, "1s1n4c2t")
	opt.Every = time.Second
	synctest.Test(t, func(t *testing.T) {
		p, err := New(t.Context(), opt)
		must(t, err)
		defer p.Close()
		const lasts = 10 // the attempt that takes long
		var gaps []time.Duration
		var ended time.Time // the attempt before
		ctx, cancel := context.WithCancel(t.Context())
		err = p.Run(ctx, func() (net.Conn, error) {
			if gaps = append(gaps, time.Since(ended)); len(gaps) == lasts {
				time.Sleep(2 * longestWait)
			}
			if len(gaps) == lasts+2 {
				cancel()
			}
			ended = time.Now()
			return nil, errors.New("nobody listens")
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		var want []time.Duration
		for wait := firstWait; len(want) < lasts-1; wait = min(2*wait, longestWait) {
			want = append(want, wait)
		}
		want = append(want, firstWait, 2*firstWait)
		if diff := cmp.Diff(want, gaps[1:]); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if told := heard.kinds(Lost); len(told) != lasts+1 || !strings.Contains(told[0], "nobody listens; trying again in 100ms") {
			t.Errorf("told %q", told)
		}
	})
}
