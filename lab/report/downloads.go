package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/url"
	"strconv"
	"time"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/stats"
)

// CSV writes one line per round and percentile: response time and its parts in
// microseconds, with the round's counts beside them.
func CSV(w io.Writer, m *lab.Measured) error { return writeCSV(w, roundsOf(m)) }

func writeCSV(w io.Writer, rounds []round) error {
	out := csv.NewWriter(w)
	heads := []string{
		"block", "position", "scenario", "started", "excluded", "percentile", "response_us", "service_us", "queue_us", "lag_us",
		"offered", "done", "failed", "unfinished", "seconds", "tenant_cpu_s", "neighbour_cpu_s", "neighbour_work", "neighbour_work_unit",
		"tenant_wait_s", "tenant_throttled_s", "neighbour_throttled_s", "host_busy_cpu_s", "host_steal_cpu_s", "host_foreign_cpu_s",
	}
	if err := out.Write(heads); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	float := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	us := func(quantiles []float64, i int) string {
		if quantiles == nil {
			return ""
		}
		return float(quantiles[i])
	}
	for _, r := range rounds {
		neighbour := []string{"", "", "", ""}
		if n := r.Neighbour; n != nil {
			neighbour = []string{float(n.CPUSeconds), float(n.Work), n.Unit, float(n.ThrottledSeconds)}
		}
		for i, p := range roundQuantiles {
			line := []string{
				strconv.Itoa(r.Block), strconv.Itoa(r.Position), r.Scenario, r.Started.UTC().Format(time.RFC3339Nano), r.Excluded, float(p),
				us(r.response, i), us(r.service, i), us(r.queue, i), us(r.lag, i),
				strconv.Itoa(r.Load.Offered), strconv.Itoa(r.Load.Done), strconv.Itoa(r.Load.Failed), strconv.Itoa(r.Load.Unfinished),
				float(r.Seconds), float(r.Tenant.CPUSeconds), neighbour[0], neighbour[1], neighbour[2],
				float(r.Tenant.WaitSeconds), float(r.Tenant.ThrottledSeconds), neighbour[3], float(r.Host.Busy), float(r.Host.Steal), float(r.Host.Foreign),
			}
			if err := out.Write(line); err != nil {
				return fmt.Errorf("write csv: %w", err)
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write csv: %w", err)
	}
	return nil
}

// downloads are the files that the page carries within itself.
func downloads(m *lab.Measured, a *lab.Analysis, rounds []round) ([]download, error) {
	whole, err := json.Marshal(m.Result)
	if err != nil {
		return nil, fmt.Errorf("write result: %w", err)
	}
	out := []download{{
		Name: "result.json", About: "everything that was measured, every second's histograms included; berth lab report and compare read it",
		Address: dataURL("application/json", whole), Size: plain.Bytes(int64(len(whole))),
	}}
	asked, err := json.MarshalIndent(m.Experiment, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write experiment: %w", err)
	}
	out = append(out, download{"experiment.json", "what was asked for, to run it again", dataURL("application/json", asked), plain.Bytes(int64(len(asked)))})
	var table bytes.Buffer
	if err := writeCSV(&table, rounds); err != nil {
		return nil, err
	}
	out = append(out, download{"rounds.csv", "one line per round and percentile", dataURL("text/csv", table.Bytes()), plain.Bytes(int64(table.Len()))})
	for i, row := range a.Rows {
		var seconds []stats.Distribution
		for _, r := range lab.Responses(m.Valid(row.Scenario)) {
			seconds = append(seconds, r.Seconds...)
		}
		h := stats.Merge(seconds...).Histogram()
		if h.TotalCount() == 0 {
			continue
		}
		var text bytes.Buffer
		if _, err := h.PercentilesPrint(&text, 5, 1000); err != nil {
			return nil, fmt.Errorf("write distribution of %s: %w", row.Scenario, err)
		}
		out = append(out, download{
			Name: fmt.Sprintf("%d-%s.hgrm", i+1, fileName(row.Scenario)), About: "response time of " + row.Scenario + " in ms, all valid rounds merged, for HdrHistogram's plotter",
			Address: dataURL("text/plain", text.Bytes()), Size: plain.Bytes(int64(text.Len())),
		})
	}
	return out, nil
}

func dataURL(kind string, content []byte) template.URL {
	return template.URL("data:" + kind + ";charset=utf-8," + url.PathEscape(string(content)))
}

// fileName keeps letters, digits and dashes of a scenario's name; the prime of
// the second baseline becomes a word.
func fileName(scenario string) string {
	if scenario == lab.BaselineAgain {
		return "baseline-again"
	}
	name := []byte{}
	for _, c := range []byte(scenario) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-':
			name = append(name, c)
		default:
			name = append(name, '-')
		}
	}
	return string(name)
}
