package cli

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every example of a help text is a command that there is, with flags that it takes.
func TestHelpExamples(t *testing.T) {
	t.Parallel()
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, words := range commands(cmd.Example) {
			seen++
			root := rootCommand() // parsed flags stay
			called, rest, err := root.Find(words)
			if err == nil {
				err = called.ParseFlags(rest)
			}
			if err != nil || called.CommandPath() == root.Name() {
				t.Errorf("%s has the example berth %q: %v", cmd.CommandPath(), words, err)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand())
	if seen < 100 {
		t.Errorf("%d examples only", seen)
	}
}

func TestCommandsOfExamples(t *testing.T) {
	t.Parallel()
	got := commands("  sudo berth ps -o wide   # all\n  berth lab --probe 'a b' | jq .; berth ps & curl x\n  berth watch --record f > g")
	want := [][]string{{"ps", "-o", "wide"}, {"lab", "--probe", "a b"}, {"ps"}, {"watch", "--record", "f"}}
	if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("%q, want %q", got, want)
	}
}

var exampleWord = regexp.MustCompile(`'[^']*'|"[^"]*"|[;|&>#]|[^\s;|&>]+`)

// commands are the words of each berth command in examples, without what a shell does.
func commands(examples string) (all [][]string) {
	for line := range strings.Lines(examples) {
		var words []string
		inside := false
		for _, word := range append(exampleWord.FindAllString(line, -1), ";") {
			switch {
			case strings.ContainsAny(word[:1], ";|&>#"):
				if inside {
					all = append(all, words)
				}
				words, inside = nil, false
			case inside:
				words = append(words, strings.Trim(word, `'"`))
			case word == "berth":
				inside = true
			}
			if strings.HasPrefix(word, "#") {
				break
			}
		}
	}
	return all
}
