package report

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestTextGolden(t *testing.T) {
	t.Parallel()
	r, a := analysed(t, fakeBlocks)
	for _, width := range []int{80, 100, 120} {
		var b bytes.Buffer
		if err := Text(&b, Isolation(measured(t, r), a), Options{Width: width}); err != nil {
			t.Fatal(err)
		}
		golden.Check(t, fmt.Sprintf("testdata/text_%d.txt", width), b.Bytes())
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("width %d: a line of %d: %q", width, n, line)
			}
		}
		if strings.Contains(b.String(), "\x1b") {
			t.Errorf("width %d: an escape sequence without colour", width)
		}
	}
}

// Colour adds escape sequences and changes nothing else.
func TestTextColor(t *testing.T) {
	t.Parallel()
	r, a := analysed(t, fakeBlocks)
	var plain, coloured bytes.Buffer
	if err := errors.Join(Text(&plain, Isolation(measured(t, r), a), Options{}), Text(&coloured, Isolation(measured(t, r), a), Options{Color: true})); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(coloured.String(), "\x1b[31mworse\x1b[0m") {
		t.Error("worse is not red")
	}
	if got := escapes.ReplaceAllString(coloured.String(), ""); got != plain.String() {
		t.Errorf("colour changed the text:\n%s", got)
	}
}

// What a result file says cannot steer the terminal.
func TestTextPrintable(t *testing.T) {
	t.Parallel()
	const evil = "x\x1b]0;owned\x07\r\u202e"
	r, a := analysed(t, 1)
	r.Host.Machine.Name, r.Experiment.Name, r.Setup.Backend = evil, evil, evil
	r.Experiment.Tenant.Service = evil
	a.Rows[2].Scenario, a.Warnings, a.Answer = evil, []string{evil}, []string{evil}
	a.Rows[5].Why = evil
	a.Rows[6].Skipped.Reason = evil
	a.Rows[3].Verdict = evil
	var b, c bytes.Buffer
	if err := Text(&b, Isolation(measured(t, r), a), Options{}); err != nil {
		t.Fatal(err)
	}
	r.Experiment.Scenarios[2].Name, r.Setup.Server = evil, evil
	own := side(t, evil, r)
	own.Judged[0].Name = evil
	comparison, err := Compare(own, own)
	if err != nil {
		t.Fatal(err)
	}
	if err := Text(&c, comparison.Sheet(), Options{}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{b.String(), c.String()} {
		if i := strings.IndexAny(text, "\x1b\x07\r\u202e"); i >= 0 {
			t.Errorf("a control character in %q", text[max(0, i-20):i+5])
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestWriteErrors(t *testing.T) {
	t.Parallel()
	r, a := analysed(t, 1)
	c, err := Compare(side(t, "a", r), side(t, "b", r))
	if err != nil {
		t.Fatal(err)
	}
	s := Isolation(measured(t, r), a)
	for name, err := range map[string]error{
		"text": Text(fullDisk{}, s, Options{}), "html": HTML(fullDisk{}, s), "json": JSON(fullDisk{}, NewDocument(r, a)), "csv": s.Files[2].Write(fullDisk{}),
		"compare text": Text(fullDisk{}, c.Sheet(), Options{}), "compare json": JSON(fullDisk{}, c),
	} {
		if err == nil {
			t.Errorf("%s: no error on a full disk", name)
		}
	}
}

func TestJSONGolden(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := JSON(&b, NewDocument(analysed(t, 2))); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/report.json", b.Bytes())
}

func BenchmarkText(b *testing.B) {
	r, a := analysed(b, fakeBlocks)
	b.ReportAllocs()
	for b.Loop() {
		if err := Text(&bytes.Buffer{}, Isolation(measured(b, r), a), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// Where they compete for a link, what went over it is shown, and elsewhere nothing of it.
func TestTextOfALink(t *testing.T) {
	t.Parallel()
	shown := func(change func(*lab.Result)) string {
		r := fakeResult(t, 4)
		change(r)
		a, err := lab.Analyse(r)
		var b bytes.Buffer
		if err == nil {
			err = Text(&b, Isolation(measured(t, r), a), Options{Width: 100})
		}
		if err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	const column = `(?m)^scenario +CPU +sent +link `
	text := shown(func(r *lab.Result) {
		r.Experiment.Resource, r.Experiment.LinkRate = lab.Net, 200e6
		for i := range r.Rounds {
			r.Rounds[i].LinkBytes = new(0.25 * 25e6 * r.Rounds[i].Seconds)
		}
	})
	for _, want := range []string{column, `(?m)^alone +\d+ +– +25 `, `(?m)^unisolated +\d+ +[0-9.]+ +25 `, `(?m)^link +200Mbit, a veth`} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if text := shown(func(*lab.Result) {}); regexp.MustCompile(column).MatchString(text) || strings.Contains(text, "veth") {
		t.Errorf("without a link:\n%s", text)
	}
}

// TestMarkedFigure: each verdict has its mark, a lower bound shows as one, and the tenant alone has a mark only where it
// differs from itself.
func TestMarkedFigure(t *testing.T) {
	t.Parallel()
	a := &lab.Analysis{}
	f := func(quantity string, v stats.Verdict) lab.Figure {
		return lab.Figure{Quantity: quantity, Verdict: v, Interval: stats.Interval{Estimate: 0.5, Low: 0.25, High: 0.75, Confidence: 0.95}}
	}
	bound, again := lab.Row{Scenario: "idle", Bound: true}, lab.Row{Scenario: lab.BaselineAgain}
	for _, tc := range []struct {
		row  lab.Row
		f    lab.Figure
		want Cell
	}{
		{lab.Row{}, f("p50", stats.Worse), Cell{Text: "▲0.50 [0.25, 0.75]", Mood: Bad}},
		{lab.Row{}, f("p95", stats.Better), Cell{Text: "▼0.50 [0.25, 0.75]", Mood: Good}},
		{lab.Row{}, f("p50", stats.Equivalent), Cell{Text: "=0.50 [0.25, 0.75]", Mood: Good}},
		{lab.Row{}, f("slow", stats.Inconclusive), Cell{Text: "~+50.00 [+25.00, +75.00]", Mood: Unsure}},
		{bound, f("slow", stats.Worse), Cell{Text: "▲≥+50.00 [+25.00, +75.00]", Mood: Bad}},
		{bound, f("p95", stats.Worse), Cell{Text: "▲0.50 [0.25, 0.75]", Mood: Bad}}, // its p99 is the bound
		{lab.Row{Saturated: true}, f("p50", stats.Worse), Cell{Text: "▲≥0.50 [0.25, 0.75]", Mood: Bad}},
		{again, f("p50", stats.Inconclusive), Cell{Text: "0.50 [0.25, 0.75]"}},
		{again, f("p50", stats.Worse), Cell{Text: "▲0.50 [0.25, 0.75]", Mood: Bad}},
	} {
		if got := markedFigure(a, tc.row, tc.f); got != tc.want {
			t.Errorf("%+v, %s %s: %+v, want %+v", tc.row, tc.f.Quantity, tc.f.Verdict, got, tc.want)
		}
	}
}
