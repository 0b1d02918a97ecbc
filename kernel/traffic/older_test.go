package traffic

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"berth.dev/berth/kernel"
)

// TestOlder has programs that another build of Berth attached be known, renewed and removed.
func TestOlder(t *testing.T) { inNamespace(t, testOlder) }

// ofOther are a kind's programs as another build has them: of the same name, with other instructions
// and, where state is not nil, another map.
func (k *programs) ofOther(code func(number uint64, state int) asm.Instructions, state func() (*ebpf.MapSpec, error)) *programs {
	other := *k
	other.code = func(number uint64, state int) asm.Instructions {
		return append(asm.Instructions{asm.Mov.Imm(asm.R0, 0)}, code(number, state)...)
	}
	if state != nil {
		other.state = state
	}
	other.common = false
	return &other
}

// counts are how many programs a control group or a device has: those of another build first and those of this one then.
func (k *programs) counts(t *testing.T, target int) (older, current int) {
	t.Helper()
	err := k.all(target, func(_ *ebpf.Program, _ uint64, is bool) error {
		if is {
			older++
		} else {
			current++
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return older, current
}

func testOlder(t *testing.T) {
	b := newBed(t, false)
	group := b.groups[0]
	const rate = 5e6 // bytes per second
	with := Together{Class: firstMinor, Rate: rateOf(rate)}
	through := Limit{Arrival: Arrival{nearDevice, rateOf(rate)}}
	near, err := arrivalsOf(nearDevice)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		kind   *programs
		file   string
		number uint64
		text   string
		now    *programs // what this host takes for it
		code   func(uint64, int) asm.Instructions
		state  func() (*ebpf.MapSpec, error)
	}{
		{sending, LimitFile(group), rate, Limit{Send: rateOf(rate)}.text(), sending, sendLimiter, clock},
		{pacing, LimitFile(group), rate, Limit{Send: rateOf(rate)}.text(), sending, sendLimiter, clock}, // no device has fq
		{receiving, LimitFile(group), rate, Limit{Receive: rateOf(rate)}.text(), receiving, receiveLimiter, clock},
		{arriving, LimitFile(group), rate, through.text(), arriving, arrivalLimiter, func() (*ebpf.MapSpec, error) { return near.spec(), nil }},
		{together, group + "/" + togetherFile, receivesTogether(with), with.text(), together, func(number uint64, state int) asm.Instructions { return receiveLimiter(number>>16, state) }, clock},
	} {
		t.Run(tc.kind.prefix, func(t *testing.T) {
			other := tc.kind.ofOther(tc.code, tc.state)
			attach := func() {
				t.Helper()
				if err := withGroup(group, func(fd int) error { return other.add(fd, tc.number) }); err != nil {
					t.Fatal(err)
				}
				if got := b.text(tc.file); got != tc.text {
					t.Fatalf("set by another build: %q, want %q", got, tc.text)
				}
			}
			count := func(when string, wantOlder, wantCurrent int) {
				t.Helper()
				older, current := 0, 0
				err := withGroup(group, func(fd int) error {
					for _, k := range []*programs{sending, pacing, receiving, arriving, together} {
						o, c := k.counts(t, fd)
						older, current = older+o, current+c
					}
					return nil
				})
				if err != nil || older != wantOlder || current != wantCurrent {
					t.Errorf("%s: %d programs of another build and %d of this one, want %d and %d; %v", when, older, current, wantOlder, wantCurrent, err)
				}
			}
			// It is renewed once.
			attach()
			var first []link.AttachedProgram
			for try := range 2 {
				if err := RenewLimits(b.root, group); err != nil {
					t.Fatal(err)
				}
				count("renewed", 0, 1)
				if got := b.text(tc.file); got != tc.text {
					t.Errorf("renewed: %q, want %q", got, tc.text)
				}
				var is []link.AttachedProgram
				err := withGroup(group, func(fd int) error {
					all, err := link.QueryPrograms(link.QueryOptions{Target: fd, Attach: tc.now.attach})
					if err == nil {
						is = all.Programs
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
				if try == 0 {
					first = is
				} else if !slices.EqualFunc(is, first, func(a, b link.AttachedProgram) bool { return a.ID == b.ID }) {
					t.Errorf("renewed again, there is another program: %+v, then %+v", first, is)
				}
			}
			// Beside that of another build, as a kill leaves them, it stays alone.
			attach()
			count("both", 1, 1)
			if err := RenewLimits(b.root, group); err != nil {
				t.Error(err)
			}
			count("both, renewed", 0, 1)
			if err := b.root.WriteFile(tc.file, none); err != nil {
				t.Error(err)
			}
			count("removed", 0, 0)
			if err := RenewLimits(b.root, group); err != nil {
				t.Error(err)
			}
			count("without one, renewed", 0, 0)
			b.restoresOlder(t, tc.file, tc.text, attach)
			count("restored", 0, 0)
		})
	}
	// What has another map is somebody else's.
	other := receiving.ofOther(receiveLimiter, nil)
	other.prefix = "berth_iz" // that of the map; the number goes on with it
	err = withGroup(group, func(fd int) error {
		if err := other.add(fd, 1); err != nil {
			return err
		}
		if l, err := (systemCalls{}).Limit(group); l != (Limit{}) || err != nil {
			t.Errorf("a program of somebody else's is taken for %+v, %v", l, err)
		}
		if err := (systemCalls{}).SetLimit(group, Limit{}); err != nil {
			t.Error(err)
		}
		if all, err := link.QueryPrograms(link.QueryOptions{Target: fd, Attach: other.attach}); err != nil || len(all.Programs) != 1 {
			t.Errorf("a program of somebody else's is detached: %v, %v", all, err)
		}
		other.detach(t, fd)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	b.olderPacer(t)
}

// restoresOlder has the undo log of another build remove what that set.
func (b *bed) restoresOlder(t *testing.T, file, text string, attach func()) {
	t.Helper()
	log, err := kernel.CreateUndoLog(b.root, t.TempDir()+"/log", "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Apply(b.root, kernel.Plan{{Path: file, Value: text}}, log); err != nil {
		t.Fatal(err)
	}
	if err := b.root.WriteFile(file, none); err != nil {
		t.Fatal(err)
	}
	attach()
	items, err := log.Undo(func(kernel.Step) bool { return true })
	if err != nil || len(items) != 1 || items[0].Outcome != kernel.Restored {
		t.Errorf("restored: %+v, %v", items, err)
	}
}

// olderPacer has a device's program of another build be known, renewed with its classes, and removed.
func (b *bed) olderPacer(t *testing.T) {
	devices, err := systemCalls{}.Devices()
	index := devices[nearDevice]
	if err != nil {
		t.Fatal(err)
	}
	if !pacers.possible(index) {
		t.Log("the kernel has no programs of devices")
		return
	}
	calls, want := systemCalls{}, Class{Rate: noFloor, Ceil: 5e6, Prio: 3}
	code := func(_ uint64, state int) asm.Instructions { return pacerOf(state) }
	readsOnly := func(_ uint64, state int) asm.Instructions { // needs nothing of its map's form
		return asm.Instructions{asm.LoadMapPtr(asm.R1, state), asm.Mov.Imm(asm.R0, -1), asm.Return()}
	}
	small := func() (*ebpf.MapSpec, error) {
		spec, err := classPaces()
		spec.ValueSize = 16
		spec.Contents = []ebpf.MapKV{{Key: uint32(firstMinor), Value: [2]uint64{1e6, 0}}}
		return spec, err
	}
	for name, tc := range map[string]struct {
		other *programs
		keeps bool // its classes can be read
	}{"same form": {pacers.ofOther(code, nil), true}, "another form": {pacers.ofOther(readsOnly, small), false}} {
		if err := tc.other.add(index, pacer); err != nil {
			t.Fatal(err)
		}
		if tc.keeps {
			err := withPaces(index, func(m *ebpf.Map) error {
				for minor := range uint16(3) {
					if err := setPace(m, firstMinor+minor, want); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		paced, err := calls.Paced(index)
		classes, again := calls.Classes(EDT, index)
		if err != nil || again != nil || !paced || (classes[firstMinor] == want) != tc.keeps {
			t.Errorf("%s: %v, %v; %v, %v", name, paced, err, classes, again)
		}
		if tc.keeps {
			err = RenewClasses(b.root, "sys/net/"+nearDevice+"/edt")
		} else {
			err = calls.SetClass(EDT, index, firstMinor, want)
		}
		older, current := pacers.counts(t, index)
		classes, again = calls.Classes(EDT, index)
		if n := map[bool]int{true: 3, false: 1}[tc.keeps]; err != nil || again != nil || older != 0 || current != 1 || len(classes) != n || classes[firstMinor] != want {
			t.Errorf("%s, renewed: %v; %d of another build, %d of this one; %v, %v", name, err, older, current, classes, again)
		}
		if err := tc.other.add(index, pacer); err != nil {
			t.Fatal(err)
		}
		if err := b.root.Rmdir("sys/net/" + nearDevice + "/edt"); err != nil {
			t.Error(err)
		}
		if older, current := pacers.counts(t, index); older+current != 0 {
			t.Errorf("%s, removed: %d of another build, %d of this one", name, older, current)
		}
	}
}
