package cgroup

import (
	"errors"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/desired"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
)

// tier is a knob that no kernel has: this row is all that it takes.
var tier = &knob.Knob{
	Name: "tier", Words: "memory tier", Controller: Memory, Type: knob.Number, Least: 1, Most: 9, Default: "5", Needs: "boot a made-up kernel",
	V2: []knob.File{{Name: "memory.tier", Line: "all"}},
	V1: []knob.File{{Name: "memory.tier_of_v1", Encode: func(n string) string { return "tier" + n }, Decode: func(s string) string { return s[4:] }}},
}

// clock is one of another kind of subject, with a key: a rate per kind of core.
var clock = &knob.Knob{
	Name: "maxClock", Words: "highest clock rate", Kind: knob.Frequency, Type: knob.Number, Least: 100, Default: knob.Max,
	Key: func(key string) error {
		if key != "big" && key != "little" {
			return errors.New("no such kind of core")
		}
		return nil
	},
	V2: []knob.File{{Name: "scaling_max_freqs", Word: "hz", Unset: "hz=max"}},
}

// policy is a subject that is no control group.
type policy string

func (p policy) Locate(k *knob.Knob) (string, *knob.File, error) {
	if k.Kind != knob.Frequency {
		return "", nil, &kernel.NotSupportedError{Feature: k.Name, Reason: "it is no setting of a clock"}
	}
	return string(p), &k.V2[0], nil
}

// madeUp is a kernel that has the files of made-up knobs, too.
type madeUp struct{ *fakekernel.Kernel }

func (k madeUp) WriteFile(name, data string) error {
	text := strings.TrimSpace(data)
	switch path.Base(name) {
	case "memory.tier":
		return k.Put(name, text+"\ntwo 7")
	case "memory.tier_of_v1":
		return k.Put(name, text)
	case "scaling_max_freqs":
		if text == "big hz=max" {
			return k.Put(name, "little hz=300")
		}
		return k.Put(name, "little hz=300\n"+text)
	}
	return k.Kernel.WriteFile(name, data)
}

// madeUpSite is a host whose kernel has the files of the made-up knobs, a group on it, and
// the directory of a frequency policy.
func madeUpSite(t *testing.T, layout fakekernel.Layout) (s site, g Group, clocks string) {
	t.Helper()
	s = fakeSite(t, layout)
	s.root = kernel.NewRoot(s.root.Name(), madeUp{s.fake})
	s.detect(t)
	var err error
	if s.base, err = s.host.Base(); err != nil {
		t.Fatal(err)
	}
	g = s.group(t)
	if _, err := g.Plan(knob.Settings{{Knob: tier}: "2"}); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), tier.Needs) {
		t.Errorf("a host without the file: %v", err)
	}
	p, err := g.part(Memory)
	if err != nil {
		t.Fatal(err)
	}
	file, text := tier.V2[0].Name, "all 5\ntwo 7"
	if p.Version == 1 {
		file, text = tier.V1[0].Name, "tier5"
	}
	clocks = "sys/devices/system/cpu/cpufreq/policy0"
	if err := errors.Join(s.fake.Put(g.dir(p)+"/"+file, text), s.fake.Put(clocks+"/scaling_max_freqs", "little hz=300")); err != nil {
		t.Fatal(err)
	}
	return s, g, clocks
}

