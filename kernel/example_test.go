package kernel_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"berth.dev/berth/kernel"
)

// A plan is shown, carried out and undone, under a directory that stands for "/".
func Example() {
	dir, err := os.MkdirTemp("", "berth-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	group := filepath.Join(dir, "sys/fs/cgroup/web")
	weight := filepath.Join(group, "cpu.weight")
	show := func() {
		text, err := os.ReadFile(weight)
		fmt.Printf("cpu.weight is %s%v\n", text, err)
	}
	for name, text := range map[string]string{
		weight: "100\n",
		// Undoing writes in mounted trees of control groups only.
		filepath.Join(dir, "proc/self/mountinfo"):            "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		filepath.Join(dir, "proc/sys/kernel/random/boot_id"): "c0ffee\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			fmt.Println(err)
			return
		}
	}

	root, err := kernel.Open(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	undoLog, err := kernel.CreateUndoLog(root, filepath.Join(dir, "run"), "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer undoLog.Close()

	plan := kernel.Plan{{Path: "sys/fs/cgroup/web/cpu.weight", Value: "250", Why: "the service goes first"}}
	fmt.Print(plan)
	undo, err := kernel.Apply(root, plan, undoLog)
	if err != nil {
		fmt.Println(err)
		return
	}
	show()
	if err := undo(); err != nil {
		fmt.Println(err)
		return
	}
	show()
	// Output:
	// echo 250 > /sys/fs/cgroup/web/cpu.weight  # the service goes first
	// cpu.weight is 250
	// <nil>
	// cpu.weight is 100
	// <nil>
}
