package report

import (
	"bytes"
	_ "embed" // the page's template and style sheet
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"berth.dev/berth/internal/plain"
)

//go:embed page.html
var pageTemplate string

//go:embed page.css
var pageStyle string

// File is a file that a report has within itself.
type File struct {
	Name, About string
	Type        string // "text/csv"
	Write       func(io.Writer) error
}

// File writes one of the sheet's files.
func (s *Sheet) File(name string, w io.Writer) error {
	for _, f := range s.Files {
		if f.Name == name {
			return f.Write(w)
		}
	}
	return fmt.Errorf("write report: it has no file %s", name)
}

// HTML writes a sheet as one file that needs no network and no script: the plots
// are drawn here, and the files are links to data inside the page.
func HTML(w io.Writer, s *Sheet) error {
	page := struct {
		*Sheet
		Page
		Lead  []Plot // the first one, if there is any
		Links []link
	}{Sheet: s}
	if s.Page != nil {
		page.Page = s.Page()
	}
	page.Lead, page.Plots = page.Plots[:min(1, len(page.Plots))], page.Plots[min(1, len(page.Plots)):]
	for _, f := range s.Files {
		var content bytes.Buffer
		if err := f.Write(&content); err != nil {
			return fmt.Errorf("write report: %s: %w", f.Name, err)
		}
		if content.Len() > 0 {
			address := "data:" + f.Type + ";charset=utf-8," + url.PathEscape(content.String())
			page.Links = append(page.Links, link{f, template.URL(address), plain.Bytes(int64(content.Len()))})
		}
	}
	t, err := template.New("report").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(pageStyle) },
		"wide":  func(p Plot) template.HTML { return p.draw(wide) }, "narrow": func(p Plot) template.HTML { return p.draw(narrow) },
		"swatch": swatch, "sentence": sentence, "spoken": spoken, "alone": func(t *Table) Table { return t.alone() },
	}).Parse(pageTemplate)
	if err == nil {
		err = t.Execute(w, page)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// SVG writes the first plot of a sheet as a picture that stands alone, with the styles and
// colours that it has on a page.
func SVG(w io.Writer, s *Sheet) error {
	var plots []Plot
	if s.Page != nil {
		plots = s.Page().Plots
	}
	if len(plots) == 0 {
		return errors.New("write picture: the result has nothing to draw")
	}
	drawn := string(plots[0].draw(wide))
	colours, _, _ := strings.Cut(pageStyle, "* {")
	var style strings.Builder
	style.WriteString(colours)
	for line := range strings.Lines(pageStyle) {
		if of := plotStyle.FindStringSubmatch(line); of != nil && (of[2] == "" || strings.Contains(drawn, of[2])) {
			style.WriteString(line)
		}
	}
	at := strings.Index(drawn, ">") + 1
	_, err := fmt.Fprintf(w, "%s\n<style>\n%s</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"var(--bg)\"/>\n%s\n", drawn[:at], style.String(), drawn[at:])
	if err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	return nil
}

// plotStyle are the lines of the style sheet that are about plots: about all, or those with
// a class.
var plotStyle = regexp.MustCompile(`^\.(plot|mark|s[0-9])\b(?: \.([a-z0-9]+))?`)

// link is a file as the page shows it.
type link struct {
	File
	Address template.URL
	Size    string
}

// Rows are those of a table on a page.
func (t Table) Rows() []tableRow {
	rows := make([]tableRow, t.rows())
	for n := range rows {
		rows[n] = tableRow{Chosen: n+1 == t.Chosen, Head: t.Columns[0].Cells[n], Span: t.Spans[n], Left: len(t.Columns) - 1}
		for _, c := range t.Columns[1:] {
			rows[n].Cells = append(rows[n].Cells, pageCell{c.Cells[n], c.Class()})
		}
	}
	return rows
}

// tableRow is a row of a table on a page. Left is how many columns a span has.
type tableRow struct {
	Chosen bool
	Head   Cell
	Span   string
	Left   int
	Cells  []pageCell
}

type pageCell struct {
	Cell
	Column string // its class
}

// Class is the column's in the style sheet.
func (c Column) Class() string {
	var classes []string
	if c.Left {
		classes = append(classes, "l")
	}
	if c.Roomy {
		classes = append(classes, "roomy")
	}
	return strings.Join(classes, " ")
}

// Class is the mood's in the style sheet.
func (m Mood) Class() string {
	return []string{Good: "good", Bad: "bad", Unsure: "unsure", Plain: ""}[m]
}

// swatch is a marker in a table.
func swatch(l Look) template.HTML {
	if l == 0 {
		return ""
	}
	return template.HTML(`<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true"><path class="mark ` + l.class() + `" d="` + l.marker(point{7, 7}, 4.5) + `"/></svg>`)
}

// command is one of berth, or of berth lab, within a sentence. Words in lower case are part of it after a flag and "=", and
// between flags, as in --net bulk --name backup --.
var command = regexp.MustCompile(`\bberth (?:lab )?[a-z]+(?: (?:(?:--[a-z-]+ [a-z][a-z0-9-]* )+--[a-z-]*|--[a-z-]+=(?:'[^']*'|[^\s,;()]+)|--?[a-z-]*|'[^']*'|[A-Z0-9./][^\s,;()]*|\d[^\s,;()]*|[^\s,;()]*/[^\s,;()]*))+`)

// spoken is a sentence, with the commands in it told apart.
func spoken(s string) template.HTML {
	var b strings.Builder
	at := 0
	for _, m := range command.FindAllStringIndex(s, -1) {
		b.WriteString(template.HTMLEscapeString(s[at:m[0]]) + "<code>" + template.HTMLEscapeString(s[m[0]:m[1]]) + "</code>")
		at = m[1]
	}
	return template.HTML(b.String() + template.HTMLEscapeString(s[at:]))
}

// sentence makes a clause one: a capital first and a full stop last.
func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return s
	}
	first, size := utf8.DecodeRuneInString(s)
	s = string(unicode.ToUpper(first)) + s[size:]
	if !strings.ContainsAny(s[len(s)-1:], ".!?:") {
		s += "."
	}
	return s
}
