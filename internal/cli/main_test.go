package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth.dev/berth/internal/fakekernel"
)

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
		fakekernel.Plant(t, filepath.Join(root, name), text)
	}
	return root
}

// SIGHUP, of a terminal that is gone, ends a command in order; where it is ignored, it ends none.
func TestHangup(t *testing.T) {
	t.Parallel()
	args := []string{"guard", "--root", playedGroups(t, "web"), "--sensitive", "web"}
	begin := func(c *exec.Cmd) {
		said := filepath.Join(t.TempDir(), "said")
		f, err := os.Create(said)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c.Stderr = f
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() }) // where the test gave up
		waitFor(t, "the guard runs", func() bool { text, _ := os.ReadFile(said); return bytes.Contains(text, []byte("guarding web")) })
	}
	c := ignoringHangup(t, args...)
	begin(c)
	if !ignoresHangup(t, c) {
		t.Error("it does not ignore SIGHUP any more")
	}
	_ = c.Process.Signal(syscall.SIGTERM)
	if err := c.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("needs SIGHUP, which is ignored here, as below nohup(1)")
	}
	c = berthProcess(t, args...)
	begin(c)
	_ = c.Process.Signal(syscall.SIGHUP)
	if err := c.Wait(); err != nil {
		t.Errorf("SIGHUP: %v", err)
	}
}

// A verb that reads its configuration again at SIGHUP has it to itself. It is not parallel, as
// the signal is sent to all of this process.
func TestHangups(t *testing.T) {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGHUP)
	defer signal.Stop(ends)
	again := Hangups()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-again
	signal.Stop(again) // waits until the signal is with all who receive it
	if len(ends) > 0 {
		t.Error("SIGHUP ends the command, too")
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
	for _, c := range []struct{ args, want []string }{
		{[]string{"no-such"}, []string{`"no-such" (see`}},
		{[]string{"diagnos"}, []string{`did you mean "diagnose"?`}},
		{[]string{"top"}, []string{`did you mean "watch"?`}},
		{[]string{"__keeep"}, []string{`"__keeep" (see`}},
		{[]string{"ps", "--sokcet", "x"}, []string{"--sokcet", `did you mean "--socket"?`}},
		{[]string{"ps", "-Z"}, []string{"'Z' in -Z (see"}},
		{[]string{"ps", "-o", "jsn"}, []string{"text, json, wide", `did you mean "json"?`}},
		{[]string{"version", "extra"}, []string{"extra"}},
	} {
		out, errs, code := berth(t, c.args...)
		if code != exitUsage || out != "" {
			t.Errorf("%v: status %d, %q", c.args, code, out)
		}
		for _, want := range c.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%v: %q, want %q in it", c.args, errs, want)
			}
		}
	}
}

func TestHelpHasPurposes(t *testing.T) {
	t.Parallel()
	out, errs, code := berth(t)
	if code != exitOK || errs != "" {
		t.Fatalf("status %d, %q", code, errs)
	}
	root := rootCommand()
	for _, p := range purposes() {
		if !strings.Contains(out, p.title+", as in: "+p.example+"\n") {
			t.Errorf("no %q", p.title)
		}
		words := strings.Fields(strings.TrimPrefix(p.example, "sudo "))
		cmd, _, err := root.Find(words[1:])
		if err != nil || cmd.GroupID != p.title {
			t.Errorf("%s: its example %q is a verb of %q (%v)", p.title, p.example, cmd.GroupID, err)
		}
	}
	for _, c := range root.Commands() {
		if c.GroupID == "" && !c.Hidden && c.Name() != "version" {
			t.Errorf("%s has no purpose", c.Name())
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	text, _, _ := berth(t, "version")
	flag, _, code := berth(t, "--version")
	if code != exitOK || flag != text || !strings.HasPrefix(text, "berth ") || strings.Count(text, "\n") != 1 {
		t.Errorf("status %d, %q and %q", code, text, flag)
	}
	asJSON, _, _ := berth(t, "version", "-o", "json")
	if !strings.Contains(asJSON, `"version": "`) || !strings.Contains(asJSON, `"go": "go`) {
		t.Errorf("%q", asJSON)
	}
}

// A verb that is not known is said to be that, with flags behind it or without.
func TestUnknownVerbs(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"tpo":                       `unknown command "tpo"; did you mean "topo"?`,
		"runn --class BE -- ls":     `unknown command "runn"; did you mean "run"?`,
		"--root /x runn --cpus 2":   `unknown command "runn"; did you mean "run"?`,
		"zzzz -x":                   `unknown command "zzzz" (see`,
		"guard staus":               `unknown command "staus"; did you mean "status"? (see 'berth guard --help')`,
		"guard staus --x":           `unknown command "staus"; did you mean "status"?`,
		"lab rpeort --x":            `unknown command "rpeort"; did you mean "report"?`,
		"lab isolation --x":         "unknown flag: --x",
		"help runn":                 `unknown command "runn"; did you mean "run"?`,
		"help guard staus":          `unknown command "staus"; did you mean "status"?`,
		"--nonsense":                "unknown flag: --nonsense",
		"run --clas BE":             `unknown flag: --clas; did you mean "--class"?`,
		"doctor delegation enabel":  `unknown command "enabel"; did you mean "enable"?`,
		"topo extra":                `unknown argument "extra"`,
		"diagnose --sensitiv nginx": `did you mean "--sensitive"?`,
	} {
		if out, errs, code := berth(t, strings.Fields(line)...); code != exitUsage && !strings.HasPrefix(line, "run ") || !strings.Contains(errs, want) {
			t.Errorf("berth %s: status %d, %s%s; want %q", line, code, out, errs, want)
		}
	}
}
