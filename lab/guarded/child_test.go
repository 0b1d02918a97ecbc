package guarded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
)

// toldGuard notes what it is told, a second apart, and says in turn what it has to say.
type toldGuard struct {
	at     time.Duration
	told   []string
	events [][]Event
	failed []failure
	refuse error
}

func (g *toldGuard) SetMode(_ context.Context, mode control.Mode) error {
	g.told = append(g.told, fmt.Sprintf("%s %s", g.at, mode))
	return g.refuse
}
func (g *toldGuard) now() (time.Duration, error) { g.at += time.Second; return g.at, nil }
func (g *toldGuard) armed() bool                 { return false }
func (g *toldGuard) close() error                { g.told = append(g.told, "closed"); return nil }
func (g *toldGuard) take() (_ []Finding, events []Event) {
	events, g.events = g.events[0], g.events[1:]
	return nil, events
}

func (g *toldGuard) failures() (all []failure) {
	all, g.failed = g.failed, nil
	return all
}

func event(at float64, mode control.Mode, outcome control.Outcome, words string) Event {
	return Event{At: at, Event: control.Event{Mode: mode, Outcome: outcome}, Words: words}
}

// The guard's process acts when it is told to, says what it did since then and what failed, and takes it back when
// its input ends.
func TestServe(t *testing.T) {
	t.Parallel()
	g := &toldGuard{events: [][]Event{
		{event(0.5, control.Enforce, control.Applied, "before")},
		{event(1.7, control.Enforce, control.Applied, "applied"), event(1.8, control.Observe, control.Applied, "looked on"), event(1.9, control.Enforce, control.Kept, "kept")},
		{event(2.5, control.Enforce, control.Reverted, "given back")},
		{},
	}, failed: []failure{{1850 * time.Millisecond, errors.New("read cpu.stat")}, {600 * time.Millisecond, errors.New("read its rules")}}}
	const orders = `{"groups":{"tenant":"cpu/a","neighbour":"cpu/b"},"window":"200ms"}
{"act":true}
{"act":false}
{"act":true}
{"act":false}
`
	var out strings.Builder
	var got lab.GuardConfig
	err := serve(strings.NewReader(orders), &out, func(cfg lab.GuardConfig) (failing, error) { got = cfg; return g, nil })
	if err != nil {
		t.Fatal(err)
	}
	if got.Groups[lab.Tenant] != "cpu/a" || got.Groups[lab.Neighbour] != "cpu/b" || time.Duration(got.Window) != 200*time.Millisecond {
		t.Errorf("config %+v", got)
	}
	if diff := cmp.Diff([]string{"1s enforce", "2s observe", "3s enforce", "4s observe", "closed"}, g.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	var answers []lab.GuardAnswer
	for d := json.NewDecoder(strings.NewReader(out.String())); d.More(); {
		var a lab.GuardAnswer
		if err := d.Decode(&a); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	want := []lab.GuardAnswer{{}, {}, {Acts: []lab.Act{
		{At: -0.4, Failed: true, What: "read its rules"}, {At: 0.7, Applied: true, What: "applied"}, {At: 0.85, Failed: true, What: "read cpu.stat"}, {At: 0.9, What: "kept"},
	}}, {}, {}}
	if diff := cmp.Diff(want, answers, cmpopts.EquateApprox(0, 1e-9)); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// What a host lacks for a guard is answered; all else ends the process, which takes back what it changed.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in    string
		err   error // of opening it
		lacks string
		want  string // of the error
	}{
		"not supported": {"{}", fmt.Errorf("open: %w", &kernel.NotSupportedError{Feature: "classes", Reason: "no HTB"}), "no HTB", ""},
		"busy":          {"{}", &actuate.BusyError{Tree: "/sys/fs/cgroup", Holder: actuate.Holder{PID: 7, Program: "berth agent"}}, "berth agent", ""},
		"not root":      {"{}", fmt.Errorf("mount: %w", fs.ErrPermission), "mount: permission denied", ""},
		"broken":        {"{}", errors.New("out of order"), "", "out of order"},
		"no config":     {"", nil, "", "read its config"},
		"no order":      {"{} nonsense", nil, "", "read an order"},
		"not restored":  {`{} {"act":true}`, nil, "", "left behind"},
	} {
		g := &toldGuard{events: [][]Event{nil}, refuse: errors.New("left behind")}
		var out strings.Builder
		err := serve(strings.NewReader(tc.in), &out, func(lab.GuardConfig) (failing, error) { return g, tc.err })
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		var a lab.GuardAnswer
		if tc.lacks != "" && (json.Unmarshal([]byte(out.String()), &a) != nil || a.Lacks == nil || !strings.Contains(a.Lacks.Reason, tc.lacks)) {
			t.Errorf("%s: answers %q, want it to lack %q", name, &out, tc.lacks)
		}
		if opened := tc.err == nil && tc.in != ""; opened != (len(g.told) > 0 && g.told[len(g.told)-1] == "closed") {
			t.Errorf("%s: told %v", name, g.told)
		}
	}
}
