package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/lab"
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

// A run by name that was killed goes on from its folder, and says in the end what it found.
func TestLabRunForReal(t *testing.T) {
	if os.Getenv("BERTH_TEST_LAB") == "" {
		t.Skip("a real run takes the machine for half a minute: set BERTH_TEST_LAB=1")
	}
	for _, kind := range []string{"quick", "pinning", "cache"} {
		t.Run(kind, func(t *testing.T) {
			results := t.TempDir()
			short := []string{"lab", "run", kind, "--results", results, "--set", "blocks=2", "--set", "window=250ms", "--set", "demand=0.1", "--set", "workingSetBytes=65536"}
			cmd := exec.Command(os.Args[0], short...)
			cmd.Env = append(os.Environ(), runsBerth+"=1")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var dir string
			for deadline := time.Now().Add(2 * time.Minute); dir == ""; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no round")
				}
				if files, _ := filepath.Glob(filepath.Join(results, "*", lab.ResultFile)); len(files) == 1 {
					dir = filepath.Dir(files[0])
				}
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			resumed := exec.Command(os.Args[0], "lab", "run", "--resume", dir)
			resumed.Env = append(os.Environ(), runsBerth+"=1")
			told, err := resumed.Output()
			stdout := string(told)
			if err != nil || !strings.Contains(stdout, "went on 1 time later") || !strings.Contains(stdout, "\ncell ") {
				t.Fatalf("%v\n%s", err, stdout)
			}
			_, x, err := catalog.Load(dir)
			if err != nil || !x.Head().Complete || len(x.Head().Resumed) != 1 {
				t.Errorf("%v, %+v", err, x.Head())
			}
			again, _, code := berth(t, "lab", "report", dir)
			if code != exitOK || !strings.HasPrefix(stdout, again) {
				t.Errorf("reported again: exit %d\n%s\nnot\n%s", code, again, stdout)
			}
			var d struct {
				Answer   []string
				Compared []any
			}
			out, _, _ := berth(t, "lab", "report", dir, "-o", "json")
			if err := json.Unmarshal([]byte(out), &d); err != nil || len(d.Answer) == 0 {
				t.Errorf("as JSON: %v, %s", err, out)
			}
			if page, _, code := berth(t, "lab", "report", dir, "-o", "html"); code != exitOK || !strings.Contains(page, `id="ratios-wide-t"`) {
				t.Errorf("as a page: exit %d", code)
			}
			if _, stderr, code := berth(t, "lab", "run", "--resume", dir); code != exitUsage || !strings.Contains(stderr, "complete") {
				t.Errorf("resumed once more: exit %d, %s", code, stderr)
			}
			expectNothingLeft(t, cmd.Process.Pid)
		})
	}
}
