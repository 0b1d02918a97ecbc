package desired

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/kernel/knob"
)

func id(name string) knob.ID { return knob.ID{Knob: knob.Find(name)} }

// choices are knobs of each direction, and values of them from narrow to wide.
var choices = []struct {
	id     knob.ID
	values []string
}{
	{id("idle"), []string{"1", "0"}},
	{id("weight"), []string{"1", "10", "100", "1000"}},
	{id("quota"), []string{"1000 100000", "5000 10000", "100000 50000", "max 100000"}},
	{id("burst"), []string{"0", "1000", "2000"}},
	{id("cpus"), []string{"3", "0-1", "0-3", ""}},
	{id("memoryHigh"), []string{"4096", "8192", "max"}},
	{id("partition"), []string{"member", "root", "isolated"}}, // not comparable
	{knob.ID{Knob: knob.Find("readBPS"), Key: "8:0"}, []string{"1", "2", "max"}},
}

// all returns the effective claims of every subject.
func (s *State) all() map[string]Values {
	all := map[string]Values{}
	for subject := range s.subjects {
		all[subject] = s.Of(subject)
	}
	return all
}

// oracle has every claim in a list, the oldest first.
type oracle []struct {
	subject string
	choice  int
	value   int
	owner   string
	widens  bool
}

func (o *oracle) remove(subject string, choice int, owner string) {
	kept := (*o)[:0]
	for _, c := range *o {
		if c.subject != subject || c.choice != choice || c.owner != owner {
			kept = append(kept, c)
		}
	}
	*o = kept
}

// of decides by trying every claim: is there one that beats it?
func (o oracle) of(subject string) map[knob.ID]string {
	values := map[knob.ID]string{}
	for n, choice := range choices {
		widest, narrowest, last := -1, -1, -1
		for _, widens := range []bool{true, false} {
			for _, c := range o {
				if c.subject != subject || c.choice != n {
					continue
				}
				switch {
				case c.widens != widens:
				case c.widens:
					widest, last = max(widest, c.value), c.value
				default:
					last = c.value
					if narrowest < 0 || c.value < narrowest {
						narrowest = c.value
					}
				}
			}
		}
		value := widest
		if narrowest >= 0 && (value < 0 || narrowest < value) {
			value = narrowest
		}
		if choice.id.Direction == knob.Neither {
			value = last
		}
		if value >= 0 {
			values[choice.id] = choice.values[value]
		}
	}
	if values[id("idle")] == "1" {
		delete(values, id("weight"))
	}
	return values
}

// host is a brute-force writer: it does an update change by change, as a kernel would
// have it, and refuses what a kernel would refuse.
type host map[string]map[knob.ID]string

func (h host) do(updates []Update) error {
	for _, u := range updates {
		if h[u.Subject] == nil {
			h[u.Subject] = map[knob.ID]string{}
		}
		at := h[u.Subject]
		for _, c := range u.Changes {
			if c.Setting == id("weight") && at[id("idle")] == "1" {
				return fmt.Errorf("%s: the weight is locked", u.Subject)
			}
			delete(at, c.Setting)
			if c.Claim != nil {
				at[c.Setting] = c.Claim.Value
			}
			if c.Setting == id("idle") && at[c.Setting] == "1" {
				delete(at, id("weight")) // the kernel resets it
			}
		}
	}
	return nil
}

// After any sequence of claims, what is effective is what the oracle says, and the
// differences lead a host there.
func TestRandomClaims(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		var s State
		var o oracle
		kernel := host{}
		before := s.all()
		for step := range 60 {
			subject := []string{"a", "a/b"}[random.IntN(2)]
			n := random.IntN(len(choices))
			choice, value := choices[n], random.IntN(len(choices[n].values))
			owner := []string{"guard/x", "guard/y", "suppression"}[random.IntN(3)]
			widens := random.IntN(4) == 0
			switch random.IntN(4) {
			case 0, 1:
				s.Remove(subject, choice.id, owner)
				o.remove(subject, n, owner)
			default:
				s.Override(subject, choice.id, Claim{Owner: owner, Reason: "test", Value: choice.values[value], Widens: widens})
				o.remove(subject, n, owner)
				o = append(o, oracle{{subject, n, value, owner, widens}}...)
			}
			if random.IntN(3) > 0 {
				continue // several changes at once
			}
			after := s.all()
			for _, subject := range []string{"a", "a/b"} {
				want, got := fmt.Sprint(o.of(subject)), fmt.Sprint(map[knob.ID]string(after[subject].Settings()))
				if got != want {
					t.Fatalf("seed %d, step %d, %s: %s, want %s", seed, step, subject, got, want)
				}
			}
			if err := kernel.do(Diff(before, after)); err != nil {
				t.Fatalf("seed %d, step %d: %v in %v", seed, step, err, Diff(before, after))
			}
			for subject, values := range kernel {
				if want, got := fmt.Sprint(map[knob.ID]string(after[subject].Settings())), fmt.Sprint(values); got != want {
					t.Fatalf("seed %d, step %d: the host has %s of %s, want %s", seed, step, got, subject, want)
				}
			}
			if len(Diff(after, s.all())) > 0 {
				t.Fatalf("seed %d, step %d: a difference to itself", seed, step)
			}
			before = after
		}
		for subject, settings := range s.subjects {
			for setting, at := range maps.Clone(settings) {
				for _, c := range at {
					s.Remove(subject, setting, c.Owner)
				}
			}
		}
		if err := kernel.do(Diff(before, s.all())); err != nil || len(s.subjects) > 0 || len(kernel["a"])+len(kernel["a/b"]) > 0 {
			t.Fatalf("seed %d: in the end %v, %v, %v", seed, err, s.subjects, kernel)
		}
	}
}

