package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/lab/catalog"
)

// A time is said so that a run of just that length is within a fifth of it.
func TestAbout(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		28 * time.Second: "28s", 59600 * time.Millisecond: "1 min", 83 * time.Second: "1 min 20 s", 2 * time.Minute: "2 min", 118 * time.Second: "2 min",
		4*time.Minute + 31*time.Second: "4 min 30 s", 9*time.Minute + 58*time.Second: "10 min", 17*time.Minute + 20*time.Second: "17 min", 100 * time.Minute: "1.7 h",
	} {
		if got := about(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}

func TestLabList(t *testing.T) {
	t.Parallel()
	stdout, stderr, code := berth(t, "lab", "list")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d, %s", code, stderr)
	}
	var all []listed
	out, _, code := berth(t, "lab", "list", "-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != exitOK || len(all) != len(catalog.Kinds()) {
		t.Fatalf("exit %d, %v, %d listed", code, err, len(all))
	}
	for i, k := range catalog.Kinds() {
		if all[i].Name != k.Name || all[i].Takes <= 0 || !strings.Contains(stdout, "\n"+k.Name+" ") || !strings.Contains(stdout, k.Question) {
			t.Errorf("%s: %+v, and in text:\n%s", k.Name, all[i], stdout)
		}
		if line := regexp.MustCompile(`(?m)^` + k.Name + ` +(\S+)`).FindStringSubmatch(stdout); line == nil || (line[1] == "–") != (all[i].Lacks != "") {
			t.Errorf("%s takes %q here, where it lacks %q", k.Name, line, all[i].Lacks)
		}
		text, _, code := berth(t, "lab", "show", k.Name)
		if code != exitOK || !strings.Contains(text, "\nkind: "+k.Name+"\n") {
			t.Errorf("show %s: exit %d, %s", k.Name, code, text)
		}
	}
}

func TestLabRunRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("kind: isolation\nblocs: 3\nwindow: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"accepts 1", []string{"run"}},
		{`no experiment "isolatio"; did you mean "isolation"?`, []string{"run", "isolatio"}},
		{`no experiment "gard"; did you mean "guard"?`, []string{"show", "gard"}},
		{bad + `:2: blocs: unknown field; did you mean "blocks"?`, []string{"run", bad}},
		{bad + ":3: window: duration", []string{"run", bad}},
		{"no such file", []string{"run", bad + ".missing"}},
		{"blocs: unknown field", []string{"run", "isolation", "--set", "blocs=3"}},
		{"want field=value", []string{"run", "isolation", "--set", "blocks"}},
		{"demand: 3: want", []string{"run", "isolation", "--set", "tenant.demand=3"}},
		{"seed:", []string{"run", "isolation", "--seed", "-1"}},
		{"--seed: a run is resumed as it was begun", []string{"run", "--resume", dir, "--seed", "1"}},
		{"accepts 0", []string{"run", "isolation", "--resume", dir}},
		{"live host", []string{"run", "isolation", "--root", dir}},
	} {
		_, stderr, code := berth(t, append([]string{"lab"}, tc.args...)...)
		if code != exitUsage || !strings.Contains(stderr, tc.want) {
			t.Errorf("berth lab %q: exit %d, %q; want %d and %q", tc.args, code, stderr, exitUsage, tc.want)
		}
	}
	if _, stderr, code := berth(t, "lab", "run", "--resume", dir); code != exitError || !strings.Contains(stderr, "result.json") {
		t.Errorf("resume of nothing: exit %d, %s", code, stderr)
	}
	if _, stderr, code := berth(t, "lab", "report", "testdata/lab/guard-v1.json", "--slo", "p99=20ms"); code != exitUsage || !strings.Contains(stderr, "--slo") {
		t.Errorf("limits of the guard: exit %d, %s", code, stderr)
	}
}
