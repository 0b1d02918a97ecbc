package layers

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

const (
	lineLimit = 120 // characters of a line of Markdown, code blocks aside
	pageLimit = 150 // lines of a page that a new user must read
)

// longPages are references, which readers search.
var longPages = []string{"docs/decisions.md"}

func TestMarkdownLines(t *testing.T) {
	t.Parallel()
	for name, text := range pages(t) {
		for i, line := range prose(text) {
			if n := utf8.RuneCountInString(line); n > lineLimit {
				t.Errorf("%s:%d: %d characters, want at most %d", name, i+1, n, lineLimit)
			}
		}
	}
}

// A decision is read in passing, so an entry has at most five lines.
func TestDecisionsAreShort(t *testing.T) {
	t.Parallel()
	lines, first := 0, 0
	for i, line := range append(strings.Split(pages(t)["docs/decisions.md"], "\n"), "- ") {
		switch {
		case strings.HasPrefix(line, "- "), strings.HasPrefix(line, "#"):
			if lines > 5 {
				t.Errorf("docs/decisions.md:%d: the entry has %d lines, want at most 5", first, lines)
			}
			lines, first = 1, i+1
		case line != "":
			lines++
		}
	}
}

func TestMarkdownPages(t *testing.T) {
	t.Parallel()
	for name, text := range pages(t) {
		forUsers := name == "README.md" || path.Dir(name) == "docs"
		if !forUsers || slices.Contains(longPages, name) {
			continue
		}
		if n := strings.Count(text, "\n"); n > pageLimit {
			t.Errorf("%s: %d lines, want at most %d: split it (docs/design, docs/measurements)", name, n, pageLimit)
		}
	}
}

// Every relative link leads to a file that is there and to a heading in it.
func TestMarkdownLinks(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for name, text := range all {
		for _, problem := range brokenLinks(name, text, all) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	t.Parallel()
	all := map[string]string{"a.md": "# A\n## What's `x-y` for?\n", "b.md": ""}
	text := "[1](a.md#a) [2](a.md#whats-x-y-for) [3](https://example.org/#x) [4](gone.md) [5](a.md#gone) `[6](gone.md)` [7](#gone)\n"
	got := brokenLinks("b.md", text, all)
	want := []string{"there is no gone.md", "a.md has no heading #gone", "b.md has no heading #gone"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Every file and folder of the repository that a page names is there. Measurements are
// of the version that they name.
func TestMarkdownPaths(t *testing.T) {
	t.Parallel()
	span := regexp.MustCompile("`([a-z0-9]+(?:/[a-z0-9_.]+)+)`")
	for name, text := range pages(t) {
		if strings.HasPrefix(name, "docs/measurements/") {
			continue
		}
		for i, line := range prose(text) {
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				top, _, _ := strings.Cut(m[1], "/")
				if info, err := os.Stat(filepath.Join("../..", top)); err != nil || !info.IsDir() {
					continue // not a path of the repository
				}
				if !exists(m[1]) && path.Base(m[1]) != "..." {
					t.Errorf("%s:%d: there is no %s", name, i+1, m[1])
				}
			}
		}
	}
}

var (
	inlineCode = regexp.MustCompile("`[^`]*`")
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`^#{1,6} +(.*)$`)
)

// brokenLinks returns what is wrong with the relative links of page name.
func brokenLinks(name, text string, all map[string]string) (problems []string) {
	for _, line := range prose(text) {
		for _, m := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path.Join(path.Dir(name), file)
			if file == "" {
				target = name
			}
			page, isPage := all[target]
			if target == name {
				page, isPage = text, true
			}
			switch {
			case !isPage && !exists(target):
				problems = append(problems, "there is no "+target)
			case anchor != "" && !slices.Contains(anchors(page), anchor):
				problems = append(problems, fmt.Sprintf("%s has no heading #%s", target, anchor))
			}
		}
	}
	return problems
}

func exists(name string) bool {
	_, err := os.Stat(filepath.Join("../..", name))
	return err == nil
}

// anchors returns the anchors that GitHub gives to the headings of text.
func anchors(text string) (names []string) {
	for _, line := range prose(text) {
		m := heading.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		names = append(names, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return names
}

// prose returns the lines of text, those of code blocks empty.
func prose(text string) []string {
	lines, fenced := strings.Split(text, "\n"), false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			fenced = !fenced
		}
		if fence || fenced || strings.HasPrefix(line, "    ") {
			lines[i] = ""
		}
	}
	return lines
}

// pages returns the text of every Markdown file, by its path below the module.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all, root := map[string]string{}, os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "results" || strings.HasPrefix(name, ".") && name != "." {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".md" {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		all[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("found %d pages only", len(all))
	}
	return all
}