// The oldest of equal overrides is the effective one: a second victim changes nothing.
func TestOwner(t *testing.T) {
	t.Parallel()
	var s State
	for _, owner := range []string{"x", "y"} {
		s.Override("batch", id("quota"), Claim{Owner: owner, Value: "100000 100000"})
		s.Override("batch", id("partition"), Claim{Owner: owner, Value: "root"})
		s.Override("batch", id("burst"), Claim{Owner: owner, Value: "1000", Widens: true})
	}
	if b := s.Of("batch")[id("burst")].Owner; b != "x" {
		t.Errorf("the burst is %s's", b)
	}
	v := s.Of("batch")
	if q, p := v[id("quota")].Owner, v[id("partition")].Owner; q != "x" || p != "y" {
		t.Errorf("the quota is %s's, the partition %s's", q, p)
	}
	s.Remove("batch", id("quota"), "x")
	if q := s.Of("batch")[id("quota")].Owner; q != "y" {
		t.Errorf("then the quota is %s's", q)
	}
}

// What locks a setting, and what unlocks it.
func TestLocks(t *testing.T) {
	t.Parallel()
	var s State
	states := []map[string]Values{s.all()}
	note := func() { states = append(states, s.all()) }
	s.Override("batch", id("weight"), Claim{Owner: "limits", Value: "50"})
	note()
	s.Override("batch", id("idle"), Claim{Owner: "guard", Value: "1"})
	note()
	s.Remove("batch", id("weight"), "limits")
	note()
	s.Remove("batch", id("idle"), "guard")
	note()
	var got []string
	for i, to := range states[1:] {
		text, err := json.Marshal(Diff(states[i], to))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(text))
	}
	if diff := cmp.Diff([]string{
		`[{"subject":"batch","changes":[{"setting":"weight","claim":{"owner":"limits","value":"50"}}]}]`,
		`[{"subject":"batch","changes":[{"setting":"idle","claim":{"owner":"guard","value":"1"}}]}]`,
		`null`,
		`[{"subject":"batch","changes":[{"setting":"idle"},{"setting":"weight"}]}]`,
	}, got); diff != "" {
		t.Errorf("updates (-want +got):\n%s", diff)
	}
}

func TestDrift(t *testing.T) {
	t.Parallel()
	d := Drift[string]{Rule: Rule{Limit: 2, Window: 100}}
	for _, tc := range []struct {
		what    string
		at      Instant
		count   int
		yielded bool
	}{
		{"a", 0, 1, false}, {"a", 60, 2, false}, {"b", 60, 1, false},
		{"a", 101, 2, false},                     // the first is longer ago than the window
		{"a", 160, 3, true}, {"a", 900, 1, true}, // still theirs
	} {
		if count, yielded := d.Found(tc.what, tc.at); count != tc.count || yielded != tc.yielded || d.Yielded(tc.what) != yielded {
			t.Errorf("%s at %d: %d, %v; want %d, %v", tc.what, tc.at, count, yielded, tc.count, tc.yielded)
		}
	}
	if all := slices.Collect(d.AllYielded); !slices.Equal(all, []string{"a"}) {
		t.Errorf("yielded: %v", all)
	}
	d.Forget("a")
	if count, yielded := d.Found("a", 901); count != 1 || yielded {
		t.Errorf("forgotten: %d, %v", count, yielded)
	}
}

// Random finds agree with an oracle that keeps every instant.
func TestRandomDrift(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		d := Drift[int]{Rule: Rule{Limit: random.IntN(4), Window: Instant(random.IntN(50))}}
		all, theirs := map[int][]Instant{}, map[int]bool{}
		now := Instant(0)
		for range 200 {
			now += Instant(random.IntN(20))
			what := random.IntN(3)
			if random.IntN(40) == 0 {
				d.Forget(what)
				delete(all, what)
				delete(theirs, what)
				continue
			}
			all[what] = append(all[what], now)
			n := 0
			for _, at := range all[what] {
				if now-at <= d.Window {
					n++
				}
			}
			theirs[what] = theirs[what] || n > d.Limit
			if count, yielded := d.Found(what, now); count != n || yielded != theirs[what] {
				t.Fatalf("seed %d at %d: %d, %v; want %d, %v", seed, now, count, yielded, n, theirs[what])
			}
		}
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	r := Retry{First: 10, Last: 35}
	now := Instant(100)
	for _, wait := range []Instant{10, 20, 35, 35} {
		r.Failed(now)
		if r.Due(now+wait-1) || !r.Due(now+wait) || !r.Failing() {
			t.Errorf("not due %d after the failure at %d", wait, now)
		}
		now += wait
	}
	if r.Done(); r.Failing() || r.Due(now+1000) {
		t.Error("still failing")
	}
	if r.Failed(now); !r.Due(now + 10) {
		t.Error("the next failure waits longer than the first")
	}
}
