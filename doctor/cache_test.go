package doctor

import (
	"os"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
)

// What is mounted says how it is divided, limited and counted.
func TestResctrlModes(t *testing.T) {
	t.Parallel()
	for cpu, want := range map[string]struct {
		mbps                bool
		ways, bandwidth, of string
	}{
		"skylake":              {false, "L3 16 CLOSIDs, code and data together (mount with -o cdp, or cdpl2, to tell them apart)", "MB 8 CLOSIDs, in percent", "L3_MON 176 RMIDs, 168 control groups at a time beside all classes, more in turns"},
		"skylake-cdp":          {true, "L3CODE 8 CLOSIDs, L3DATA 8 CLOSIDs, code and data apart (cdp)", "MB 8 CLOSIDs, in MiB/s (mba_MBps)", "L3_MON 176 RMIDs, 168 control groups"},
		"zen5":                 {false, "L3 16 CLOSIDs, code and data together", "SMBA 16 CLOSIDs, in 1/8 GB/s", "32 counters of bandwidth for each cache, assigned to groups (mbm_event), 16 control groups at a time"},
		"zen5-io":              {false, "(mount with -o cdp, or cdpl2, to tell them apart), devices have a class of their own, which takes a CLOSID (io_alloc)", "SMBA 16 CLOSIDs", "16 control groups at a time"},
		"sapphirerapids-cdpl2": {false, "L3 15 CLOSIDs, L2CODE 4 CLOSIDs, L2DATA 4 CLOSIDs, code and data of L2 apart (cdpl2)", "MB 8 CLOSIDs, in percent", "L3_MON 176 RMIDs"},
		"mpam":                 {false, "L3 32 CLOSIDs", "MB 32 CLOSIDs, in percent", "L3_MON 64 RMIDs, 32 control groups"},
	} {
		l, r := fakekernel.V2(), fakekernel.ResctrlCPUs()[cpu]
		r.MBps = want.mbps
		l.Resctrl = &r
		dir := t.TempDir()
		if _, err := fakekernel.New(dir, l); err != nil {
			t.Fatal(err)
		}
		report := Look(os.DirFS(dir), Probes{})
		for name, text := range map[string]string{"cache-ways": want.ways, "memory-bandwidth": want.bandwidth, "cache-monitoring": want.of} {
			c, _ := report.Get(name)
			if got := c.Found; !strings.Contains(got, text) {
				t.Errorf("%s, %s: %q, want %q", cpu, name, got, text)
			}
		}
	}
}
