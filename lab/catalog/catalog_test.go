package catalog

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab"
	"berth.dev/berth/machine/sysfs"
)

// The files that come with the kinds say what the defaults are.
func TestFiles(t *testing.T) {
	t.Parallel()
	m, err := sysfs.Live("/")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	index, err := os.ReadFile("../../docs/experiments.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds() {
		if !strings.Contains(string(index), "`"+k.Name+"`") {
			t.Errorf("docs/experiments.md has no row for %s", k.Name)
		}
		text, err := k.File()
		if err != nil {
			t.Error(err)
			continue
		}
		of, x, err := Parse(text, k.Name+".yaml")
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
			continue
		}
		if of.Name != k.Name || seen[k.Name] || k.Question == "" {
			t.Errorf("%s: file of %s, schema %s", k.Name, of.Name, k.Schema)
		}
		seen[k.Name] = true
		fresh := k.New()
		if diff := cmp.Diff(asJSON(t, fresh.Spec()), asJSON(t, x.Spec())); diff != "" {
			t.Errorf("%s.yaml is not the default (-default +file):\n%s", k.Name, diff)
		}
		if err := fresh.Validate(); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		if fresh.Head().Schema != k.Schema || fresh.Head().Complete || fresh.Length(m) <= 0 {
			t.Errorf("%s: head %+v, length %s", k.Name, fresh.Head(), fresh.Length(m))
		}
		if comments := strings.Count(string(text), "#"); comments < 8 {
			t.Errorf("%s.yaml has %d comments", k.Name, comments)
		}
	}
	if shipped, err := files.ReadDir("."); err != nil || len(shipped) != len(seen) {
		t.Errorf("%d files for %d kinds, %v", len(shipped), len(seen), err)
	}
}

// A setting in a comment of a file ("# seed: 1   # what for") can be set as it stands there.
func TestSettingsInComments(t *testing.T) {
	t.Parallel()
	setting := regexp.MustCompile(`(?m)^# ([a-zA-Z]+): (\S+|\[.*\]|\{.*\})(?: +#.*)?$`)
	seen := 0
	for _, k := range Kinds() {
		text, err := k.File()
		if err != nil {
			t.Error(err)
			continue
		}
		for _, m := range setting.FindAllStringSubmatch(string(text), -1) {
			seen++
			if err := Set(k.New(), m[1], m[2]); err != nil {
				t.Errorf("%s.yaml: %s: %v", k.Name, m[0], err)
			}
		}
	}
	if seen < 30 {
		t.Errorf("%d settings only", seen)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                   "f: kind: is missing",
		"kind: isolatio":                     `f:1: kind: no experiment "isolatio"; did you mean "isolation"?`,
		"kind: isolation\nblocs: 3":          `f:2: blocs: unknown field; did you mean "blocks"?`,
		"kind: isolation\ntenant: {size: 3}": `f:2: tenant.size: unknown field; there are: service, command, probe, ask, exec, figures, connections, pid, cgroup, serviceTime, workingSetBytes, demand`,
		"kind: isolation\nwindow: 3":         `f:2: window: duration "3"`,
		"\nkind: isolation\nblocks: -3":      "f:2: experiment: rounds: -3: want 1 to 10000",
	} {
		if _, _, err := Parse([]byte(text), "f"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	x := newIsolation().(*Isolation)
	for field, value := range map[string]string{"blocks": "3", "tenant.demand": "0.3", "slo": "[{p: 99, most: 20ms}]", "neighbour.l2Bytes": "5", "cpus": "0-3,8"} {
		if err := Set(x, field, value); err != nil {
			t.Errorf("%s=%s: %v", field, value, err)
		}
	}
	if e := x.Experiment; e.Blocks != 3 || e.Tenant.Demand != 0.3 || e.Tenant.Service != "article" || len(e.Limits) != 1 || e.Neighbour.L2Bytes != 5 || e.CPUs != "0-3,8" {
		t.Errorf("%+v", e)
	}
	for set, want := range map[string]string{
		"tenant.demnd=3": `tenant.demnd: unknown field; did you mean "demand"?`, "blocks=x": `blocks: "x" is no whole number`, "blocks=[": `blocks: "[" is no value`,
	} {
		field, value, _ := strings.Cut(set, "=")
		if err := Set(x, field, value); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v; want %s", set, err, want)
		}
	}
}

// A stored result says by its schema which kind it is.
func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, k := range Kinds() {
		x := k.New()
		x.Head().Setup.CPUs = "0-1"
		if err := lab.WriteFile(filepath.Join(dir, lab.ResultFile), x); err != nil {
			t.Fatal(err)
		}
		of, back, err := Load(dir)
		if err != nil || of.Schema != k.Schema {
			t.Errorf("%s: read as %q, %v", k.Name, of.Name, err)
			continue
		}
		if diff := cmp.Diff(asJSON(t, x), asJSON(t, back)); diff != "" {
			t.Errorf("%s (-stored +read):\n%s", k.Name, diff)
		}
		if judged, err := back.Judged(); err != nil || len(judged) == 0 {
			t.Errorf("%s: %d tables of a run without rounds, %v", k.Name, len(judged), err)
		}
		if s, err := back.Sheet(); err != nil || s.Document == nil || s.Title == "" {
			t.Errorf("%s: sheet of a run without rounds: %+v, %v", k.Name, s, err)
		}
	}
	path := filepath.Join(dir, "other.json")
	if err := os.WriteFile(path, []byte(`{"schema": "berth.dev/lab-nothing/v1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path); err == nil || !strings.Contains(err.Error(), `"berth.dev/lab-nothing/v1"`) {
		t.Errorf("of no kind: %v", err)
	}
	if _, _, err := Load(filepath.Join(dir, "absent")); err == nil {
		t.Error("read what is not there")
	}
}

// Every experiment has a page, and each page the six parts, in this order.
func TestPages(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("../../docs/experiments.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for line := range strings.Lines(string(index)) {
		if _, link, ok := strings.Cut(line, "](experiments/"); ok && strings.HasPrefix(line, "| `") {
			names, _, _ := strings.Cut(line[1:], "|")
			page, _, _ := strings.Cut(link, ")")
			for name := range strings.SplitSeq(names, ",") {
				pages[strings.Trim(name, " `")] = page
			}
		}
	}
	for _, k := range Kinds() {
		if pages[k.Name] == "" {
			t.Errorf("docs/experiments.md links no page for %s", k.Name)
		}
	}
	written, err := os.ReadDir("../../docs/experiments")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range written { // also of what is no kind: a program of the user's own
		page := file.Name()
		text, err := os.ReadFile(filepath.Join("../../docs/experiments", page))
		if err != nil {
			t.Error(err)
			continue
		}
		rest := string(text)
		for _, heading := range []string{"Question", "Set-up", "How to read it", "What was found here", "What published figures say", "Why ours may differ"} {
			_, after, ok := strings.Cut(rest, "\n## "+heading+"\n")
			if !ok {
				t.Errorf("%s lacks %q, or has it out of order", page, heading)
				continue
			}
			rest = after
			if words, _, _ := strings.Cut(rest, "\n## "); len(strings.Fields(words)) < 12 {
				t.Errorf("%s says next to nothing under %q", page, heading)
			}
		}
	}
}
