package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/cpuset"
)

// crowdEnv is how many pods, of two containers each, TestCrowd starts at once.
const crowdEnv = "BERTH_PODS"

// Many pods started at once are all placed legally: one of them owns a CPU, and no other
// container is on that. What the plugin takes of the host meanwhile, and at rest, is told.
func TestCrowd(t *testing.T) {
	c, all := theNode(t), online(t)
	count := 30
	if text := os.Getenv(crowdEnv); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", crowdEnv, err)
		}
	}
	c.run(t, pod("owner", guaranteed("a", 1000)))
	own := c.has(t, "owner", "a", 1, cpuset.Set{})
	seen := c.watch(t)
	pid := c.plugin.PID()
	cpu, began := cpuTime(t, pid), time.Now()
	var names []string
	for i := range count {
		p := needing(pod(fmt.Sprintf("crowd-%d", i), burstable("a", 2), burstable("b", 2)))
		names = append(names, p.Name)
		c.create(t, p)
	}
	t.Cleanup(func() { // all at once, before each waits for its own
		if err := c.client.CoreV1().Pods(namespace).DeleteCollection(context.Background(), meta.DeleteOptions{}, meta.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
	for _, name := range names {
		if err := within(func() error { return c.runs(name) }); err != nil {
			t.Fatalf("%v\n%s", err, c.events(name))
		}
	}
	took := time.Since(began)
	t.Logf("%d pods run after %.1f s; the plugin used %v of CPU time meanwhile", count, took.Seconds(), cpuTime(t, pid)-cpu)
	samples, sets := seen.stop()
	ownGroup, err := c.group("owner", "a")
	if err != nil {
		t.Fatal(err)
	}
	placed := 0
	for _, name := range names {
		for _, container := range []string{"a", "b"} {
			group, err := c.group(name, container)
			if err != nil {
				t.Fatal(err)
			}
			placed++
			if slices.ContainsFunc(sets[group], own.Overlaps) {
				t.Errorf("%s/%s had CPUs %v in %d samples, of which %s are owner's", name, container, sets[group], samples, own)
			}
			c.has(t, name, container, all.Len()-1, own)
		}
	}
	if got := sets[ownGroup]; len(got) != 1 {
		t.Errorf("owner had CPUs %v, want always the same", got)
	}
	c.books(t)
	cpu, began = cpuTime(t, pid), time.Now()
	time.Sleep(10 * time.Second)
	rest := (cpuTime(t, pid) - cpu).Seconds() / time.Since(began).Seconds() * 100
	t.Logf("%d containers placed, %d samples; at rest the plugin takes %.2f %% of a CPU and %d MiB", placed, samples, rest, resident(t, pid)>>20)
}

// cpuTime is what a process has used; the kernel counts it in hundredths of a second.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// resident is a process's memory, in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
