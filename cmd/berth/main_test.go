package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// berth runs the program on a root and returns what it prints and its status.
func berth(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), strings.NewReader(""), &out, &errs, args)
	return out.String(), errs.String(), code
}

// plant writes files below a new root.
func plant(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// golden compares what a verb printed with testdata/VERB/NAME.
func golden(t *testing.T, verb, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", verb, name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites):\n%s", file, diff)
	}
}

func TestCompletionOfUnknownShell(t *testing.T) {
	t.Parallel()
	if out, errs, code := berth(t, "completion", "bogus"); code != exitUsage || out != "" || !strings.Contains(errs, "bash, fish, powershell, zsh") {
		t.Errorf("status %d, %q, %q", code, out, errs)
	}
	for _, args := range [][]string{{"completion"}, {"completion", "bash"}} {
		if out, errs, code := berth(t, args...); code != exitOK || len(out) < 100 || errs != "" {
			t.Errorf("%v: status %d, %.20q, %q", args, code, out, errs)
		}
	}
}

func TestUnknownCommand(t *testing.T) {
	t.Parallel()
	if out, errs, code := berth(t, "no-such"); code != exitUsage || out != "" || !strings.Contains(errs, `"no-such"`) {
		t.Errorf("status %d, %q, %q", code, out, errs)
	}
	if out, errs, code := berth(t); code != exitOK || errs != "" || !strings.Contains(out, "Available Commands") {
		t.Errorf("without one: status %d, %q, %q", code, out, errs)
	}
}
