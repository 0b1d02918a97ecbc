package cli

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// everything is each file and directory below dir: inode, mode, times of change, extended
// attributes and content.
func everything(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		content := ""
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%.200q %x", text, sha256.Sum256(text))
		}
		attrs := make([]byte, 1<<12)
		n, err := unix.Llistxattr(name, attrs)
		if err != nil && !errors.Is(err, syscall.ENOTSUP) {
			return err
		}
		for attr := range strings.SplitSeq(strings.TrimRight(string(attrs[:max(0, n)]), "\x00"), "\x00") {
			value := make([]byte, 1<<12)
			if m, err := unix.Lgetxattr(name, attr, value); err == nil {
				content += fmt.Sprintf(" %s=%q", attr, value[:m])
			}
		}
		all[name] = fmt.Sprintf("%d %v %v %v %d %s", stat.Ino, info.Mode(), stat.Mtim, stat.Ctim, stat.Nlink, content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// readingVerbs are the commands that only read, as they are typed on a host under root.
func readingVerbs(t *testing.T, root string) [][]string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\nreserved: 0-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(args ...string) []string { return append(args[:len(args):len(args)], "--root", root) }
	return [][]string{
		at("ps", "--interval", "10ms"), at("ps", "--interval", "10ms", "-o", "json"), at("map"), at("map", "-o", "json"),
		at("explain", "api"), at("explain", "batch"),
		{"__complete", "release", "--root", root, ""},
		{"run", "--root", root, "--dry-run", "--class", "LSE", "--cpus", "2", "--name", "new", "--", "true"},
		{"run", "--root", root, "--dry-run", "--policy", "kubelet", "--confine", "*", "--name", "new", "--", "true"},
		at("topo"), at("doctor"), at("agent", "--dry-run", "--config", config),
		{"config", "check", config}, {"config", "diff", config, config}, at("guard", "status"), at("restore", "--dry-run"),
		at("watch", "--once", "--interval", "100ms"), at("watch", "--signals"),
	}
}

// TestReadingChangesNothing runs every command that only reads on nodes in every state,
// and compares all files of the host before and after.
func TestReadingChangesNothing(t *testing.T) {
	t.Parallel()
	record := func(state string) string { return filepath.Join(state, "db.grant.json") }
	edit := func(name string, change func(string) string) error {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if changed := change(string(text)); changed != string(text) {
			return os.WriteFile(name, []byte(changed), 0o600)
		}
		return errors.New("nothing changed in " + name)
	}
	for what, spoil := range map[string]func(t *testing.T, root, state string) error{
		"stopped": func(*testing.T, string, string) error { return nil },
		"kept by an agent": func(t *testing.T, root, state string) error {
			n, err := agent.Open(t.Context(), agent.Options{Root: openRoot(t, root), Dir: state, Keep: true})
			if err == nil {
				t.Cleanup(func() { n.Close() })
			}
			return err
		},
		"killed amid a change": func(_ *testing.T, _, state string) error {
			return os.WriteFile(filepath.Join(state, "unfinished"), nil, 0o600)
		},
		"a batch that is damaged": func(_ *testing.T, _, state string) error {
			return os.WriteFile(filepath.Join(state, "batch.json"), []byte("half a bat"), 0o600)
		},
		"a process that has ended": func(_ *testing.T, root, _ string) error { return os.RemoveAll(filepath.Join(root, "proc/100")) },
		"another configuration": func(t *testing.T, root, state string) error {
			n, err := agent.Open(t.Context(), agent.Options{
				Root: openRoot(t, root), Dir: state, Keep: true, Settings: agent.Settings{
					PolicyName: "berth", Config: place.Config{Reserved: cpuset.MustParse("14-15"), NoFloor: true}, Confine: []string{"*"},
				},
			})
			return errors.Join(err, n.Close())
		},
		"a damaged record": func(_ *testing.T, _, state string) error {
			return edit(record(state), func(s string) string { return s[:len(s)/2] })
		},
		"a record of a newer version": func(_ *testing.T, _, state string) error {
			return edit(record(state), func(s string) string { return strings.Replace(s, `"berthRecord":1`, `"berthRecord":2`, 1) })
		},
		"settings of a newer version": func(_ *testing.T, _, state string) error {
			return edit(filepath.Join(state, "settings.json"), func(s string) string { return strings.Replace(s, `"berthRecord":1`, `"berthRecord":2`, 1) })
		},
		"a damaged undo log": func(_ *testing.T, _, state string) error {
			return edit(filepath.Join(state, "ledger"), func(s string) string { return s + "spoiled\n" })
		},
		"a record of an earlier boot": func(_ *testing.T, root, _ string) error {
			return os.WriteFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"), []byte("other\n"), 0o644)
		},
		"no state directory": func(_ *testing.T, _, state string) error { return os.RemoveAll(filepath.Dir(state)) },
		"a killed guard": func(_ *testing.T, root, state string) error {
			dir := agent.GuardDir(state)
			if err := os.Mkdir(dir, 0o700); err != nil {
				return err
			}
			log, err := kernel.OpenUndoLog(openRoot(t, root), filepath.Join(dir, "ledger"), "berth guard")
			if err != nil {
				return err
			}
			plan := kernel.Plan{{Path: "sys/fs/cgroup/cpuset/berth-idle/batch/cpuset.cpus", Value: "15", Format: kernel.List}}
			if _, err := kernel.Apply(openRoot(t, root), plan, log); err != nil {
				return err
			}
			return log.Close()
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			root := placedHost(t)
			if err := spoil(t, root, nodeDir(root)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "proc/stat"), []byte("cpu 1 2 3 4\ncpu0 1 2 3 4\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			before := everything(t, root)
			for _, args := range readingVerbs(t, root) {
				out, errs, code := berth(t, args...)
				if what == "stopped" && code != exitOK {
					t.Errorf("berth %s: status %d: %s", strings.Join(args, " "), code, errs)
				}
				if diff := cmp.Diff(before, everything(t, root)); diff != "" {
					t.Errorf("berth %s changed the host (-before +after):\n%s\n%s%s", strings.Join(args, " "), diff, out, errs)
					before = everything(t, root)
				}
			}
		})
	}
}

