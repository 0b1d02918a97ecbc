package observe

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
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
	reading := &traffic{}
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
		now := watch.Time(i+1) * watch.Second
		sample := watch.Sample{Time: now, Subject: watch.Subject{Part: watch.Part{Kind: watch.Link, ID: step.link}}, Quantity: watch.LinkQueued, Value: step.bytes}
		if got := reading.busy(now, []watch.Sample{sample}); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}

// TestBusyAmongOthers has traffic take from the samples before it those of the links only, of now.
func TestBusyAmongOthers(t *testing.T) {
	t.Parallel()
	host := Sources(OfHost)
	at := func(name string) int { return slices.IndexFunc(host, func(s Source) bool { return s.Name == name }) }
	if links := at("network links"); links < 0 || links > at("network traffic of groups") {
		t.Fatal("links are not read before what takes from their samples")
	}
	link := watch.Subject{Part: watch.Part{Kind: watch.Link, ID: 2}}
	group := watch.Subject{Scope: watch.Group, Name: "web", Part: link.Part}
	for name, c := range map[string]struct {
		of   watch.Subject
		late watch.Time
		want bool
	}{
		"a link": {link, 0, true}, "a group": {group, 0, false}, "the host": {watch.Subject{}, 0, false}, "a link, before": {link, 1, false},
	} {
		reading, yes := &traffic{}, false
		for i := range 2 {
			now := watch.Time(i+1) * watch.Second
			yes = reading.busy(now, []watch.Sample{{Time: now - c.late, Subject: c.of, Quantity: watch.LinkDropped, Value: float64(i)}})
		}
		if yes != c.want {
			t.Errorf("%s that drops something: %v", name, yes)
		}
	}
}
