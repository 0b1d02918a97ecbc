package plain

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Columns writes rows below each other, two spaces between their cells. The
// cells of the columns in right are aligned to the right.
func Columns(b *strings.Builder, rows [][]string, right ...int) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], Width(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			pad := strings.Repeat(" ", widths[i]-Width(cell))
			if slices.Contains(right, i) {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// Width is the number of characters of a text on a terminal, without its colours.
func Width(text string) int {
	width := utf8.RuneCountInString(text)
	for {
		_, rest, ok := strings.Cut(text, "\x1b[")
		if !ok {
			return width
		}
		end := strings.IndexByte(rest, 'm') + 1
		width, text = width-len("\x1b[")-end, rest[end:]
	}
}

// units are not separated from their number.
var units = []string{"%", "s", "ms", "µs", "B", "KiB", "MiB", "GiB", "TiB", "CPUs"}

// Wrap breaks text at spaces into lines of at most width characters; a longer
// word keeps a line of its own, and a unit stays with its number.
func Wrap(text string, width int) []string {
	var words []string
	for _, word := range strings.Fields(text) {
		if n := len(words); n > 0 && slices.Contains(units, strings.TrimRight(word, ".,;:")) {
			words[n-1] += " " + word
		} else {
			words = append(words, word)
		}
	}
	var lines []string
	line := ""
	for _, word := range words {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	if line != "" || len(lines) == 0 {
		lines = append(lines, line)
	}
	return lines
}

// Bytes writes a number of bytes in the largest binary unit that leaves at least
// 1, with one decimal where it is not whole: "512 B", "1.5 MiB".
func Bytes(n int64) string {
	value, unit := float64(n), "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, larger
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0") + " " + unit
}

// Count writes "1 core", "2 cores".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Spark draws values from 0 to the highest of them, a character each; NaN is a
// gap.
func Spark(values []float64) string {
	highest := 0.0
	for _, v := range values {
		if v > highest {
			highest = v
		}
	}
	var b strings.Builder
	for _, v := range values {
		b.WriteRune(Bar(v / max(highest, math.SmallestNonzeroFloat64)))
	}
	return b.String()
}

// Bar is one of eight heights for a share of 0 to 1, and a gap for NaN.
func Bar(share float64) rune {
	bars := []rune("▁▂▃▄▅▆▇█")
	if math.IsNaN(share) {
		return ' '
	}
	top := float64(len(bars) - 1)
	return bars[int(min(max(share*top+0.5, 0), top))]
}
