package resctrl_test

import (
	"strconv"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/resctrl"
)

// A thousand threads into a class, against the kernel that a test plays.
func BenchmarkFollowThousand(b *testing.B) {
	dir := b.TempDir()
	l := fakekernel.V2()
	cpu := fakekernel.ResctrlCPUs()["skylake"]
	l.Resctrl = &cpu
	k, err := fakekernel.New(dir, l)
	if err != nil {
		b.Fatal(err)
	}
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
	root := kernel.NewRoot(dir, k)
	tree, err := resctrl.Read(root.FS())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		if err := k.Put(fakekernel.ResctrlDir+"/tasks", all); err != nil {
			b.Fatal(err)
		}
		if err := k.Put(fakekernel.ResctrlDir+"/"+group+"/tasks", ""); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		moved, _, err := resctrl.Follow(root, tree, group, func() ([]int, error) { return tids, nil })
		if err != nil || moved != len(tids) {
			b.Fatal(moved, err)
		}
	}
}
