package report

import (
	"os"
	"testing"
)

func TestShowHTML(t *testing.T) {
	f, err := os.Create("/tmp/rep.html")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := HTML(f, fakeResult(t, 6), fakeAnalysis()); err != nil {
		t.Fatal(err)
	}
}
