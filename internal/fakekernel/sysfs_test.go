package fakekernel

import (
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

func TestSysfsRefusesWhatItCannotTell(t *testing.T) {
	t.Parallel()
	m, err := machine.Short("2s2c")
	if err != nil {
		t.Fatal(err)
	}
	m.Domains[0].CPUs = cpuset.MustParse("0-3")
	if _, err := Sysfs(m); err == nil {
		t.Error("a machine with a CPU in two sockets was written")
	}
	if _, err := Sysfs(&machine.Machine{}); err == nil {
		t.Error("a machine without CPUs was written")
	}
}

func TestMasks(t *testing.T) {
	t.Parallel()
	m, err := machine.Short("2s20c")
	if err != nil {
		t.Fatal(err)
	}
	w := &sysfs{m: m}
	for _, c := range []struct{ list, want string }{
		{"0", "00000000,00000001"},
		{"31-32", "00000001,80000000"},
		{"", "00000000,00000000"},
		{"0-39", "000000ff,ffffffff"},
	} {
		if got := w.mask(cpuset.MustParse(c.list)); got != c.want {
			t.Errorf("mask(%s) = %s, want %s", c.list, got, c.want)
		}
	}
}
