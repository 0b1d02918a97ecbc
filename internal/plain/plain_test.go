package plain

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "",
		"web.slice":               "web.slice",
		`system-serial\x2dgetty`:  `system-serial\x2dgetty`,
		"Köln — 東京":               "Köln — 東京",
		"a\nb\tc\r\nd  e":         "a b c d e",
		"\x1b]0;owned\x07x":       `\u001b]0;owned\u0007x`,
		"\x1b[31mred":             `\u001b[31mred`,
		"\u009b31m":               `\u009b31m`,
		"\x9b31m\xff":             `\x9b31m\xff`,
		"a\u202egpj.exe":          `a\u202egpj.exe`,
		"a\u2066b\u200bc\ufeff":   `a\u2066b\u200bc\ufeff`,
		"one\u2028two\u2029three": `one\u2028two\u2029three`,
		"\v\f\x00\x7f\u0085":      `\u000b\u000c\u0000\u007f\u0085`,
		"\U000e0041":              `\udb40\udc41`,
	} {
		if got := Line(text); got != want || Line(got) != got {
			t.Errorf("Line(%q) is %q, again %q, not %q", text, got, Line(got), want)
		}
	}
	if got := Text("a\n\tb\x1b\n"); got != "a\n\tb\\u001b\n" {
		t.Errorf("Text: %q", got)
	}
}

func TestShell(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"/sys/fs/cgroup/web.slice/cpu.weight": "/sys/fs/cgroup/web.slice/cpu.weight",
		"":                                    "''",
		"-n":                                  "'-n'",
		"a b":                                 "'a b'",
		"$(id)":                               "'$(id)'",
		"it's; rm -rf /":                      `'it'\''s; rm -rf /'`,
		`a\x2db`:                              `'a\x2db'`,
		"a\nreboot":                           `"$(printf 'a\012reboot')"`,
		"50%\n'\\":                            `"$(printf '50%%\012\047\134')"`,
		"\x1b[2J\u202e":                       `"$(printf '\033[2J\342\200\256')"`,
		"a\nb$(id)`id`\"x\"":                  "\"$(printf 'a\\012b$(id)`id`\"x\"')\"",
	} {
		if got := Shell(word); got != want {
			t.Errorf("Shell(%q) is %s, not %s", word, got, want)
		}
	}
}

// tame reports what of a text could steer a terminal; "" if nothing could.
func tame(text string) string {
	for i, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == utf8.RuneError && !utf8.ValidString(text[i:]) {
			return text[i:]
		}
	}
	return ""
}

func FuzzPlain(f *testing.F) {
	for _, seed := range []string{"", "web", "a\nb", "\x1b[31m", "\u202e", "\xff\xfe", "$(id)", "'\"`\\", "-e", "\U000e0041\U0001f600", "\r\x1b[K", "a\u202fb\u00a0"} {
		f.Add(seed)
	}
	sh, shErr := exec.LookPath("sh")
	n := 0
	f.Fuzz(func(t *testing.T, text string) {
		line := Line(text)
		if tame(line) != "" || strings.ContainsAny(line, "\n\t") || Line(line) != line {
			t.Errorf("Line(%q) is %q", text, line)
		}
		if bad := tame(Text(text)); bad != "" {
			t.Errorf("Text(%q) is %q", text, Text(text))
		}
		for _, split := range []int{0, len(text) / 2, len(text)} {
			for _, steering := range []bool{false, true} {
				var out bytes.Buffer
				w := &Writer{To: &out, Steering: steering}
				for _, part := range []string{text[:split], text[split:], "."} {
					if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
						t.Fatal(n, err)
					}
				}
				got := strings.Map(func(r rune) rune {
					if unicode.Is(unicode.Zs, r) || steering && (r == '\r' || r == 0x1b) {
						return ' '
					}
					return r
				}, out.String())
				if tame(got) != "" || Line(text) == text && !steering && out.String() != text+"." {
					t.Errorf("written in two at %d: %q becomes %q", split, text, out.String())
				}
			}
		}
		data, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var was, is string
		if err := json.Unmarshal(data, &was); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(Text(string(data))), &is); err != nil || was != is || tame(Text(string(data))) != "" {
			t.Errorf("JSON of %q is %s: %v", text, Text(string(data)), err)
		}
		word := Shell(text)
		if tame(word) != "" || strings.Contains(word, "\n") {
			t.Errorf("Shell(%q) is %q", text, word)
		}
		if n++; shErr != nil || n > 200 || strings.Contains(text, "\x00") || strings.HasSuffix(text, "\n") {
			return // no name has a NUL, and what a command prints loses newlines at its end
		}
		got, err := exec.Command(sh, "-c", "printf %s "+word).Output()
		if err != nil || string(got) != text {
			t.Errorf("%s reads Shell(%q), %s, as %q: %v", sh, text, word, got, err)
		}
	})
}
