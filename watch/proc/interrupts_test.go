package proc

import (
	"os"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const interrupts = `           CPU0       CPU2
  0:         20          0   IO-APIC   2-edge      timer
 38:          5      18532 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 44:          1          2   IO-APIC  16-fasteoi   i801_smbus, nvme0q1
 45:          0          0
 46:         12          0     GICv3  27 Level     arch_timer
 47:          3          4   ITS-MSI 16384 Edge      nvme0q0, nvme0q1
 48:          0          0     GICv3  23 Level
NMI:          0          0   Non-maskable interrupts
ERR:          0
`

func TestReadInterrupts(t *testing.T) {
	t.Parallel()
	got, err := ReadInterrupts(fstest.MapFS{"proc/interrupts": {Data: []byte(interrupts)}})
	want := []Interrupt{
		{0, "timer", map[int]uint64{0: 20, 2: 0}}, {38, "virtio2-input.0", map[int]uint64{0: 5, 2: 18532}},
		{44, "i801_smbus, nvme0q1", map[int]uint64{0: 1, 2: 2}}, {45, "", map[int]uint64{0: 0, 2: 0}},
		{46, "arch_timer", map[int]uint64{0: 12, 2: 0}}, {47, "nvme0q0, nvme0q1", map[int]uint64{0: 3, 2: 4}}, {48, "", map[int]uint64{0: 0, 2: 0}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for name, text := range map[string]string{
		"no CPUs": "x y\n", "a CPU too many": "CPU0 CPU1\n 1: 5\n", "no count": "CPU0\n 1: x IO-APIC 1 a\n", "below nought": "CPU0\n 1: -1 IO-APIC 1 a\n", "CPU below": "CPU-1\n",
	} {
		if all, err := parseInterrupts(text); err == nil {
			t.Errorf("%s: %+v", name, all)
		}
	}
	if _, err := ReadInterrupts(fstest.MapFS{}); err == nil {
		t.Error("without the file there is no error")
	}
}

func FuzzInterrupts(f *testing.F) {
	f.Add(interrupts)
	if text, err := os.ReadFile("/proc/interrupts"); err == nil {
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseInterrupts(text)
		if err != nil && all != nil {
			t.Errorf("%v and %+v", err, all)
		}
		for _, i := range all {
			if i.Number < 0 {
				t.Errorf("%+v", i)
			}
		}
	})
}
