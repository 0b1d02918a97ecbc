package cgroupstat

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/watch"
)

func TestValues(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{}
	for name, text := range v2Files() {
		files["v2/g/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	for name, text := range v1Files() {
		files["v1/g/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	files["v2/bad/memory.current"] = &fstest.MapFile{Data: []byte("lots\n")}
	all := []string{"cpu", "cpuacct", "memory", "pids", "io"}
	v2 := Tree{Version: 2, Controllers: all, Dir: "v2/g"}
	v1 := Tree{Version: 1, Controllers: all, Dir: "v1/g"}
	for name, tc := range map[string]struct {
		dirs []Tree
		want map[watch.Quantity]float64
	}{
		"v2": {[]Tree{v2}, map[watch.Quantity]float64{
			watch.CPUTime: 3, watch.CPUUser: 2, watch.CPUSystem: 1, watch.CPUPeriods: 10, watch.CPUThrottledPeriods: 4, watch.CPUThrottled: 0.5,
			watch.CPUBursts: 2, watch.CPUBurstTime: 0.25, watch.Memory: 8192,
		}},
		"v1 and v2": {[]Tree{v2, v1}, map[watch.Quantity]float64{
			watch.CPUTime: 3, watch.CPUPeriods: 10, watch.CPUThrottledPeriods: 4, watch.CPUThrottled: 0.5,
			watch.CPUBursts: 2, watch.CPUBurstTime: 0.25, watch.Memory: 8192,
		}},
		"no controllers": {[]Tree{{Version: 2, Dir: "v2/g"}}, map[watch.Quantity]float64{
			watch.CPUTime: 3, watch.CPUUser: 2, watch.CPUSystem: 1, watch.CPUPeriods: 10, watch.CPUThrottledPeriods: 4, watch.CPUThrottled: 0.5,
			watch.CPUBursts: 2, watch.CPUBurstTime: 0.25,
		}},
		"no group": {[]Tree{{Version: 2, Controllers: all, Dir: "v2/none"}}, map[watch.Quantity]float64{}},
		"no trees": {nil, map[watch.Quantity]float64{}},
	} {
		got, err := Values(files, tc.dirs, Usage, Throttling, Memory)
		if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	_, err := Values(files, []Tree{{Version: 2, Controllers: all, Dir: "v2/bad"}}, Memory)
	if err == nil || !strings.Contains(err.Error(), "/v2/bad/memory.current") {
		t.Errorf("garbage: %v", err)
	}
}
