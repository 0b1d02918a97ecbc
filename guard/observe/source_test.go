package observe

import (
	"errors"
	"os"
	"path/filepath"
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
