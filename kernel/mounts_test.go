package kernel

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
)

// planted are notes as a stranger would write them: each would have undoing write to, or
// remove, something that is no control group.
func planted() map[string]*entry {
	write := func(name string) *entry {
		return &entry{Step: Step{Path: name, Value: "theirs"}, Original: "stolen"}
	}
	disturbing := write(v1cpu + "/cpu.shares")
	disturbing.Value, disturbing.Disturbed, disturbing.undoing = "10", []saved{{Path: "etc/crontab", Value: "stolen"}}, true
	attached := &entry{Step: Step{Op: Attach, Path: v1cpu + "/cgroup.procs", Value: "100", Back: "etc/crontab", Start: "7100"}}
	enabled := write("etc/crontab")
	enabled.Op, enabled.Value = Enable, "+theirs"
	made := &entry{Step: Step{Op: Mkdir, Path: "etc/empty"}}
	keyed := write("etc/crontab")
	keyed.Format, keyed.Value, keyed.Unset, keyed.Original = Keyed, "any x", "any x", "stolen"
	return map[string]*entry{
		"a file elsewhere":             write("etc/crontab"),
		"a keyed file elsewhere":       keyed,
		"a file that is not there":     write("etc/absent"),
		"a kernel's file elsewhere":    write("proc/sys/kernel/core_pattern"),
		"around the tree":              write(v1cpu + "/../../../../etc/crontab"),
		"a name that is not clean":     write("./etc/crontab"),
		"a link in the tree":           write(v1cpu + "/out/crontab"),
		"the last name is a link":      write(v1cpu + "/link"),
		"beside the tree":              write(v1cpu + "x/file"),
		"another file system in it":    write(v1cpu + "/disk/crontab"),
		"a disturbed file elsewhere":   disturbing,
		"a process goes back to there": attached,
		"a list of controllers":        enabled,
		"a directory elsewhere":        made,
	}
}

