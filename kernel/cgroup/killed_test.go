package cgroup

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
)

// settings are, for each knob of groups, what another program had set, and what Berth sets. A
// device's knob is set for that, and was set for another one, too.
var settings = map[string]struct{ key, was, is string }{
	"idle":            {"", "0", "1"},
	"weight":          {"", "250", "50"},
	"quota":           {"", "200000 100000", "50000 50000"},
	"burst":           {"", "1000", "3000"},
	"mems":            {"", "0-1", "0"},
	"cpus":            {"", "0-3", "1-2"},
	"memoryMax":       {"", "1073741824", "536870912"},
	"memoryHigh":      {"", "1073741824", "536870912"},
	"memoryLow":       {"", "1048576", "2097152"},
	"ioWeight":        {"", "300", "20"},
	"ioDeviceWeight":  {"254:0", "300", "20"},
	"bfqDeviceWeight": {"8:0", "300", "20"},
	"readBPS":         {"254:0", "5000000", "1000000"},
	"writeBPS":        {"254:0", "5000000", "max"},
	"readIOPS":        {"254:0", "max", "100"},
	"writeIOPS":       {"254:0", "500", "100"},
	"ioLatency":       {"254:0", "30000", "20000"},
	"pidsMax":         {"", "100", "50"},
	"frozen":          {"", "0", "1"},
}

// knobHost is a host with a disk that io.cost divides, if the host has it, and one that BFQ does,
// with a group in which another program has set everything.
func knobHost(t *testing.T, layout fakekernel.Layout) (site, Group) {
	t.Helper()
	s := fakeSite(t, layout)
	if err := errors.Join(s.fake.PlugDisk("vda", "254:0", ""), s.fake.PlugDisk("sda", "8:0", "bfq")); err != nil {
		t.Fatal(err)
	}
	if layout.V2 != "" && layout.Weights == "" {
		if err := s.fake.WriteFile(layout.V2+"/io.cost.qos", "254:0 enable=1"); err != nil {
			t.Fatal(err)
		}
	}
	s.detect(t)
	var err error
	if s.base, err = s.host.Base(); err != nil {
		t.Fatal(err)
	}
	g := s.group(t)
	for _, k := range knob.All() {
		v, ok := settings[k.Name]
		if !ok || k.Name == "idle" {
			continue
		}
		keys := []string{v.key}
		if k.Direction == knob.Up && strings.HasSuffix(k.Name, "PS") {
			keys = append(keys, "8:0")
		}
		for _, key := range keys {
			plan, err := g.Plan(knob.Settings{{Knob: k, Key: key}: v.was})
			if err == nil {
				_, err = kernel.Apply(s.root, plan, nil)
			}
			if err != nil && !errors.Is(err, kernel.ErrNotSupported) {
				t.Fatalf("%s: %v", k.Name, err)
			}
		}
	}
	return s, g
}

// Killed before and after each write, at setting a knob and at taking it back, and restored, a
// group has all that another program had set.
func TestKilled(t *testing.T) {
	t.Parallel()
	bfq := fakekernel.V2()
	bfq.Weights = "bfq"
	tried := map[string]bool{}
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2(), "v2 with bfq": bfq} {
		s, g := knobHost(t, layout)
		before := mustTree(t, s.fake)
		for _, k := range knob.All() {
			v, ok := settings[k.Name]
			if !ok {
				continue
			}
			plan, err := g.Plan(knob.Settings{{Knob: k, Key: v.key}: v.is})
			if errors.Is(err, kernel.ErrNotSupported) {
				continue
			}
			if err != nil || len(plan) == 0 {
				t.Fatalf("%s: %s: %v, %v", name, k.Name, plan, err)
			}
			tried[k.Name] = true
			for _, after := range []bool{false, true} {
				writes := 0
				for at, alive := 1, false; !alive; at++ {
					alive, writes = s.killed(t, plan, at, after)
					if diff := cmp.Diff(before, mustTree(t, s.fake)); diff != "" {
						t.Fatalf("%s: %s: killed at write %d, after it: %v (-before +restored):\n%s", name, k.Name, at, after, diff)
					}
				}
				if writes < 2 {
					t.Errorf("%s: %s: %d writes", name, k.Name, writes)
				}
			}
		}
	}
	for _, k := range knob.All() {
		// The fake kernel has no huge pages, and a partition needs one around it (TestPartition).
		if k.Kind == knob.Group && !k.ReadOnly && k.Controller != "hugetlb" && k.Name != "partition" && !tried[k.Name] {
			t.Errorf("knob %s was not tried", k.Name)
		}
	}
}

// killed applies and undoes a plan, and dies at a write; then its undo log is restored.
func (s site) killed(t *testing.T, plan kernel.Plan, at int, after bool) (alive bool, writes int) {
	t.Helper()
	dir := fakekernel.MemoryDir(t)
	log, err := kernel.CreateUndoLog(s.root, dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	mortal := kernel.NewRoot(s.root.Name(), fakekernel.Mortal{Files: s.fake, At: at, After: after, Count: &writes})
	alive = fakekernel.Survives(func() {
		undo, err := kernel.Apply(mortal, plan, log)
		if err == nil {
			err = undo()
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, plan)
		}
	})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Restore(s.root, dir); err != nil {
		t.Fatalf("killed at write %d: %v", at, err)
	}
	return alive, writes
}
