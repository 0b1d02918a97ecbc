package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
)

func TestDemoRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--seconds", "2"}, "--seconds 2: want 3 to 120"},
		{[]string{"--seconds", "many"}, "--seconds"},
		{[]string{"--output", "xml"}, "it is one of text, json, html"},
		{[]string{"extra"}, "accepts 0"},
		{[]string{"--root", "/nonexistent"}, "live host"},
	} {
		_, stderr, code := berth(t, append([]string{"demo"}, tc.args...)...)
		if code != exitUsage || !strings.Contains(stderr, tc.want) {
			t.Errorf("berth demo %q: exit %d, %q; want %d and %q", tc.args, code, stderr, exitUsage, tc.want)
		}
	}
}

// On a terminal the graph takes its own place again and again; elsewhere a line says what
// begins.
func TestLiveGraph(t *testing.T) {
	t.Parallel()
	for _, tty := range []bool{true, false} {
		var out bytes.Buffer
		g := newLiveGraph(&out, lab.DemoSpec(6))
		g.tty = tty
		g.progress(lab.Progress{Phase: "calibrate", Scenario: "rate"})
		for range 2 {
			g.progress(lab.Progress{Phase: "measure", Scenario: lab.Unisolated})
			g.second(lab.Second{Phase: lab.Unisolated, P99: 9000})
		}
		g.finish()
		switch text := out.String(); {
		case !tty && text != "hog: 6 s\n":
			t.Errorf("no terminal: %q", text)
		case tty && (strings.Count(text, "hog as BE") != 2 || !strings.Contains(text, "\x1b[11A") || !strings.HasSuffix(text, "\x1b[J")):
			t.Errorf("terminal: %q", text)
		}
	}
}

// A real demonstration tells its story, whatever it is here, and leaves nothing, when it is
// interrupted, too.
func TestDemoForReal(t *testing.T) {
	if os.Getenv("BERTH_TEST_LAB") == "" {
		t.Skip("a real run takes the machine for half a minute: set BERTH_TEST_LAB=1")
	}
	for name, after := range map[string]time.Duration{"whole": 0, "calibrating": 700 * time.Millisecond, "playing": 9 * time.Second} {
		t.Run(name, func(t *testing.T) {
			temporary := t.TempDir()
			cmd := exec.Command(os.Args[0], "demo", "--seconds", "3", "-o", "json")
			cmd.Env = append(os.Environ(), runsBerth+"=1", "TMPDIR="+temporary)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if after > 0 {
				time.Sleep(after)
				if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			}
			err := cmd.Wait()
			var d report.DemoDocument
			switch {
			case after > 0 && cmd.ProcessState.ExitCode() != exitInterrupted:
				t.Errorf("exit %d, want %d\n%s", cmd.ProcessState.ExitCode(), exitInterrupted, &errs)
			case after > 0:
			case err != nil || json.Unmarshal(out.Bytes(), &d) != nil:
				t.Fatalf("%v\n%s%s", err, &out, &errs)
			case len(d.Story.Phases) != 4 || len(d.Story.Phases[2].Seconds) != 3 || len(d.Story.Commands) != 3:
				t.Errorf("the story is %+v", d.Story)
			}
			expectNothingLeft(t, cmd.Process.Pid)
			if left, _ := filepath.Glob(filepath.Join(temporary, "*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}
