package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/golden"
	"berth.dev/berth/lab"
)

func pageOf(t testing.TB, r *lab.Result, a *lab.Analysis) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, Isolation(measured(t, r), a)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestHTMLGolden(t *testing.T) {
	t.Parallel()
	r, a := analysed(t, fakeBlocks)
	page := withoutData([]byte(pageOf(t, r, a)))
	golden.Check(t, "testdata/report.html", page)
	if len(page) > 1<<20 {
		t.Errorf("the page has %d bytes without its data", len(page))
	}
	checkPage(t, string(page))
}

var (
	drawings = regexp.MustCompile(`(?s)<svg.*?</svg>`)
	idents   = regexp.MustCompile(`\bid="([^"]*)"`)
	outside  = regexp.MustCompile(`(?i)https?://|\bsrc=|@import|url\([^#]|<script|<img|<iframe|<link|<object|javascript:|\son[a-z]+=`)
)

// checkPage holds for every page: nothing from outside, nothing that runs,
// well-formed drawings with a title and a description, ids that are unique.
func checkPage(t *testing.T, page string) {
	t.Helper()
	body := strings.ReplaceAll(string(withoutData([]byte(page))), "http://www.w3.org/2000/svg", "")
	if at := outside.FindStringIndex(body); at != nil {
		t.Errorf("the page reaches outside or runs something: %q", body[max(0, at[0]-60):min(len(body), at[1]+60)])
	}
	if !strings.Contains(page, `content="default-src 'none'; style-src 'unsafe-inline'; img-src data:"`) {
		t.Error("no content security policy")
	}
	for _, svg := range drawings.FindAllString(page, -1) {
		if err := wellFormed(svg); err != nil {
			t.Errorf("%.80s: %v", svg, err)
		}
		hidden := strings.Contains(svg, `aria-hidden="true"`)
		if described := strings.Contains(svg, "<title id=") && strings.Contains(svg, "<desc id="); described == hidden {
			t.Errorf("%.80s: described: %v, hidden: %v", svg, described, hidden)
		}
	}
	seen := map[string]bool{}
	for _, m := range idents.FindAllStringSubmatch(page, -1) {
		if seen[m[1]] {
			t.Errorf("id %q twice", m[1])
		}
		seen[m[1]] = true
	}
	if strings.Contains(page, "ZgotmplZ") {
		t.Error("the template refused a value")
	}
}

func wellFormed(text string) error {
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// Whatever a result file says stays text.
func TestHTMLInert(t *testing.T) {
	t.Parallel()
	for _, evil := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'--></style></svg><script>`, `]]><script>`, `javascript:alert(1)`, `{{.}}`,
	} {
		r, a := analysed(t, 1)
		r.Host.Machine.Name, r.Host.Machine.Model, r.Host.Kernel, r.Host.Hypervisor = evil, evil, evil, evil
		r.Experiment.Name, r.Experiment.Preset, r.Experiment.Tenant.Service, r.Setup.Neighbour.Kernel = evil, evil, evil, evil
		r.Setup.Backend, r.Setup.BackendNote, r.Setup.GeneratorPolicy, r.Program.Version = evil, evil, evil, evil
		for i := range r.Rounds {
			if r.Rounds[i].Scenario == "idle" {
				r.Rounds[i].Scenario, r.Rounds[i].Invalid = evil, evil
			}
			if n := r.Rounds[i].Neighbour; n != nil {
				n.Unit = evil
			}
			r.Rounds[i].Knobs = append(r.Rounds[i].Knobs, lab.Knob{Of: evil, File: evil, Value: evil})
			r.Rounds[i].Probes[0].Probe = evil
		}
		a.Rows[4].Scenario, a.Rows[5].Why, a.Rows[6].Skipped.Remedy = evil, evil, evil
		a.Rows[4].Verdict = "worse"
		a.Warnings, a.Reading, a.Answer, a.Recommended = []string{evil}, []string{evil}, []string{evil}, evil
		page := pageOf(t, r, a)
		for _, bad := range []string{"<script", "<img", "</style></svg>", `href="javascript`, "]]>"} {
			if strings.Contains(page, bad) {
				t.Errorf("%s: the page has %s in it", evil, bad)
			}
		}
		for _, svg := range drawings.FindAllString(page, -1) {
			if err := wellFormed(svg); err != nil {
				t.Errorf("%s: %.80s: %v", evil, svg, err)
			}
		}
	}
}

func TestDownloads(t *testing.T) {
	t.Parallel()
	r, a := analysed(t, 2)
	files := map[string]string{}
	for _, f := range Isolation(measured(t, r), a).Files {
		var b bytes.Buffer
		if err := f.Write(&b); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		if b.Len() > 0 {
			files[f.Name] = b.String()
		}
	}
	got := new(lab.Result)
	err := lab.Decode([]byte(files["result.json"]), lab.Schema, got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("result.json is not the result (-want +got):\n%s", diff)
	}
	var e lab.Spec
	if err := json.Unmarshal([]byte(files["experiment.json"]), &e); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Experiment, e); diff != "" {
		t.Errorf("experiment.json is not the experiment (-want +got):\n%s", diff)
	}
	lines, err := csv.NewReader(strings.NewReader(files["rounds.csv"])).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if want := 1 + len(r.Rounds)*len(roundQuantiles); len(lines) != want {
		t.Errorf("rounds.csv has %d lines, want %d", len(lines), want)
	}
	golden.Check(t, "testdata/rounds.csv", []byte(files["rounds.csv"]))
	if !strings.Contains(files["1-baseline.hgrm"], "Value\tPercentile\tTotalCount\t1/(1-Percentile)") {
		t.Errorf("1-baseline.hgrm is no percentile distribution: %.80q", files["1-baseline.hgrm"])
	}
	if files["2-baseline-again.hgrm"] == "" {
		t.Error("no distribution of the repeated baseline")
	}
	if _, ok := files["7-pinned.hgrm"]; ok {
		t.Error("a distribution of a scenario that was skipped")
	}
}

