package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// privateWords are words that nobody but Berth's developers knows. docs/glossary.md has the
// terms to use instead.
var privateWords = map[string]*regexp.Regexp{
	"helps":                         regexp.MustCompile(`(?i)\blook(s|ed|ing)? after\b`),
	"slowed down":                   regexp.MustCompile(`(?i)\bsqueez`),
	"idle siblings":                 regexp.MustCompile(`(?i)\bfence[sd]?\b`),
	"step":                          regexp.MustCompile(`(?i)\brungs?\b`),
	"suspected antagonist":          regexp.MustCompile(`(?i)\bsuspects?\b`),
	"whole cores opened":            regexp.MustCompile(`(?i)\bbroken (cores|L3)`),
	"THROTTLE%":                     regexp.MustCompile(`\bTHROT%`),
	"cgroup v1 and v2":              regexp.MustCompile(`(?i)\bby\s+hybrid\b`),
	"exclusive":                     regexp.MustCompile(`(?m)^own {2,}[0-9]`),
	"never exclusive (reserved, …)": regexp.MustCompile(`\bkept: reserved`),
}

// What people read says it in the glossary's words: pages, manual, and what commands print.
func TestPrivateWords(t *testing.T) {
	t.Parallel()
	computes(t)
	code := regexp.MustCompile("`[^`\n]*`") // names of fields
	seen := 0
	check := func(name string) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		words := string(text)
		if strings.HasSuffix(name, ".md") {
			words = code.ReplaceAllString(words, "")
		}
		for instead, private := range privateWords {
			for _, at := range private.FindAllStringIndex(words, -1) {
				line := 1 + strings.Count(words[:at[0]], "\n")
				t.Errorf("%s:%d: %q: say %q", name, line, words[at[0]:at[1]], instead)
			}
		}
	}
	for _, glob := range []string{"../../README.md", "../../docs/*.md", "../../packaging/man/*.1"} {
		names, err := filepath.Glob(glob)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d files, %v", glob, len(names), err)
		}
		for _, name := range names {
			if filepath.Base(name) != "decisions.md" { // for developers
				check(name)
			}
		}
	}
	for _, dir := range []string{"testdata", "../../agent/web/testdata", "../../guard/detect/testdata", "../../lab/report/testdata", "../../lab/guarded/testdata"} {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if ext := filepath.Ext(name); err == nil && (ext == ".txt" || ext == ".svg" || ext == ".html") {
				check(name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 100 {
		t.Errorf("%d files only", seen)
	}
}
