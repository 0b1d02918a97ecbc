// Package plain is about text that people read: columns and amounts for a terminal,
// the words of enumerations, and text of foreign origin made fit for a terminal, a line
// of JSON and a command line of a shell. Names of control groups, processes and units
// are bytes that any user may choose: escape sequences, newlines and characters that
// change the direction of what follows, among them.
package plain

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line makes text fit one line: white space is one space, and what is not printable is
// written as in JSON ("\u001b", "\u202e"), so that JSON still means the same; a byte that
// is no UTF-8 is "\xff". It does so once: Line(Line(s)) is Line(s).
func Line(text string) string {
	return strings.Join(strings.Fields(escape(text, true)), " ")
}

// Text is Line for text of several lines: its newlines, tabs and spaces stay. Spaces of
// other widths are escaped, so that JSON means the same after it.
func Text(text string) string { return escape(text, false) }

// escape is Text, or, for a line, Text with a plain space for each space of another width.
func escape(text string, line bool) string {
	if clean(text) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case shown(r):
			b.WriteRune(r)
		case r == '\r', line && unicode.IsSpace(r) && r != '\v' && r != '\f' && r != '\u0085' && r != '\u2028' && r != '\u2029':
			b.WriteByte(' ')
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
		text = text[size:]
	}
	return b.String()
}

func shown(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) }

func clean(text string) bool {
	for _, r := range text {
		if !shown(r) || r == utf8.RuneError {
			return false
		}
	}
	return true
}

// Shell writes a word as a shell of POSIX reads it, on one line and in printable ASCII
// where it is not text as it stands.
func Shell(word string) string {
	bare := func(r rune) bool {
		return r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r)) || strings.ContainsRune("/._-+:,=@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !bare(r) }) < 0 && !strings.HasPrefix(word, "-") {
		return word
	}
	if Line(word) == word && utf8.ValidString(word) {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	// No quotes of POSIX hold a newline on one line, but what printf prints does.
	var b strings.Builder
	for _, c := range []byte(word) {
		switch {
		case c == '%':
			b.WriteString("%%")
		case c > 0x20 && c < 0x7f && c != '\\' && c != '\'':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\%03o`, c)
		}
	}
	return `"$(printf '` + b.String() + `')"`
}

// Writer passes on what Text leaves as it is and escapes the rest, whatever the program
// that writes to it forgot. Steering lets the few sequences pass that a screen of Berth's
// is drawn with: colours, and going to the start of the line or the screen and clearing.
type Writer struct {
	To       io.Writer
	Steering bool

	mu   sync.Mutex
	rest []byte // the beginning of a character or a sequence
}

// Write writes all of p, but for the beginning of a character that is yet to come.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.rest, p...)
	w.rest = nil
	var out []byte
	for len(text) > 0 {
		if n, whole := w.steers(text); !whole {
			w.rest = bytes.Clone(text)
			break
		} else if n > 0 {
			out, text = append(out, text[:n]...), text[n:]
			continue
		}
		if !utf8.FullRune(text) {
			w.rest = bytes.Clone(text)
			break
		}
		_, size := utf8.DecodeRune(text)
		out, text = append(out, escaped(text[:size])...), text[size:]
	}
	if _, err := w.To.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// escaped is Text of one character; spaces stay what they are.
func escaped(char []byte) string {
	if r, _ := utf8.DecodeRune(char); r == '\u00a0' || unicode.Is(unicode.Zs, r) {
		return string(char)
	}
	return Text(string(char))
}

// steers is the length of the sequence at the start of text that may pass, 0 if there is
// none; whole is false if more is needed to tell.
func (w *Writer) steers(text []byte) (n int, whole bool) {
	if !w.Steering || text[0] != '\r' && text[0] != 0x1b {
		return 0, true
	}
	if text[0] == '\r' {
		return 1, true
	}
	const longest = 16
	for i, c := range text {
		switch {
		case i == 0, i == 1 && c == '[', i > 1 && (c >= '0' && c <= '9' || c == ';') && i < longest:
		case i > 1 && strings.IndexByte("mHJK", c) >= 0:
			return i + 1, true
		default:
			return 0, true
		}
	}
	return 0, false
}
