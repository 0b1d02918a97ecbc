package resctrl

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

// playedCPU is a host with one of fakekernel's CPUs.
func playedCPU(t *testing.T, name string) *kernel.Root {
	t.Helper()
	l, cpu := fakekernel.V2(), fakekernel.ResctrlCPUs()[name]
	l.Resctrl = &cpu
	dir := t.TempDir()
	k, err := fakekernel.New(dir, l)
	if err != nil {
		t.Fatal(err)
	}
	return kernel.NewRoot(dir, k)
}

// Devices with a class of their own (io_alloc) have a CLOSID less for classes, and ways that nobody has
// alone: as many classes as are said to fit do, and what the kernel refuses is refused before.
func TestDevicesHaveClass(t *testing.T) {
	t.Parallel()
	for cpu, closids := range map[string]int{"zen5-io": 15, "zen5-io-cdp": 7, "zen5": 16} {
		t.Run(cpu, func(t *testing.T) {
			t.Parallel()
			root := playedCPU(t, cpu)
			tree, err := Read(root.FS())
			if err != nil {
				t.Fatal(err)
			}
			devices := cpu != "zen5"
			if tree.CLOSIDs() != closids || tree.DevicesHaveClass() != devices {
				t.Fatalf("%d CLOSIDs, %v", tree.CLOSIDs(), tree.DevicesHaveClass())
			}
			l3 := tree.cache("L3")
			if first, last := l3.Filled(0), l3.Filled(15); devices && (first != 0xf000 || last != 0xc000) || !devices && first|last != 0 {
				t.Errorf("devices fill %x of cache 0 and %x of cache 15", first, last)
			}
			many := func(n int) *Config {
				text := "partitions: {a: {classes: {"
				for i := range n {
					text += fmt.Sprintf("c%d: ,", i)
				}
				return parse(t, text+"}}}")
			}
			_, err = many(closids).Layout(tree)
			want := fmt.Sprintf("at most %d classes fit", closids-1)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "beside that of devices (io_alloc)") != devices {
				t.Errorf("too many: %v, want %q", err, want)
			}
			c := many(closids - 1)
			if _, err := kernel.Apply(root, compute(t, tree, c), nil); err != nil {
				t.Errorf("as many as fit: %v", err)
			}
			if err := root.Mkdir(tree.Dir + "/one-more"); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("one group more: %v", err)
			}
		})
	}
}

func TestDevicesKeepNobodyAlone(t *testing.T) {
	t.Parallel()
	root := playedCPU(t, "zen5-io")
	tree, err := Read(root.FS())
	if err != nil {
		t.Fatal(err)
	}
	const shared = "rest: {l3Allocation: '0xff', classes: {DEFAULT: }}"
	for ways, want := range map[string]string{"0x1f00": "cache id 0: devices fill ways 12", "5 ways": "4 are free that no device fills", "0x5000": "devices fill ways 12,14"} {
		_, err := parse(t, "partitions: {gold: {l3Allocation: '"+ways+"', classes: {gold: {exclusive: true}}}, "+shared+"}").Layout(tree)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ways, err, want)
		}
	}
	// What is refused before is refused by the kernel, too.
	group := tree.Dir + "/by-hand"
	if err := errors.Join(root.WriteFile(tree.Dir+"/schemata", "L3:0=ff\n"), root.Mkdir(group), root.WriteFile(group+"/schemata", "L3:0=1f00\n")); err != nil {
		t.Fatal(err)
	}
	if err := root.WriteFile(group+"/mode", modeExclusive+"\n"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("exclusive over ways of devices: %v", err)
	}
	if err := root.Rmdir(group); err != nil {
		t.Fatal(err)
	}
	c := parse(t, "partitions: {gold: {l3Allocation: 4 ways, classes: {gold: {exclusive: true}}}, rest: {l3Allocation: 4 ways, classes: {DEFAULT: , bulk: {l3Allocation: '0x3'}}}}")
	if _, err := kernel.Apply(root, compute(t, tree, c), nil); err != nil {
		t.Error(err)
	}
}

// A class of devices that cannot be read is no class that can be left out.
func TestDevicesUnread(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "0=zz", "0", "what", "uninitialized"} {
		l, cpu := fakekernel.V2(), fakekernel.ResctrlCPUs()["zen5-io"]
		l.Resctrl = &cpu
		k, err := fakekernel.New(t.TempDir(), l)
		if err == nil {
			err = k.Put(fakekernel.ResctrlDir+"/info/L3/io_alloc_cbm", text)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Read(k.FS()); err == nil || !strings.Contains(err.Error(), "io_alloc_cbm") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
