package program

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/lab/load"
)

// served is a program with a command that is run for each request.
func served(t *testing.T, command string) (*kept, Exec, *load.Client) {
	t.Helper()
	e := Exec{"@berth-test-" + rand.Text(), command}
	k := keep(t, Config{Argv: Shell("exec sleep 1000"), Exec: &e})
	for n := 0; ; n++ {
		c, err := load.Dial(t.Context(), load.Target{Protocol: load.Exec, Addr: e.Address, Path: "0"})
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return k, e, c
		}
		if n > 6000 {
			t.Fatalf("%v; %s", err, &k.said)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ran")
	k, e, c := served(t, "echo out {0-9}; echo {0-9} >> "+file+"; case {0-9} in 7) echo first >&2; echo no luck >&2; exit 3;; 8) kill -9 $$;; 9) exit 4;; esac")
	for ask, want := range map[string]string{"1": "", "7": "exit status 3: no luck", "8": "killed by SIGKILL", "9": "exit status 4", load.Nothing: ""} {
		err := c.Do(t.Context(), ask)
		if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), ask+": "+want) {
			t.Errorf("%s: %v, want %q", ask, err, want)
		}
	}
	ran, err := os.ReadFile(file)
	if words := strings.Fields(string(ran)); err != nil || len(words) != 4 {
		t.Errorf("ran for %q, %v; want 1, 7, 8 and 9, and not for nothing", words, err)
	}
	if printed, err := e.Run(t.Context()); err != nil || string(printed) != "out 0\n" {
		t.Errorf("it printed %q, %v", printed, err)
	}
	if err := k.end(); err != nil {
		t.Errorf("%v: %s", err, &k.said)
	}
	if err := c.Do(t.Context(), "1"); err == nil {
		t.Error("it still answers")
	}
}

// What does not end is ended with the program, and whoever waits for it is told.
func TestExecThatHangs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pids")
	k, e, _ := served(t, "echo $$ >> "+file+"; sleep 1000; :")
	told := make(chan error, 1)
	go func() { _, err := e.Run(t.Context()); told <- err }()
	all := pids(t, file, 1)
	if err := k.end(); err != nil {
		t.Errorf("%v: %s", err, &k.said)
	}
	if err := <-told; err == nil {
		t.Error("no error of a run that did not end")
	}
	if lives(all[0]) {
		t.Error("the run lives on")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Run(ctx); err == nil {
		t.Error("called off: no error")
	}
}

// The end of the program is its end, though the process that runs the command goes on; and
// the end of that is told.
func TestExecEnds(t *testing.T) {
	t.Parallel()
	e := Exec{"@berth-test-" + rand.Text(), ":"}
	k := keep(t, Config{Argv: Shell("sleep 0.1"), Exec: &e})
	if err := k.wait(); err == nil || !strings.HasSuffix(k.said.String(), "it ended with status 0\n") {
		t.Errorf("%v, %q", err, &k.said)
	}
	bad := Exec{"/tmp/in-the-file-system", "some command"}
	k = keep(t, Config{Argv: Shell("exec sleep 1000"), Exec: &bad})
	if err := k.wait(); err == nil || !strings.Contains(k.said.String(), `the process that runs "some command": exit status 1`) {
		t.Errorf("%v, %q", err, &k.said)
	}
}