// TestAddingAKnob takes a made-up knob through check, plan, apply, read-back, drift and
// undo, as claims of several owners.
func TestAddingAKnob(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]fakekernel.Layout{"v1": fakekernel.V1(), "v2": fakekernel.V2()} {
		s, g, _ := madeUpSite(t, layout)
		before := mustTree(t, s.fake)
		for _, bad := range []string{"0", "10", "many"} {
			if _, err := g.Plan(knob.Settings{{Knob: tier}: bad}); err == nil {
				t.Errorf("%s: tier %s is accepted", name, bad)
			}
		}
		log, err := kernel.OpenUndoLog(s.root, filepath.Join(t.TempDir(), "log"), "test")
		if err != nil {
			t.Fatal(err)
		}
		id := knob.ID{Knob: tier}
		shown := func() string {
			value, _ := tier.Read("", func(file string) (string, bool) {
				dir, _, err := g.Locate(tier)
				text, ok, err2 := s.host.read(dir + "/" + file)
				return text, ok && err == nil && err2 == nil
			})
			return value
		}
		write := func(value string) error {
			plan, err := g.Plan(knob.Settings{id: value})
			if err == nil {
				_, err = kernel.Apply(s.root, plan, log)
			}
			return err
		}
		var want desired.State
		for _, step := range []struct {
			what   string
			change func()
			want   string
		}{
			{"limit", func() { want.Override("a", id, desired.Claim{Owner: "limits", Value: "6"}) }, "6"},
			{"override", func() { want.Override("a", id, desired.Claim{Owner: "guard", Value: "2"}) }, "2"},
			{"weaker override", func() { want.Override("a", id, desired.Claim{Owner: "suppression", Value: "3"}) }, "2"},
			{"end of the override", func() { want.Remove("a", id, "guard") }, "3"},
			{"end of the other", func() { want.Remove("a", id, "suppression") }, "6"},
			{"end of the limit", func() { want.Remove("a", id, "limits") }, "5"},
		} {
			from := map[string]desired.Values{"a": want.Of("a")}
			step.change()
			for _, u := range desired.Diff(from, map[string]desired.Values{"a": want.Of("a")}) {
				for _, c := range u.Changes {
					if c.Claim == nil {
						_, err = log.Undo(func(kernel.Step) bool { return true })
					} else {
						err = write(c.Claim.Value)
					}
					if err != nil {
						t.Errorf("%s: %s: %v", name, step.what, err)
					}
				}
			}
			if got := shown(); got != step.want {
				t.Errorf("%s: %s: the kernel has %s, want %s", name, step.what, got, step.want)
			}
		}
		diff(t, name+": tree after the end", before, mustTree(t, s.fake))

		// Somebody else changes the value three times; the third time it is theirs.
		drift := desired.Drift[string]{Rule: desired.Rule{Limit: 2, Window: 10}}
		if err := write("2"); err != nil {
			t.Fatal(err)
		}
		for now := range desired.Instant(3) {
			plan, err := g.Plan(knob.Settings{id: "2"})
			if err != nil {
				t.Fatal(err)
			}
			text := tier.V2[0].Text("", "9")
			if name == "v1" {
				text = tier.V1[0].Text("", "9")
			}
			if err := s.fake.Put(plan[0].Path, text); err != nil {
				t.Fatal(err)
			}
			if found, same, err := s.root.Shows(plan[0]); err != nil || same || found != text {
				t.Errorf("%s: somebody else's value is not seen: %q, %v", name, found, err)
			}
			if _, yielded := drift.Found("a", now); yielded != (now == 2) {
				t.Errorf("%s: change %d: yielded %v", name, now+1, yielded)
			} else if !yielded {
				if err := write("2"); err != nil || shown() != "2" {
					t.Errorf("%s: after drift the kernel has %s: %v", name, shown(), err)
				}
			}
		}
		items, err := log.Undo(func(kernel.Step) bool { return true })
		if err != nil || len(items) != 1 || items[0].Outcome != kernel.Changed || shown() != "9" {
			t.Errorf("%s: undoing what is somebody else's: %v, %v", name, items, err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestKnobOfAnotherKind plans a made-up knob that is no file of control groups, with a key.
func TestKnobOfAnotherKind(t *testing.T) {
	t.Parallel()
	s, g, dir := madeUpSite(t, fakekernel.V2())
	before := mustTree(t, s.fake)
	big := knob.ID{Knob: clock, Key: "big"}
	if _, err := kernel.Set(policy(dir), knob.Settings{{Knob: tier}: "2"}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a group's knob of a clock: %v", err)
	}
	if _, err := g.Plan(knob.Settings{big: "200"}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a clock's knob of a group: %v", err)
	}
	if err := (knob.Settings{{Knob: clock, Key: "odd"}: "200"}).Check(); err == nil {
		t.Error("a key that there is not is accepted")
	}
	for _, step := range []struct{ value, text string }{{"200", "little hz=300\nbig hz=200"}, {"max", "little hz=300"}} {
		plan, err := kernel.Set(policy(dir), knob.Settings{big: step.value})
		if err == nil {
			_, err = kernel.Apply(s.root, plan, nil)
		}
		text, _, err2 := s.host.read(dir + "/scaling_max_freqs")
		if err := errors.Join(err, err2); err != nil || strings.TrimSpace(text) != step.text {
			t.Errorf("%s: %q, %v", step.value, text, err)
		}
	}
	diff(t, "tree", before, mustTree(t, s.fake))
}
