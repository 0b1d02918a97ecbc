package sched_test

import (
	"fmt"
	"os/exec"

	"berth.dev/berth/kernel/sched"
)

// A batch job is kept from preempting on wake-up for a while.
func Example() {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	undo, err := sched.Set(cmd.Process.Pid, sched.Attr{Policy: sched.Batch})
	if err != nil {
		fmt.Println(err)
		return
	}
	state, err := sched.Get(cmd.Process.Pid)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(state.Policy)
	if err := undo(); err != nil {
		fmt.Println(err)
	}
	// Output: SCHED_BATCH
}
