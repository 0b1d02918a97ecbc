package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var updateMan = flag.Bool("update-man", false, "rewrite the manual page in packaging/man")

// The manual page is the help text; go test ./cmd/berth -run Manual -update-man
// writes it.
func TestManualPageIsCurrent(t *testing.T) {
	t.Parallel()
	const file = "../../packaging/man/berth-agent.1"
	cmd, _, err := rootCommand().Find([]string{"agent"})
	if err != nil {
		t.Fatal(err)
	}
	got := manual(cmd)
	if *updateMan {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update-man rewrites):\n%s", file, diff)
	}
}

// manual writes a command's help as a page of man(7).
func manual(cmd *cobra.Command) string {
	var b strings.Builder
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" Berth\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), name, roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n.SH DESCRIPTION\n", roff(cmd.UseLine()))
	for _, paragraph := range strings.Split(cmd.Long, "\n\n") {
		verbatim := strings.HasPrefix(paragraph, " ")
		if verbatim {
			b.WriteString(".PP\n.nf\n" + roff(paragraph) + "\n.fi\n")
		} else {
			b.WriteString(".PP\n" + roff(paragraph) + "\n")
		}
	}
	b.WriteString(".SH OPTIONS\n")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		what, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(&b, ".TP\n.B \\-\\-%s %s\n%s\n", roff(f.Name), roff(what), roff(usage))
	})
	if cmd.Example != "" {
		b.WriteString(".SH EXAMPLES\n.nf\n" + roff(cmd.Example) + "\n.fi\n")
	}
	return b.String()
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
