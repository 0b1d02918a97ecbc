package cpuset

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list string
		want []int
		text string // canonical form
	}{
		{"", nil, ""},
		{" \n", nil, ""},
		{"0", []int{0}, "0"},
		{"0-0", []int{0}, "0"},
		{"0-3,8", []int{0, 1, 2, 3, 8}, "0-3,8"},
		{"8,0-3\n", []int{0, 1, 2, 3, 8}, "0-3,8"},
		{"1,2,3", []int{1, 2, 3}, "1-3"},
		{"0-1,1-2", []int{0, 1, 2}, "0-2"},
		{"007", []int{7}, "7"},
		{"62-66", []int{62, 63, 64, 65, 66}, "62-66"},
		{"2047", []int{2047}, "2047"},
		{"0,2047", []int{0, 2047}, "0,2047"},
		{"254-257", []int{254, 255, 256, 257}, "254-257"},
	} {
		got, err := Parse(c.list)
		if err != nil {
			t.Errorf("Parse(%q): %v", c.list, err)
			continue
		}
		if got != MustOf(c.want...) {
			t.Errorf("Parse(%q) = %v, want %v", c.list, got, c.want)
		}
		if got.String() != c.text {
			t.Errorf("Parse(%q).String() = %q, want %q", c.list, got, c.text)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ list, want string }{
		{",", "a number is missing"},
		{"1,", "a number is missing"},
		{",1", "a number is missing"},
		{"1,,2", "a number is missing"},
		{"-", "a number is missing"},
		{"1-", "a number is missing"},
		{"-1", "a number is missing"},
		{"3-1", "runs backwards"},
		{"a", "not a number"},
		{"1-2-3", "not a number"},
		{"1 2", "not a number"},
		{"0-6:2/3", "not a number"},
		{"+1", "not a number"},
		{"0x1", "not a number"},
		{"\u0661", "not a number"},
		{"2048", "out of range"},
		{"0-2048", "out of range"},
		{"99999999999999999999", "out of range"},
	} {
		got, err := Parse(c.list)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse(%q) = %v, %v; want an error with %q", c.list, got, err, c.want)
		}
		if !got.IsEmpty() {
			t.Errorf("Parse(%q) returned members with an error: %v", c.list, got)
		}
	}
}

func TestRangeErrors(t *testing.T) {
	t.Parallel()
	if _, err := Of(1, -1); !errors.Is(err, ErrRange) {
		t.Errorf("Of(1, -1): %v, want ErrRange", err)
	}
	if _, err := Of(Limit); !errors.Is(err, ErrRange) {
		t.Errorf("Of(Limit): %v, want ErrRange", err)
	}
	if _, err := Range(0, Limit); !errors.Is(err, ErrRange) {
		t.Errorf("Range(0, Limit): %v, want ErrRange", err)
	}
	if _, err := Range(-1, 3); !errors.Is(err, ErrRange) {
		t.Errorf("Range(-1, 3): %v, want ErrRange", err)
	}
	if s, err := Range(3, 2); err != nil || !s.IsEmpty() {
		t.Errorf("Range(3, 2) = %v, %v; want empty", s, err)
	}
	for _, id := range []int{-1, Limit} {
		if s, err := MustOf(5).With(id); !errors.Is(err, ErrRange) || s != MustOf(5) {
			t.Errorf("With(%d) = %v, %v; want the set unchanged and ErrRange", id, s, err)
		}
		if MustOf(5).Has(id) {
			t.Errorf("Has(%d) is true", id)
		}
	}
}

// TestAgainstMaps compares every operation with the same one on maps.
func TestAgainstMaps(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		a, b := randomMap(rng), randomMap(rng)
		s, u := fromMap(a), fromMap(b)
		want := map[string][]int{"s": sorted(a), "union": nil, "intersect": nil, "minus": nil}
		for id := range Limit {
			if a[id] || b[id] {
				want["union"] = append(want["union"], id)
			}
			if a[id] && b[id] {
				want["intersect"] = append(want["intersect"], id)
			}
			if a[id] && !b[id] {
				want["minus"] = append(want["minus"], id)
			}
			if s.Has(id) != a[id] {
				t.Fatalf("Has(%d) = %v", id, s.Has(id))
			}
		}
		got := map[string]Set{"s": s, "union": s.Union(u), "intersect": s.Intersect(u), "minus": s.Minus(u)}
		for k, v := range want {
			if !slices.Equal(got[k].Slice(), v) {
				t.Fatalf("%s of %v and %v: %v, want %v", k, s, u, got[k], v)
			}
			if got[k] != MustOf(v...) || got[k].IsEmpty() != (len(v) == 0) {
				t.Fatalf("%s of %v and %v: not equal to the set of the same numbers", k, s, u)
			}
		}
		checkCounts(t, s, u, want)
	}
}

