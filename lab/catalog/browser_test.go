package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/browser"
	"berth.dev/berth/lab/report"
)

const (
	// printed is what the name of a page ends with that is laid out as on paper, this many pixels wide: A4
	// without the browser's margins.
	printed = " printed"
	paper   = 718
)

// onPaper is a page with the styles of paper on a screen.
func onPaper(page []byte) []byte {
	return bytes.Replace(page, []byte("@media print {"), []byte("@media all {"), 1)
}

// measurer is a page that shows others, one after the other, in a frame in which no script runs, and
// writes down how they lie in it.
const measurer = `<!DOCTYPE html><meta charset="utf-8"><body><pre id="found">unfinished</pre><script>
const shown = %s, found = [];
const next = () => {
  const show = shown.shift();
  if (!show) { document.getElementById('found').textContent = JSON.stringify(found); return; }
  const frame = document.createElement('iframe');
  frame.setAttribute('sandbox', 'allow-same-origin');
  frame.style.cssText = 'border: 0; height: 2000px; width: ' + show.Width + 'px';
  frame.onload = () => {
    const doc = frame.contentDocument, root = doc.documentElement, beyond = [], small = [];
    for (const e of doc.querySelectorAll('h1, h2, p, dt, dd, li, figcaption, summary, .plot text')) {
      const at = e.getBoundingClientRect();
      if (!at.width || e.closest('.skip, .scroll')) continue;
      if (at.right > root.clientWidth + 1 || at.left < -1) beyond.push(e.textContent.slice(0, 60));
      if (e.tagName === 'text' && at.width > at.height && at.height < 7) small.push(e.textContent.slice(0, 60));
    }
    const drawn = [...doc.querySelectorAll('figure svg')].filter(e => e.getBoundingClientRect().width > 0);
    found.push({Name: show.Name, Width: show.Width, Over: root.scrollWidth - root.clientWidth, Beyond: beyond, Small: small, Plots: drawn.length,
      First: doc.querySelector('h1').getBoundingClientRect().top});
    frame.remove();
    next();
  };
  frame.src = '/' + show.Name;
  document.body.append(frame);
};
next();
</script>`

// The page of every experiment can be read on a phone, on a screen and on paper, without scripts: nothing is wider
// than that, no text of a picture is cut off or too small to read, and every picture is there once.
func TestPagesInABrowser(t *testing.T) {
	t.Parallel()
	browser.Path(t)
	pages, plots := map[string][]byte{}, map[string]int{}
	add := func(name string, s *report.Sheet) {
		var page bytes.Buffer
		if err := report.HTML(&page, s); err != nil {
			t.Fatal(err)
		}
		pages[name] = page.Bytes()
		if s.Page != nil {
			plots[name] = len(s.Page().Plots)
		}
	}
	all := storedResults(t)
	for _, name := range []string{
		"quick-1", "readme", "memory", "net", "neighbours", "limits", "limits-ramp", "routing", "services", "colocate", "benchmark", "pinning", "cache", "power",
		"guard-v1", "guard-protocol-v1",
	} {
		s, err := all[name].Sheet()
		if err != nil {
			t.Fatal(err)
		}
		add(name, s)
	}
	const stored = "../../docs/measurements/results/"
	a, err := Side(stored + "readme.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Side(stored + "readme-2.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	c, err := report.Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	add("compare", c.Sheet())
	var runs []report.Side
	series, err := filepath.Glob(stored + "default-runs-longer/*.json.gz")
	if err != nil || len(series) < 8 {
		t.Fatalf("%d runs, %v", len(series), err)
	}
	for _, name := range series {
		run, err := Side(name)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	h, err := report.HistoryOf(runs)
	if err != nil {
		t.Fatal(err)
	}
	add("history", h.Sheet())
	type shown struct {
		Name  string
		Width int
	}
	var asked []shown
	for _, name := range slices.Collect(maps.Keys(pages)) {
		asked = append(asked, shown{name, 360}, shown{name, 1280}, shown{name + printed, paper})
		pages[name+printed], plots[name+printed] = onPaper(pages[name]), plots[name]
	}
	slices.SortFunc(asked, func(x, y shown) int { return strings.Compare(fmt.Sprint(x), fmt.Sprint(y)) })
	list, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if page, ok := pages[strings.TrimPrefix(r.URL.Path, "/")]; ok {
			_, _ = w.Write(page) // a browser that left misses nothing
			return
		}
		fmt.Fprintf(w, measurer, list)
	}))
	defer web.Close()
	document, console := browser.Open(t, web.URL)
	if console != "" {
		t.Errorf("the console says:\n%s", console)
	}
	text := regexp.MustCompile(`(?s)<pre id="found">(.*?)</pre>`).FindStringSubmatch(document)
	var found []struct {
		shown
		Over, Plots   int
		First         float64
		Beyond, Small []string
	}
	if text == nil || json.Unmarshal([]byte(html.UnescapeString(text[1])), &found) != nil || len(found) != len(asked) {
		t.Fatalf("%d of %d pages were measured: %.2000s", len(found), len(asked), text)
	}
	for _, f := range found {
		if f.Over > 0 || len(f.Beyond) > 0 || len(f.Small) > 0 || f.Plots != plots[f.Name] || f.First > 200 {
			t.Errorf("%s at %d pixels: %d pixels too wide; beyond the edge %q; too small %q; %d of %d pictures; the answer begins at %g", f.Name, f.Width, f.Over, f.Beyond, f.Small, f.Plots, plots[f.Name], f.First)
		}
	}
}

// A page is printed whole on as few sheets of paper as it fills: what is folded stays away, and no sheet has
// the last line of a page alone.
func TestPagesOnPaper(t *testing.T) {
	t.Parallel()
	browser.Path(t)
	all := storedResults(t)
	for name, most := range map[string]int{"readme": 8, "neighbours": 7, "guard-v1": 9, "net": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := all[name].Sheet()
			if err != nil {
				t.Fatal(err)
			}
			var page bytes.Buffer
			if err := report.HTML(&page, s); err != nil {
				t.Fatal(err)
			}
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html; charset=utf-8")
				_, _ = w.Write(page.Bytes()) // a browser that left misses nothing
			}))
			defer web.Close()
			sheets := len(regexp.MustCompile(`/Type\s*/Page\b[^s]`).FindAll(browser.Print(t, web.URL), -1))
			if sheets == 0 || sheets > most {
				t.Errorf("%d sheets, want 1 to %d", sheets, most)
			}
		})
	}
}