// TestReadingTellsWhatIs has the commands that only read show what the kernel has, and
// say where records and kernel disagree.
func TestReadingTellsWhatIs(t *testing.T) {
	t.Parallel()
	root := placedHost(t)
	state := nodeDir(root)
	cpus := filepath.Join(root, "sys/fs/cgroup/cpuset/berth/api/cpuset.cpus")
	if err := errors.Join(os.WriteFile(cpus, []byte("7\n"), 0o644), os.WriteFile(filepath.Join(state, "unfinished"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	out, errs, code := berth(t, "explain", "api", "--root", root)
	if code != exitOK || !strings.Contains(out, "runs on       7\n") || !strings.Contains(out, "cpuset.cpus is 7 instead of ") {
		t.Errorf("explain: status %d: %s", code, out)
	}
	if !strings.Contains(errs, "is being changed") {
		t.Errorf("nothing said of a change under way: %s", errs)
	}
	if err := os.WriteFile(filepath.Join(state, "db.grant.json"), []byte("half a rec"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code = berth(t, "ps", "--interval", "10ms", "--root", root)
	if code != exitOK || !strings.Contains(out, "api") || !strings.Contains(errs, "db.grant.json") {
		t.Errorf("ps beside a damaged record: status %d: %s%s", code, out, errs)
	}
}

// TestStoredSettingsHold opens a node as an agent does, stops that, and changes a workload by
// commands, which have no configuration: nobody else moves, and what the agent's
// configuration keeps free stays free.
func TestStoredSettingsHold(t *testing.T) {
	t.Parallel()
	root, k, m := emptyHost(t)
	state := nodeDir(root)
	ctx := t.Context()
	n, err := agent.Open(ctx, agent.Options{
		Root: kernel.NewRoot(root, k), Machine: m, Dir: state, Keep: true,
		Settings: agent.Settings{PolicyName: "berth", Config: place.Config{NoFloor: true, Reserved: cpuset.MustParse("2-5")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range []place.Request{{ID: "web", Class: place.LSE, Milli: 2000}, {ID: "cache", Class: place.LS}} {
		if err := k.Start(fmt.Sprint(100 + i)); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Place(ctx, agent.Spec{Request: s, PID: 100 + i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	where := func(id string) string {
		text, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup/cpuset/berth", id, "cpuset.cpus"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	web := where("web")
	if !cpuset.MustParse(web).Overlaps(cpuset.MustParse("0-1")) {
		t.Fatalf("web has %s, where the default settings would leave it", web)
	}
	for _, args := range [][]string{
		{"restore"}, {"resize", "cache", "--quota", "2"}, {"resize", "cache", "--class", "LSE", "--cpus", "4"},
		{"resize", "cache", "--confine", "x"}, {"release", "cache", "--kill"},
	} {
		_, errs, _ := berth(t, append(args, "--root", root)...)
		if now := where("web"); now != web {
			t.Fatalf("berth %s moved web from %s to %s: %s", strings.Join(args, " "), web, now, errs)
		}
		if args[0] == "resize" && slices.Contains(args, "LSE") {
			if own := cpuset.MustParse(where("cache")); own.Len() != 4 || own.Overlaps(cpuset.MustParse("2-5")) {
				t.Errorf("cache owns %s, of which 2-5 are reserved", own)
			}
		}
	}
}