func checkCounts(t *testing.T, s, u Set, want map[string][]int) {
	t.Helper()
	if s.Len() != len(want["s"]) || s.IsEmpty() != (len(want["s"]) == 0) {
		t.Fatalf("Len = %d, IsEmpty = %v of %v", s.Len(), s.IsEmpty(), s)
	}
	if got := s.Overlap(&u); got != len(want["intersect"]) {
		t.Fatalf("Overlap = %d, want %d", got, len(want["intersect"]))
	}
	if s.Overlaps(u) != (len(want["intersect"]) > 0) {
		t.Fatalf("Overlaps = %v, want the opposite", s.Overlaps(u))
	}
	if u.Contains(s) != (len(want["minus"]) == 0) {
		t.Fatalf("Contains = %v, want the opposite", u.Contains(s))
	}
	if !s.Contains(s.Intersect(u)) {
		t.Fatalf("%v does not contain its intersection with %v", s, u)
	}
	first, ok1 := s.First()
	last, ok2 := s.Last()
	if n := len(want["s"]); n == 0 {
		if ok1 || ok2 {
			t.Fatal("First or Last of the empty set is ok")
		}
	} else if first != want["s"][0] || last != want["s"][n-1] || !ok1 || !ok2 {
		t.Fatalf("First, Last = %d, %d of %v", first, last, s)
	}
	if back, err := Parse(s.String()); err != nil || back != s {
		t.Fatalf("Parse(%q) = %v, %v", s, back, err)
	}
}

// randomMap has runs and single numbers, and none one time in ten.
func randomMap(rng *rand.Rand) map[int]bool {
	m := map[int]bool{}
	if rng.IntN(10) == 0 {
		return m
	}
	for range rng.IntN(6) + 1 {
		first := rng.IntN(Limit)
		for id := first; id < min(Limit, first+1+rng.IntN(150)); id++ {
			m[id] = true
		}
	}
	return m
}

func fromMap(m map[int]bool) Set { return MustOf(sorted(m)...) }

func sorted(m map[int]bool) []int {
	var ids []int
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func TestRangeIsOf(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]int{{0, 0}, {0, 63}, {63, 64}, {1, 128}, {64, 127}, {2000, 2047}, {0, 2047}, {255, 256}, {256, 319}} {
		var ids []int
		for id := c[0]; id <= c[1]; id++ {
			ids = append(ids, id)
		}
		got, err := Range(c[0], c[1])
		if err != nil || got != MustOf(ids...) {
			t.Errorf("Range(%d, %d) = %v, %v", c[0], c[1], got, err)
		}
	}
}

func TestAllStops(t *testing.T) {
	t.Parallel()
	var got []int
	for id := range MustParse("3,70-80").All() {
		if got = append(got, id); len(got) == 2 {
			break
		}
	}
	if diff := cmp.Diff([]int{3, 70}, got); diff != "" {
		t.Error(diff)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	type holder struct {
		CPUs Set `json:"cpus"`
		None Set `json:"none,omitzero"`
	}
	data, err := json.Marshal(holder{CPUs: MustParse("0-3,8")})
	if err != nil || string(data) != `{"cpus":"0-3,8"}` {
		t.Fatalf("Marshal = %s, %v", data, err)
	}
	var back holder
	if err := json.Unmarshal(data, &back); err != nil || back.CPUs != MustParse("0-3,8") {
		t.Errorf("Unmarshal = %v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"cpus":"3-1"}`), &back); err == nil {
		t.Error("a backward range was accepted")
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	s := MustParse("0-3,2047")
	if !s.Equal(MustOf(0, 1, 2, 3, 2047)) || s.Equal(MustParse("0-3")) || !(Set{}).Equal(MustOf()) {
		t.Error("Equal disagrees with the members")
	}
}

func TestMustPanics(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"MustOf":    func() { MustOf(-1) },
		"MustParse": func() { MustParse("x") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic", name)
				}
			}()
			f()
		}()
	}
}

// Below 256 nothing allocates, and beyond at most what a new set takes.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		s, u string
		most float64
	}{{"0-255", "128-255", 0}, {"0-255", "0-63,128-2047", 0}, {"0-300", "128-2047", 1}} {
		s, u := MustParse(c.s), MustParse(c.u)
		sum := 0
		if n := testing.AllocsPerRun(100, func() {
			x := s.Intersect(u)
			sum += x.Len() + s.Overlap(&u)
			x = x.Union(u).Minus(s)
			for id := range x.All() {
				sum += id
			}
			if x.Contains(s) || x.Overlaps(u) || x == s {
				sum++
			}
		}); n > c.most {
			t.Errorf("%s and %s: %v allocations, want %v", c.s, c.u, n, c.most)
		}
	}
	if size := unsafe.Sizeof(Set{}); size > 48 {
		t.Errorf("a set takes %d bytes, want 48", size)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "0-3,8", "0-2047", "3-1", "1,,2", "99999999999", "0-6:2/3", " 1\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		s, err := Parse(list)
		if err != nil {
			if s != (Set{}) {
				t.Fatalf("Parse(%q) returned members with an error", list)
			}
			return
		}
		if back, err := Parse(s.String()); err != nil || back != s {
			t.Fatalf("Parse(%q) = %v, but Parse(%q) = %v, %v", list, s, s.String(), back, err)
		}
		if s.Len() != len(s.Slice()) {
			t.Fatalf("Len %d of %v", s.Len(), s)
		}
	})
}
