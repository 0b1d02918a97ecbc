package detect_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fork"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
	"berth.dev/berth/watch/proc"
	"berth.dev/berth/watch/runq"
)

var record = flag.Bool("record", false, "record testdata/*.jsonl on this host (root, v1 controllers and a v2 tree), 25 s each")

// loadVariable makes the test binary a load: "spin THREADS ON OFF" runs for ON of
// every ON+OFF milliseconds, "read FILE PAUSE" reads a file over and over, with a
// pause of so many milliseconds after each MiB.
const loadVariable = "BERTH_DETECT_LOAD"

func TestMain(m *testing.M) {
	load := strings.Fields(os.Getenv(loadVariable))
	if len(load) == 0 {
		os.Exit(m.Run())
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is in its group
	if load[0] == "read" {
		pause, _ := strconv.Atoi(load[2])
		read(load[1], time.Duration(pause)*time.Millisecond)
	}
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(load[1+i])
	}
	for range n[0] {
		go spin(time.Duration(n[1])*time.Millisecond, time.Duration(n[2])*time.Millisecond)
	}
	select {}
}

func spin(on, off time.Duration) {
	runtime.LockOSThread()
	for due := time.Now(); ; due = due.Add(on + off) {
		for began := cpuTime(); cpuTime()-began < on; {
		}
		time.Sleep(time.Until(due.Add(on + off)))
	}
}

// cpuTime is that of the thread, which hardly ever changes while it spins.
func cpuTime() time.Duration {
	var u syscall.Rusage
	const thread = 1 // RUSAGE_THREAD
	_ = syscall.Getrusage(thread, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func read(file string, pause time.Duration) {
	buf := make([]byte, 1<<20)
	for {
		f, err := os.Open(file)
		if err != nil {
			panic(err)
		}
		for err == nil {
			_, err = f.Read(buf)
			time.Sleep(pause)
		}
		_ = f.Close()
	}
}

// scene is one recording: what runs from the start, and what happens after 12 s.
type scene struct {
	name   string
	victim string
	then   func(r *recorder)
}

func scenes() []scene {
	return []scene{
		{"quiet", "spin 1 2 8", func(*recorder) {}},
		{"hog", "spin 2 7 3", func(r *recorder) { r.start("hog", "spin 4 1000 0") }},
		{"quota", "spin 2 4 6", func(r *recorder) { r.write("cpu/"+r.parent+"/victim/cpu.cfs_quota_us", "30000") }},
		{"saturated", "spin 1 2 8", func(r *recorder) { r.start("victim", "spin 6 1000 0") }},
		{"reclaim", "read " + victimFile + " 2", func(r *recorder) {
			for range 3 {
				r.start("hog", "read "+hogFile+" 0")
			}
		}},
	}
}

var victimFile, hogFile = filepath.Join(os.TempDir(), "berth-detect-victim"), filepath.Join(os.TempDir(), "berth-detect-hog")

const hierarchies = "/sys/fs/cgroup"

func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("only with -record")
	}
	for file, mib := range map[string]int64{victimFile: 96, hogFile: 400} {
		if out, err := exec.Command("dd", "if=/dev/urandom", "of="+file, "bs=1M", fmt.Sprint("count=", mib)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		defer os.Remove(file)
		uncache(t, file)
	}
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) { recordScene(t, s) })
	}
}

// uncache drops a file from the page cache, so that it is charged to who reads it.
func uncache(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		t.Fatal(err)
	}
}

type recorder struct {
	t      *testing.T
	parent string
	out    *os.File
	began  time.Time
	before runq.Snapshot
}

