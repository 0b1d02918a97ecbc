package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
)

// Two processes are put side by side in groups of their own; the neighbour is
// squeezed for a while; then everything is as before. The tree is a fake one:
// on a live host the root is kernel.Open("/").
func Example() {
	if err := squeeze(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// mkdir /sys/fs/cgroup/cpu,cpuacct/berth-lab
	// mkdir /sys/fs/cgroup/cpu,cpuacct/berth-lab/tenant
	// mkdir /sys/fs/cgroup/cpu,cpuacct/berth-lab/neighbour
	//
	// echo 102 > /sys/fs/cgroup/cpu,cpuacct/berth-lab/neighbour/cpu.shares
	// echo 20000 > /sys/fs/cgroup/cpu,cpuacct/berth-lab/neighbour/cpu.cfs_quota_us
	//
	// cpu.idle = 0
	// cpu.shares = 102
	// cpu.cfs_quota_us = 20000
	// cpu.cfs_period_us = 100000
	// cpu.cfs_burst_us = 0
	// groups left: 0
}

func squeeze() (err error) {
	dir, err := os.MkdirTemp("", "berth-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fake, err := fakekernel.New(dir, fakekernel.V1())
	if err != nil {
		return err
	}
	root := kernel.NewRoot(dir, fake)
	if err := errors.Join(fake.Start("101"), fake.Start("102")); err != nil {
		return err
	}

	// From here on it is what a program does.
	undoLog, err := kernel.CreateUndoLog(root, filepath.Join(dir, "run"), "example")
	if err != nil {
		return err
	}
	defer undoLog.Close()
	host, err := cgroup.Detect(root)
	if err != nil {
		return err
	}
	host.UID = 0 // of the fake host
	base, err := host.Base(cgroup.CPU, cgroup.CPUAcct)
	if err != nil {
		return err // what is missing, why, and what would help
	}
	lab := base.Child("berth-lab")
	tenant, neighbour := lab.Child("tenant"), lab.Child("neighbour")
	plan, err := lab.Create("tenant", "neighbour")
	if err != nil {
		return err
	}
	fmt.Println(plan)
	remove, err := kernel.Apply(root, plan, undoLog)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, remove())
		left, _ := filepath.Glob(filepath.Join(dir, "sys/fs/cgroup/*/berth-lab"))
		fmt.Println("groups left:", len(left))
	}()
	for group, pid := range map[cgroup.Group]int{tenant: 101, neighbour: 102} {
		plan, err := group.Attach(pid)
		if err != nil {
			return err
		}
		detach, err := kernel.Apply(root, plan, undoLog)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, detach()) }()
	}

	plan, err = neighbour.Set(cgroup.Limits{Weight: 10, Quota: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	fmt.Println(plan)
	undo, err := kernel.Apply(root, plan, undoLog)
	if err != nil {
		return err
	}
	knobs, err := neighbour.Knobs()
	if err != nil {
		return err
	}
	for _, k := range knobs {
		fmt.Println(k.File, "=", k.Value)
	}
	return undo()
}
