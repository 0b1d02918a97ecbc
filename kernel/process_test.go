package kernel

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func TestReadProcess(t *testing.T) {
	t.Parallel()
	const rest = " 1 1 0 -1 2097216 0 0 0 0 150 25 200 3 20 0 4 0 "
	own, children := 1750*time.Millisecond, 2030*time.Millisecond
	for name, tc := range map[string]struct {
		text    string
		want    Process
		wantErr string
	}{
		"plain":          {"7 (sh) S 1" + rest + "4711 99\n", Process{"sh", true, 4, 'S', 1, false, "4711", own, children}, ""},
		"odd command":    {"7 (a) Z 9 (b) R 3" + rest + "4711\n", Process{"a) Z 9 (b", true, 4, 'R', 3, false, "4711", own, children}, ""},
		"ended":          {"7 (sh) Z 0" + rest + "5\n", Process{"sh", true, 4, 'Z', 0, false, "5", own, children}, ""},
		"leads":          {"1 (sh) S 1" + strings.Replace(rest, " 1 1 0 ", " 1 1 34816 ", 1) + "5\n", Process{"sh", true, 4, 'S', 1, true, "5", own, children}, ""},
		"leads, no tty":  {"1 (sh) S 1" + rest + "5\n", Process{"sh", true, 4, 'S', 1, false, "5", own, children}, ""},
		"tty, no leader": {"7 (sh) S 1" + strings.Replace(rest, " 1 1 0 ", " 1 1 34816 ", 1) + "5\n", Process{"sh", true, 4, 'S', 1, false, "5", own, children}, ""},
		"empty":          {"", Process{}, "too few fields"},
		"cut short":      {"7 (sh) S 1" + rest, Process{}, "too few fields"},
		"no state":       {"7 (sh) SS 1" + rest + "5", Process{}, "too few fields"},
		"parent a word":  {"7 (sh) S x" + rest + "5", Process{}, "parent"},
		"start negative": {"7 (sh) S 1" + rest + "-5", Process{}, "start"},
		"time negative":  {"7 (sh) S 1" + strings.Replace(rest, " 25 ", " -25 ", 1) + "5", Process{}, "field 15"},
		"flags a word":   {"7 (sh) S 1" + strings.Replace(rest, "2097216", "x", 1) + "5", Process{}, "flags"},
		"threads a word": {"7 (sh) S 1" + strings.Replace(rest, " 4 ", " x ", 1) + "5", Process{}, "threads"},
		"no bracket":     {"7 sh) S 1" + rest + "5", Process{}, "too few fields"},
		"time a word":    {"7 (sh) S 1" + strings.Replace(rest, " 150 ", " x ", 1) + "5", Process{}, "field 14"},
		"odd commands":   {"7 (a) R 1 (b)\n7 8 9) S 1" + rest + "4711\n", Process{"a) R 1 (b)\n7 8 9", true, 4, 'S', 1, false, "4711", own, children}, ""},
		"more than a duration holds": {"7 (sh) S 1" + strings.Replace(rest, " 150 25 ", " 18446744073709551615 0 ", 1) + "4711",
			Process{"sh", true, 4, 'S', 1, false, "4711", time.Duration(maxTicks) * 10 * time.Millisecond, children}, ""},
	} {
		got, err := ReadProcess(fstest.MapFS{"proc/7/stat": {Data: []byte(tc.text)}}, "7")
		if got != tc.want || tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
			t.Errorf("%s: %+v, %v; want %+v, %q", name, got, err, tc.want, tc.wantErr)
		}
		if got.Ended() != (name == "ended") {
			t.Errorf("%s: ended: %v", name, got.Ended())
		}
	}
	if _, err := ReadProcess(fstest.MapFS{}, "7"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
}

func TestReadUIDs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want [3]int
		ok   bool
	}{
		"plain":     {"Name:\tsh\nTgid:\t7\nUid:\t1000\t0\t1001\t1002\nGid:\t5\t5\t5\t5\n", [3]int{1000, 0, 1001}, true},
		"odd name":  {"Name:\tUid:\\n0\nUid:\t7\t8\t9\t9\n", [3]int{7, 8, 9}, true},
		"no line":   {"Name:\tsh\nGid:\t0\t0\t0\t0\n", [3]int{}, false},
		"cut short": {"Uid:\t7\t8", [3]int{}, false},
		"a word":    {"Uid:\troot\troot\troot\troot\n", [3]int{}, false},
	} {
		got, err := ReadUIDs(fstest.MapFS{"proc/7/status": {Data: []byte(tc.text)}}, 7)
		if tc.ok != (err == nil) || tc.ok && got != tc.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tc.want)
		}
	}
	if _, err := ReadUIDs(fstest.MapFS{}, 7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
}

func TestDescendants(t *testing.T) {
	t.Parallel()
	fsys := fstest.MapFS{"proc/6/comm": {}, "proc/stat": {}}
	for pid, parent := range map[string]string{"1": "0", "2": "1", "3": "2", "4": "1", "5": "4"} {
		fsys["proc/"+pid+"/stat"] = &fstest.MapFile{Data: []byte(pid + " (x) S " + parent + strings.Repeat(" 0", 17) + " 7\n")}
	}
	for pid, want := range map[int][]int{1: {1, 2, 4, 3, 5}, 4: {4, 5}, 5: {5}, 9: {9}} {
		if got, err := Descendants(fsys, pid); err != nil || !slices.Equal(got, want) {
			t.Errorf("descendants of %d: %v, %v; want %v", pid, got, err, want)
		}
	}
	fsys["proc/5/stat"] = &fstest.MapFile{Data: []byte("5 (x) S 4" + strings.Repeat(" 0", 17) + " 8\n")}
	if tree, starts, err := DescendantStarts(fsys, 4); err != nil || !slices.Equal(tree, []int{4, 5}) || starts[5] != "8" {
		t.Errorf("%v, %v, %v", tree, starts, err)
	}
	if _, err := Descendants(fstest.MapFS{}, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no proc: %v", err)
	}
}

func FuzzParseProcess(f *testing.F) {
	f.Add("7 (sh) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 99\n")
	f.Add("7 (a) b")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseProcess([]byte(text))
		if (err == nil) != (p.Start != "") {
			t.Errorf("%+v, %v", p, err)
		}
		if p.Own < 0 || p.Children < 0 {
			t.Errorf("negative time %+v", p)
		}
	})
}
