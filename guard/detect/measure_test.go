package detect

import (
	"maps"
	"math"
	"slices"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
)

// told is what one sample is of, by second where it counts: of a group or, without one, of the host.
type told struct {
	group string
	q     watch.Quantity
	part  watch.Part
	by    string
}

// measured is a host that was told of for a second, and then judged: two nodes of two cores of two threads
// (node 0 has 0, 1, 4 and 5, the cores of which are 0 and 4, 1 and 5), and web on CPUs 0 and 1, which uses
// one of them. What is NaN is not told.
func measured(t *testing.T, change map[told]float64) *Detector {
	t.Helper()
	m, err := machine.Short("1s2n2c2t")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Machine: m, PeakBandwidth: 1e9})
	if err != nil {
		t.Fatal(err)
	}
	d.Track(Workload{Group: "web", Sensitive: true, CPUs: cpuset.MustParse("0-1")})
	d.Track(Workload{Group: "hog"})
	d.Track(Workload{Group: "hog/job"})
	all := map[told]float64{
		{q: watch.CPUTime}: 4, {q: watch.Steal}: 0,
		{group: "web", q: watch.CPUTime}: 1, {group: "web", q: watch.CPUPeriods}: 10, {group: "web", q: watch.CPUThrottledPeriods}: 0, {group: "web", q: watch.CPUThrottled}: 0,
		{group: "hog", q: watch.CPUTime}: 2, {group: "hog/job", q: watch.CPUTime}: 1.5,
	}
	for cpu := range 8 {
		all[told{q: watch.CPUTime, part: watch.Part{Kind: watch.CPU, ID: cpu}}] = 0.5
	}
	maps.Copy(all, change)
	for second := range watch.Time(2) {
		var samples []watch.Sample
		for of, v := range all {
			if math.IsNaN(v) {
				continue
			}
			if of.q.Counter() {
				v *= float64(second)
			}
			s := watch.Subject{Part: of.part}
			if of.group != "" {
				s.Scope, s.Name = watch.Group, of.group
			}
			samples = append(samples, watch.Sample{Time: (10 + second) * watch.Second, Subject: s, Quantity: of.q, Value: v, By: of.by})
		}
		d.Observe(samples)
	}
	d.Judge(11 * watch.Second)
	return d
}

