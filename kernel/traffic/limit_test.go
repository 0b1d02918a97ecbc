package traffic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"

	"berth.dev/berth/kernel"
)

func TestParseLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Limit{
		"none":                       {},
		"send 1250000":               {Send: 10e6},
		"receive 1250000\n":          {Receive: 10e6},
		"send 1000 receive 12500000": {Send: 8000, Receive: 100e6},
		"receive 1000 from eth0":     {Arrival: Arrival{"eth0", 8000}},
		"send 1000 receive 2000 receive 1000 from eth0/eth1": {Send: 8000, Receive: 16000, Arrival: Arrival{"eth0/eth1", 8000}},
	} {
		got, err := parseLimit(text)
		if err != nil || got != want || got.text() != strings.TrimSpace(text) {
			t.Errorf("%q: %+v, %v, text %q", text, got, err, got.text())
		}
	}
	for _, text := range []string{"", "send", "send 0", "send 999", "send -1", "send 01250000", "receive 1250000 send 1250000", "send 1250000 send 1250000", "send 99999999999999", "send 1250000 now", "send 1000 from eth0",
		"receive 1000 from", "receive 1000 from eth1/eth0", "receive 1000 from eth0/eth0", "receive 1000 from /", "receive 1000 from a:1", "receive 1000 from ..",
		"receive 999 from eth0", "receive 1000 from eth0 receive 1000", "receive 1000 from eth0 receive 1000 from eth1", "receive 1000 from name-of-16-bytes",
		"receive 1000 from a/b/c/d/e/f/g/h/i/j/k/l/m/n/o"} {
		if got, err := parseLimit(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func TestParseTogether(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Together{"none": {}, "4f21 1250000\n": {0x4f21, 10e6, ""}, "0010 1250000000000": {0x10, 10e12, ""}, "0010 1000 from eth0/eth1": {0x10, 8000, "eth0/eth1"}} {
		got, err := parseTogether(text)
		if err != nil || got != want || got.text() != strings.TrimSpace(text) || togetherOf(receivesTogether(got)) != (Together{Class: want.Class, Rate: want.Rate}) {
			t.Errorf("%q: %+v, %v, text %q", text, got, err, got.text())
		}
	}
	for _, text := range []string{"", "4f21", "0000 1250000", "4f21 999", "4F21 1250000", "4f21 01250000", "4f21 99999999999999", "14f21 1250000", "4f21 1250000 x", "4f21 2305843009214943952", "4f21 1000 from", "4f21 1000 from eth1/eth0", "4f21 1000 eth0"} {
		if got, err := parseTogether(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// Of two limits that meet in a group neither is exceeded.
func TestLimitMin(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ a, b, want Limit }{
		{Limit{}, Limit{Send: 10e6}, Limit{Send: 10e6}},
		{Limit{Send: 10e6, Receive: 8e6}, Limit{Send: 20e6, Receive: 6e6}, Limit{Send: 10e6, Receive: 6e6}},
		{Limit{Receive: 10e6}, Limit{Arrival: Arrival{"eth0", 20e6}}, Limit{Receive: 10e6, Arrival: Arrival{"eth0", 20e6}}},
		{Limit{Arrival: Arrival{"eth0", 20e6}}, Limit{Arrival: Arrival{"eth0", 10e6}}, Limit{Arrival: Arrival{"eth0", 10e6}}},
		{Limit{Arrival: Arrival{"eth1", 20e6}}, Limit{Arrival: Arrival{"eth0/eth2", 10e6}}, Limit{Arrival: Arrival{"eth0/eth1/eth2", 10e6}}},
	} {
		if got, back := tc.a.Min(tc.b), tc.b.Min(tc.a); got != tc.want || back != tc.want {
			t.Errorf("%+v and %+v: %+v, %+v, want %+v", tc.a, tc.b, got, back, tc.want)
		}
	}
}

func FuzzParseTogether(f *testing.F) {
	f.Add("4f21 1250000")
	f.Add("4f21 1250000 from eth0/eth1")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parseTogether(text); err == nil && s.text() != strings.TrimSpace(text) {
			t.Errorf("%q is %q", text, s.text())
		}
	})
}

func FuzzParseLimit(f *testing.F) {
	f.Add("send 1250000 receive 1250000")
	f.Add("receive 1250000 receive 1250000 from eth0/eth1")
	f.Fuzz(func(t *testing.T, text string) {
		if l, err := parseLimit(text); err == nil && l.text() != strings.TrimSpace(text) {
			t.Errorf("%q is %q", text, l.text())
		}
	})
}

// What a program holds a group to is in its name, of at most 15 bytes, and in its instructions.
func TestLimitersAreToldApart(t *testing.T) {
	t.Parallel()
	rates := map[string]uint64{} // by instructions
	for _, rate := range []uint64{leastRate.bytes(), 1250000, 1250001, mostRate.bytes()} {
		for _, k := range []*programs{sending, pacing, receiving, arriving, together} {
			number := rate
			if k == together {
				number = receivesTogether(Together{Class: lastMinor, Rate: rateOf(rate)})
			}
			spec := k.spec(number, 0)
			if len(spec.Name) > 15 {
				t.Errorf("%q is too long", spec.Name)
			}
			var b bytes.Buffer
			if err := spec.Instructions.Marshal(&b, binary.LittleEndian); err != nil || rates[b.String()] != 0 {
				t.Errorf("%d: the instructions are those of %d, %v", rate, rates[b.String()], err)
			}
			rates[b.String()] = rate
		}
	}
}

// What a kernel before Linux 5.1 says of a program that counts packets is told as what it takes.
func TestUnloaded(t *testing.T) {
	t.Parallel()
	old := &ebpf.VerifierError{Cause: syscall.EACCES, Log: []string{"invalid bpf_context access off=164 size=4"}}
	var lacks *kernel.NotSupportedError
	if err := sending.unloaded(old); !errors.As(err, &lacks) || lacks.Remedy != "Linux 5.1 or newer" || !strings.Contains(lacks.Reason, "off=164") {
		t.Error(err)
	}
	for _, err := range []error{syscall.EPERM, syscall.EACCES, &ebpf.VerifierError{Cause: syscall.E2BIG}} {
		if got := sending.unloaded(err); errors.Is(got, kernel.ErrNotSupported) || !errors.Is(got, err) {
			t.Errorf("%v is %v", err, got)
		}
	}
}