// ambush is a host on which planted notes would do harm.
func ambush(t *testing.T) *Root {
	t.Helper()
	root, k := fake(t, fakekernel.V1())
	for _, dir := range []string{"etc", "etc/empty", v1cpu + "x", v1cpu + "/disk"} {
		if err := os.Mkdir(filepath.Join(root.Name(), dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"etc/crontab", "proc/sys/kernel/core_pattern", v1cpu + "x/file", v1cpu + "/disk/crontab"} {
		if err := os.WriteFile(filepath.Join(root.Name(), file), []byte("theirs\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"out": filepath.Join(root.Name(), "etc"), "link": filepath.Join(root.Name(), "etc/crontab")} {
		if err := os.Symlink(to, filepath.Join(root.Name(), v1cpu, link)); err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := root.read("proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Put("proc/self/mountinfo", mounts+"\n99 30 8:2 / /"+v1cpu+"/disk rw - ext4 /dev/sdb rw"); err != nil {
		t.Fatal(err)
	}
	return root
}

// regularFiles are a tree's files, without what links lead to, and its directories.
func regularFiles(t *testing.T, root *Root) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			all[name] = "directory"
		case e.Type().IsRegular():
			text, err := fs.ReadFile(root.FS(), name)
			all[name] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// plant adds a note, and returns the file's text.
func plant(t *testing.T, name string, e *entry) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines := []record{{Seq: 7, Do: e}}
	if e.undoing {
		lines = append(lines, record{Seq: 7, Undoing: true})
	}
	for _, r := range lines {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, line...), '\n')
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestUndoIsConfined has undo logs, of runs and named ones, with one note that Berth never writes: it is
// refused and stays, and the other note is undone.
func TestUndoIsConfined(t *testing.T) {
	t.Parallel()
	quota := v1cpu + "/cpu.cfs_quota_us"
	for what, e := range planted() {
		for _, kind := range []string{"log of a run", "named log"} {
			t.Run(what+" in a "+kind, func(t *testing.T) {
				t.Parallel()
				root := ambush(t)
				before := regularFiles(t, root)
				e := *e
				undo := Plan{{Path: quota, Value: "50000"}}
				if len(e.Disturbed) > 0 { // as if Berth had written it
					write(t, root, e.Path, e.Value)
					before[e.Path] = e.Value + "\n"
				}
				dir := fakekernel.MemoryDir(t)
				name := filepath.Join(dir, "log")
				var err error
				if kind == "log of a run" {
					name = dead(t, root, dir, undo)
					plant(t, name, &e)
					if report, err := Preview(root, dir); err == nil || report.Items[0].Outcome != Failed {
						t.Errorf("Preview: %+v, %v", report, err)
					}
					_, err = Restore(root, dir)
				} else {
					j := openLog(t, root, name)
					if _, err := Apply(root, undo, j); err != nil {
						t.Fatal(err)
					}
					j.Close()
					plant(t, name, &e)
					j = openLog(t, root, name)
					_, err = j.Undo(func(Step) bool { return true })
					j.Close()
				}
				if err == nil || !strings.Contains(err.Error(), "note 7 (") || !strings.Contains(err.Error(), "/"+e.Path) || !strings.Contains(err.Error(), "refused") {
					t.Errorf("undone: %v", err)
				}
				if diff := cmp.Diff(before, regularFiles(t, root)); diff != "" {
					t.Errorf("files (-want +got):\n%s", diff)
				}
				if text, readErr := os.ReadFile(name); readErr != nil || !strings.Contains(string(text), `{"seq":7,"do":`) || strings.Contains(string(text), `{"seq":7,"undone"`) {
					t.Errorf("it is not noted any more: %s, %v", text, readErr)
				}
			})
		}
	}
}

// TestUndoWithoutMounts refuses everything where it is not known which trees are mounted.
func TestUndoWithoutMounts(t *testing.T) {
	t.Parallel()
	root, k := fake(t, fakekernel.V1())
	dir := fakekernel.MemoryDir(t)
	dead(t, root, dir, oneWrite)
	if err := os.Remove(filepath.Join(root.Name(), "proc/self/mountinfo")); err != nil {
		t.Fatal(err)
	}
	before := tree(t, k)
	if _, err := Restore(root, dir); err == nil || !strings.Contains(err.Error(), "proc/self/mountinfo") {
		t.Errorf("Restore: %v", err)
	}
	sameTree(t, k, before)
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("undo logs %v", got)
	}
}

// TestPowerGround lets undoing write the power settings of CPUs in sysfs, and nothing else there.
func TestPowerGround(t *testing.T) {
	t.Parallel()
	const cpu = "sys/devices/system/cpu/"
	dir := t.TempDir()
	for _, name := range []string{"cpufreq/policy0", "cpu0", "cpu0/power"} {
		if err := os.MkdirAll(filepath.Join(dir, cpu+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../cpufreq/policy0", filepath.Join(dir, cpu+"cpu0/cpufreq")); err != nil {
		t.Fatal(err)
	}
	sysfs := ground{fsys: os.DirFS(dir), mounts: []Mount{{Type: "ext4", Dir: "."}, {Type: "sysfs", Dir: "sys"}}}
	for _, name := range []string{
		"cpufreq/boost", "cpufreq/policy12/boost", "cpufreq/policy0/scaling_governor", "cpufreq/policy0/scaling_min_freq",
		"cpufreq/policy0/scaling_max_freq", "cpufreq/policy0/energy_performance_preference", "cpu0/power/energy_perf_bias",
		"cpu511/power/pm_qos_resume_latency_us", "cpu0/cpuidle/state3/disable", "intel_pstate/no_turbo",
		"intel_uncore_frequency/package_00_die_00/max_freq_khz", "speed_select/cpu4/clos", "speed_select/package1/core_power",
		"speed_select/package1/priority_type", "speed_select/package0/turbo_freq",
	} {
		if err := sysfs.outside(cpu + name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for what, mounts := range map[string][]Mount{"no sysfs": {{Type: "ext4", Dir: "."}}, "another on it": append(sysfs.mounts[:2:2], Mount{Type: "tmpfs", Dir: "sys/devices"})} {
			if err := (&ground{fsys: sysfs.fsys, mounts: mounts}).outside(cpu + name); err == nil {
				t.Errorf("%s is allowed with %s", name, what)
			}
		}
	}
	for _, name := range []string{
		cpu + "cpu0/online", cpu + "cpu0/cpufreq/scaling_governor", cpu + "cpufreq/policy0/scaling_setspeed", cpu + "cpufreq/policy/boost",
		cpu + "smt/control", cpu + "cpu0/power/control", cpu + "speed_select/all", cpu + "speed_select/cpu0/core_power", cpu + "cpufreq/policy0/../policy0/boost", "sys/power/state", "sys/kernel/uevent_helper",
	} {
		if err := sysfs.outside(name); err == nil {
			t.Errorf("%s is allowed", name)
		}
	}
}

// TestProcessGround lets undoing write how a process is scheduled, and nothing else of it.
func TestProcessGround(t *testing.T) {
	t.Parallel()
	with := func(mounts ...Mount) *ground {
		return &ground{fsys: os.DirFS(t.TempDir()), mounts: append([]Mount{{Type: "ext4", Dir: "."}}, mounts...)}
	}
	proc := with(Mount{Type: "proc", Dir: "proc"})
	for _, file := range []string{"sched.policy", "sched.nice", "sched.cpus"} {
		name := "proc/4711@8812/" + file
		if err := proc.outside(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, other := range []*ground{with(), with(Mount{Type: "tmpfs", Dir: "proc"})} {
			if err := other.outside(name); err == nil {
				t.Errorf("%s is allowed where there is no proc file system", name)
			}
		}
	}
	for _, name := range []string{
		"proc/4711@8812/oom_score_adj", "proc/4711/sched.policy", "proc/4711@/sched.policy", "proc/@1/sched.policy", "proc/x@1/sched.policy",
		"proc/4711@8812/task/sched.policy", "proc/sys/kernel/core_pattern", "proc/4711@8812", "proc/4711@-8/sched.nice",
	} {
		if err := proc.outside(name); err == nil {
			t.Errorf("%s is allowed", name)
		}
	}
}
