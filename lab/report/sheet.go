package report

import (
	"fmt"
	"time"
)

// Sheet is a report as data: what Text and HTML write, whatever the experiment. All its
// strings are plain text; none can steer a terminal or a browser.
type Sheet struct {
	Title string
	// Headline is the answer in a line, above all else on a page; "" has the title there.
	Headline string
	// When and By are when it was measured, and by which program; zero if unknown.
	When time.Time
	By   string
	// Answer is what comes first: what to know, and what to do. The facts then come last.
	Answer []string
	// Open says that the answer is that nothing is decided.
	Open bool
	// Facts say what ran, on what, and how far the figures can be trusted.
	Facts []Fact
	Body  []Block
	// Advice is what to do, in a sentence; "" for none.
	Advice string
	// Page returns what only the page has, as it takes time to compute; it may be nil.
	Page  func() Page
	Files []File
	// Document is the report for programs: what is printed as JSON.
	Document any
}

// Fact is a name and its value.
type Fact struct {
	Name, Value string
	Warning     bool // not to be missed
}

// Fact adds a fact.
func (s *Sheet) Fact(name, value string) { s.Facts = append(s.Facts, Fact{Name: name, Value: value}) }

// Warn adds a warning.
func (s *Sheet) Warn(name, text string) { s.Facts = append(s.Facts, Fact{name, text, true}) }

// Failed warns of requests that failed, if there are any.
func (s *Sheet) Failed(requests int) {
	if requests > 0 {
		s.Warn("failed", fmt.Sprintf("%d requests failed or were not answered in time: they count as lower bounds", requests))
	}
}

// Add adds blocks to the body.
func (s *Sheet) Add(blocks ...Block) { s.Body = append(s.Body, blocks...) }

// Page is what a page has besides: plots, the first of them above all text, and details
// below all else.
type Page struct {
	Plots   []Plot
	Details []Block
}

// Block is a part of a report: of its fields those that are set, in this order.
type Block struct {
	Heading string
	Text    string // a paragraph
	Lines   string // text as it is
	// Terminal says that the page has the same as a plot, or in a larger table.
	Terminal bool
	Facts    []Fact
	Table    *Table
	Fold     bool // the table is closed at first
}

// Table is columns of equal length. The first column heads each row.
type Table struct {
	Columns []Column
	// Spans are rows that show their first cell and then this text.
	Spans map[int]string
	// Chosen is the number of the row to point out, from 1; 0 for none.
	Chosen int
	Legend string
	Notes  []string
	// Beside says that its rows are those of the table before. A terminal shows both as
	// one table where that fits; else, and on a page, this one has no rows with spans.
	Beside bool
}

// Column is a column of a table. All cells are right-aligned but those of left columns.
type Column struct {
	Head, Unit string
	Left       bool
	PageOnly   bool
	Roomy      bool // left out where the page is narrow
	// Inline is when a terminal shows what is below beside: as far as the table then fits, those
	// of 1 before those of 2, and all or none of a number; never those of 0.
	Inline int
	Cells  []Cell
}

// Add adds a cell.
func (c *Column) Add(text string) { c.Cells = append(c.Cells, Cell{Text: text}) }

// Cell is one field of a table.
type Cell struct {
	Text  string
	Below string // a small line, on the page
	Mood  Mood
	Look  Look
}

// Mood is how good it is what a cell says.
type Mood int

// The moods.
const (
	Plain Mood = iota
	Good
	Bad
	Unsure
)

// NewTable is a table of rows of text.
func NewTable(heads []string, rows ...[]string) *Table {
	t := &Table{}
	for i, head := range heads {
		c := Column{Head: head, Left: i == 0}
		for _, row := range rows {
			c.Add(row[i])
		}
		t.Columns = append(t.Columns, c)
	}
	return t
}

// rows is how many rows the table has.
func (t *Table) rows() int {
	if len(t.Columns) == 0 {
		return 0
	}
	return len(t.Columns[0].Cells)
}

// alone is the table without the rows that the table before it explains.
func (t Table) alone() Table {
	if !t.Beside {
		return t
	}
	columns := make([]Column, len(t.Columns))
	for i, c := range t.Columns {
		columns[i] = c
		columns[i].Cells = nil
		for n, cell := range c.Cells {
			if _, spanned := t.Spans[n]; !spanned {
				columns[i].Cells = append(columns[i].Cells, cell)
			}
		}
	}
	t.Columns, t.Spans = columns, nil
	return t
}
