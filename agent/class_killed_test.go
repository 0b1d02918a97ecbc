package agent

import (
	"context"
	"os"
	"path"
	"strings"
	"testing"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/place"
)

// Killed before and after each change of files, amid placing, another configuration and releasing,
// restoring gives everything back: on CPUs that have each kind of line, and with a class that has
// its ways alone. Without BERTH_CRASHES, only some of the changes kill on CPUs but the first.
func TestCacheClassKilled(t *testing.T) {
	t.Parallel()
	const alone = `
partitions:
  fast: {l3Allocation: "3 ways", classes: {gold: {exclusive: true}}}
  rest: {l3Allocation: "5 ways", classes: {bulk: {l3Allocation: "50%"}, DEFAULT: }}
service: {BE: bulk}
`
	for name, c := range map[string]struct {
		cpu, text, then string
		mbps            bool
		step            int
	}{
		"L3 and MB":         {"skylake", classes, strings.Replace(classes, "5 ways", "7 ways", 1), false, 1},
		"in other places":   {"skylake", classes, strings.NewReplacer("fast", "zip", "20%", "60%").Replace(classes), false, 5},
		"MB in amounts":     {"skylake", classes, strings.Replace(classes, "5GBps", "7GBps", 1), true, 5},
		"code and data":     {"icelake-cdp", classes, strings.Replace(classes, "4 ways", "6 ways", 1), false, 5},
		"L2":                {"sapphirerapids", classes, strings.Replace(classes, "{gold: }", "{gold: {l2Allocation: 50%}}", 1), false, 5},
		"L2, code and data": {"sapphirerapids-cdpl2", classes, strings.Replace(classes, "{gold: }", "{gold: {l2Allocation: {all: {unified: 50%, code: 25%, data: 75%}}}}", 1), false, 5},
		"class of devices":  {"zen5-io", classes, strings.Replace(classes, "4 ways", "6 ways", 1), false, 5},
		"SMBA":              {"zen4", classes, strings.Replace(classes, "mbAllocation", "smbaAllocation", 1), false, 5},
		"MPAM":              {"mpam", classes, strings.Replace(classes, "50%", "2 ways", 1), false, 5},
		"ways alone":        {"skylake", alone, strings.Replace(alone, "3 ways", "4 ways", 1), false, 5},
		"code, ways alone":  {"emeraldrapids-cdp", alone, strings.NewReplacer("{exclusive: true}", "", "3 ways", "4 ways").Replace(alone), false, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			step := c.step
			if os.Getenv("BERTH_CRASHES") != "" {
				step = 1
			}
			killedAtEach(t, step, 20, func(f *fate) bool {
				h := classHost(t, c.cpu, func(r *fakekernel.Resctrl) { r.Domains, r.MBps = r.Domains[:1], c.mbps })
				h.opt.Classes = classConfig(t, c.text)
				return h.killedAmidClasses(f, classConfig(t, c.then))
			})
		})
	}
}

// killedAmidClasses has a node give classes until it dies, and checks that restoring gives
// everything back.
func (h *host) killedAmidClasses(f *fate, then ClassConfig) (alive bool) {
	h.t.Helper()
	ctx := context.Background()
	was := h.tree()
	alive = h.restoredAfter(f, func(n *Node) {
		h.place(n, classed(spec("api", place.LS, 0, 9000100), "gold"))
		h.place(n, spec("batch", place.BE, 0, 9000101))
		before := h.schemata("berth-gold") + h.schemata("berth-bulk") + h.schemata("")
		n.opt.Classes = then
		if _, err := n.Reconcile(ctx); err != nil {
			h.t.Fatal(err)
		}
		if now := h.schemata("berth-gold") + h.schemata("berth-bulk") + h.schemata(""); now == before && !h.t.Failed() {
			h.t.Errorf("the other configuration changes nothing: %s", now)
		}
		if err := n.Release(ctx, "api", Keep); err != nil {
			h.t.Fatal(err)
		}
	})
	h.isRestored(was, ofResctrl)
	return alive
}

