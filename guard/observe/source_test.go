package observe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// oneNumber is a made-up reader of a file with one number.
type oneNumber struct {
	file    string
	subject watch.Subject
}

func (r oneNumber) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	text, err := os.ReadFile(r.file)
	if err != nil {
		return to, err
	}
	value, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return append(to, watch.Sample{Time: now, Subject: r.subject, Quantity: watch.FrequencyLimit, Value: value}), err
}

func (oneNumber) Close() error { return nil }

// A signal that is read of a few subjects is one row of the table and its reader: it is
// read in its scope, listed with its cost, or with why it is not there.
func TestAddingASource(t *testing.T) {
	t.Parallel()
	root := plant(t)
	open := func(s *Site, group string, cpus cpuset.Set) (Reader, error) {
		file := filepath.Join(s.Tree, group, "thermal.limit")
		if _, err := os.Stat(file); err != nil {
			return nil, &kernel.NotSupportedError{Feature: "thermal limit", Reason: "there is no thermal.limit", Remedy: "make one up"}
		}
		limited := watch.Subject{}
		if group != "" {
			limited = subject(group)
		}
		return oneNumber{file, limited}, nil
	}
	o, err := Open(Config{Root: root, Sources: []Source{
		{Name: "thermal limit", Note: "made up", Of: OfHost, Open: open}, {Name: "thermal limit", Note: "made up", Of: InFocus, Open: open},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	limits := func(now watch.Time) map[string]float64 {
		t.Helper()
		got := map[string]float64{}
		for s, v := range tick(t, o, now) {
			if s.Quantity == watch.FrequencyLimit {
				got[s.Subject.Name] = v
			}
		}
		return got
	}
	write(t, root, map[string]string{cgroupDir + "thermal.limit": "7\n", cgroupDir + "a.slice/api/thermal.limit": "9\n"})
	if err := o.Focus([]string{"a.slice/api", "b.slice"}); err != nil {
		t.Fatal(err)
	}
	if got := limits(watch.Second); len(got) != 2 || got[""] != 7 || got["a.slice/api"] != 9 {
		t.Errorf("reads %v", got)
	}
	signals := func() (listed []Signal) {
		t.Helper()
		all, err := o.Signals()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Name == "thermal limit" {
				listed = append(listed, s)
			}
		}
		return listed
	}
	if got := signals(); len(got) != 2 || !got[0].Available || got[0].CostSeconds <= 0 || got[1].Note != "made up" {
		t.Errorf("listed: %+v", got)
	}
	// It breaks, is closed, and found again by the next look.
	write(t, root, map[string]string{cgroupDir + "a.slice/api/thermal.limit": "hot\n"})
	if got := limits(2 * watch.Second); len(got) != 1 {
		t.Errorf("broken: %v", got)
	}
	write(t, root, map[string]string{cgroupDir + "a.slice/api/thermal.limit": "8\n"})
	if got := limits(2*watch.Second + rescan); got["a.slice/api"] != 8 {
		t.Errorf("whole again: %v", got)
	}
	if err := errors.Join(os.Remove(filepath.Join(root, cgroupDir, "thermal.limit")), o.Focus([]string{"b.slice"})); err != nil {
		t.Fatal(err)
	}
	for _, s := range signals() {
		if s.Available || s.Reason != "there is no thermal.limit" || s.Remedy != "make one up" {
			t.Errorf("gone: %+v", s)
		}
	}
}

// countedSource counts how often it is opened and closed, and on which CPUs.
type countedSource struct {
	refuses      error // opening
	fails        error // reading
	quiet        bool
	samples      int
	opened, shut int
	cpus         cpuset.Set
}

func (c *countedSource) open(_ *Site, _ string, cpus cpuset.Set) (Reader, error) {
	c.opened++
	c.cpus = cpus
	return &countedReader{c}, c.refuses // a reader beside an error, as one in the interface is not nil
}

type countedReader struct{ of *countedSource }

func (r *countedReader) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	for i := range r.of.samples {
		to = append(to, watch.Sample{Time: now, Quantity: watch.Tasks, Value: float64(i)})
	}
	return to, r.of.fails
}

func (r *countedReader) Quiet() bool { return r.of.quiet }

func (r *countedReader) Close() error {
	r.of.shut++
	return nil
}

// What is refused is tried again at every tenth call, what has ended or is on other CPUs at the next, and what is open
// is not opened a second time.
func TestReaders(t *testing.T) {
	t.Parallel()
	there, refused := &countedSource{samples: 2}, &countedSource{refuses: errors.New("not here")}
	r := (&Site{}).Open("web", cpuset.MustParse("0-1"), []Source{{Name: "there", Open: there.open}, {Name: "refused", Open: refused.open}})
	check := func(when string, opened, shut, tried, samples int, told ...string) {
		t.Helper()
		var got []string
		r.Each(func(name string, err error) { got = append(got, fmt.Sprint(name, " ", err)) })
		if there.opened != opened || there.shut != shut || refused.opened != tried || !slices.Equal(got, told) {
			t.Errorf("%s: opened %d times, closed %d, the refused one tried %d times; want %d, %d, %d; told %q, want %q",
				when, there.opened, there.shut, refused.opened, opened, shut, tried, got, told)
		}
		if got := r.Read(1, nil); len(got) != samples {
			t.Errorf("%s: %v, want %d samples", when, got, samples)
		}
	}
	both := []string{"there <nil>", "refused not here"}
	check("before a try", 0, 0, 0, 0)
	r.Retry()
	check("after one", 1, 0, 1, 2, both...)
	for range Patience - 1 {
		r.Retry()
	}
	check("nine more", 1, 0, 1, 2, both...)
	r.Retry()
	check("the next", 1, 0, 2, 2, both...)
	if err := r.Move(cpuset.MustParse("0-1")); err != nil {
		t.Error(err)
	}
	check("the same CPUs", 1, 0, 2, 2, both...)
	if err := r.Move(cpuset.MustParse("1")); err != nil {
		t.Error(err)
	}
	check("other CPUs", 1, 1, 2, 0)
	r.Retry()
	if check("after a try", 2, 1, 3, 2, both...); there.cpus.String() != "1" {
		t.Errorf("opened on CPUs %s", there.cpus)
	}
	there.fails = errors.New("broken")
	check("it breaks", 2, 1, 3, 0, both...)
	there.fails = nil
	check("it has ended", 2, 2, 3, 0, "there broken", "refused not here")
	r.Retry()
	check("and is tried", 3, 2, 4, 2, both...)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	check("closed", 3, 3, 4, 0)
	if r.Retry(); there.opened != 4 {
		t.Error("what was closed is not opened at once")
	}
}

// Whether a source is there, by what it says once it is open, and why it is not.
func TestSignalOfSource(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		countedSource
		there          bool
		reason, remedy string
	}{
		"it tells something":    {countedSource{samples: 1}, true, "", ""},
		"it tells nothing":      {countedSource{}, false, "it tells nothing now", ""},
		"it need not":           {countedSource{quiet: true}, true, "", ""},
		"it cannot be read":     {countedSource{samples: 1, fails: errors.New("broken")}, false, "broken", ""},
		"it need not, nor can":  {countedSource{quiet: true, fails: errors.New("broken")}, false, "broken", ""},
		"it is refused":         {countedSource{refuses: errors.New("not here")}, false, "not here", ""},
		"it is refused, and by": {countedSource{refuses: &kernel.NotSupportedError{Reason: "too old", Remedy: "a new one"}}, false, "too old", "a new one"},
	} {
		source := c.countedSource
		s := Source{Name: "made up", Open: source.open}.signal(&Site{}, "web", cpuset.Set{}, Signal{Name: "made up", Note: "dear"})
		if s.Available != c.there || s.Reason != c.reason || s.Remedy != c.remedy || s.Note != "dear" || (s.CostSeconds > 0) != c.there {
			t.Errorf("%s: %+v", name, s)
		}
		if want := source.opened; source.refuses == nil && source.shut != want {
			t.Errorf("%s: opened %d times, closed %d times", name, want, source.shut)
		}
	}
}
