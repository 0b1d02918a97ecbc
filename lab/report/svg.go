package report

import (
	"fmt"
	"html"
	"html/template"
	"strconv"
	"strings"
	"unicode/utf8"
)

// drawing is an SVG picture under construction. All text that enters it is
// escaped; colours and fonts are the page's style sheet's.
type drawing struct{ b strings.Builder }

// newDrawing starts a picture with a title and a description for those who do
// not see it.
func newDrawing(id string, width, height float64, title, desc string) *drawing {
	d := &drawing{}
	fmt.Fprintf(&d.b, `<svg xmlns="http://www.w3.org/2000/svg" role="img" class="plot" viewBox="0 0 %s %s" aria-labelledby="%s-t %s-d">`, num(width), num(height), id, id)
	fmt.Fprintf(&d.b, `<title id="%s-t">%s</title><desc id="%s-d">%s</desc>`, id, html.EscapeString(title), id, html.EscapeString(desc))
	return d
}

// done closes the picture.
func (d *drawing) done() template.HTML { return template.HTML(d.b.String() + "</svg>") }

// num formats a coordinate.
func num(v float64) string { return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") }

// group starts a group with a tooltip ("" for none); close ends it.
func (d *drawing) group(tip string) {
	d.b.WriteString(`<g class="series">`)
	d.tip(tip)
}

func (d *drawing) close() { d.b.WriteString("</g>") }

func (d *drawing) tip(text string) {
	if text != "" {
		d.b.WriteString("<title>" + html.EscapeString(text) + "</title>")
	}
}

// rect draws a rectangle between two corners with a tooltip ("" for none).
func (d *drawing) rect(class string, a, b point, tip string) {
	fmt.Fprintf(&d.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s">`, class, num(min(a.x, b.x)), num(min(a.y, b.y)), num(max(a.x, b.x)-min(a.x, b.x)), num(max(a.y, b.y)-min(a.y, b.y)))
	d.tip(tip)
	d.b.WriteString("</rect>")
}

// path draws path data; empty data draws nothing.
func (d *drawing) path(class string, data string) {
	if data != "" {
		d.b.WriteString(`<path class="` + class + `" d="` + data + `"/>`)
	}
}

// line draws a line through points.
func (d *drawing) line(class string, points ...point) { d.path(class, polyline(points...)) }

// anchor is where a text stands relative to its position.
type anchor string

const (
	start  anchor = "start"
	middle anchor = "middle"
	end    anchor = "end"
)

func (d *drawing) text(class string, at anchor, p point, s string) {
	fmt.Fprintf(&d.b, `<text class="%s" text-anchor="%s" x="%s" y="%s">%s</text>`, class, at, num(p.x), num(p.y), html.EscapeString(s))
}

// point is a position in a picture.
type point struct{ x, y float64 }

// polyline is path data through points.
func polyline(points ...point) string {
	var b strings.Builder
	for i, p := range points {
		b.WriteString("ML"[min(i, 1):min(i, 1)+1] + num(p.x) + " " + num(p.y))
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

// clipApart clips a tick's text, in the middle if its beginning does not tell it from others.
func clipApart(s string, n int, ticks []Tick) string {
	clipped := clip(s, n)
	for _, t := range ticks {
		if t.Text != s && clip(t.Text, n) == clipped {
			runes := []rune(s)
			return string(runes[:n/2-1]) + "…" + string(runes[len(runes)-(n-n/2):])
		}
	}
	return clipped
}

// Look tells one series from the others in every plot and table, by a colour and, for
// those who do not see colours, a marker. The zero value has none of its own.
type Look int

// Looks is how many there are, from 1 on.
const Looks = 8

// class is the colour's in the style sheet.
func (l Look) class() string {
	if l == 0 {
		return "probe"
	}
	return fmt.Sprintf("s%d", l-1)
}

// markers are the corners of each look's marker, at a radius of 1; none is a circle.
// The style sheet leaves the second circle hollow.
var markers = [Looks][]point{
	2: {{-1, -1}, {1, -1}, {1, 1}, {-1, 1}},
	3: {{0, -1.2}, {1.15, 1}, {-1.15, 1}},
	4: {{0, -1.35}, {1.35, 0}, {0, 1.35}, {-1.35, 0}},
	5: {{0, 1.2}, {1.15, -1}, {-1.15, -1}},
	6: {{-.5, -1.2}, {.5, -1.2}, {.5, -.5}, {1.2, -.5}, {1.2, .5}, {.5, .5}, {.5, 1.2}, {-.5, 1.2}, {-.5, .5}, {-1.2, .5}, {-1.2, -.5}, {-.5, -.5}},
	7: {{-1, -.6}, {0, -1.2}, {1, -.6}, {1, .6}, {0, 1.2}, {-1, .6}},
}

// marker is path data of the look's marker.
func (l Look) marker(at point, r float64) string {
	corners := markers[(max(l, 1)-1)%Looks]
	if corners == nil {
		return fmt.Sprintf("M%s %sa%s %s 0 1 0 %s 0a%s %s 0 1 0 %s 0z", num(at.x-r), num(at.y), num(r), num(r), num(2*r), num(r), num(r), num(-2*r))
	}
	points := make([]point, len(corners))
	for i, c := range corners {
		points[i] = point{at.x + r*c.x, at.y + r*c.y}
	}
	return polyline(points...) + "z"
}
