package guarded

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
)

const (
	// articles is the tenant's working set in a file, hogBytes the neighbour's in
	// anonymous memory, and driven the part (one in so many) of the former that
	// their common limit has no room for.
	articles = 64 << 20
	hogBytes = 256 << 20
	driven   = 2
	// hogOwn is about what the neighbour's process takes besides.
	hogOwn = 8 << 20
)

// onDisk refuses a folder in memory for the tenant's file: without swap nothing of that
// can be reclaimed, and something would be killed instead.
func onDisk(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("file system of %s: %w", dir, err)
	}
	if t := int64(fs.Type); t == unix.TMPFS_MAGIC || t == unix.RAMFS_MAGIC {
		return &kernel.NotSupportedError{Feature: "fault reclaim", Reason: dir + " is in memory, and its pages cannot be reclaimed", Remedy: "--results on a disk"}
	}
	return nil
}

// reclaim sets a limit on the memory of all groups of the run when the tenant has
// its own, and lets the neighbour take so much that a part of the tenant's has to go.
// Without swap only pages of files can; nothing runs out of memory.
func (r *runner) reclaim(_ context.Context, s *lab.Scene) (disturbance, error) {
	hog, err := s.Admit(lab.Neighbour, noise.Config{Kernel: "write", Threads: 1, Intensity: 5, Bytes: hogBytes, Seed: r.exp.Seed})
	if err != nil {
		return disturbance{}, err
	}
	dir, err := r.stage.MemoryDir()
	if err != nil {
		return disturbance{}, err
	}
	undo := func() error { return nil }
	return disturbance{
		begin: func(ctx context.Context) error {
			text, err := os.ReadFile("/" + dir + "/memory.usage_in_bytes")
			if err != nil {
				return err
			}
			used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
			if err != nil {
				return fmt.Errorf("/%s/memory.usage_in_bytes: %w", dir, err)
			}
			limit := (used + hogBytes + hogOwn - articles/driven) &^ 4095
			undone, err := r.stage.Apply(kernel.Plan{{Path: dir + "/memory.limit_in_bytes", Value: strconv.FormatInt(limit, 10)}})
			if err != nil {
				return err
			}
			undo = undone
			return hog.Begin(ctx)
		},
		end: func() error {
			hog.End()
			return undo()
		},
	}, nil
}
