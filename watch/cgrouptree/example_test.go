package cgrouptree_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"berth.dev/berth/watch/cgrouptree"
)

func Example() {
	// A directory that stands for /sys/fs/cgroup.
	root, err := os.MkdirTemp("", "cgroup")
	if err != nil {
		fmt.Println(err)
	}
	defer os.RemoveAll(root)
	os.Mkdir(filepath.Join(root, "batch"), 0o755)

	groups, err := cgrouptree.Open(cgrouptree.Config{Roots: []string{root}})
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