// Each signal by what it is made of, and when it is missing.
func TestSignalsOfAWindow(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	web := func(q watch.Quantity) told { return told{group: "web", q: q} }
	part := func(group string, q watch.Quantity, kind watch.PartKind, id int) told {
		return told{group: group, q: q, part: watch.Part{Kind: kind, ID: id}}
	}
	cpu := func(id int) told { return part("", watch.CPUTime, watch.CPU, id) }
	link := func(q watch.Quantity) told { return part("", q, watch.Link, 2) }
	busyLink := func(change map[told]float64) map[told]float64 {
		all := map[told]float64{link(watch.NetSent): 1e6, link(watch.LinkRate): 2e6, link(watch.LinkQueued): 2e4, part("web", watch.NetSent, watch.Link, 2): 4e5}
		maps.Copy(all, change)
		return all
	}
	disk, other := watch.DeviceID(8, 0), watch.DeviceID(9, 0)
	for name, tc := range map[string]struct {
		told map[told]float64
		want map[Signal]float64
	}{
		"as it is": {nil, map[Signal]float64{
			CPUUse: 1, StealShare: 0, ThrottledPeriods: 0, Withheld: 0, OwnUse: 0, SiblingUse: 1. / 3,
			WaitRatio: nan, CPUPressure: nan, CPI: nan, LocalMemory: nan, OwnIO: nan, RoundTrip: nan, LinkUse: nan, Occupancy: nan, DomainBandwidth: nan, Imposed: nan,
		}},
		"all that the CPUs have, and half as much": {map[told]float64{web(watch.CPUTime): 12}, map[Signal]float64{CPUUse: 12}},
		"a counter that jumped":                    {map[told]float64{web(watch.CPUTime): 12.1}, map[Signal]float64{CPUUse: nan}},
		"steal":                                    {map[told]float64{{q: watch.Steal}: 1}, map[Signal]float64{StealShare: 0.2}},
		"steal that jumped":                        {map[told]float64{{q: watch.Steal}: 12.1}, map[Signal]float64{StealShare: nan}},
		"no steal":                                 {map[told]float64{{q: watch.Steal}: nan}, map[Signal]float64{StealShare: nan}},
		"half of the periods":                      {map[told]float64{web(watch.CPUThrottledPeriods): 5}, map[Signal]float64{ThrottledPeriods: 0.5}},
		"more than all":                            {map[told]float64{web(watch.CPUThrottledPeriods): 11}, map[Signal]float64{ThrottledPeriods: 1}},
		"no periods":                               {map[told]float64{web(watch.CPUPeriods): 0}, map[Signal]float64{ThrottledPeriods: 0}},
		"no periods, but some ran out":             {map[told]float64{web(watch.CPUPeriods): 0, web(watch.CPUThrottledPeriods): 1}, map[Signal]float64{ThrottledPeriods: nan}},
		"withheld":                                 {map[told]float64{web(watch.CPUThrottled): 1}, map[Signal]float64{Withheld: 0.5}},
		"withheld by those above":                  {map[told]float64{web(watch.CPUThrottled): 1, web(watch.CPUThrottledAny): 3}, map[Signal]float64{Withheld: 0.75}},
		"waits":                                    {map[told]float64{web(watch.CPUWait): 3}, map[Signal]float64{WaitRatio: 0.75}},
		"pressure":                                 {map[told]float64{web(watch.CPUSome): 0.3, web(watch.MemorySome): 1.4, web(watch.IOSome): 1.6}, map[Signal]float64{CPUPressure: 0.3, MemoryPressure: 1, IOPressure: nan}},
		"its CPUs are full":                        {map[told]float64{cpu(0): 0.9, cpu(1): 0.9}, map[Signal]float64{OwnUse: 1 / 1.8}},
		"not quite":                                {map[told]float64{cpu(0): 0.9, cpu(1): 0.89}, map[Signal]float64{OwnUse: 0}},
		"by itself":                                {map[told]float64{web(watch.CPUTime): 1.8, cpu(0): nan}, map[Signal]float64{OwnUse: 1}},
		"one CPU is not told":                      {map[told]float64{cpu(0): nan}, map[Signal]float64{OwnUse: nan, SiblingUse: nan}},
		"a sibling is not":                         {map[told]float64{cpu(5): nan}, map[Signal]float64{OwnUse: 0, SiblingUse: nan}},
		"instructions":                             {map[told]float64{web(watch.Cycles): 3e9, web(watch.Instructions): 1e9, web(watch.LLCMisses): 2e6}, map[Signal]float64{CPI: 3, Clock: 3e9, MPKI: 2}},
		"instructions, hardly any":                 {map[told]float64{web(watch.CPUTime): 0.24, web(watch.Cycles): 3e9, web(watch.Instructions): 1e9}, map[Signal]float64{CPI: nan, Clock: nan, MPKI: nan}},
		"instructions too fast to be":              {map[told]float64{web(watch.Cycles): 4e7, web(watch.Instructions): 1e9}, map[Signal]float64{CPI: nan, Clock: nan}},
		"instructions too slow":                    {map[told]float64{web(watch.Cycles): 1e11, web(watch.Instructions): 1e9}, map[Signal]float64{CPI: nan, Clock: nan}},
		"room in two caches":                       {map[told]float64{part("web", watch.LLCOccupancy, watch.Cache, 0): 1e6, part("web", watch.LLCOccupancy, watch.Cache, 1): 2e6}, map[Signal]float64{Occupancy: 3e6}},
		"the traffic of its busiest cache":         {map[told]float64{part("web", watch.Bandwidth, watch.Cache, 0): 1e8, part("web", watch.Bandwidth, watch.Cache, 1): 2e8, part("", watch.Bandwidth, watch.Cache, 0): 9e8, part("", watch.Bandwidth, watch.Cache, 1): 5e8}, map[Signal]float64{DomainBandwidth: 0.5}},
		"more traffic than the peak":               {map[told]float64{part("web", watch.Bandwidth, watch.Cache, 0): 1e8, part("", watch.Bandwidth, watch.Cache, 0): 2e9}, map[Signal]float64{DomainBandwidth: 1}},
		"traffic of the host that is not told":     {map[told]float64{part("web", watch.Bandwidth, watch.Cache, 0): 1e8}, map[Signal]float64{DomainBandwidth: nan}},
		"its own memory limits":                    {map[told]float64{web(watch.MemoryHigh): 2, web(watch.MemoryMax): 3}, map[Signal]float64{LimitEvents: 5}},
		"of cgroup v1":                             {map[told]float64{web(watch.MemoryMax): 3}, map[Signal]float64{LimitEvents: 3}},
		"one of which is not told":                 {map[told]float64{web(watch.MemoryMax): 3, web(watch.MemoryLow): 0}, map[Signal]float64{LimitEvents: nan}},
		"memory on another node":                   {map[told]float64{part("web", watch.MemoryAnon, watch.Node, 0): 6, part("web", watch.MemoryAnon, watch.Node, 1): 2, part("web", watch.MemoryFile, watch.Node, 0): 2, web(watch.MemoryAnon): 100}, map[Signal]float64{LocalMemory: 0.8}},
		"its bytes, of those of the disk":          {map[told]float64{web(watch.IOSome): 0.2, part("web", watch.IORead, watch.Device, disk): 3, part("hog", watch.IORead, watch.Device, disk): 1, part("hog", watch.IORead, watch.Device, other): 100, part("hog", watch.IOWritten, watch.Device, disk): 100}, map[Signal]float64{OwnIO: 0.75}},
		"its bytes, without pressure":              {map[told]float64{web(watch.IOSome): 0.09, part("web", watch.IORead, watch.Device, disk): 3}, map[Signal]float64{OwnIO: 0}},
		"none of its bytes":                        {map[told]float64{web(watch.IOSome): 0.2, part("web", watch.IORead, watch.Device, disk): 0, part("hog", watch.IORead, watch.Device, disk): 3}, map[Signal]float64{OwnIO: nan}},
		"sent again":                               {map[told]float64{web(watch.Segments): 20, web(watch.Retransmits): 1, web(watch.RoundTrip): 0.01}, map[Signal]float64{Resent: 0.05, RoundTrip: 0.01}},
		"a round trip that cannot be":              {map[told]float64{web(watch.RoundTrip): -0.01}, map[Signal]float64{RoundTrip: nan}},
		"sent again, of few":                       {map[told]float64{web(watch.Segments): 19, web(watch.Retransmits): 1}, map[Signal]float64{Resent: nan}},
		"sent again and again":                     {map[told]float64{web(watch.Segments): 20, web(watch.Retransmits): 30}, map[Signal]float64{Resent: 1}},
		"a link":                                   {busyLink(map[told]float64{link(watch.LinkDropped): 3}), map[Signal]float64{LinkUse: 0.5, LinkWait: 0.01, LinkLost: 3, OwnSent: 0.4}},
		"a link, and sockets of no link":           {busyLink(map[told]float64{web(watch.NetSent): 1e5}), map[Signal]float64{OwnSent: 0.5}},
		"a link that sends more than it can":       {busyLink(map[told]float64{link(watch.NetSent): 4e6}), map[Signal]float64{LinkUse: 1, OwnSent: 0.1}},
		"a link whose rate is not known":           {busyLink(map[told]float64{link(watch.LinkRate): nan}), map[Signal]float64{LinkUse: nan, LinkWait: 0.02}},
		"a short queue":                            {busyLink(map[told]float64{link(watch.LinkQueued): leastQueue - 1}), map[Signal]float64{LinkWait: 0}},
		"one that just counts":                     {busyLink(map[told]float64{link(watch.LinkQueued): leastQueue}), map[Signal]float64{LinkWait: leastQueue / 2e6}},
		"a fuller link, by which it does not send": {busyLink(map[told]float64{part("", watch.NetSent, watch.Link, 3): 2e6, part("", watch.LinkRate, watch.Link, 3): 2e6, part("", watch.LinkQueued, watch.Link, 3): 2e5}), map[Signal]float64{LinkUse: 0.5}},
		"two links by which it does not send":      {map[told]float64{link(watch.NetSent): 1e6, link(watch.LinkRate): 2e6, part("", watch.NetSent, watch.Link, 3): 2e6, part("", watch.LinkRate, watch.Link, 3): 2e6}, map[Signal]float64{LinkUse: 1, OwnSent: 0}},
	} {
		w := measured(t, tc.told).byGroup["web"]
		for s, want := range tc.want {
			if got := w.value[s]; !(math.Abs(got-want) <= 1e-9*math.Abs(want)) && !(math.IsNaN(got) && math.IsNaN(want)) {
				t.Errorf("%s: %v %g, want %g", name, s, got, want)
			}
		}
	}
}

