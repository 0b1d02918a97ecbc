package load

import (
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"berth.dev/berth/lab/stats"
)

func decodeHistogram(tb testing.TB, text string) *hdrhistogram.Histogram {
	tb.Helper()
	h, err := stats.Decode(text)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}
