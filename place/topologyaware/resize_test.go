package topologyaware_test

import (
	"fmt"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
	"berth.dev/berth/place/topologyaware"
)

func TestResize(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	isolated := fakekernel.Short(t, "1s2n4c2t")
	isolated.Isolated = cpuset.MustOf(2, 3)
	// 1s2n4c2t: node 0 has 0-3,8-11, node 1 has 4-7,12-15; cores are {i,i+8}.
	for _, tc := range []struct {
		name   string
		m      *machine.Machine
		before []place.Request
		to     place.Request
		want   string // runs on, or "!" and the error
	}{
		{name: "grows to the sibling, then near", before: []place.Request{gu(1000)}, to: gu(3000), want: "4-5,12"},
		{name: "grows beyond its node", before: []place.Request{gu(7000)}, to: gu(10000), want: "1,4-7,9,12-15"},
		{name: "shrinks to whole cores", before: []place.Request{gu(3000)}, to: gu(2000), want: "4,12"},
		{name: "shrinks to a share", before: []place.Request{gu(3000)}, to: gu(500), want: "4-7,12-15"},
		{name: "a share stays in its pool", before: []place.Request{bu(100, 1000)}, to: bu(7000, 8000), want: "0-3,8-11"},
		{name: "a share moves up", before: []place.Request{bu(100, 1000), gu(1000), gu(1000)}, to: bu(7900, 8000), want: "0-3,5-7,9-15"},
		{name: "too much", before: []place.Request{gu(1000)}, to: gu(16000), want: "!not enough CPUs: 16 asked, 15 available"},
		{name: "leaves CPUs to those in the same pool", before: []place.Request{gu(2000), bu(5500, 16000)}, to: gu(10000), want: "1,4-7,9,12-15"},
		{name: "and no fewer", before: []place.Request{gu(2000), bu(5500, 16000)}, to: gu(11000), want: "!not enough CPUs: 11 asked, 10 available"},
		{name: "leaves CPUs to those in a pool below", before: []place.Request{gu(2000), bu(5500, 6000)}, to: gu(10000), want: "3-7,11-15"},
		{name: "isolated ones grow", m: isolated, before: []place.Request{gu(1000)}, to: func() place.Request { r := gu(2000); r.Isolated = place.Require; return r }(), want: "2-3"},
		{name: "isolated ones stay", m: isolated, before: []place.Request{gu(1000)}, to: gu(2000), want: "2-3"},
		{name: "held ones are not isolated", m: isolated, before: []place.Request{gu(2000)}, to: func() place.Request { r := gu(2000); r.Isolated = place.Require; return r }(), want: "!request"},
		{name: "devices", before: []place.Request{gu(1000)}, to: place.Request{Devices: []place.DeviceRequest{{Kind: "gpu", Count: 1}}}, want: "!request \"w0\": devices cannot change"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.m == nil {
				tc.m = fakekernel.Short(t, "1s2n4c2t")
			}
			s := start(t, p, tc.m, place.Config{})
			for i, r := range tc.before {
				r.ID = fmt.Sprintf("w%d", i)
				o, err := place.Place(p, s, &r)
				if err != nil {
					t.Fatal(err)
				}
				if s, err = s.Commit(o); err != nil {
					t.Fatal(err)
				}
			}
			tc.to.ID = "w0"
			o, err := place.Resize(p, s, &tc.to)
			if want, refused := strings.CutPrefix(tc.want, "!"); refused {
				if err == nil || !strings.HasPrefix(err.Error(), want) {
					t.Errorf("error %v, want %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s, err = s.Commit(o); err != nil {
				t.Fatal(err)
			}
			if got, _ := s.CPUs("w0"); got.String() != tc.want {
				t.Errorf("runs on %s, want %s", got, tc.want)
			}
			if err := s.Audit(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestResizeMemory(t *testing.T) {
	t.Parallel()
	p := topologyaware.Default()
	conf := reserved0()
	conf.Memory = []place.Block{{Node: 0, Resource: place.Memory, Bytes: 100}, {Node: 1, Resource: place.Memory, Bytes: 100}}
	r := gu(1000)
	r.ID, r.Memory = "a", []place.Amount{{Resource: place.Memory, Bytes: 80}}
	s := steps(t, p, start(t, p, fakekernel.Short(t, "1s2n4c"), conf), []step{{r, "4"}})
	for _, tc := range []struct {
		bytes int64
		mems  string
	}{{80, "1"}, {150, "0-1"}, {20, "1"}} {
		r.Memory = []place.Amount{{Resource: place.Memory, Bytes: tc.bytes}}
		o, err := place.Resize(p, s, &r)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.Grant.Mems.String(); got != tc.mems {
			t.Errorf("%d bytes: mems %s, want %s", tc.bytes, got, tc.mems)
		}
	}
}
