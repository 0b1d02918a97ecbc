package resctrl

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

// big is 16 classes on so many cache ids.
func big(ids int) (*Tree, *Config) {
	var domains []int
	for id := range ids {
		domains = append(domains, id)
	}
	t := skylake(domains...)
	t.Resources[0].CLOSIDs, t.Resources[1].CLOSIDs, t.Resources[0].Mask = 32, 32, 0xfffff
	c := &Config{Partitions: map[string]Partition{}}
	for i := range 4 {
		p := Partition{L3Allocation: "25%", MBAllocation: []any{"80%"}, Classes: map[string]*Class{}}
		for j := range 4 {
			p.Classes[fmt.Sprintf("c%d%d", i, j)] = &Class{L3Allocation: fmt.Sprintf("%d%%", 25*(j+1)), MBAllocation: []any{"50%"}}
		}
		c.Partitions[fmt.Sprintf("p%d", i)] = p
	}
	return t, c
}

// compute is what is done for each change: the layout, and the plan from what is there.
func compute(tb testing.TB, t *Tree, c *Config) kernel.Plan {
	l, err := c.Layout(t)
	if err != nil {
		tb.Fatal(err)
	}
	return l.Plan(t, c.Names())
}

// bigHost is the played kernel with the CPU of big.
func bigHost(tb testing.TB) (*kernel.Root, *fakekernel.Mortal) {
	tb.Helper()
	dir := tb.TempDir()
	l, cpu := fakekernel.V2(), fakekernel.ResctrlCPUs()["emeraldrapids"]
	cpu.Domains = []int{0, 1, 2, 3, 4, 5, 6, 7}
	for i := range cpu.Lines {
		cpu.Lines[i].CLOSIDs = 32
	}
	l.Resctrl = &cpu
	k, err := fakekernel.New(dir, l)
	if err != nil {
		tb.Fatal(err)
	}
	count := &fakekernel.Mortal{Files: k, Count: new(int)}
	return kernel.NewRoot(dir, count), count
}

// Sixteen classes take a group and a write for each line; once more, nothing; and of one class
// that changes, its line. How much is computed does not grow with the cache ids.
func TestWritesOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	root, count := bigHost(t)
	_, c := big(8)
	for _, step := range []struct {
		what   string
		change func()
		writes int
	}{
		{"16 classes", func() {}, 16 + 2*16},
		{"once more", func() {}, 0},
		{"one has more ways", func() { c.Partitions["p1"].Classes["c11"].L3Allocation = "75%" }, 1},
		{"one has more ways of a cache", func() { c.Partitions["p1"].Classes["c11"].L3Allocation = map[string]any{"all": "75%", "3": "25%"} }, 1},
		{"one has more bandwidth", func() { c.Partitions["p2"].Classes["c20"].MBAllocation = []any{"100%"} }, 1},
		{"one has other ways, and as much bandwidth", func() { c.Partitions["p2"].Classes["c20"] = &Class{L3Allocation: "60%"} }, 1},
		{"a partition has less bandwidth", func() { p := c.Partitions["p3"]; p.MBAllocation = []any{"60%"}; c.Partitions["p3"] = p }, 4},
	} {
		step.change()
		tree, err := Read(root.FS())
		if err != nil {
			t.Fatal(err)
		}
		*count.Count = 0
		if _, err := kernel.Apply(root, compute(t, tree, c), nil); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if *count.Count != step.writes {
			t.Errorf("%s: %d writes, want %d", step.what, *count.Count, step.writes)
		}
	}
}

// A plan of 8 cache ids allocates as often as one of a single id: each costs its numbers only.
func TestPlanGrowsWithClasses(t *testing.T) {
	runs := func(ids int) float64 {
		tree, c := big(ids)
		return testing.AllocsPerRun(20, func() { compute(t, tree, c) })
	}
	if one, eight := runs(1), runs(8); eight > 1.5*one {
		t.Errorf("%.0f allocations for 8 cache ids, %.0f for one", eight, one)
	}
}

// reportCPU tells the CPU time of an operation, which is less than its time beside other work.
func reportCPU(b *testing.B) {
	b.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start := used()
	b.Cleanup(func() { b.ReportMetric(float64(used()-start)/float64(b.N), "cpu-ns/op") })
}

// The layout, of one cache and of eight: what is alike is computed once.
func BenchmarkLayout(b *testing.B) {
	for _, ids := range []int{1, 8} {
		b.Run(fmt.Sprintf("caches=%d", ids), func(b *testing.B) {
			t, c := big(ids)
			b.ReportAllocs()
			reportCPU(b)
			for b.Loop() {
				if _, err := c.Layout(t); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The layout and the plan, where no class is there yet.
func BenchmarkPlanAll(b *testing.B) {
	t, c := big(8)
	b.ReportAllocs()
	reportCPU(b)
	for b.Loop() {
		if plan := compute(b, t, c); len(plan) != 3*16 {
			b.Fatal(plan)
		}
	}
}

// The layout and the plan, where one class of those that are there is to have other ways.
func BenchmarkPlanOne(b *testing.B) {
	t, c := big(8)
	l, err := c.Layout(t)
	if err != nil {
		b.Fatal(err)
	}
	t = l.inForce(t)
	c.Partitions["p1"].Classes["c11"].L3Allocation = "75%"
	b.ReportAllocs()
	reportCPU(b)
	for b.Loop() {
		if plan := compute(b, t, c); len(plan) != 1 {
			b.Fatal(plan)
		}
	}
}

// A thousand threads into a class, against the kernel that a test plays.
func BenchmarkFollowThousand(b *testing.B) {
	root, k := bigHost(b)
	var tids []int
	all := ""
	for tid := 1000; tid < 2000; tid++ {
		tids = append(tids, tid)
		all += strconv.Itoa(tid) + "\n"
	}
	const group = "berth-gold"
	if err := k.Mkdir(fakekernel.ResctrlDir + "/" + group); err != nil {
		b.Fatal(err)
	}
	tree, err := Read(root.FS())
	if err != nil {
		b.Fatal(err)
	}
	played := k.Files.(*fakekernel.Kernel)
	for b.Loop() {
		b.StopTimer()
		if err := played.Put(fakekernel.ResctrlDir+"/tasks", all); err != nil {
			b.Fatal(err)
		}
		if err := played.Put(fakekernel.ResctrlDir+"/"+group+"/tasks", ""); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		moved, _, err := Follow(root, tree, group, func() ([]int, error) { return tids, nil })
		if err != nil || moved != len(tids) {
			b.Fatal(moved, err)
		}
	}
}
