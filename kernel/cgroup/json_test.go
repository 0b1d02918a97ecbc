package cgroup

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLimitsInJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Limits{
		`{}`: {},
		`{"weight":200,"idle":"off","quota":20000000,"memoryMax":-1,"frozen":"on"}`: {
			Weight: 200, Idle: Off, Quota: 20e6, MemoryMax: Unlimited, Frozen: On,
		},
		`{"ioWeight":50,"ioMax":[{"device":"8:0","readBPS":1,"writeIOPS":2}],"pidsMax":9}`: {
			IOWeight: 50, IOMax: []IOMax{{Device: "8:0", ReadBPS: 1, WriteIOPS: 2}}, PIDsMax: 9,
		},
	} {
		var got Limits
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
		if back, err := json.Marshal(got); err != nil || string(back) != text {
			t.Errorf("%s comes back as %s, %v", text, back, err)
		}
	}
	for _, text := range []string{`{"idle":"yes"}`, `{"idle":1}`, `{"frozen":"ON"}`} {
		var l Limits
		if err := json.Unmarshal([]byte(text), &l); err == nil {
			t.Errorf("%s: read as %+v", text, l)
		}
	}
	if _, err := json.Marshal(Limits{Idle: 7}); err == nil {
		t.Error("marshalled a switch in no position")
	}
}
