package proc

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const sample = `cpu  5223 7 2388 159437 512 3 67 10 40 5
cpu0 2067 0 845 80901 29 0 6 2 0 0
cpu2 3156 7 1543 78536 483 3 61 8 40 5
intr 300208 0 0 44
ctxt 815633
btime 1795169188
processes 12344
procs_running 2
procs_blocked 0
softirq 245101 0 21018
`

func count(n uint64) *uint64 { return &n }

func TestReadStat(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want       Stat
		wantErr    string
	}{
		{name: "as kernels write it today", text: sample, want: Stat{
			Total: Times{5223, 7, 2388, 159437, 512, 3, 67, 10, 40, 5, 10},
			CPUs: []CPU{
				{0, Times{2067, 0, 845, 80901, 29, 0, 6, 2, 0, 0, 10}},
				{2, Times{3156, 7, 1543, 78536, 483, 3, 61, 8, 40, 5, 10}},
			},
			Ctxt: count(815633),
		}},
		{name: "four columns", text: "cpu 1 2 3 4\n", want: Stat{Total: Times{User: 1, Nice: 2, System: 3, Idle: 4, Columns: 4}}},
		{name: "eight columns", text: "cpu  1 2 3 4 5 6 7 8", want: Stat{Total: Times{1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 8}}},
		{name: "a column of the future", text: "cpu 1 2 3 4 5 6 7 8 9 10 11\n", want: Stat{Total: Times{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10}}},
		{name: "unknown lines", text: "cpu 1 2 3 4\npage 1 x\n\nswap\n", want: Stat{Total: Times{User: 1, Nice: 2, System: 3, Idle: 4, Columns: 4}}},
		{name: "full width", text: "cpu 18446744073709551615 0 0 0\n", want: Stat{Total: Times{User: 1<<64 - 1, Columns: 4}}},

		{name: "empty", text: "", wantErr: "no cpu line"},
		{name: "no total", text: "cpu0 1 2 3 4\n", wantErr: "no cpu line"},
		{name: "two totals", text: "cpu 1 2 3 4\ncpu 1 2 3 4\n", wantErr: "two cpu lines"},
		{name: "three columns", text: "cpu 1 2 3\n", wantErr: "cpu: 3 columns, want at least 4"},
		{name: "negative", text: "cpu 1 -2 3 4\n", wantErr: "cpu: column 2"},
		{name: "word", text: "cpu 1 2 3 x\n", wantErr: "cpu: column 4"},
		{name: "too large", text: "cpu 18446744073709551616 0 0 0\n", wantErr: "column 1"},
		{name: "processor number missing", text: "cpu 1 2 3 4\ncpu\t0 1 2 3 4\n", wantErr: "invalid syntax"},
		{name: "processor number too large", text: "cpu 1 2 3 4\ncpu2147483648 1 2 3 4\n", wantErr: "out of range"},
		{name: "processor twice", text: "cpu 1 2 3 4\ncpu1 1 2 3 4\ncpu1 1 2 3 4\n", wantErr: "cpu1: after cpu1"},
		{name: "processors out of order", text: "cpu 1 2 3 4\ncpu2 1 2 3 4\ncpu1 1 2 3 4\n", wantErr: "cpu1: after cpu2"},
		{name: "processor short", text: "cpu 1 2 3 4\ncpu1\n", wantErr: "cpu1: 0 columns"},
		{name: "bad ctxt", text: "cpu 1 2 3 4\nctxt\n", wantErr: "ctxt: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := ReadStat(fstest.MapFS{"proc/stat": {Data: []byte(tc.text)}})
			checkError(t, err, tc.wantErr)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Read differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadAbsent(t *testing.T) {
	t.Parallel()
	if _, err := ReadStat(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read = %v, want fs.ErrNotExist", err)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	old := Times{100, 10, 50, 1000, 20, 1, 2, 30, 40, 5, 10}
	now := Times{160, 15, 80, 1100, 10, 2, 5, 37, 70, 8, 10}
	since := now.Since(old)
	want := Times{60, 5, 30, 100, 0, 1, 3, 7, 30, 3, 10} // iowait went backwards
	if diff := cmp.Diff(want, since); diff != "" {
		t.Errorf("Since differs (-want +got):\n%s", diff)
	}
	if got := since.Busy(); got != 60+5+30+1+3 {
		t.Errorf("Busy = %d, want 99: guest time must not count twice", got)
	}
	if got := since.All(); got != 99+100+7 {
		t.Errorf("All = %d, want 206", got)
	}
	if got := since.Busy().Seconds(); got != 0.99 {
		t.Errorf("Seconds = %g, want 0.99", got)
	}
	short := now.Since(Times{User: 1, Columns: 4})
	if short.HasSteal() || short.Steal != 0 {
		t.Errorf("Since a line without steal has steal %d", short.Steal)
	}
	if !since.HasSteal() {
		t.Error("steal of ten columns is missing")
	}
}

func TestReadHost(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/stat"); err != nil {
		t.Skipf("no /proc here: %v", err)
	}
	stat, err := ReadStat(os.DirFS("/"))
	if err != nil {
		t.Fatal(err)
	}
	if stat.Total.All() == 0 || len(stat.CPUs) == 0 {
		t.Errorf("host has no time or no processors: %+v", stat)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add(sample)
	f.Add("cpu 1 2 3 4\ncpu0 1 2 3 4 5\nctxt 5\n")
	f.Add("cpu -1 2 3 4\n")
	f.Fuzz(func(t *testing.T, text string) {
		var s Stat
		err := s.Parse([]byte(text))
		if err != nil {
			if diff := cmp.Diff(Stat{}, s); diff != "" {
				t.Errorf("error %v with a value:\n%s", err, diff)
			}
			return
		}
		if c := s.Total.Columns; c < 4 || c > 10 {
			t.Errorf("%d columns", c)
		}
		if zero := s.Total.Since(s.Total); zero.All() != 0 {
			t.Errorf("time since itself is %+v", zero)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	fsys := fstest.MapFS{"proc/stat": {Data: []byte(sample)}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadStat(fsys); err != nil {
			b.Fatal(err)
		}
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("unexpected error: %v", err)
	case want != "" && err == nil:
		t.Fatalf("no error, want %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Fatalf("error %q, want %q in it", err, want)
	}
}
