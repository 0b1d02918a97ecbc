package proc

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// synthetic is /proc/schedstat of a version, with three domains for each CPU as
// on a host with SMT and two sockets.
func synthetic(version, cpus int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version %d\ntimestamp 4295012345\n", version)
	for cpu := range cpus {
		fmt.Fprintf(&b, "cpu%d 0 0 123456 23456 98765 45678 %d %d %d\n", cpu, 900_000_000_000+cpu, 1_000_000_000*(cpu+1), 1000*cpu)
		for domain, name := range []string{"SMT", "MC", "NUMA"} {
			fmt.Fprintf(&b, "domain%d ", domain)
			if version >= 17 {
				fmt.Fprintf(&b, "%s ", name)
			}
			fmt.Fprintf(&b, "%s%s\n", strings.Repeat("ffffffff,", 7), "ffffffff"+strings.Repeat(" 12345", 45))
		}
	}
	return b.String()
}

func openCPUs(t testing.TB, text string) *SchedCPUs {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/schedstat", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := OpenSchedCPUs(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestCPUs(t *testing.T) {
	t.Parallel()
	for version := 15; version <= 17; version++ {
		c := openCPUs(t, synthetic(version, 3))
		want := []watch.Sample{{Time: watch.Second, Quantity: watch.CPUWait, Value: 6}}
		for range 2 {
			got, err := c.Read(watch.Second, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("version %d: %s", version, diff)
			}
		}
	}
	if _, err := openCPUs(t, "version 14\n").Read(watch.Second, nil); err == nil {
		t.Error("an old version is read")
	}
	if _, err := OpenSchedCPUs(t.TempDir()); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("no file: %v", err)
	}
	if _, err := OpenSchedCPUs(t.TempDir() + "/none"); err == nil {
		t.Error("no directory")
	}
}

// Not parallel: AllocsPerRun counts for the whole program.
func TestCPUsDoNotAllocate(t *testing.T) {
	c := openCPUs(t, synthetic(17, 64))
	var buf []watch.Sample
	if n := testing.AllocsPerRun(5, func() { buf, _ = c.Read(watch.Second, buf[:0]) }); n != 0 || len(buf) != 1 {
		t.Errorf("%v allocations, %d samples", n, len(buf))
	}
}

// BenchmarkCPUs reads a plain file: what the kernel takes to write the text is not
// in it.
func BenchmarkCPUs(b *testing.B) {
	text := synthetic(17, 256)
	c := openCPUs(b, text)
	b.SetBytes(int64(len(text)))
	var buf []watch.Sample
	for b.Loop() {
		var err error
		if buf, err = c.Read(watch.Second, buf[:0]); err != nil {
			b.Fatal(err)
		}
	}
}
