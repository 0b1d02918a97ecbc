package report

import (
	"os"
	"testing"
)

func TestShowCompare(t *testing.T) {
	a := Side{"a.json", fakeResult(t, 6), fakeAnalysis()}
	b := Side{"b.json", fakeResult(t, 7), fakeAnalysis()}
	b.Result.Host.Kernel = "6.19.1"
	c, err := Compare(a, b)
	if err != nil {
		t.Fatal(err)
	}
	c.Text(os.Stdout, Options{})
	c.Text(os.Stdout, Options{Width: 80})
}
