package cli

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every thread, also one that is started later, may be woken that much later.
func TestSlackTimers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the slack of other threads")
	}
	defer slackTimers(50 * time.Microsecond) // the kernel's default
	slackTimers(time.Millisecond)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		slack, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if err == nil && strings.TrimSpace(string(slack)) != "1000000" {
			t.Errorf("thread %s: slack %s ns", thread.Name(), slack)
		}
	}
}

// Only mappings of the program that nobody has changed are let go.
func TestUnmodified(t *testing.T) {
	t.Parallel()
	const smaps = `00400000-00401000 r--p 00000000 08:01 42                 /usr/bin/berth
Size:                  4 kB
Anonymous:             0 kB
00401000-00500000 r-xp 00001000 08:01 42                 /usr/bin/berth
Anonymous:             0 kB
00500000-00501000 r--p 00001000 08:01 42                 /usr/bin/berth
Anonymous:             4 kB
00600000-00700000 rw-p 00001000 08:01 42                 /usr/bin/berth
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000000000-7f0000001000 r-xp 00000000 08:01 43         /usr/lib/other
Anonymous:             0 kB
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0          [vdso]
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0x401000}, {0x401000, 0x500000}}
	if got := unmodified([]byte(smaps), "/usr/bin/berth"); !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	freeStartup() // and this program goes on
	if got := unmodified([]byte(smaps), "/usr/bin/berth"); !slices.Equal(got, want) {
		t.Errorf("then got %x, want %x", got, want)
	}
}
