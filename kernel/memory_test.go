package kernel

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadMemory(t *testing.T) {
	t.Parallel()
	const total, available = "MemTotal:       24683964 kB\n", "MemAvailable:   24287232 kB\n"
	for text, want := range map[string]struct {
		m     Memory
		wrong string
	}{
		total + "MemFree:        100 kB\n" + available + "Buffers: 1 kB\n": {Memory{24683964 << 10, 24287232 << 10}, ""},
		"MemAvailable: 0 kB\nMemTotal: 1 kB":                               {Memory{1 << 10, 0}, ""},
		"":                                                                 {wrong: "no MemTotal or no MemAvailable"},
		total + "MemFree: 1 kB\n":                                          {wrong: "no MemTotal or no MemAvailable"},
		available:                                                          {wrong: "no MemTotal or no MemAvailable"},
		"XMemTotal: 7 kB\n" + available:                                    {wrong: "no MemTotal or no MemAvailable"},
		"MemTotal: 24683964\n" + available:                                 {wrong: `MemTotal: "24683964" is not a number of kB`},
		total + "MemAvailable: 5 MB\n":                                     {wrong: "not a number of kB"},
		total + "MemAvailable:\n":                                          {wrong: "not a number of kB"},
		total + "MemAvailable: x kB\n":                                     {wrong: "invalid syntax"},
		"MemTotal: -1 kB\n" + available:                                    {wrong: "invalid syntax"},
		total + "MemAvailable: 9007199254740992 kB\n":                      {wrong: "out of range"},
		"MemTotal: 9223372036854775807 kB\n" + available:                   {wrong: "out of range"},
	} {
		m, err := ReadMemory(fstest.MapFS{"proc/meminfo": {Data: []byte(text)}})
		if m != want.m || (err == nil) != (want.wrong == "") || err != nil && !strings.Contains(err.Error(), want.wrong) {
			t.Errorf("%q: %v, %v; want %v, %q", text, m, err, want.m, want.wrong)
		}
	}
	if _, err := ReadMemory(fstest.MapFS{}); err == nil {
		t.Error("no error without the file")
	}
}

func FuzzParseMemory(f *testing.F) {
	f.Add("MemTotal: 1 kB\nMemAvailable: 24287232 kB\n")
	f.Add("MemTotal: 1 kB\nMemAvailable: 9007199254740991 kB")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseMemory(text)
		if m.Total < 0 || m.Available < 0 || err != nil && m != (Memory{}) {
			t.Errorf("%q: %v, %v", text, m, err)
		}
	})
}