// ofResctrl says of a file whether it is one of resctrl's settings.
func ofResctrl(name string) bool {
	return strings.HasPrefix(name, rc) && !strings.HasSuffix(name, "last_cmd_status")
}

// Killed before and after each change of files, restoring gives everything back.
func TestIOClassKilled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	killedAtEach(t, 1, 20, func(f *fate) bool {
		h := ioHost(t, fakekernel.V2(), costText)
		before := h.tree()
		alive := h.restoredAfter(f, func(n *Node) {
			h.place(n, ofIO(spec("api", place.LS, 0, 9000100), "slow"))
			h.place(n, ofIO(spec("batch", place.BE, 0, 9000101), "last"))
			if _, err := n.Resize(ctx, ofIO(spec("api", place.LS, 0, 0), "last")); err != nil {
				t.Fatal(err)
			}
		})
		for name, text := range h.tree() {
			about := strings.Contains(name, "/io.") || strings.HasSuffix(name, "/ioprio")
			was, there := before[name]
			if path.Base(name) == blockio.CostQoS { // the kernel keeps the line of a disk
				text, was = strings.Join(strings.Fields(text)[:min(2, len(strings.Fields(text)))], " "), "254:0 enable=0"
				there = text == "" || text == was
				was = text
			}
			if about && (!there || was != text) {
				t.Errorf("%s is %q, was %q, %v", name, text, was, there)
			}
		}
		return alive
	})
}

// A group in which another program has set lines and weights has them again after a kill at any
// change, amid placing, another class and releasing. Without BERTH_CRASHES, a third of the changes
// kill.
func TestIOClassOfGroupKilled(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	bfq := fakekernel.V2()
	bfq.Weights = "bfq"
	const v1, v2 = "sys/fs/cgroup/blkio/theirs/", "sys/fs/cgroup/theirs/"
	for name, tc := range map[string]struct {
		layout fakekernel.Layout
		dirs   []string
		files  [][2]string
	}{
		"v1": {
			fakekernel.V1(),
			[]string{"cpu,cpuacct/theirs", "cpuset/theirs", "memory/theirs", "blkio/theirs", "pids/theirs", "freezer/theirs"},
			[][2]string{
				{v1 + "blkio.throttle.read_bps_device", "254:0 777"}, {v1 + "blkio.throttle.read_bps_device", "8:0 888"},
				{v1 + "blkio.throttle.write_iops_device", "254:0 99"}, {v1 + "blkio.bfq.weight", "250"}, {v1 + "blkio.bfq.weight_device", "8:0 77"},
			},
		},
		"v2": {bfq, []string{"theirs"}, [][2]string{
			{"sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset +io +memory +pids"},
			{v2 + "io.max", "254:0 rbps=777 wiops=99"}, {v2 + "io.max", "8:0 wbps=888"}, {v2 + "io.bfq.weight", "250"}, {v2 + "io.bfq.weight", "8:0 77"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			step := 3
			if os.Getenv("BERTH_CRASHES") != "" {
				step = 1
			}
			killedAtEach(t, step, 20, func(f *fate) bool {
				h := ioHost(t, tc.layout, ioClassesText)
				for _, dir := range tc.dirs {
					if err := h.k.Mkdir("sys/fs/cgroup/" + dir); err != nil {
						t.Fatal(err)
					}
				}
				for _, f := range tc.files {
					if err := h.k.WriteFile(f[0], f[1]); err != nil {
						t.Fatal(err)
					}
				}
				before := h.tree()
				alive := h.restoredAfter(f, func(n *Node) {
					s := ofIO(spec("theirs", place.LS, 0, 0), "slow")
					s.Group, s.Owner = "theirs", Owner{}
					h.place(n, s)
					s.SetClass(IOClass, "gold")
					_, err := n.Resize(ctx, s)
					if err == nil {
						err = n.Release(ctx, "theirs", Keep)
					}
					if err != nil {
						t.Fatal(err)
					}
				})
				h.isRestored(before, func(name string) bool {
					base := path.Base(name)
					return strings.HasPrefix(base, "io.") || strings.HasPrefix(base, "blkio.")
				})
				return alive
			})
		})
	}
}