// Whose waits the run delay is made of: what a group below a tracked one has is that one's, and where the
// parts do not make up the whole nobody's is known.
func TestRunDelayOfParts(t *testing.T) {
	t.Parallel()
	queued := func(by string) told { return told{group: "web", q: watch.QueuedBy, by: by} }
	for name, tc := range map[string]struct {
		told    map[told]float64
		known   bool
		suspect string
		want    RunDelay
	}{
		"no probe":                   {map[told]float64{{group: "web", q: watch.CPUWait}: 3}, true, "hog", RunDelay{Run: 1, Wait: 3, Others: math.NaN(), Suspect: math.NaN(), UseShare: 2. / 3, Outside: 1. / 3}},
		"nothing is told of waits":   {nil, false, "hog", RunDelay{}},
		"a group within another":     {map[told]float64{{group: "web", q: watch.CPUWait}: 3}, true, "hog/job", RunDelay{Run: 1, Wait: 3, Others: math.NaN(), Suspect: math.NaN(), UseShare: 0.5, Outside: 1. / 3}},
		"it hardly runs":             {map[told]float64{{group: "web", q: watch.CPUTime}: 0.0009, {group: "web", q: watch.CPUWait}: 3}, false, "hog", RunDelay{}},
		"by the probe":               {map[told]float64{{group: "web", q: watch.Queued}: 2, queued("web"): 0.5, queued("hog"): 0.6, queued(Outside): 0.3, {group: "web", q: watch.QueuedKernel}: 0.6}, true, "hog", RunDelay{Run: 1, Wait: 2, Others: 1.5, Suspect: 0.6, UseShare: 2. / 3, Outside: 0.2}},
		"parts that lack a little":   {map[told]float64{{group: "web", q: watch.Queued}: 2, queued("hog"): 1.8}, true, "hog", RunDelay{Run: 1, Wait: 2, Others: 1.8, Suspect: 1.8, UseShare: 2. / 3, Outside: 0}},
		"parts that lack more":       {map[told]float64{{group: "web", q: watch.Queued}: 2, queued("hog"): 1.79}, true, "hog", RunDelay{Run: 1, Wait: 2, Others: math.NaN(), Suspect: math.NaN(), UseShare: 2. / 3, Outside: 1. / 3}},
		"behind one below a tracked": {map[told]float64{{group: "web", q: watch.Queued}: 2, queued("hog/job/a"): 2}, true, "hog/job", RunDelay{Run: 1, Wait: 2, Others: 2, Suspect: 2, UseShare: 0.5, Outside: 0}},
	} {
		got, known := measured(t, tc.told).RunDelay("web", tc.suspect, 1)
		if known != tc.known {
			t.Errorf("%s: known %v, want %v", name, known, tc.known)
			continue
		}
		if !known {
			continue
		}
		for what, v := range map[string][2]float64{
			"run": {got.Run, tc.want.Run}, "wait": {got.Wait, tc.want.Wait}, "others": {got.Others, tc.want.Others}, "suspect": {got.Suspect, tc.want.Suspect},
			"share": {got.UseShare, tc.want.UseShare}, "outside": {got.Outside, tc.want.Outside},
		} {
			if !(math.Abs(v[0]-v[1]) <= 1e-9) && !(math.IsNaN(v[0]) && math.IsNaN(v[1])) {
				t.Errorf("%s: %s %g, want %g", name, what, v[0], v[1])
			}
		}
	}
}

