package hardware

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// plantResctrl makes a tree of files, as the kernel's document describes resctrl.
func plantResctrl(t testing.TB, files map[string]string) Resctrl {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		writeResctrl(t, Resctrl(dir), name, text)
	}
	return Resctrl(dir)
}

func writeResctrl(t testing.TB, tree Resctrl, name, text string) {
	t.Helper()
	fakekernel.Plant(t, filepath.Join(string(tree), name), text)
}

// intel is a CPU with two caches, one group that allocates and one that monitors
// some of its tasks.
func intel() map[string]string {
	files := map[string]string{
		"info/last_cmd_status": "ok\n", "info/L3/cbm_mask": "fff\n", "info/L3/num_closids": "16\n",
		"info/L3_MON/mon_features":            "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
		"info/L3_MON/num_rmids":               "224\n",
		"info/L3_MON/max_threshold_occupancy": "131072\n",
		"schemata":                            "    L3:0=fff;1=fff\n", "tasks": "1\n2\n", "cpus_list": "0-7\n",
		"batch/schemata": "    L3:0=00f;1=00f\n", "batch/tasks": "10\n11\n12\n", "batch/mode": "shareable\n",
		"batch/mon_groups/berth-web/tasks": "11\n12\n",
	}
	for group, base := range map[string]string{"": "1", "batch/": "2", "batch/mon_groups/berth-web/": "3"} {
		for _, cache := range []string{"0", "1"} {
			dir := group + "mon_data/mon_L3_0" + cache + "/"
			files[dir+"llc_occupancy"] = base + cache + "000\n"
			files[dir+"mbm_total_bytes"] = base + cache + "0000\n"
			files[dir+"mbm_local_bytes"] = base + cache + "00\n"
		}
		files[group+"mon_data/mon_PERF_PKG_00/core_energy"] = "203.375\n"
	}
	return files
}

// amd is a CPU whose bandwidth counters are assigned to groups.
func amd() map[string]string {
	files := intel()
	files["info/L3_MON/mbm_assign_mode"] = "[mbm_event]\ndefault\n"
	files["info/L3_MON/num_mbm_cntrs"] = "0=32;1=32\n"
	files["info/L3_MON/available_mbm_cntrs"] = "0=30;1=31\n"
	files["info/L3_MON/mbm_assign_on_mkdir"] = "1\n"
	files["mbm_L3_assignments"] = "mbm_total_bytes:0=e;1=e\nmbm_local_bytes:0=e;1=_\n"
	files["batch/mbm_L3_assignments"] = "mbm_total_bytes:0=_;1=_\nmbm_local_bytes:0=_;1=_\n"
	for _, cache := range []string{"0", "1"} {
		files["batch/mon_data/mon_L3_0"+cache+"/mbm_total_bytes"] = "Unassigned\n"
		files["batch/mon_data/mon_L3_0"+cache+"/mbm_local_bytes"] = "Unassigned\n"
	}
	return files
}

func TestMonitors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files map[string]string
		why   string // "" is no error
	}{
		"intel":         {files: intel()},
		"amd":           {files: amd()},
		"not mounted":   {files: map[string]string{}, why: "not mounted"},
		"no monitoring": {files: map[string]string{"info/L3/cbm_mask": "fff\n"}, why: "does not monitor"},
	} {
		err := plantResctrl(t, tc.files).Monitors()
		if (err == nil) != (tc.why == "") || err != nil && (!errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), tc.why)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Resctrl(t.TempDir() + "/none").Monitors(); !errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), "has no resctrl") {
		t.Errorf("no directory: %v", err)
	}
}

