package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/testbox"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// present is how many groups a busy host has.
const present = 250

// BenchmarkAppear measures the time from the making of a group to its placement,
// with 250 workloads present, on the host's own control groups: v1, as root.
//
//	go test ./agent/daemon -run '^$' -bench Appear -benchtime 300x
func BenchmarkAppear(b *testing.B) {
	dirs, prefix := realGroups(b)
	made := func(i int) string { return fmt.Sprintf("%s%d", prefix, i) }
	for i := range present {
		makeGroup(b, dirs, made(i))
	}
	socket := runAgent(b, fmt.Sprintf("{name: w, match: {cgroup: /%s*}, class: BE, limits: {weight: 50}}", prefix))
	c, err := api.Dial(b.Context(), socket)
	if err != nil {
		b.Fatal(err)
	}
	awaitPlaced(b, c, present)
	var last uint64
	for e := range c.Events(b.Context(), 0, false) {
		last = e.Seq
	}
	var delays []time.Duration
	b.ResetTimer()
	before := cpuTime()
	for i := range b.N {
		start := time.Now()
		makeGroup(b, dirs, made(present+i))
		for e, err := range c.Events(b.Context(), last, true) {
			if err != nil {
				b.Fatal(err)
			}
			last = e.Seq
			if e.Kind == "placed" {
				delays = append(delays, time.Since(start))
				break
			}
		}
		b.StopTimer()
		removeGroup(b, dirs, made(present+i))
		for e := range c.Events(b.Context(), last, true) {
			last = e.Seq
			if e.Kind == "released" {
				break
			}
		}
		b.StartTimer()
	}
	b.ReportMetric(float64((cpuTime()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	slices.Sort(delays)
	at := func(p float64) float64 {
		return float64(delays[min(len(delays)-1, int(p*float64(len(delays))))].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
}

// cpuTime is the CPU time of this process, for the agent and who makes the groups.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// realGroups returns the directories of the hierarchies in which a workload lives,
// and a prefix of names that is this test's own, for a node that has the whole tree. It
// skips where they cannot be used.
func realGroups(b testing.TB) (dirs []string, prefix string) {
	b.Helper()
	root, err := kernel.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	host, err := cgroup.Detect(root)
	if err != nil {
		b.Fatal(err)
	}
	if os.Geteuid() != 0 {
		b.Skip("not root: groups at the top of the tree cannot be made")
	}
	t, ok := host.Hierarchy(cgroup.CPUSet)
	if !ok || t.Version != 1 || t.ReadOnly {
		b.Skip("no cpuset hierarchy of cgroup v1 that can be written to")
	}
	fakekernel.LockHost(b, fakekernel.Alone)
	for _, name := range []string{cgroup.CPUSet, cgroup.CPU, cgroup.CPUAcct, cgroup.Memory, cgroup.IO, cgroup.PIDs} {
		if t, ok := host.Hierarchy(name); ok && !slices.Contains(dirs, "/"+t.Dir) {
			dirs = append(dirs, "/"+t.Dir)
		}
	}
	return dirs, fmt.Sprintf("berth-bench-%d-", os.Getpid())
}

// makeGroup makes a group in each hierarchy, the one that is watched last, as
// container runtimes do not promise any order.
func makeGroup(b testing.TB, dirs []string, name string) {
	b.Helper()
	b.Cleanup(func() {
		for _, dir := range dirs {
			testbox.RemoveGroup(b, filepath.Join(dir, name))
		}
	})
	for _, dir := range slices.Backward(dirs) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			b.Fatal(err)
		}
	}
}

func removeGroup(b *testing.B, dirs []string, name string) {
	b.Helper()
	for _, dir := range dirs {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			b.Fatal(err)
		}
	}
}

// runAgent runs an agent for one workload of a configuration until the end of the
// test, and returns its socket.
func runAgent(b *testing.B, workload string) string {
	b.Helper()
	dir := fakekernel.MemoryDir(b)
	file := filepath.Join(dir, "node.yaml")
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\nworkloads: [%s]\nagent: {stateDir: %s/state, socket: %s/s}\n", config.APIVersion, config.Kind, workload, dir, dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, Options{File: file, RestoreOnExit: true}) }()
	b.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	for range 500 {
		if _, err := os.Stat(filepath.Join(dir, "s")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return filepath.Join(dir, "s")
}

func awaitPlaced(b *testing.B, c *api.Client, n int) {
	b.Helper()
	placed := 0
	for e, err := range c.Events(b.Context(), 0, true) {
		if err != nil {
			b.Fatal(err)
		}
		if e.Kind == "placed" {
			placed++
		}
		if e.Kind == "refused" {
			b.Fatal(e.Text)
		}
		if placed == n {
			return
		}
	}
}

// BenchmarkRead measures one reading of the statistics of 250 groups of the host; cpu-µs/op
// is the CPU time of this process.
func BenchmarkRead(b *testing.B) {
	dirs, prefix := realGroups(b)
	root, err := kernel.Open("/")
	if err != nil {
		b.Fatal(err)
	}
	var bases []string
	for _, dir := range dirs {
		bases = append(bases, dir[1:])
	}
	trees, others, _, _, err := treesOf(root, bases)
	if err != nil {
		b.Fatal(err)
	}
	m := newMeter("/", trees, others, time.Second)
	defer m.close()
	all := map[string]string{}
	for i := range present {
		name := fmt.Sprintf("%s%d", prefix, i)
		makeGroup(b, dirs, name)
		all[name] = name
	}
	if err := m.follow(all, nil); err != nil {
		b.Fatal(err)
	}
	origin := time.Now()
	for range m.turns {
		m.read(time.Now(), origin) // once it has opened all
	}
	b.ReportAllocs()
	before := cpuTime()
	for b.Loop() {
		m.read(time.Now(), origin)
	}
	b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-µs/op")
}
