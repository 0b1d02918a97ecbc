package observe

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"berth.dev/berth/watch"
	"berth.dev/berth/watch/network"
)

// TestBusy has a link send more and more, and drop something.
func TestBusy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		at := filepath.Join(dir, "eth0", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("ifindex", "2")
	write("speed", "8") // a million bytes per second
	write("statistics/tx_bytes", "5000000")
	write("statistics/tx_dropped", "7")
	links, err := network.OpenLinks(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	reading := &traffic{links: links}
	for i, step := range []struct {
		sent, dropped string
		want          bool
	}{
		{"5000000", "7", false}, // nothing is known of the time before
		{"5490000", "7", false},
		{"6000000", "7", true},
		{"6000000", "7", false},
		{"6000000", "8", true},
		{"100", "0", false}, // it was made anew
	} {
		write("statistics/tx_bytes", step.sent)
		write("statistics/tx_dropped", step.dropped)
		now := watch.Time(i+1) * watch.Second
		samples, err := links.Read(now, nil)
		if got := reading.busy(now, samples); err != nil || got != step.want {
			t.Errorf("step %d: %v, %v, want %v", i, got, err, step.want)
		}
	}
}

// TestBusyQueue has something wait in the queues of links, at one reading and at the next one.
func TestBusyQueue(t *testing.T) {
	t.Parallel()
	reading := &traffic{}
	for i, step := range []struct {
		link  int
		bytes float64
		want  bool
	}{{2, 1500, false}, {2, 0, false}, {2, 1500, false}, {3, 1500, false}, {3, 90, true}, {3, 0, false}} {
		sample := watch.Sample{Subject: watch.Subject{Part: watch.Part{Kind: watch.Link, ID: step.link}}, Quantity: watch.LinkQueued, Value: step.bytes}
		if got := reading.busy(watch.Time(i+1)*watch.Second, []watch.Sample{sample}); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}
