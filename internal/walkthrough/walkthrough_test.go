package walkthrough

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const page = `# A page

Some words.

<!-- try: host -->

    $ berth ps            # who is there
    NAME   CPU%
    api    10.3

    $ berth map
    …
    on 0: batch

More words.

<!-- try: not, it takes two minutes -->

    $ sudo berth lab <<END
    > some: text
    > END

    not a command

<!-- try: not, FILE is yours -->

    berth replay FILE
`

func TestSteps(t *testing.T) {
	t.Parallel()
	got, err := Steps(page)
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{7, "host", "berth ps", []string{"NAME   CPU%", "api    10.3"}},
		{11, "host", "berth map", []string{"…", "on 0: batch"}},
		{19, "not, it takes two minutes", "sudo berth lab <<END\nsome: text\nEND", []string{"not a command"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := Steps("    $ berth ps\n"); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a block that is tried nowhere: %v", err)
	}
	for _, text := range []string{"    berth ps\n", "    sudo berth ps\n", "    go run ./cmd/berth demo   # one minute\n"} {
		if _, err := Steps("<!-- try: host -->\n\n" + text); err == nil || !strings.Contains(err.Error(), "line 3") {
			t.Errorf("a command without a prompt: %v", err)
		}
	}
	if steps, err := Steps("<!-- try: host -->\n\n    $ berth ps\n    berth: no\n      berth run -- x\n"); err != nil || len(steps[0].Output) != 2 {
		t.Errorf("what is printed: %v, %v", steps, err)
	}
	if steps, err := Steps("    $ ls\n"); err != nil || len(steps) != 1 {
		t.Errorf("a command of others: %v, %v", steps, err)
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	for where, want := range map[string]string{"host": "host", "systemd, container": "systemd container", "not, a host, as it takes all CPUs": ""} {
		s := Step{Where: where}
		if got := strings.Join(s.Places(), " "); got != want || s.On("container") != strings.Contains(want, "container") || s.On("host") != (want == "host") {
			t.Errorf("%q is tried on %q, want %q", where, got, want)
		}
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		want, got string
		same      bool
	}{
		"the same":               {"a b\nc", "a b\nc\n", true},
		"other figures":          {"p99 12.3 ms, 45 %", "p99 1.2 µs, 100 %", true},
		"other widths":           {"api    10.3  –", "api 1.0       –", true},
		"other lengths of bars":  {"x ▁▂█ 3", "x ██ 3", true},
		"lines left out":         {"a\n…\nd", "a\nb\nc\nd", true},
		"within a line":          {"a … z", "a b c z", true},
		"what comes before":      {"b", "a\nb", true},
		"another word":           {"a b", "a c", false},
		"a line between":         {"a\nc", "a\nb\nc", false},
		"a line that is missing": {"a\nb", "a", false},
		"the wrong order":        {"b\n…\na", "a\nb", false},
		"a word for a figure":    {"runs on 3", "runs on all", false},
		"no claim":               {"", "anything", true},
	} {
		s := Step{Command: "c", Output: strings.Split(tc.want, "\n")}
		if tc.want == "" {
			s.Output = nil
		}
		if err := s.Compare(tc.got); (err == nil) != tc.same {
			t.Errorf("%s: %v", name, err)
		}
	}
}