func recordScene(t *testing.T, s scene) {
	r := &recorder{t: t, parent: fmt.Sprintf("berth-detect-%d", os.Getpid())}
	for _, tree := range []string{"cpu", "cpuacct", "memory", "unified"} {
		for _, group := range []string{"", "/victim", "/hog"} {
			dir := filepath.Join(hierarchies, tree, r.parent+group)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Skip("cannot make control groups: ", err)
			}
			t.Cleanup(func() { r.remove(dir) })
		}
	}
	// The recording is to be about these groups, not about what else runs here.
	r.write("cpu/"+r.parent+"/cpu.shares", "262144")
	r.stepAside()
	r.write("memory/"+r.parent+"/memory.limit_in_bytes", strconv.Itoa(128<<20))
	r.start("victim", s.victim)
	out, err := os.Create(filepath.Join("testdata", s.name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	r.out = out
	r.record(func() { s.then(r) })
}

// stepAside puts the recorder where the loads cannot delay it.
func (r *recorder) stepAside() {
	group := "cpu/" + r.parent + "/recorder"
	dir := filepath.Join(hierarchies, group)
	if err := os.Mkdir(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	pid := strconv.Itoa(os.Getpid())
	r.t.Cleanup(func() {
		r.write("cpu/cgroup.procs", pid)
		r.remove(dir)
	})
	r.write(group+"/cpu.shares", "262144")
	r.write(group+"/cgroup.procs", pid)
}

func (r *recorder) remove(dir string) {
	for range 100 {
		if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.t.Errorf("%s is left", dir)
}

func (r *recorder) write(file, value string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(hierarchies, file), []byte(value), 0); err != nil {
		r.t.Fatal(err)
	}
}

// start runs a load in a group until the test ends.
func (r *recorder) start(group, load string) {
	r.t.Helper()
	cmd := exec.CommandContext(context.Background(), os.Args[0])
	cmd.Env = append(os.Environ(), loadVariable+"="+load)
	hold, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := fork.Start(cmd); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for _, tree := range []string{"cpu", "cpuacct", "memory", "unified"} {
		r.write(filepath.Join(tree, r.parent, group, "cgroup.procs"), strconv.Itoa(cmd.Process.Pid))
	}
	_ = hold.Close()
}

func (r *recorder) record(then func()) {
	t := r.t
	signals := []cgroupstat.Signal{
		cgroupstat.Usage, cgroupstat.Throttling, cgroupstat.ThrottlingAny, cgroupstat.Memory, cgroupstat.MemoryEvents,
		cgroupstat.CPUPressure, cgroupstat.MemoryPressure, cgroupstat.IOPressure,
	}
	stats := cgroupstat.NewSampler([]cgroupstat.Tree{
		{Version: 1, Controllers: []string{"cpu"}, Dir: hierarchies + "/cpu"},
		{Version: 1, Controllers: []string{"cpuacct"}, Dir: hierarchies + "/cpuacct"},
		{Version: 1, Controllers: []string{"memory"}, Dir: hierarchies + "/memory"},
		{Version: 2, Dir: hierarchies + "/unified"},
	}, signals)
	every := cgroupstat.Request{Read: cgroupstat.SetOf(signals...), Fresh: cgroupstat.SetOf(signals...)}
	defer stats.Close()
	for _, group := range []string{"victim", "hog"} {
		if err := stats.Add(r.parent+"/"+group, 0); err != nil {
			t.Fatal(err)
		}
	}
	waits, err := proc.OpenGroup(proc.GroupConfig{Proc: "/proc", Dir: filepath.Join(hierarchies, "cpu", r.parent, "victim"), Name: r.parent + "/victim"})
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close()
	probe, err := runq.Open(runq.Options{Root: hierarchies + "/cpu", MaxShare: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	if err := errors.Join(probe.Add(r.parent+"/victim"), probe.Arm()); err != nil {
		t.Fatal(err)
	}
	r.began = time.Now()
	for i := range 25 {
		time.Sleep(time.Until(r.began.Add(time.Duration(i) * time.Second)))
		now := watch.Time(time.Since(r.began))
		all, failed := stats.Sample(now, nil, every)
		if len(failed) > 0 {
			t.Fatal(failed)
		}
		all, err := waits.Read(now, all)
		if err != nil {
			t.Fatal(err)
		}
		all = r.host(now, all)
		all = r.queue(now, probe, all)
		r.keep(all)
		if i == 12 {
			then()
		}
	}
}

var wanted = []watch.Quantity{
	watch.CPUTime, watch.CPUPeriods, watch.CPUThrottledPeriods, watch.CPUThrottledAny, watch.CPUWait, watch.Steal,
	watch.CPUSome, watch.MemorySome, watch.IOSome, watch.Memory, watch.MemoryMax,
	watch.QueueP99, watch.Queued, watch.QueuedBy, watch.QueuedKernel, watch.QueuedIdle, watch.QueuedThrottled,
}

// keep writes samples, with the names of groups as in the scene.
func (r *recorder) keep(all []watch.Sample) {
	seen := map[watch.Sample]bool{}
	for _, s := range all {
		s.Subject.Name = strings.TrimPrefix(s.Subject.Name, r.parent+"/")
		key := watch.Sample{Subject: s.Subject, Quantity: s.Quantity, By: s.By}
		if seen[key] || !slices.Contains(wanted, s.Quantity) { // CPU time comes from two readers; the group's is exact
			continue
		}
		seen[key] = true
		if err := watch.Write(r.out, []watch.Sample{s}); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *recorder) host(now watch.Time, to []watch.Sample) []watch.Sample {
	stat, err := proc.ReadStat(os.DirFS("/"))
	if err != nil {
		r.t.Fatal(err)
	}
	to = append(to,
		watch.Sample{Time: now, Quantity: watch.CPUTime, Value: stat.Total.Busy().Seconds()},
		watch.Sample{Time: now, Quantity: watch.Steal, Value: stat.Total.Steal.Seconds()})
	for _, cpu := range stat.CPUs {
		to = append(to, watch.Sample{Time: now, Subject: watch.Subject{Part: watch.Part{Kind: watch.CPU, ID: cpu.ID}}, Quantity: watch.CPUTime, Value: cpu.Busy().Seconds()})
	}
	return to
}

// queue turns what the probe counted into samples. Culprits that are not of the
// scene are one, "others".
func (r *recorder) queue(now watch.Time, probe *runq.Probe, to []watch.Sample) []watch.Sample {
	var snapshot, since runq.Snapshot
	if err := probe.Read(&snapshot); err != nil {
		r.t.Fatal(err)
	}
	since.Since(&r.before, &snapshot)
	r.before = snapshot
	subject := watch.Subject{Scope: watch.Group, Name: r.parent + "/victim"}
	add := func(q watch.Quantity, v time.Duration, by string) {
		to = append(to, watch.Sample{Time: now, Subject: subject, Quantity: q, Value: v.Seconds(), By: by})
	}
	if _, p99, ok := since.Groups[0].Histogram.Quantile(0.99); ok {
		add(watch.QueueP99, p99, "")
	}
	wait := map[string]time.Duration{"victim": 0, "hog": 0, "others": 0}
	special := map[runq.Culprit]time.Duration{}
	var sum time.Duration
	for _, share := range snapshot.Groups[0].Shares {
		sum += share.Wait
		id, ok := share.Culprit.Group()
		if !ok {
			special[share.Culprit] += share.Wait
			continue
		}
		name := "others"
		path, err := probe.Name(id)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.t.Fatal(err)
		}
		if rest, ours := strings.CutPrefix(path, "/"+r.parent+"/"); ours {
			name = rest
		}
		wait[name] += share.Wait
	}
	for _, name := range []string{"victim", "hog", "others"} {
		add(watch.QueuedBy, wait[name], name)
	}
	add(watch.QueuedKernel, special[runq.Kernel], "")
	add(watch.QueuedIdle, special[runq.Idle], "")
	add(watch.QueuedThrottled, special[runq.Throttled], "")
	add(watch.Queued, sum, "")
	return to
}
