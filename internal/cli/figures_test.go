package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
)

// The pictures of the pages are what the command makes of the stored results.
func TestPicturesAreCurrent(t *testing.T) {
	t.Parallel()
	computes(t)
	for picture, result := range map[string]string{"isolation": "default-runs-look/c01", "demo": "demo"} {
		out, errs, code := berth(t, "lab", "report", "../../docs/measurements/results/"+result+".json.gz", "-o", "svg")
		if code != exitOK {
			t.Fatalf("%s: status %d, %s", result, code, errs)
		}
		file := "../../docs/pictures/" + picture + ".svg"
		if *updateMan {
			if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if text, err := os.ReadFile(file); err != nil || !bytes.Equal(text, []byte(out)) {
			t.Errorf("%s is not what berth lab report -o svg makes of %s (%v); -update-man writes it", file, result, err)
		}
	}
}

// What the README says of the demonstration is the story of the stored run.
func TestDemoFigures(t *testing.T) {
	t.Parallel()
	out, errs, code := berth(t, "lab", "report", "../../docs/measurements/results/demo.json.gz", "-o", "json")
	var d report.DemoDocument
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != exitOK {
		t.Fatalf("status %d, %v, %s", code, err, errs)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	p := d.Story.Phases
	if len(p) != 4 || d.Story.Kept == nil || !d.Story.Helps() {
		t.Fatalf("the story is %+v", d.Story)
	}
	want := fmt.Sprintf("takes %s alone, %s beside the hog, %s with the hog in class `BE`, %s without that again; in class `BE` the hog keeps %.0f %% of its work.",
		lab.Latency(p[0].P99), lab.Latency(p[1].P99), lab.Latency(p[2].P99), lab.Latency(p[3].P99), 100**d.Story.Kept)
	if !strings.Contains(strings.Join(strings.Fields(string(readme)), " "), want) {
		t.Errorf("README.md does not say: %s", want)
	}
}

// The figures of nginx beside a hog are those of the stored measurement.
func TestNginxFigures(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/measurements/results/nginx-and-hog.csv")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	figures := map[string][]float64{} // by state and column, in the order of blocks
	for _, line := range lines[1:] {
		for i, name := range lines[0] {
			if v, err := strconv.ParseFloat(line[i], 64); err == nil {
				figures[line[1]+" "+name] = append(figures[line[1]+" "+name], v)
			}
		}
	}
	of := func(state, column string) []float64 {
		t.Helper()
		all := figures[state+" "+column]
		if len(all) != len(lines)/3 {
			t.Fatalf("%d figures of %s %s", len(all), state, column)
		}
		return all
	}
	page, err := os.ReadFile("../../docs/measurements/nginx-and-hog.md")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	inOneLine := strings.Join(strings.Fields(string(page)), " ")
	for state, name := range map[string]string{"alone": "nginx alone", "hog": "beside the hog", "be": "beside the hog, in class `BE`"} {
		rps := strconv.Itoa(int(rounded(stats.Median(of(state, "requests_per_second")))))
		if n := len(rps); n > 3 {
			rps = rps[:n-3] + "," + rps[n-3:]
		}
		p99 := fmt.Sprintf("%.1f ms", stats.Median(of(state, "p99_ms")))
		row := fmt.Sprintf("| %s | %s | %.2g ms | %s |", name, rps, stats.Median(of(state, "p50_ms")), p99)
		if !strings.Contains(string(page), row) {
			t.Errorf("the page has no row %s", row)
		}
		if row := fmt.Sprintf("| %s | %s | %s |", name, rps, p99); !strings.Contains(string(readme), row) {
			t.Errorf("README.md has no row %s", row)
		}
	}
	pairs := func(column string) *stats.Paired {
		var blocks [][]float64
		for i, v := range of("be", column) {
			blocks = append(blocks, []float64{v, of("hog", column)[i]})
		}
		return stats.Ratios(blocks)
	}
	rps, p99 := pairs("requests_per_second"), pairs("p99_ms")
	iv := rps.Interval(0.95)
	want := fmt.Sprintf("answered more requests in %d of %d blocks, %.1f times as many in the typical block (%.1f to %.1f, 95 %% interval), and its p99 was lower in %d of %d.",
		rps.Higher(), rps.Blocks(), iv.Estimate, iv.Low, iv.High, p99.Lower(), p99.Blocks())
	if !strings.Contains(inOneLine, want) {
		t.Errorf("the page does not say: %s", want)
	}
	load := slices.Concat(of("alone", "load_before"), of("hog", "load_before"), of("be", "load_before"))
	if want := fmt.Sprintf("%.0f to %.0f", slices.Min(load), slices.Max(load)); !strings.Contains(inOneLine, want) {
		t.Errorf("the page does not say that the load average was %s", want)
	}
}

// What the page of first contact says of its runs is what the stored ones end with.
func TestFirstContact(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/measurements/first-contact.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := []struct{ part, words string }{
		{"named", "the hog is named"}, {"proposed", "how to have it yield is proposed, by its name"}, {"before", "requests per second and p99 before"},
		{"in force", "processes of the hog that are idle beside all others"}, {"after", "requests per second and p99 after"}, {"back", "all is back as it was"},
		{"load average", "load average at the end"},
	}
	for _, runs := range []string{"first-contact", "first-contact-systemd"} {
		files, err := filepath.Glob("../../docs/measurements/results/" + runs + "/*.txt")
		if err != nil || len(files) < 3 {
			t.Fatalf("%s: %d runs, %v", runs, len(files), err)
		}
		for _, row := range rows {
			line := "| " + row.words
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				_, end, _ := strings.Cut(string(text), "\n"+row.part+",")
				end, _, _ = strings.Cut(end, "\n")
				seconds, answer, ok := strings.Cut(end, ",")
				if !ok {
					t.Fatalf("%s does not say %s", file, row.part)
				}
				line += fmt.Sprintf(" | %s (%s s)", answer, seconds)
			}
			if !strings.Contains(string(page), line+" |\n") {
				t.Errorf("the page has no row %s |", line)
			}
		}
	}
}

// rounded is v with three digits.
func rounded(v float64) float64 {
	r, _ := strconv.ParseFloat(fmt.Sprintf("%.3g", v), 64)
	return r
}
