package report

import (
	"bytes"
	"os"
	"testing"
)

func TestShow(t *testing.T) {
	for _, w := range []int{120, 100, 80} {
		var b bytes.Buffer
		if err := Text(&b, fakeResult(t, 6), fakeAnalysis(), Options{Width: w}); err != nil {
			t.Fatal(err)
		}
		os.Stdout.Write(b.Bytes())
	}
}
