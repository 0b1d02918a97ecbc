package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/cpuset"
)

// killsEnv is how often TestKills kills the plugin; containerd is killed a quarter as often.
const killsEnv = "BERTH_KILLS"

// needing makes the runtime refuse a pod that the plugin does not see.
func needing(p *v1.Pod) *v1.Pod {
	p.Annotations["required-plugins.noderesource.dev"] = "[ berth ]"
	return p
}

// sharing is a pod of the shared pool that the kubelet counts no CPU time for: two pods that
// want a CPU of their own are all that it admits on two CPUs.
func sharing(name string) *v1.Pod {
	p := pod(name, burstable("a", 0))
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{}
	p.Annotations["berth.dev/class"] = "LS"
	return p
}

// Kills of the plugin and of containerd at random instants, while pods come and go: no CPU
// has two owners at any instant that was seen, nobody stays on a CPU that became another's, no
// container is lost or restarted, and the books become what the kernel has: how soon is told. A container of which a kill interrupted the creation gives its CPU back.
func TestKills(t *testing.T) {
	c := theNode(t)
	kills := 10
	if text := os.Getenv(killsEnv); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", killsEnv, err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	var before []same
	for i := range 3 {
		name := fmt.Sprintf("stays-%d", i)
		c.run(t, needing(sharing(name)))
		before = append(before, c.lasting(t, name))
	}
	seen := c.watch(t)
	churn := c.churn(t)
	var killed []time.Time
	connects := 0
	for i := range kills + kills/4 {
		time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
		if i == kills+kills/4-1 {
			churn.halt() // so that the books and the kernel can be compared
			connects = c.connects()
		}
		victim := named{"the plugin", c.plugin}
		if i%5 == 4 {
			victim = named{"containerd", c.containerd}
		}
		killed = append(killed, time.Now())
		if err := victim.Again(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	last := time.Now()
	if err := c.connected(connects); err != nil {
		t.Fatal(err)
	}
	c.books(t)
	t.Logf("the books are the kernel's %.1f s after the last restart", time.Since(last).Seconds())
	c.collected(t)
	if err := c.answers(); err != nil {
		t.Error(err)
	}
	created, owners, sharers := churn.created, churn.owners, churn.sharers
	for _, s := range before {
		_, id, _ := strings.Cut(s.id, "://")
		sharers[id] = true
	}
	samples, _ := seen.stop()
	t.Logf("%d kills of the plugin, %d of containerd; %d pods, of which %d owned a CPU; %d samples", kills, kills/4, created, len(owners), samples)
	if len(owners) == 0 {
		t.Error("no pod owned a CPU: nothing was tested")
	}
	for _, bad := range seen.both(func(group string) bool { return owners[filepath.Base(group)] }) {
		t.Error(bad)
	}
	in := func(ids map[string]bool) func(string) bool {
		return func(group string) bool { return ids[filepath.Base(group)] }
	}
	worst, lasted := seen.longest(in(owners), in(sharers), c.away(t, killed))
	t.Logf("the longest time in which a container was not yet taken off another's CPU: %s; between samples: %s", lasted, seen.slowest)
	if lasted > taken {
		t.Errorf("%s stays for %s on the CPU of %s", worst.other, lasted, worst.one)
	}
	for i, was := range before {
		if is := c.lasting(t, fmt.Sprintf("stays-%d", i)); is != was {
			t.Errorf("stays-%d: %v, before %v", i, is, was)
		}
	}
}

// taken is how long a container may have a CPU that another one owns or is to own: until the
// runtime has started who was starting.
const taken = time.Second

// away are the times from each kill to the next adoption.
func (c *cluster) away(t *testing.T, killed []time.Time) (all []span) {
	t.Helper()
	adopted := regexp.MustCompile(`(?m)^time=(\S+) .*msg=connected .*adopted in`).FindAllStringSubmatch(c.plugin.Output(), -1)
	for _, at := range killed {
		until := time.Now()
		for _, line := range slices.Backward(adopted) {
			back, err := time.Parse(time.RFC3339, line[1])
			if err != nil {
				t.Fatal(err)
			}
			if back.Before(at) {
				break
			}
			until = back
		}
		all = append(all, span{at, until})
	}
	return all
}

// collected waits until the books have nothing that does not run: the plugin keeps the CPUs of a
// container that nobody starts for 30 s, and looks every 5 s.
func (c *cluster) collected(t *testing.T) {
	t.Helper()
	began := time.Now()
	err := within(func() error {
		if _, left := c.compare(); len(left) > 0 {
			return errors.New(strings.Join(left, "; "))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("nothing else is in the books %.0f s later", time.Since(began).Seconds())
}

// lasting is same without the CPUs, which change as others come and go.
func (c *cluster) lasting(t *testing.T, name string) same {
	t.Helper()
	s := c.same(t, name, "a")
	s.cpus = cpuset.Set{}
	return s
}

// answers reports whether containerd and the plugin run.
func (c *cluster) answers() error {
	for _, p := range []named{{"the plugin", c.plugin}, {"containerd", c.containerd}} {
		if p.Ended() {
			return fmt.Errorf("%s has ended by itself:\n%s", p.name, p.Tail(10))
		}
	}
	return nil
}

// churn is pods that come and go.
type churn struct {
	end  chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	created int
	owners  map[string]bool // ids of containers that owned a CPU
	sharers map[string]bool // and of those that did not
	last    []string        // pods that are still there
}

// churn starts two sequences of pods that want a CPU of their own, and two of others.
func (c *cluster) churn(t *testing.T) *churn {
	ch := &churn{end: make(chan struct{}), owners: map[string]bool{}, sharers: map[string]bool{}}
	for i := range 4 {
		ch.done.Go(func() {
			for n := 0; ; n++ {
				p := needing(sharing(fmt.Sprintf("churn-%d-%d", i, n)))
				if i < 2 {
					p = needing(pod(p.Name, guaranteed("a", 1000)))
					p.Annotations["berth.dev/cpus"] = "1"
				}
				if _, err := c.client.CoreV1().Pods(namespace).Create(t.Context(), p, meta.CreateOptions{}); err != nil {
					t.Error(err)
					return
				}
				id := ""
				for end := time.Now().Add(5 * time.Second); id == "" && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if is, err := c.get(p.Name); err == nil {
						s, _ := statusOf(is, "a")
						_, id, _ = strings.Cut(s.ContainerID, "://")
					}
				}
				ch.mu.Lock()
				ch.created++
				switch {
				case id == "":
				case i < 2:
					ch.owners[id] = true
				default:
					ch.sharers[id] = true
				}
				ch.mu.Unlock()
				select {
				case <-ch.end:
					ch.mu.Lock()
					ch.last = append(ch.last, p.Name)
					ch.mu.Unlock()
					return
				default:
				}
				if err := c.gone(p.Name); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		ch.halt()
		for _, name := range ch.last {
			c.remove(t, name)
		}
	})
	return ch
}

// halt has no more pods come or go.
func (ch *churn) halt() {
	select {
	case <-ch.end:
	default:
		close(ch.end)
	}
	ch.done.Wait()
}

// books compares what berth-node ps says with the kernel's files: every container of a pod
// is in the books, with the CPUs that it has. It waits: the kubelet may create one between the two.
func (c *cluster) books(t *testing.T) {
	t.Helper()
	err := within(func() error {
		if bad, _ := c.compare(); len(bad) > 0 {
			return errors.New(strings.Join(bad, "; "))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// compare returns what differs, and what is in the books and does not run.
func (c *cluster) compare() (bad, idle []string) {
	var rows []struct {
		CPUs  cpuset.Set `json:"cpus"`
		Group string     `json:"group"`
	}
	text, err := exec.Command(filepath.Join(os.Getenv(builtEnv), "berth-node"), "ps", "-o", "json", "--interval", "10ms").Output()
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil {
		return []string{fmt.Sprintf("berth-node ps: %v\n%s", err, text)}, nil
	}
	booked := map[string]cpuset.Set{}
	for _, r := range rows {
		booked[filepath.Base(r.Group)] = r.CPUs
	}
	for _, pattern := range []string{"/pod*/*", "/*/pod*/*"} {
		groups, _ := filepath.Glob(pods() + pattern + "/cgroup.procs")
		for _, procs := range groups {
			group := filepath.Dir(procs)
			id := filepath.Base(group)
			is, ok := busy(group)
			book, has := booked[id]
			if !ok || !has && c.sandbox(id) { // the API server may not know yet what is in the books
				continue
			}
			if !has || book != is {
				bad = append(bad, fmt.Sprintf("container %s: the books say CPUs %s (%v), the kernel %s", id, book, has, is))
			}
			delete(booked, id)
		}
	}
	for id, cpus := range booked {
		idle = append(idle, fmt.Sprintf("container %s, with CPUs %s, is in the books and does not run", id, cpus))
	}
	return bad, idle
}

// sandbox reports whether a container is none of a pod's: its pause.
func (c *cluster) sandbox(id string) bool {
	list, err := c.client.CoreV1().Pods(namespace).List(context.Background(), meta.ListOptions{})
	if err != nil {
		return false
	}
	for i := range list.Items {
		p := &list.Items[i]
		for _, s := range append(p.Status.ContainerStatuses, p.Status.InitContainerStatuses...) {
			if strings.HasSuffix(s.ContainerID, "//"+id) {
				return false
			}
		}
	}
	return true
}
