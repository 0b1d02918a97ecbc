// Package report writes reports: for a terminal, and as one HTML page that needs no
// network and no script. A Sheet is a report as data: facts, tables, paragraphs, plots
// and files; whatever experiment describes its result as a Sheet can be shown.
//
// Isolation makes the sheet of a lab.Result. Compare compares two stored results. Both
// are pure functions: the statistics are those of lab/stats, and the words that read the
// result are the analysis's.
package report

import (
	"encoding/json"
	"fmt"
	"io"

	"berth.dev/berth/lab"
)

// Schema names the version of the report's JSON form.
const Schema = "berth.dev/lab-report/v1"

// Document is the report as JSON: what was run, and what it came to. The raw
// rounds are in the result file that it was made from.
type Document struct {
	lab.Header
	Experiment lab.Spec      `json:"experiment"`
	Analysis   *lab.Analysis `json:"analysis"`
}

// NewDocument returns the report of a result, in the schema of reports.
func NewDocument(r *lab.Result, a *lab.Analysis) *Document {
	d := &Document{r.Header, r.Experiment, a}
	d.Schema = Schema
	return d
}

// JSON writes a report as indented JSON.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