// What is told to control of one group.
func TestUseOfAGroup(t *testing.T) {
	t.Parallel()
	disk, other := watch.Part{Kind: watch.Device, ID: watch.DeviceID(8, 0)}, watch.Part{Kind: watch.Device, ID: watch.DeviceID(7, 1)}
	d := measured(t, map[told]float64{
		{group: "hog", q: watch.Memory}: 5e6, {group: "hog", q: watch.IORead, part: disk}: 3, {group: "hog", q: watch.IOWritten, part: disk}: 4, {group: "hog", q: watch.IOWritten, part: other}: 5,
		{group: "web", q: watch.IORead, part: disk}: 0, {group: "hog", q: watch.Bandwidth, part: watch.Part{Kind: watch.Cache}}: 6, {group: "hog", q: watch.Bandwidth, part: watch.Part{Kind: watch.Cache, ID: 1}}: 7,
		{group: "hog", q: watch.NetSent, part: watch.Part{Kind: watch.Link, ID: 2}}: 8,
	})
	if cpus, memory := d.Usage("hog"); cpus != 2 || memory != 5e6 {
		t.Errorf("it uses %g CPUs and %d bytes", cpus, memory)
	}
	if cpus, memory := d.Usage("nobody"); !math.IsNaN(cpus) || memory != 0 {
		t.Errorf("nobody uses %g CPUs and %d bytes", cpus, memory)
	}
	if got := d.DeviceUse("hog"); !slices.Equal(got, []DeviceUse{{"7:1", 0, 5}, {"8:0", 3, 4}}) {
		t.Errorf("disks: %v", got)
	}
	if got := d.DeviceUse("web"); len(got) > 0 {
		t.Errorf("disks of who does nothing: %v", got)
	}
	if hog, web := d.Traffic("hog"), d.Traffic("web"); hog != 7 || web != 0 {
		t.Errorf("traffic: %g and %g, want that of the busiest cache, and none", hog, web)
	}
	if two, three := d.Sent("hog", 2), d.Sent("hog", 3); two != 8 || three != 0 {
		t.Errorf("sent: %g and %g", two, three)
	}
	if use := d.HostUse(); use != 4 {
		t.Errorf("the host uses %g CPUs", use)
	}
}
