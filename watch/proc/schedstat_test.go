package proc

import (
	"math"
	"testing"
)

func TestParseTask(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text    string
		want    SchedTimes
		wantErr string
	}{
		{text: "5000 300 9\n", want: SchedTimes{5000, 300}},
		{text: "0 0 0", want: SchedTimes{}},
		{text: "9223372036854775807 0 18446744073709551615", want: SchedTimes{maxNanoseconds, 0}},

		{text: "", wantErr: "invalid syntax"},
		{text: "1 2", wantErr: "invalid syntax"},
		{text: "1 2 3 4", wantErr: "more than 3"},
		{text: "1 -2 3", wantErr: "invalid syntax"},
		{text: "9223372036854775808 0 0", wantErr: "too large"},
	} {
		got, err := ParseTask([]byte(tc.text))
		checkError(t, err, tc.wantErr)
		if got != tc.want {
			t.Errorf("%q: %+v, want %+v", tc.text, got, tc.want)
		}
	}
}

const cpusText = `version 17
timestamp 4294967296
cpu0 0 0 0 0 0 0 5000 300 9
domain0 MC 3 1 2 3
cpu2 1 2 3 4 5 6 7 8 10
`

func TestWaitOfCPUs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want       float64
		wantErr    string
	}{
		{name: "two", text: cpusText, want: 308e-9},
		{name: "none", text: "version 15\ntimestamp 1\n"},
		{name: "more numbers", text: "version 18\ncpu0 0 0 0 0 0 0 1 2 3 4\n", want: 2e-9},

		{name: "empty", text: "", wantErr: "not version"},
		{name: "old", text: "version 14\ncpu0 0 0 0 0 0 0 1 2 3\n", wantErr: "not version"},
		{name: "no version", text: "cpu0 0 0 0 0 0 0 1 2 3\n", wantErr: "not version"},
		{name: "cut short", text: "version 15\ncpu0 0 0 0 0 0 0 1 2\n", wantErr: "invalid syntax"},
		{name: "no number", text: "version 15\ncpux 0 0 0 0 0 0 1 2 3\n", wantErr: "invalid syntax"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := waitOfCPUs([]byte(tc.text))
			checkError(t, err, tc.wantErr)
			if math.Abs(got-tc.want) > 1e-12 {
				t.Errorf("%v s, want %v", got, tc.want)
			}
		})
	}
}

func TestParseStatus(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text    string
		want    uint64
		ok      bool
		wantErr string
	}{
		{text: "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t12\n", want: 12, ok: true},
		{text: "Name:\tx\nvoluntary_ctxt_switches:\t7\n"},
		{text: "nonvoluntary_ctxt_switches:\tmany\n", wantErr: "invalid syntax"},
		{text: "nonvoluntary_ctxt_switches:\n", wantErr: "invalid syntax"},
	} {
		got, ok, err := parseStatus([]byte(tc.text))
		checkError(t, err, tc.wantErr)
		if got != tc.want || ok != tc.ok {
			t.Errorf("%q: %d, %v; want %d, %v", tc.text, got, ok, tc.want, tc.ok)
		}
	}
}

func FuzzParseSchedstat(f *testing.F) {
	f.Add([]byte("5000 300 9\n"))
	f.Add([]byte(cpusText))
	f.Add([]byte(synthetic(15, 2)))
	f.Add([]byte("nonvoluntary_ctxt_switches:\t12\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		task, err := ParseTask(text)
		if task.Ran < 0 || task.Waited < 0 || err != nil && task != (SchedTimes{}) {
			t.Errorf("task %+v, %v", task, err)
		}
		if seconds, err := waitOfCPUs(text); seconds < 0 || err != nil && seconds != 0 {
			t.Errorf("CPUs %v, %v", seconds, err)
		}
		if n, ok, err := parseStatus(text); (n != 0 || ok) && err != nil {
			t.Errorf("status %d, %v, %v", n, ok, err)
		}
	})
}
