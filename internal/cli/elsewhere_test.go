package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
)

// A plugin in a pod keeps its records in /run/berth, and sees the host in another folder: on the host
// that is said, instead of that there is nothing.
func TestNodeElsewhere(t *testing.T) {
	t.Parallel()
	dir := placedHost(t)
	state := filepath.Join(dir, "run/berth")
	for _, name := range entries(t, filepath.Join(state, "node")) {
		if err := os.Rename(filepath.Join(state, "node", name), filepath.Join(state, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(state, "node")); err != nil {
		t.Fatal(err)
	}
	look := func(parts ...string) {
		t.Helper()
		for _, args := range [][]string{
			{"restore"}, {"restore", "--all"}, {"restore", "--all", "--dry-run"}, {"ps"}, {"explain", "api"}, {"map"}, {"release", "api"},
		} {
			out, errs, code := berth(t, append(args, "--root", dir)...)
			if code != exitError || strings.Contains(out, "nothing") || !containsAll(errs, parts) {
				t.Errorf("%v: status %d, %q, %s\nwant %q", args, code, out, errs, parts)
			}
		}
		if out, errs, code := berth(t, "run", "--dry-run", "--root", dir, "--", "true"); code != exitNotRun || !containsAll(errs, parts) {
			t.Errorf("run: status %d, %q, %s\nwant %q", code, out, errs, parts)
		}
	}
	look(state, "--state "+state)
	if _, err := os.Stat(nodeDir(dir)); err == nil {
		t.Fatal("the usual state directory was made")
	}

	log := filepath.Join(state, "ledger")
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, bytes.Replace(text, []byte(`"root":"`+dir+`"`), []byte(`"root":"/host"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	hint := []string{state, "made under --root /host", "kubectl exec", "kubectl debug node/NODE", "(not tried)", "--root /host --state /host/run/berth\n"}
	look(hint...)
	if err := os.Mkdir(nodeDir(dir), 0o700); err != nil { // as by a job that was refused
		t.Fatal(err)
	}
	look(hint...)
}

// Beside a node elsewhere that holds nothing, and that nobody is at, jobs are placed.
func TestRunBesideIdleNode(t *testing.T) {
	t.Parallel()
	dir, k, m := emptyHost(t)
	opt := agent.Options{Root: kernel.NewRoot(dir, k), Dir: filepath.Join(dir, "run/berth"), Machine: m, Keep: true}
	n, err := agent.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	run := func(want int) {
		t.Helper()
		if out, errs, code := berth(t, "run", "--dry-run", "--root", dir, "--", "true"); code != want || (code != exitOK) != strings.Contains(errs, opt.Dir) {
			t.Errorf("status %d, want %d: %q, %s", code, want, out, errs)
		}
	}
	run(exitNotRun)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	run(exitOK)
}

// Where everything was given back, nothing is elsewhere.
func TestNothingElsewhere(t *testing.T) {
	t.Parallel()
	dir, k, m := emptyHost(t)
	opt := agent.Options{Root: kernel.NewRoot(dir, k), Dir: filepath.Join(dir, "run/berth"), Machine: m}
	n, err := agent.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, errs := runRestore("--root", dir); code != exitError || !strings.Contains(errs, opt.Dir) {
		t.Errorf("status %d, %s", code, errs)
	}
	if _, err := n.Restore(t.Context()); err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if code, out, errs := runRestore("--root", dir); code != exitOK || out != "nothing to restore\n" {
		t.Errorf("after everything was given back: status %d, %q, %s", code, out, errs)
	}
}

// What the pages and this error say of the DaemonSet is in it.
func TestDaemonSetHasWhatIsNamed(t *testing.T) {
	t.Parallel()
	manifest, err := os.ReadFile("../../kube/deploy/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/coming-from.md")
	if err != nil {
		t.Fatal(err)
	}
	config := regexp.MustCompile(`--config=/\S+\.yaml`).FindString(string(page))
	if config == "" || !strings.Contains(string(manifest), "- "+config+"\n") {
		t.Errorf("the DaemonSet has no line %q of docs/coming-from.md", config)
	}
	if page, err = os.ReadFile("../../docs/kubernetes-guard.md"); err != nil {
		t.Fatal(err)
	}
	_, metrics, _ := strings.Cut(string(page), "In the pod of `kube/deploy/daemonset.yaml`")
	named := regexp.MustCompile("`(--metrics[^` ]*)`").FindAllStringSubmatch(metrics, -1)
	for _, flag := range named {
		if !strings.Contains(string(manifest), "# - "+flag[1]+"\n") {
			t.Errorf("the DaemonSet has no line %q of docs/kubernetes-guard.md", flag[1])
		}
	}
	if len(named) != 2 {
		t.Errorf("docs/kubernetes-guard.md names %d lines of the DaemonSet, want --metrics and --metrics-network", len(named))
	}
	e := ElsewhereError{Missing: "/run/berth/node", Dir: "/run/berth", Root: "/host", Here: "/"}
	flags := regexp.MustCompile(`--root (\S+) --state (\S+)`).FindStringSubmatch(e.Error())
	if flags == nil {
		t.Fatal(e.Error())
	}
	for i, flag := range []string{"root", "state"} {
		if arg := "- --" + flag + "=" + flags[i+1]; !strings.Contains(string(manifest), arg) {
			t.Errorf("the DaemonSet has no %q, which is named: %s", arg, &e)
		}
	}
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
