package traffic_test

import (
	"errors"
	"testing"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/traffic"
)

// A number of the guard's is no other group's, and none that any device has.
func TestFreeMinor(t *testing.T) {
	t.Parallel()
	h := &traffic.Host{Devices: map[string]*traffic.Device{
		"eth0": {Has: map[uint16]traffic.Class{0xfff0: {}}}, "eth1": {Has: map[uint16]traffic.Class{0xfff2: {}}},
	}}
	taken := map[uint16]bool{0xfff1: true}
	if got, err := h.FreeMinor(taken); got != 0xfff3 || err != nil {
		t.Errorf("%x, %v", got, err)
	}
	for i := range uint16(15) {
		taken[0xfff0+i] = true
	}
	if got, err := h.FreeMinor(taken); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("%x, %v", got, err)
	}
}

// What is no class of the guard's number on a device is not taken for one.
func TestIsClass(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"sys/net/eth0/htb/fff0": true, "sys/net/wan0/htb/fff0": true, "sys/net/eth0/htb/fff1": false, "sys/net/eth0/htb": false,
		"sys/net/eth0/root": false, "sys/fs/cgroup/a/fff0": false, "sys/net/eth0/htb/fff0/x": false,
	} {
		if got := traffic.IsClass(name, 0xfff0); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
