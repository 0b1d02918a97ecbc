package cgroupstat_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"berth.dev/berth/watch/cgroupstat"
)

func Example_watcher() {
	// A directory that stands for /sys/fs/cgroup.
	root, err := os.MkdirTemp("", "cgroup")
	if err != nil {
		fmt.Println(err)
	}
	defer os.RemoveAll(root)
	os.Mkdir(filepath.Join(root, "batch"), 0o755)

	groups, err := cgroupstat.NewWatcher(cgroupstat.WatcherConfig{Root: root})
	if err != nil {
		fmt.Println(err)
	}
	defer groups.Close()
	for range 2 {
		event, err := groups.Next(context.Background())
		fmt.Println(event.Path, event.Vanished, err)
		os.Remove(filepath.Join(root, "batch"))
	}
	// Output:
	// batch false <nil>
	// batch true <nil>
}
