package sysfs_test

import (
	"testing"
	"testing/fstest"

	"berth.dev/berth/machine/sysfs"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"MemTotal:       24684092 kB\nMemFree: 5 kB\n": 24684092 << 10,
		"MemFree: 5 kB\nMemTotal: 1 kB\n":              1 << 10,
		"":                                             0,
		"MemTotal: 24684092\n":                         0,
		"MemTotal: -1 kB\n":                            0,
		"MemTotal: 9223372036854775807 kB\n":           0,
		"XMemTotal: 7 kB\n":                            0,
	} {
		if got := sysfs.Memory(fstest.MapFS{"proc/meminfo": {Data: []byte(text)}}); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := sysfs.Memory(fstest.MapFS{}); got != 0 {
		t.Errorf("without the file: %d", got)
	}
}