// The page has the links as they were made: the template neither refuses nor
// garbles them.
func TestDownloadLinks(t *testing.T) {
	t.Parallel()
	r, a := analysed(t, 1)
	page := pageOf(t, r, a)
	m := regexp.MustCompile(`download="result.json" href="data:application/json;charset=utf-8,([^"]*)"`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("no link to result.json")
	}
	text, err := url.PathUnescape(strings.ReplaceAll(strings.ReplaceAll(m[1], "&#43;", "+"), "&amp;", "&"))
	if err != nil {
		t.Fatal(err)
	}
	got := new(lab.Result)
	err = lab.Decode([]byte(text), lab.Schema, got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBadHistogram(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"response", "service", "queue", "lag"} {
		r := fakeResult(t, 1)
		sec := &r.Rounds[0].Load.Seconds[1]
		*map[string]*string{"response": &sec.Response, "service": &sec.Service, "queue": &sec.Queue, "lag": &sec.Lag}[part] = "HISTFAAAAA!"
		_, err := lab.Measure(r)
		if err == nil || !strings.Contains(err.Error(), part+" of second 2") {
			t.Errorf("%s: error %v", part, err)
		}
	}
}

func BenchmarkHTML(b *testing.B) {
	r, a := analysed(b, fakeBlocks)
	b.ReportAllocs()
	for b.Loop() {
		if err := HTML(io.Discard, Isolation(measured(b, r), a)); err != nil {
			b.Fatal(err)
		}
	}
}

// Commands within a sentence are told apart, and nothing else is.
func TestSpoken(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"Do it: berth run --weight 10 -- COMMAND, beside a service that berth run started (weighted), or berth run --class BE -- COMMAND (idle)": "Do it: <code>berth run --weight 10 -- COMMAND</code>, beside a service that berth run started (weighted), or <code>berth run --class BE -- COMMAND</code> (idle)",
		"To see more: berth lab --continue results/example --for 21m30s":                                                                         "To see more: <code>berth lab --continue results/example --for 21m30s</code>",
		"a < b": "a &lt; b",
		"berth run --net-classes FILE --net bulk -- COMMAND, where bulk is":   "<code>berth run --net-classes FILE --net bulk -- COMMAND</code>, where bulk is",
		"berth run --net bulk --class BE -- COMMAND":                          "<code>berth run --net bulk --class BE -- COMMAND</code>",
		"berth run --net bulk --name backup -- X":                             "<code>berth run --net bulk --name backup -- X</code>",
		"berth run --net bulk --name backup was run":                          "<code>berth run --net bulk --name</code> backup was run",
		"What helps against it: berth lab --neighbour='stress-ng --cpu 2'":    "What helps against it: <code>berth lab --neighbour=&#39;stress-ng --cpu 2&#39;</code>",
		"(berth resize NAME --quota=max; in Kubernetes":                       "(<code>berth resize NAME --quota=max</code>; in Kubernetes",
		"berth lab --continue 'results/one run' --for 4m":                     "<code>berth lab --continue &#39;results/one run&#39; --for 4m</code>",
		"Do it: berth lab run FILE, a copy; or berth lab run --resume FOLDER": "Do it: <code>berth lab run FILE</code>, a copy; or <code>berth lab run --resume FOLDER</code>",
		"berth lab --x <script>":                                              "<code>berth lab --x</code> &lt;script&gt;",
	} {
		if got := string(spoken(in)); got != want {
			t.Errorf("%q is\n%s, want\n%s", in, got, want)
		}
	}
}

// The picture is above all words, and the headline is the answer.
func TestPictureFirst(t *testing.T) {
	t.Parallel()
	r, a := analysed(t, fakeBlocks)
	page := pageOf(t, r, a)
	h1 := regexp.MustCompile(`<h1>(.*)</h1>`).FindStringSubmatch(page)
	if h1 == nil || !strings.Contains(h1[1], "p99 beside the neighbour is") || !strings.Contains(h1[1], a.Recommended) {
		t.Errorf("headline %q", h1)
	}
	if at, words := strings.Index(page, "<figure>"), strings.Index(page, `class="callout`); at < 0 || at > words {
		t.Errorf("the picture is at %d, the answer at %d", at, words)
	}
	if !strings.Contains(page, "1 of 16 rounds left out: steal 7.1 % of the host") {
		t.Error("it does not say why a round was left out")
	}
	if n := strings.Count(page, "p99.9 not given"); n != 1 {
		t.Errorf("p99.9 is not given %d times", n)
	}
}
