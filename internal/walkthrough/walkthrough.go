// Package walkthrough is for tests: it reads from a page of the documentation the commands
// that a reader types, with what they print, and compares the shape of what they really print
// with that. A comment says where the commands after it are tried ("systemd, container" are two
// places), up to the next one:
//
//	<!-- try: host -->
//
//	    $ berth version
//	    berth 1.2.3
package walkthrough

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Step is a command of a page, with the lines that the page says it prints. No lines are no
// claim.
type Step struct {
	Line    int // of the page, from 1
	Where   string
	Command string
	Output  []string
}

// On reports whether the step is tried in a place.
func (s Step) On(place string) bool { return slices.Contains(s.Places(), place) }

// Places are those where the step is tried, none if the comment says "not, " and why.
func (s Step) Places() []string {
	if strings.HasPrefix(s.Where, "not, ") {
		return nil
	}
	return strings.Split(s.Where, ", ")
}

var (
	try   = regexp.MustCompile(`^<!-- try: (.*) -->$`)
	typed = regexp.MustCompile(`^    \$ (.*)$`)
	more  = regexp.MustCompile(`^    > ?(.*)$`) // of a command that goes on
	bare  = regexp.MustCompile(`^    (?:sudo )?(?:berth|go|make) [a-z-]`)
)

// Steps are those of a page. A berth command of which no comment says where it is tried is an
// error, and so is a command without a prompt, which nothing would try; but for those that
// are not tried, as the comment says.
func Steps(page string) ([]Step, error) {
	var steps []Step
	where, inside := "", false
	for i, line := range strings.Split(page, "\n") {
		code := strings.HasPrefix(line, "    ")
		command := typed.FindStringSubmatch(line)
		switch m := try.FindStringSubmatch(line); {
		case m != nil:
			where, inside = m[1], false
		case command != nil:
			text, _, _ := strings.Cut(command[1], "   #")
			if where == "" && strings.Contains(text, "berth ") {
				return nil, fmt.Errorf("line %d: no comment before it says where %q is tried", i+1, text)
			}
			steps, inside = append(steps, Step{Line: i + 1, Where: where, Command: strings.TrimSpace(text)}), true
		case more.MatchString(line) && inside && steps[len(steps)-1].Output == nil:
			steps[len(steps)-1].Command += "\n" + more.FindStringSubmatch(line)[1]
		case bare.MatchString(line) && !strings.HasPrefix(where, "not, "):
			return nil, fmt.Errorf("line %d: the command %q has no prompt, so that nothing tries it", i+1, strings.TrimSpace(line))
		case code && inside:
			last := &steps[len(steps)-1]
			last.Output = append(last.Output, strings.TrimPrefix(line, "    "))
		case line != "" && !code:
			inside = false
		}
	}
	for i := range steps {
		steps[i].Output = trimmed(steps[i].Output)
	}
	return steps, nil
}

// trimmed is lines without empty ones.
func trimmed(lines []string) []string {
	var kept []string
	for _, line := range lines {
		if strings.TrimSpace(line) != "" {
			kept = append(kept, line)
		}
	}
	return kept
}

// Compare says which line of a step is not what was printed. Figures with their units may
// differ, and so may the length of what is drawn; "…" stands for what is left out: within a
// line for anything, as a line for lines. Without it lines follow on one another.
func (s Step) Compare(got string) error {
	lines := trimmed(strings.Split(got, "\n"))
	at, gap := 0, true
	for _, want := range s.Output {
		if strings.TrimSpace(want) == "…" {
			gap = true
			continue
		}
		shape := shapeOf(want)
		from := at
		for at < len(lines) && !shape.MatchString(lines[at]) && gap {
			at++
		}
		if at == len(lines) || !shape.MatchString(lines[at]) {
			next := "nothing"
			if from < len(lines) {
				next = fmt.Sprintf("%q", lines[from])
			}
			return fmt.Errorf("line %d, %s: no line like %q where %s is\nprinted:\n%s", s.Line, s.Command, want, next, got)
		}
		at, gap = at+1, false
	}
	return nil
}

var parts = regexp.MustCompile(`…|[0-9][0-9.,:]*(?: ?(?:ns|µs|ms|s|min|h|d|[KMGT]i?B|B|%)\b)?%?|[▁▂▃▄▅▆▇█│~≥<>–-]+|\s+`)

// shapeOf matches lines like one of the page.
func shapeOf(line string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString("^")
	rest := line
	for rest != "" {
		m := parts.FindStringIndex(rest)
		if m == nil {
			b.WriteString(regexp.QuoteMeta(rest))
			break
		}
		b.WriteString(regexp.QuoteMeta(rest[:m[0]]))
		switch part := rest[m[0]:m[1]]; {
		case part == "…":
			b.WriteString(".*")
		case strings.TrimSpace(part) == "":
			b.WriteString(`\s+`)
		case part[0] >= '0' && part[0] <= '9':
			b.WriteString(`[0-9][0-9.,:]*(?: ?(?:ns|µs|ms|s|min|h|d|[KMGT]i?B|B|%))?%?`)
		default:
			b.WriteString(`[▁▂▃▄▅▆▇█│~≥<>–-]*`)
		}
		rest = rest[m[1]:]
	}
	b.WriteString(`\s*$`)
	return regexp.MustCompile(b.String())
}