func openCache(t testing.TB, c CacheConfig) *CacheReader {
	t.Helper()
	r, err := OpenCache(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

type key struct {
	quantity watch.Quantity
	part     watch.Part
}

func cache(id int) watch.Part { return watch.Part{Kind: watch.Cache, ID: id} }

// values are samples by quantity and part.
func values(t *testing.T, samples []watch.Sample, err error) map[key]float64 {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	all := map[key]float64{}
	for _, s := range samples {
		k := key{s.Quantity, s.Subject.Part}
		if _, twice := all[k]; twice {
			t.Errorf("twice: %+v", s)
		}
		all[k] = s.Value
	}
	return all
}

func readAll(t *testing.T, r *CacheReader) map[key]float64 {
	t.Helper()
	samples, err := r.Read(watch.Second, nil)
	return values(t, samples, err)
}

func TestReadCache(t *testing.T) {
	t.Parallel()
	who := watch.Subject{Scope: watch.Group, Name: "web"}
	tree := plantResctrl(t, intel())
	r := openCache(t, CacheConfig{Tree: tree, Group: "batch/mon_groups/berth-web", Subject: who})
	readAll(t, r)
	for i, name := range []string{"0/mbm_total_bytes", "1/mbm_total_bytes", "0/mbm_local_bytes", "1/mbm_local_bytes"} {
		writeResctrl(t, tree, "batch/mon_groups/berth-web/mon_data/mon_L3_0"+name, strconv.Itoa(1000_000+i)+"\n")
	}
	samples, err := r.Read(watch.Second, nil)
	got := values(t, samples, err)
	want := map[key]float64{
		{watch.LLCOccupancy, cache(0)}: 30000, {watch.LLCOccupancy, cache(1)}: 31000,
		{watch.Bandwidth, cache(0)}: 700_000, {watch.Bandwidth, cache(1)}: 690_001,
		{watch.BandwidthLocal, cache(0)}: 997_002, {watch.BandwidthLocal, cache(1)}: 996_903,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, s := range samples {
		if s.Time != watch.Second || s.Subject.Scope != who.Scope || s.Subject.Name != who.Name {
			t.Errorf("sample %+v", s)
		}
	}
}

// Words give no sample, and what was counted before one is not compared with what
// comes after: in between the hardware may have counted for others.
func TestWords(t *testing.T) {
	t.Parallel()
	tree := plantResctrl(t, intel())
	r := openCache(t, CacheConfig{Tree: tree, Group: "batch"})
	total := key{watch.Bandwidth, cache(0)}
	for _, step := range []struct {
		text  string
		state cacheState
		value float64 // where state is known
	}{
		{"1000", known, 0},
		{"1500", known, 500},
		{"Unavailable", unavailable, 0},
		{"Unassigned", unassigned, 0},
		{"9000", known, 0},
		{"9100", known, 100},
		{"Error", failed, 0},
		{"9200", known, 0},
		{"50", known, 0}, // reset
		{"80", known, 30},
		{"18446744073709551615", known, 18446744073709551615 - 50},
	} {
		writeResctrl(t, tree, "batch/mon_data/mon_L3_00/mbm_total_bytes", step.text+"\n")
		got, there := readAll(t, r)[total]
		if there != (step.state == known) || got != step.value {
			t.Errorf("%s: %v, %t; want %v", step.text, got, there, step.value)
		}
		if e := r.events[1]; e.quantity != watch.Bandwidth || e.state != step.state {
			t.Errorf("%s: told %+v", step.text, e)
		}
	}
	// Occupancy is no counter: it is what it is.
	for text, want := range map[string]float64{"500": 500, "100": 100} {
		writeResctrl(t, tree, "batch/mon_data/mon_L3_00/llc_occupancy", text+"\n")
		if got := readAll(t, r)[key{watch.LLCOccupancy, cache(0)}]; got != want {
			t.Errorf("occupancy %v, want %v", got, want)
		}
	}
	writeResctrl(t, tree, "batch/mon_data/mon_L3_00/llc_occupancy", "much\n")
	if samples, err := r.Read(watch.Second, nil); err == nil || len(samples) > 0 {
		t.Errorf("no number: %v, %v", samples, err)
	}
}

func TestWhy(t *testing.T) {
	t.Parallel()
	files := amd()
	delete(files, "batch/mon_data/mon_L3_00/llc_occupancy")
	delete(files, "batch/mon_data/mon_L3_01/llc_occupancy")
	tree := plantResctrl(t, files)
	r := openCache(t, CacheConfig{Tree: tree, Group: "batch"})
	if got := readAll(t, r); len(got) > 0 {
		t.Errorf("read %v", got)
	}
	check := func(q watch.Quantity, want string) {
		t.Helper()
		err := r.Why(q)
		if want == "" && err != nil || want != "" && (!errors.Is(err, kernel.ErrNotSupported) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q", q, err, want)
		}
	}
	check(watch.Bandwidth, "mbm_total_bytes:*=e")
	check(watch.LLCOccupancy, "does not monitor it")
	writeResctrl(t, tree, "batch/mon_data/mon_L3_00/mbm_total_bytes", "Unavailable\n")
	writeResctrl(t, tree, "batch/mon_data/mon_L3_01/mbm_total_bytes", "Unavailable\n")
	writeResctrl(t, tree, "batch/mon_data/mon_L3_01/mbm_local_bytes", "Error\n")
	readAll(t, r)
	check(watch.Bandwidth, "counts other groups")
	check(watch.BandwidthLocal, "error")
	writeResctrl(t, tree, "batch/mon_data/mon_L3_00/mbm_total_bytes", "7\n")
	readAll(t, r)
	check(watch.Bandwidth, "")
}

func TestCacheGone(t *testing.T) {
	t.Parallel()
	tree := plantResctrl(t, intel())
	if _, err := OpenCache(CacheConfig{Tree: tree, Group: "none"}); !errors.Is(err, watch.ErrGone) {
		t.Errorf("open a group that does not exist: %v", err)
	}
	if _, err := tree.tasks("none"); !errors.Is(err, watch.ErrGone) {
		t.Errorf("tasks of a group that does not exist: %v", err)
	}
	if _, err := OpenCache(CacheConfig{Tree: Resctrl(t.TempDir())}); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a tree that is not there: %v", err)
	}
}

// Of a cache that goes offline the files go away, of a group all do. The kernel
// says so by an error that plain files do not have: a control group's file has it.
func TestLiveCacheGone(t *testing.T) {
	t.Parallel()
	group := liveGroup(t)
	tree := plantResctrl(t, intel())
	file := filepath.Join(string(tree), "batch/mon_data/mon_L3_00/llc_occupancy")
	if err := errors.Join(os.Remove(file), os.Symlink(group+"/cgroup.freeze", file)); err != nil {
		t.Fatal(err)
	}
	r := openCache(t, CacheConfig{Tree: tree, Group: "batch"})
	if got := readAll(t, r); len(got) != 6 {
		t.Errorf("read %v", got)
	}
	if err := os.Remove(group); err != nil {
		t.Fatal(err)
	}
	if _, there := readAll(t, r)[key{watch.LLCOccupancy, cache(0)}]; there || r.events[0].state != unavailable {
		t.Error("a cache that is offline is read")
	}
	if err := os.Remove(filepath.Join(string(tree), "batch/tasks")); err != nil {
		t.Fatal(err)
	}
	if samples, err := r.Read(watch.Second, nil); !errors.Is(err, watch.ErrGone) || len(samples) > 0 {
		t.Errorf("a group that is gone: %v, %v", samples, err)
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	tree := plantResctrl(t, intel())
	groups, err := tree.groups()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]ResctrlGroup{"", "batch", "batch/mon_groups/berth-web"}, groups); diff != "" {
		t.Error(diff)
	}
	for _, tc := range []struct {
		threads []int
		want    ResctrlGroup
		ok      bool
	}{
		{[]int{12, 11}, "batch/mon_groups/berth-web", true},
		{[]int{10, 11, 12}, "batch", true},
		{[]int{1, 2}, "", false}, // those of the default group
		{[]int{10}, "", false},
		{[]int{11, 12, 13}, "", false},
		{nil, "", false},
	} {
		if got, ok, err := tree.Find(tc.threads); got != tc.want || ok != tc.ok || err != nil {
			t.Errorf("%v: found %v, %t, %v", tc.threads, got, ok, err)
		}
	}
	// Of many threads a few may have come or gone.
	var many []string
	var threads []int
	for tid := 100; tid < 200; tid++ {
		many = append(many, strconv.Itoa(tid))
		threads = append(threads, tid)
	}
	writeResctrl(t, tree, "batch/tasks", strings.Join(many, "\n"))
	for _, tc := range []struct {
		threads []int
		has     bool
	}{{threads[4:], true}, {threads[:4], false}} {
		if has, err := tree.Has("batch", tc.threads); has != tc.has || err != nil {
			t.Errorf("batch has %v: %v, %v", tc.threads, has, err)
		}
	}
	if _, err := tree.Has("none", threads); !errors.Is(err, watch.ErrGone) {
		t.Errorf("a group that is not there: %v", err)
	}
	if got, ok, err := tree.Find(threads[4:]); got != "batch" || !ok || err != nil {
		t.Errorf("96 of 100: %v, %t, %v", got, ok, err)
	}
	if _, ok, _ := tree.Find(threads[6:]); ok {
		t.Error("94 of 100 are the same")
	}
	writeResctrl(t, tree, "batch/tasks", "x\n")
	if _, _, err := tree.Find(threads); err == nil {
		t.Error("tasks that are no number")
	}
}

// The host is the sum of all groups that allocate; where one of them does not
// tell, there is no sum.
func TestCaches(t *testing.T) {
	t.Parallel()
	tree := plantResctrl(t, intel())
	h, err := OpenCaches(tree)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	read := func() map[key]float64 {
		samples, err := h.Read(watch.Second, nil)
		for i := range samples {
			if i > 0 && samples[i].Subject.Part.ID < samples[i-1].Subject.Part.ID {
				t.Errorf("out of order: %v", samples)
			}
		}
		return values(t, samples, err)
	}
	read()
	writeResctrl(t, tree, "mon_data/mon_L3_00/mbm_total_bytes", "100300\n")
	writeResctrl(t, tree, "batch/mon_data/mon_L3_00/mbm_total_bytes", "200020\n")
	want := map[key]float64{
		{watch.LLCOccupancy, cache(0)}: 30000, {watch.LLCOccupancy, cache(1)}: 32000,
		{watch.Bandwidth, cache(0)}: 320, {watch.Bandwidth, cache(1)}: 0,
		{watch.BandwidthLocal, cache(0)}: 0, {watch.BandwidthLocal, cache(1)}: 0,
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Error(diff)
	}
	writeResctrl(t, tree, "batch/mon_data/mon_L3_00/mbm_total_bytes", "Unavailable\n")
	delete(want, key{watch.Bandwidth, cache(0)})
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Error(diff)
	}
	if err := h.Why(watch.LLCOccupancy); err != nil {
		t.Errorf("occupancy: %v", err)
	}
	// Groups come and go.
	for name, text := range intel() {
		if rest, ok := strings.CutPrefix(name, "batch/mon_data"); ok {
			writeResctrl(t, tree, "new/mon_data"+rest, text)
		}
	}
	writeResctrl(t, tree, "new/tasks", "")
	if err := os.RemoveAll(filepath.Join(string(tree), "batch")); err != nil {
		t.Fatal(err)
	}
	if got := read(); got[key{watch.Bandwidth, cache(0)}] != 300 || len(h.readers) != 2 {
		t.Errorf("read %v of groups %v", got, slices.Collect(maps.Keys(h.readers)))
	}
	if _, err := OpenCaches(Resctrl(t.TempDir())); !errors.Is(err, kernel.ErrNotSupported) {
		t.Errorf("a tree that is not there: %v", err)
	}
}

// Not parallel: AllocsPerRun counts for the whole program.
func TestReadCacheDoesNotAllocate(t *testing.T) {
	r := openCache(t, CacheConfig{Tree: plantResctrl(t, amd()), Group: "batch"})
	var buf []watch.Sample
	if n := testing.AllocsPerRun(10, func() { buf, _ = r.Read(watch.Second, buf[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParseCache(f *testing.F) {
	f.Add([]byte("123\n"))
	f.Add([]byte("Unavailable\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if n, state, err := parseValue(text); state != known && (n != 0 || err != nil) {
			t.Errorf("%q: %d, %v, %v", text, n, state, err)
		}
	})
}

// BenchmarkRead leaves out what the hardware takes, as these are plain files.
func BenchmarkReadCache(b *testing.B) {
	r := openCache(b, CacheConfig{Tree: plantResctrl(b, intel())})
	var buf []watch.Sample
	for b.Loop() {
		var err error
		if buf, err = r.Read(watch.Second, buf[:0]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(r.events)), "files")
}
