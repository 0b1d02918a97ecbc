package report

import (
	"html"
	"html/template"
	"strconv"
	"strings"
	"unicode/utf8"
)

// drawing is an SVG picture under construction. All text that enters it is
// escaped; colours and fonts are the page's style sheet's.
type drawing struct {
	b             strings.Builder
	id            string // unique in the page
	width, height float64
}

// newDrawing starts a picture with a title and a description for those who do
// not see it.
func newDrawing(id string, width, height float64, title, desc string) *drawing {
	d := &drawing{id: id, width: width, height: height}
	d.b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" role="img" class="plot" viewBox="0 0 ` + num(width) + " " + num(height) +
		`" aria-labelledby="` + id + `-t ` + id + `-d">`)
	d.b.WriteString(`<title id="` + id + `-t">` + html.EscapeString(title) + `</title>`)
	d.b.WriteString(`<desc id="` + id + `-d">` + html.EscapeString(desc) + `</desc>`)
	return d
}

// done closes the picture.
func (d *drawing) done() template.HTML {
	return template.HTML(d.b.String() + "</svg>")
}

// num formats a coordinate.
func num(v float64) string {
	s := strconv.FormatFloat(v, 'f', 1, 64)
	return strings.TrimSuffix(s, ".0")
}

// open starts a group of a class with a tooltip ("" for none).
func (d *drawing) open(class, tip string) {
	d.b.WriteString(`<g class="` + class + `">`)
	d.tip(tip)
}

func (d *drawing) close() { d.b.WriteString("</g>") }

func (d *drawing) tip(text string) {
	if text != "" {
		d.b.WriteString("<title>" + html.EscapeString(text) + "</title>")
	}
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	d.b.WriteString(`<line class="` + class + `" x1="` + num(x1) + `" y1="` + num(y1) + `" x2="` + num(x2) + `" y2="` + num(y2) + `"/>`)
}

// rect draws a rectangle with a tooltip ("" for none).
func (d *drawing) rect(class string, x, y, w, h float64, tip string) {
	d.b.WriteString(`<rect class="` + class + `" x="` + num(x) + `" y="` + num(y) + `" width="` + num(max(w, 0)) + `" height="` + num(max(h, 0)) + `"`)
	if tip == "" {
		d.b.WriteString("/>")
		return
	}
	d.b.WriteString(">")
	d.tip(tip)
	d.b.WriteString("</rect>")
}

// path draws path data; empty data draws nothing.
func (d *drawing) path(class string, data string) {
	if data != "" {
		d.b.WriteString(`<path class="` + class + `" d="` + data + `"/>`)
	}
}

// anchor is where a text stands relative to its position.
type anchor string

const (
	start  anchor = "start"
	middle anchor = "middle"
	end    anchor = "end"
)

func (d *drawing) text(class string, at anchor, x, y float64, s string) {
	d.b.WriteString(`<text class="` + class + `" text-anchor="` + string(at) + `" x="` + num(x) + `" y="` + num(y) + `">` + html.EscapeString(s) + `</text>`)
}

// hatch defines a fill of diagonal lines and returns the fill's name.
func (d *drawing) hatch() string {
	name := d.id + "-hatch"
	d.b.WriteString(`<defs><pattern id="` + name + `" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>`)
	return "url(#" + name + ")"
}

// point is a position in a picture.
type point struct{ x, y float64 }

// polyline is path data through the points.
func polyline(points []point) string {
	var b strings.Builder
	for i, p := range points {
		op := "L"
		if i == 0 {
			op = "M"
		}
		b.WriteString(op + num(p.x) + " " + num(p.y))
	}
	return b.String()
}

// textWidth estimates the width of a text at the page's plot font (12 px).
func textWidth(s string) float64 { return 6.7 * float64(utf8.RuneCountInString(s)) }

// clip shortens a text to n characters.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}
