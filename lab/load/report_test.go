package load

import (
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/lab/stats"
)

func decodeHistogram(tb testing.TB, text string) *hdrhistogram.Histogram {
	tb.Helper()
	h, err := stats.Decode(text)
	if err != nil {
		tb.Fatal(err)
	}
	return h.Histogram()
}

const ms = int64(time.Millisecond)

// A window of 1.5 s from 1 s on, closed at 3 s.
var (
	testSpan   = span{start: 1000 * ms, end: 2500 * ms, closed: 3000 * ms}
	testSettle = []Result{
		{Seq: -2, Due: 900 * ms, Seen: 900 * ms, Sent: 900 * ms, Done: 999 * ms},
		{Seq: -1, Due: 990 * ms, Seen: 990 * ms, Sent: 990 * ms, Done: 1001 * ms},
	}
	testWindow = []Result{
		{Seq: 0, Due: 1000 * ms, Seen: 1001 * ms, Sent: 1003 * ms, Done: 1010 * ms},
		{Seq: 1, Due: 1999 * ms, Seen: 1999 * ms, Sent: 1999 * ms, Done: 2019 * ms, Err: "status 500"},
		{Seq: 2, Due: 2000 * ms, Seen: 2000 * ms, Sent: 2000 * ms, Done: 2500 * ms},
		{Seq: 3, Due: 2100 * ms, Seen: 2100 * ms, Sent: 2101 * ms},
		{Seq: 4, Due: 2200 * ms, Seen: 2201 * ms},
		{Seq: 5, Due: 2300 * ms},
	}
)

func TestSummarize(t *testing.T) {
	t.Parallel()
	report, err := summarize(testSettle, testWindow, testSpan)
	if err != nil {
		t.Fatal(err)
	}
	seconds := report.Seconds
	report.Seconds = nil
	want := Report{
		WindowStart: 1000 * ms, WindowEnd: 2500 * ms,
		Offered: 6, Done: 2, Failed: 1, Unfinished: 3,
		Errors:       map[string]int{"status 500": 1},
		DoneInWindow: 2, // one of the settle time; the one at the very end is outside
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}

	type values struct{ Response, Service, Queue, Lag []int64 } // in milliseconds
	got := make([]values, len(seconds))
	for i, s := range seconds {
		got[i] = values{millis(t, s.Response), millis(t, s.Service), millis(t, s.Queue), millis(t, s.Lag)}
	}
	if diff := cmp.Diff([]values{
		{Response: []int64{10, 20}, Service: []int64{7, 20}, Queue: []int64{0, 2}, Lag: []int64{0, 1}},
		{Response: []int64{500, 700, 800, 900}, Service: []int64{500, 899}, Queue: []int64{0, 1, 799}, Lag: []int64{0, 0, 1, 700}},
	}, got); diff != "" {
		t.Errorf("histograms (-want +got):\n%s", diff)
	}
	if seconds[0].Offered != 2 || seconds[0].Censored != 1 || seconds[1].Offered != 4 || seconds[1].Censored != 3 {
		t.Errorf("seconds: %+v", seconds)
	}
}

// millis lists what a histogram holds, in milliseconds, in order.
func millis(t *testing.T, text string) (values []int64) {
	t.Helper()
	for _, bar := range decodeHistogram(t, text).Distribution() {
		for range bar.Count {
			values = append(values, ((bar.From+bar.To)/2+500)/1000)
		}
	}
	return values
}

func TestSummarizeNothing(t *testing.T) {
	t.Parallel()
	report, err := summarize(nil, nil, testSpan)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Seconds) != 2 || report.Seconds[1].Offered != 0 || decodeHistogram(t, report.Seconds[1].Response).TotalCount() != 0 {
		t.Errorf("seconds without requests: %+v", report.Seconds)
	}
}

func TestMicros(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ ns, want int64 }{
		{0, 0}, {-1, 0}, {499, 0}, {500, 1}, {1499, 1}, {int64(time.Minute), stats.MaxLatency}, {int64(time.Hour), stats.MaxLatency},
	} {
		if got := micros(test.ns); got != test.want {
			t.Errorf("micros(%d) = %d, want %d", test.ns, got, test.want)
		}
	}
}

func TestWriteRaw(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := writeRaw(&out, testWindow, testSpan.start); err != nil {
		t.Fatal(err)
	}
	want := `seq,due_ns,seen_ns,sent_ns,done_ns,error
0,0,1000000,3000000,10000000,
1,999000000,999000000,999000000,1019000000,"status 500"
2,1000000000,1000000000,1000000000,1500000000,
3,1100000000,1100000000,1101000000,,unfinished
4,1200000000,1201000000,,,unfinished
5,1300000000,,,,unfinished
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("raw file (-want +got):\n%s", diff)
	}
}
