package traffic

import (
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/netlink"
)

// What is written of a class is read back, rates that do not fit in 32 bits included.
func TestClassOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []Class{{1000, 1000, 0}, {12_500_000, 125_000_000, 7}, {1<<32 - 1, 1 << 32, 3}, {5e9, 12.5e9, 1}} {
		m, err := netlink.ParseQueue(netlink.Queue{Index: 3, Handle: major<<16 | 7, Parent: major << 16, Kind: "htb", Options: c.options()}.Bytes())
		if err != nil || m.Index != 3 || m.Handle != major<<16|7 || m.Parent != major<<16 || m.Kind != "htb" {
			t.Fatalf("%+v, %v", m, err)
		}
		if got, err := parseHTB(m.Options); err != nil || got != c {
			t.Errorf("%v is read as %v, %v", c, got, err)
		}
		if text, err := parseClass(c.String()); err != nil || text != c {
			t.Errorf("%q is read as %v, %v", c, text, err)
		}
	}
}

func TestBadClassTexts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "rate 0 ceil 0 prio 0", "rate 9 ceil 8 prio 0", "rate 8 ceil 9 prio 8", "rate 8 ceil 9 prio 0 x", "rate +8 ceil 9 prio 0", "rate 8 ceil 9", "nothing"} {
		if c, err := parseClass(text); err == nil && c.check() == nil {
			t.Errorf("%q is %v", text, c)
		}
	}
	for _, text := range []string{"", "1:2", "6be7:0", "6be7:0000", "6be7:10000", "6be7:10", "6be7:4F21", "6be7:"} {
		if minor, err := ParseMark(text); err == nil {
			t.Errorf("%q is %x", text, minor)
		}
	}
	if minor, err := ParseMark(mark(0x4f21) + "\n"); err != nil || minor != 0x4f21 {
		t.Errorf("%x, %v", minor, err)
	}
}

// mq paces where all its queues have fq, whatever takes what arrives.
func TestRootsOf(t *testing.T) {
	t.Parallel()
	const mq, queue1, queue2, arrives = 0x80010000, 0x80010001, 0x80010002, 0xfffffff1
	for what, tc := range map[string]struct {
		all  []netlink.Queue
		want bool
	}{
		"fq":              {[]netlink.Queue{{Parent: netlink.Root, Kind: "fq"}}, true},
		"fq, clsact":      {[]netlink.Queue{{Parent: netlink.Root, Kind: "fq"}, {Handle: 0xffff0000, Parent: arrives, Kind: "clsact"}}, true},
		"mq":              {[]netlink.Queue{{Handle: mq, Parent: netlink.Root, Kind: "mq"}}, false},
		"mq of fq":        {[]netlink.Queue{{Parent: queue1, Kind: "fq"}, {Handle: mq, Parent: netlink.Root, Kind: "mq"}, {Parent: queue2, Kind: "fq"}}, true},
		"normal mq of fq": {[]netlink.Queue{{Parent: netlink.Root, Kind: "mq"}, {Parent: 1, Kind: "fq"}, {Parent: 2, Kind: "fq"}}, true},
		"mq of fq, clsact": {[]netlink.Queue{{Handle: mq, Parent: netlink.Root, Kind: "mq"}, {Parent: queue1, Kind: "fq"},
			{Handle: 0xffff0000, Parent: arrives, Kind: "clsact"}}, true},
		"mq, clsact":   {[]netlink.Queue{{Handle: mq, Parent: netlink.Root, Kind: "mq"}, {Handle: 0xffff0000, Parent: arrives, Kind: "clsact"}}, false},
		"mq of two":    {[]netlink.Queue{{Handle: mq, Parent: netlink.Root, Kind: "mq"}, {Parent: queue1, Kind: "fq"}, {Parent: queue2, Kind: "fq_codel"}}, false},
		"of no device": {[]netlink.Queue{{Parent: queue1, Kind: "fq"}}, false},
	} {
		for i := range tc.all {
			tc.all[i].Index = 7
		}
		if roots := rootsOf(tc.all); roots[7].Paces != tc.want {
			t.Errorf("%s: %+v", what, roots)
		}
	}
}

func FuzzParse(f *testing.F) {
	c := Class{1000, 5e9, 7}
	f.Add(netlink.Queue{Index: 1, Handle: major << 16, Kind: "htb", Options: c.options()}.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := netlink.ParseQueue(b); err == nil {
			_, _ = parseHTB(m.Options)
		}
	})
}

// A class keeps its number whatever others there are, unless two meet.
func TestIDs(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 2000 {
		names = append(names, "class-"+strings.Repeat("x", i%7)+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)))
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	all, taken := idsOf(names), map[uint16]bool{}
	for name, id := range all {
		if taken[id] || id < firstMinor || id > lastMinor {
			t.Errorf("%s has %x, which is taken or out of range", name, id)
		}
		taken[id] = true
	}
	moved := 0
	for name, id := range idsOf(names[:len(names)-1]) {
		if all[name] != id {
			moved++
		}
	}
	if moved > 1 {
		t.Errorf("one class less gives %d others another number", moved)
	}
}
