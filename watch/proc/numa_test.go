package proc

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestProcessMemory(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{"proc/7/numa_maps": {Data: []byte("55f0 default file=/usr/bin/berth mapped=3 N0=2 N1=1 kernelpagesize_kB=4\n" +
		"7f00 bind:1 anon=2 dirty=2 N1=2 kernelpagesize_kB=2048\n7f01 default\n7f02 default file=/N9=x stack N0=1 Nx=3\n")}}
	got, err := ProcessMemory(files, 7)
	if diff := cmp.Diff(map[int]int64{0: 3 << 12, 1: 1<<12 + 4<<20}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if _, err := ProcessMemory(files, 8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a process that there is not: %v", err)
	}
}

// stat is a line of a task of any name that was on a CPU last.
func stat(name, cpu string) string {
	return "7 (" + name + ") S 1" + strings.Repeat(" 0", 34) + " " + cpu + " 0 0\n"
}

// Of three threads one has just gone; one's name is not nice.
func TestThreads(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"proc/7/task/7/stat": {Data: []byte(stat("berth", "3"))}, "proc/7/task/7/schedstat": {Data: []byte("5000000 300 9\n")},
		"proc/7/task/8/stat": {Data: []byte(stat(") R 1 2 (", "12"))}, "proc/7/task/8/schedstat": {Data: []byte("7 300 9\n")},
		"proc/7/task/9/comm": {},
	}
	got, err := Threads(files, 7)
	if diff := cmp.Diff([]Thread{{7, 3, 5 * time.Millisecond}, {8, 12, 7}}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	for _, bad := range []string{"", "7 (berth) S 1 2\n", stat("berth", "-1"), stat("berth", "x")} {
		files["proc/7/task/8/stat"] = &fstest.MapFile{Data: []byte(bad)}
		if all, err := Threads(files, 7); err == nil {
			t.Errorf("read %q as %+v", bad, all)
		}
	}
	if _, err := Threads(files, 8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a process that there is not: %v", err)
	}
}

func TestOwnThreads(t *testing.T) {
	t.Parallel()
	all, err := Threads(os.DirFS("/"), os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Skip("this kernel has no schedstat")
	}
	if !cmp.Equal(all[0].ID, os.Getpid()) {
		t.Errorf("the first thread is %+v, want that of process %d", all[0], os.Getpid())
	}
}

func FuzzNUMA(f *testing.F) {
	f.Add([]byte("7f00 bind:1 anon=2 dirty=2 N1=2 kernelpagesize_kB=2048\n"))
	f.Add([]byte(stat("berth", "3")))
	f.Fuzz(func(t *testing.T, text []byte) {
		parseNUMAMaps(text)
		if cpu, err := parseProcessor(text); err == nil && cpu < 0 {
			t.Errorf("CPU %d", cpu)
		}
	})
}
