package cgroupstat

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"testing"
)

func ino(t *testing.T, dir string) uint64 {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// The ids of a group and of those below it are listed as far as there are not too many of them, and of too many
// no more than a few are looked at. Not parallel: AllocsPerRun counts for the whole program.
func TestIDsBelow(t *testing.T) {
	root := t.TempDir()
	mkdir(t, root+"/g/a/b", root+"/g/c", root+"/other")
	want := []uint64{ino(t, root+"/g"), ino(t, root+"/g/a"), ino(t, root+"/g/a/b"), ino(t, root+"/g/c")}
	for most := 1; most <= 5; most++ {
		ids, all, err := IDsBelow(root, "g", most)
		if err != nil || all != (most >= len(want)) || len(ids) > most || ids[0] != want[0] {
			t.Errorf("at most %d: %v, all %v, %v", most, ids, all, err)
		}
		slices.Sort(ids)
		if sorted := slices.Sorted(slices.Values(want)); all && !slices.Equal(ids, sorted) {
			t.Errorf("at most %d: %v, want %v", most, ids, sorted)
		}
	}
	if _, _, err := IDsBelow(root, "gone", 5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group that is gone: %v", err)
	}
	mkdir(t, many(root+"/few", 1200)...)
	mkdir(t, many(root+"/many", 6000)...)
	allocations := func(group string) float64 {
		return testing.AllocsPerRun(1, func() {
			if _, all, err := IDsBelow(root, group, 10); all || err != nil {
				t.Errorf("%s: all %v, %v", group, all, err)
			}
		})
	}
	if few, lots := allocations("few"), allocations("many"); lots > 2*few {
		t.Errorf("%v allocations for a look at a group with 6000 below it, %v with 1200", lots, few)
	}
}
