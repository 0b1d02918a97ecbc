package sysfs

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"berth.dev/berth/machine"
)

func TestLscpu(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, table string
		want        map[machine.Kind]string
		offline     string
	}{
		{"five columns", "0,0,0,0,0\n1,1,0,0,0\n2,0,0,0,0\n3,1,0,0,0\n",
			map[machine.Kind]string{machine.Core: "0:0,2 1:1,3", machine.Socket: "0:0-3", machine.Node: "0:0-3", machine.L3: "0:0-3", machine.L2: ""}, ""},
		{"header, blank column, commas between caches",
			"# The following\n# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n0,0,0,0,,0,0,0,0\n1,1,0,0,,1,1,1,0\n",
			map[machine.Kind]string{machine.Core: "0:0 1:1", machine.L3: "0:0-1", machine.L2: "0:0 1:1"}, ""},
		{"header, colons between caches", "# CPU,Core,Socket,Node,L1d:L1i:L2:L3\n0,0,0,0,0:0:0:0\n1,1,1,1,1:1:1:1\n",
			map[machine.Kind]string{machine.Socket: "0:0 1:1", machine.L3: "0:0 1:1", machine.L2: "0:0 1:1"}, ""},
		{"header with two caches only", "# CPU,Core,Socket,Node,,L1d,L2\n0,0,0,0,,0,0\n1,1,0,0,,1,0\n",
			map[machine.Kind]string{machine.L3: "", machine.L2: "0:0-1"}, ""},
		{"colons without header", "0,0,0,0,0:0:0:0\n1,1,0,0,1:1:0:0\n",
			map[machine.Kind]string{machine.L3: "0:0-1", machine.L2: "0:0-1"}, ""},
		{"four columns, CRLF", "0,0,0,0\r\n1,1,1,1\r\n", map[machine.Kind]string{machine.Node: "0:0 1:1", machine.L3: ""}, ""},
		{"no NUMA", "0,0,0,,0\n1,1,0,,0\n", map[machine.Kind]string{machine.Node: "", machine.L3: "0:0-1"}, ""},
		{"offline, by its emptiness", "0,0,0,0,0\n1,,,,\n2,-,-,-,-\n", map[machine.Kind]string{machine.Core: "0:0"}, "1-2"},
		{"offline, by its column", "# CPU,Online,Core,Socket,Node\n0,Y,0,0,0\n1,N,,0,0\n", map[machine.Kind]string{machine.Core: "0:0"}, "1"},
		{"numbers with gaps, out of order", "9,7,1,2,5\n4,3,0,0,1\n", map[machine.Kind]string{
			machine.Core: "0:4 1:9", machine.Socket: "0:4 1:9", machine.Node: "0:4 2:9", machine.L3: "0:4 1:9"}, ""},
		{"other columns", "# CPU,MAXMHZ,CORE,SOCKET,NODE\n0,4000.0,0,0,0\n", map[machine.Kind]string{machine.Core: "0:0"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, err := Lscpu(c.table)
			if err != nil {
				t.Fatal(err)
			}
			check(t, m, c.want)
			if got := m.Offline.String(); got != c.offline {
				t.Errorf("offline %q, want %q", got, c.offline)
			}
			roundTrip(t, m)
		})
	}
}

func TestLscpuRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ table, want string }{
		{"", "no online CPU"},
		{"# CPU,Core,Socket,Node\n", "no online CPU"},
		{"0,,,,\n", "no online CPU"},
		{"0,0,0\n", "line 1"},
		{"0,0,0\n", "3 columns and no header"},
		{"0,0,0,0,0\n1,0,0,0\n", "4 fields for 5 columns"},
		{"0,0,0,0,0\n0,1,0,0,0\n", "cpu 0 is there twice"},
		{"0,0,0,0,0\n\n1,x,0,0,0\n", `line 3 "1,x,0,0,0": core: "x" is not a number`},
		{"x,0,0,0,0\n", "cpu: \"x\" is not a number"},
		{"-1,0,0,0,0\n", "is not a number"},
		{"0,0,0,5000,0\n", "node: 5000: number out of range"},
		{"2048,0,0,0,0\n", "out of range"},
		{"0,0,0,0,99999999999\n", "l3: \"99999999999\" is not a number"},
		{"# CPU,Online,Core\n0,maybe,0\n", "neither Y nor N"},
		{"Architecture: x86_64\nCPU(s): 2\n", "line 1"},
	} {
		m, err := Lscpu(c.table)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, %v; want an error with %q", c.table, m, err, c.want)
		}
	}
}

func TestLscpuContradictions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ table, want string }{
		{"0,0,0,0,0\n1,0,1,1,1\n", "core 0 (CPUs 0-1): split between domains of kind socket"},
		{"0,0,0,0,0\n1,0,0,0,1\n", "core 0 (CPUs 0-1): split between domains of kind l3"},
		{"0,0,0,0,0\n1,,0,0,0\n", "core: CPUs 1 are in none"},
	} {
		m, err := Lscpu(c.table)
		if err != nil {
			t.Errorf("%q: %v", c.table, err)
			continue
		}
		err = m.Validate()
		if !errors.Is(err, machine.ErrInconsistent) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%q: validate: %v; want ErrInconsistent with %q", c.table, err, c.want)
		}
	}
}

func FuzzLscpu(f *testing.F) {
	for _, s := range []string{
		"0,0,0,0,0\n1,1,0,0,0\n", "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n0,0,0,0,,0,0,0,0\n", "# CPU,Online,Core\n0,N,0\n1,Y,1\n",
		"0,0,0,0,0:0:0:0\n", "1,,,,\n2,0,0,0,0", "# CPU,CPU,Core,Core\n0,0,0,1\n", "2047,9,9,2047,9", "#\n,\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, table string) {
		m, err := Lscpu(table)
		if err != nil {
			return
		}
		switch err := m.Validate(); {
		case err == nil:
			roundTrip(t, m)
		case !errors.Is(err, machine.ErrInconsistent):
			t.Fatalf("read a machine of bad form: %v", err)
		}
	})
}
