package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var updateMan = flag.Bool("update-man", false, "rewrite the manual pages in packaging/man and the pictures in docs/pictures")

// The manual pages are the help texts, one for each verb and those below it; go test
// ./internal/cli -run Manual -update-man writes them.
func TestManualPagesAreCurrent(t *testing.T) {
	t.Parallel()
	const dir = "../../packaging/man"
	got := map[string]string{}
	manuals(rootCommand(), got)
	if *updateMan {
		for name, text := range got {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		want[e.Name()] = string(text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got; -update-man rewrites; remove a page without a verb):\n%s", dir, diff)
	}
}

// manuals adds the pages of a command and of those below it.
func manuals(cmd *cobra.Command, pages map[string]string) {
	pages[pageOf(cmd)+".1"] = manual(cmd)
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			manuals(sub, pages)
		}
	}
}

func pageOf(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manual writes a command's help as a page of man(7).
func manual(cmd *cobra.Command) string {
	var b strings.Builder
	name := pageOf(cmd)
	fmt.Fprintf(&b, ".TH %s 1 \"\" Berth\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), name, roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n.SH DESCRIPTION\n", roff(cmd.UseLine()))
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	for _, paragraph := range strings.Split(long, "\n\n") {
		verbatim := strings.HasPrefix(paragraph, " ")
		if verbatim {
			b.WriteString(".PP\n.nf\n" + roff(paragraph) + "\n.fi\n")
		} else {
			b.WriteString(".PP\n" + roff(paragraph) + "\n")
		}
	}
	options(&b, "OPTIONS", cmd.LocalFlags())
	options(&b, "OPTIONS OF ALL", cmd.InheritedFlags())
	if cmd.Example != "" {
		b.WriteString(".SH EXAMPLES\n.nf\n" + roff(cmd.Example) + "\n.fi\n")
	}
	var others []string
	if cmd.HasParent() {
		others = append(others, pageOf(cmd.Parent()))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			others = append(others, pageOf(sub))
		}
	}
	for i, other := range others {
		others[i] = ".BR " + roff(other) + " (1)"
	}
	if len(others) > 0 {
		b.WriteString(".SH SEE ALSO\n" + strings.Join(others, "\n") + "\n")
	}
	return b.String()
}

// options lists those that are shown.
func options(b *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	b.WriteString(".SH " + title + "\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		what, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		switch f.DefValue { // of those that have one, as --help says it
		case "", "0", "0s", "false", "[]":
		default:
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(name+" "+what)), roff(usage))
	})
}

// roff escapes text.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
