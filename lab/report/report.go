// Package report shows a stored result: as a table for the
// terminal, as one HTML file that needs no network and no script, and as JSON
// and CSV for other programs. It also compares two stored results.
//
// Everything here is a pure function of a lab.Result and its lab.Analysis. The
// statistics are lab/stats's and the words that read the result are the
// analysis's; this package lays them out and draws.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"berth.dev/berth/lab"
)

// Schema names the version of the report's JSON form.
const Schema = "berth.dev/lab-report/v1"

// Options are how text is laid out. The zero value is 100 columns, no colour.
type Options struct {
	// Width is the number of columns to fit into; below 60 counts as 60.
	Width int
	// Color allows ANSI colours.
	Color bool
}

func (o Options) width() int {
	switch {
	case o.Width == 0:
		return 100
	case o.Width < 60:
		return 60
	}
	return o.Width
}

// Document is the report as JSON: what was run, and what it came to. The raw
// rounds are in the result file that it was made from.
type Document struct {
	Schema     string        `json:"schema"` // "berth.dev/lab-report/v1"
	Program    lab.Program   `json:"program"`
	Started    time.Time     `json:"started"`
	Finished   time.Time     `json:"finished,omitzero"`
	Complete   bool          `json:"complete"`
	Host       lab.Host      `json:"host"`
	Experiment lab.Spec      `json:"experiment"`
	Setup      lab.Setup     `json:"setup"`
	Analysis   *lab.Analysis `json:"analysis"`
}

// JSON writes the report as one indented Document.
func JSON(w io.Writer, r *lab.Result, a *lab.Analysis) error {
	doc := Document{
		Schema: Schema, Program: r.Program, Started: r.Started, Finished: r.Finished,
		Complete: r.Complete, Host: r.Host, Experiment: r.Experiment, Setup: r.Setup, Analysis: a,
	}
	return writeJSON(w, doc)
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
