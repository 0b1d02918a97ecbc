package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The README's table names every command, and no other.
func TestReadmeNamesEveryCommand(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	root := rootCommand()
	root.InitDefaultCompletionCmd("completion")
	named := map[string]bool{}
	code, operand := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile(`^(--.*|[A-Z].*)$`)
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| `berth ") {
			continue
		}
		first, _, _ := strings.Cut(line[1:], "|")
		for _, span := range code.FindAllStringSubmatch(first, -1) {
			words := strings.Fields(strings.TrimPrefix(span[1], "berth "))
			for i, word := range words {
				if operand.MatchString(word) {
					words = words[:i]
					break
				}
			}
			cmd, rest, err := root.Find(words)
			if err != nil || cmd == root || len(rest) > 0 {
				t.Errorf("there is no %q", span[1])
			}
			named[words[0]] = true
		}
	}
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && !named[cmd.Name()] {
			t.Errorf("berth %s has no row in README.md", cmd.Name())
		}
	}
}

// CI runs the README's test command.
func TestCIRunsTheReadmesTest(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	ci, err := os.ReadFile("../../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^    (go test \S+)`).FindSubmatch(readme)
	if m == nil {
		t.Fatal("README.md has no test command")
	}
	if !regexp.MustCompile(`(?m)^(\w+=\S+ )*` + regexp.QuoteMeta(string(m[1])) + `( #.*)?$`).Match(ci) {
		t.Errorf("CI does not run %q", m[1])
	}
}
