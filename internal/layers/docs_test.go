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
	pageLimit = 150 // lines of a page for users
	screen    = 24  // lines that a reader sees first
)

// longPages are references, which readers search.
var longPages = []string{"docs/decisions.md"}

// references are pages that nobody has to read first: they are looked up.
var references = []string{
	"docs/alerts.md", "docs/api.md", "docs/arch.md", "docs/decisions.md", "docs/glossary.md", "docs/metrics.md", "docs/result-schema.md",
	"docs/security.md", "docs/statistics.md", "docs/testing.md",
}

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
		if !forUsers(name) || slices.Contains(longPages, name) {
			continue
		}
		if n := strings.Count(text, "\n"); n > pageLimit {
			t.Errorf("%s: %d lines, want at most %d: split it (docs/design, docs/measurements)", name, n, pageLimit)
		}
	}
}

// README and quick-starts send a reader to pages for users only, whose length and first screens other
// tests check, or to measurements: those are evidence, which is looked up.
func TestWhatANewcomerIsSentTo(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for name := range all {
		if name != "README.md" && !strings.HasPrefix(name, "docs/quickstart-") {
			continue
		}
		for _, m := range pageLink.FindAllStringSubmatch(all[name], -1) {
			if to := path.Join(path.Dir(name), m[1]); !forUsers(to) && path.Dir(to) != "docs/measurements" {
				t.Errorf("%s sends a new reader to %s, which is no page for users", name, to)
			}
		}
	}
}

var pageLink = regexp.MustCompile(`\]\(([^):#]+\.md)[)#]`)

func forUsers(name string) bool {
	return name == "README.md" || path.Dir(name) == "docs" || path.Dir(name) == "docs/experiments"
}

// What a new user must read shows in its first screen what comes of it: a picture, or what is
// printed.
func TestMarkdownFirstScreens(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for name, text := range all {
		if forUsers(name) && !slices.Contains(references, name) && !shows(text) {
			t.Errorf("%s: neither a picture nor what is printed in its first %d lines", name, screen)
		}
	}
	for _, name := range references {
		if _, ok := all[name]; !ok {
			t.Errorf("there is no %s", name)
		}
	}
}

func TestShows(t *testing.T) {
	t.Parallel()
	late := strings.Repeat("words\n", screen)
	for text, want := range map[string]bool{
		"# A\n\n![it](it.svg)\n":                                         true,
		late + "![it](it.svg)\n":                                         false,
		"# A\n\nwords\n":                                                 false,
		"# A\n\n    $ berth ps\n":                                        false,
		"# A\n\n    $ berth ps\n    no workloads\n":                      true,
		"# A\n\n    $ sudo tee x <<END\n    > a: 1\n    > END\n":         false,
		"# A\n\n    berth lab        # two minutes\n    sudo berth ps\n": false,
		"# A\n\n    $ berth ps\n    …\n":                                 false,
		"# A\n\n    cgroup  limited\n":                                   true,
		"# A\n\n```\n$ berth ps\n```\n":                                  false,
		"# A\n\n```\n$ berth ps\nno workloads\n```\n":                    true,
		"# A\n\n```yaml\nkind: NodeConfig\n```\n":                        false,
		"# A\n\n    apiVersion: v1\n    - {a: 1}\n":                      false,
	} {
		if got := shows(text); got != want {
			t.Errorf("%q shows something: %v, want %v", text, got, want)
		}
	}
}

var (
	typed  = regexp.MustCompile(`^(…$|\$|>|\s*#|(sudo )?(berth|go|make|promtool|[A-Z]+=\S+ berth|GET|curl)) ?`)
	isYAML = regexp.MustCompile(`^\s*(- )?\{?[a-zA-Z_]+: |^\s*[a-zA-Z_]+:$`)
)

// shows says whether the first screen of a page has a picture, or a line in a code block
// that is neither typed nor a file's.
func shows(text string) bool {
	lines := strings.Split(text, "\n")
	fenced, file := false, false
	for _, line := range lines[:min(screen, len(lines))] {
		fence := strings.HasPrefix(line, "```")
		if fence {
			fenced, file = !fenced, !fenced && line != "```"
		}
		code, indented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, "!["):
			return true
		case fence || file || !fenced && !indented || strings.TrimSpace(code) == "":
		case !typed.MatchString(code) && !isYAML.MatchString(code):
			return true
		}
	}
	return false
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
