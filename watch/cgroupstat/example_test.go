package cgroupstat_test

import (
	"fmt"
	"os"
	"path/filepath"

	"berth.dev/berth/watch/cgroupstat"
)

func Example() {
	// A tree that stands for /sys/fs/cgroup.
	dir, err := os.MkdirTemp("", "cgroup")
	if err != nil {
		fmt.Println(err)
	}
	defer os.RemoveAll(dir)
	os.Mkdir(filepath.Join(dir, "api"), 0o755)
	os.WriteFile(filepath.Join(dir, "api", "pids.current"), []byte("12\n"), 0o644)

	tree := cgroupstat.Tree{Version: 2, Controllers: []string{"memory", "pids"}, Dir: dir}
	api, err := cgroupstat.Open([]cgroupstat.Tree{tree}, "api", cgroupstat.Tasks, cgroupstat.Memory)
	if err != nil {
		fmt.Println(err)
	}
	defer api.Close()
	samples, err := api.Read(0, nil)
	for _, s := range samples {
		fmt.Println(s.Subject, s.Quantity, s.Value, err)
	}
	for _, s := range api.Signals() {
		fmt.Println(s.Signal, s.Err)
	}
	// Output:
	// group api tasks 12 <nil>
	// tasks <nil>
	// memory memory of a group: not supported: there is no memory.current (enable the memory controller in the parent's cgroup.subtree_control)
}
