package observe

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
	"github.com/google/go-cmp/cmp"
)

func sample(at watch.Time, q watch.Quantity, v float64) watch.Sample {
	return watch.Sample{Time: at, Subject: watch.Subject{Scope: watch.Group, Name: "a"}, Quantity: q, Value: v}
}

func read(t *testing.T, text string) (Header, [][]watch.Sample, error) {
	t.Helper()
	h, all, err := ReadRecording(strings.NewReader(text))
	if err != nil {
		return h, nil, err
	}
	var batches [][]watch.Sample
	for tick, err := range all {
		if err != nil {
			return h, batches, err
		}
		batches = append(batches, tick)
	}
	return h, batches, nil
}

func TestRecordingRoundTrip(t *testing.T) {
	t.Parallel()
	m, err := machine.Short("1s2c")
	if err != nil {
		t.Fatal(err)
	}
	want := Header{
		Schema: Schema, Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Kernel: "6.1", Machine: m,
		Groups:  []Group{{Path: "a", Name: "api", CPUs: cpuset.MustParse("0-1")}, {Path: "b/c"}},
		Signals: []Signal{{Name: "usage", Of: "group", Available: true, CostSeconds: 1e-6}, {Name: "io", Of: "group", Reason: "none", Remedy: "mount it"}},
	}
	// A culprit that is new has a sample of the tick before.
	ticks := [][]watch.Sample{
		{sample(1, watch.CPUTime, 1), sample(1, watch.Tasks, 2)},
		{sample(2, watch.CPUTime, 3), sample(1, watch.QueuedIdle, 0), sample(2, watch.QueuedIdle, 1)},
	}
	for _, header := range []bool{true, false} {
		var b bytes.Buffer
		if header {
			if err := WriteHeader(&b, want); err != nil {
				t.Fatal(err)
			}
		} else {
			want = Header{}
		}
		for _, tick := range ticks {
			if err := watch.Write(&b, tick); err != nil {
				t.Fatal(err)
			}
		}
		got, batches, err := read(t, b.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(ticks, batches); diff != "" {
			t.Error(diff)
		}
	}
}

// A compressed recording is read like a plain one; one that is cut says so.
func TestReadCompressed(t *testing.T) {
	t.Parallel()
	plain := `{"schema":"` + Schema + `","kernel":"6.1"}` + "\n" + `{"time":1,"subject":{"scope":"host"},"quantity":"cpu_time","value":1}` + "\n"
	var b strings.Builder
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(plain)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	wantHeader, want, err := read(t, plain)
	if err != nil {
		t.Fatal(err)
	}
	h, got, err := read(t, b.String())
	if err != nil || h.Kernel != "6.1" || len(got) != 1 {
		t.Error(h, got, err)
	}
	if diff := cmp.Diff(wantHeader, h) + cmp.Diff(want, got); diff != "" {
		t.Errorf("plain (-) and compressed (+) differ:\n%s", diff)
	}
	for _, n := range []int{2, 12, b.Len() - 1} {
		if _, _, err := read(t, b.String()[:n]); err == nil {
			t.Errorf("cut to %d of %d bytes: no error", n, b.Len())
		}
	}
}

func TestReadRecordingRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":        "",
		"no JSON":        "time,value\n",
		"another schema": `{"schema":"berth.dev/recording/v9"}` + "\n",
		"cut header":     `{"schema":"berth.dev/rec`,
		"bad sample":     `{"schema":"` + Schema + `"}` + "\n{}\n",
		"bad first line": `{"time":1}` + "\n",
		"bad machine":    `{"schema":"` + Schema + `","machine":7}` + "\n",
		"bad CPUs":       `{"schema":"` + Schema + `","groups":[{"path":"a","cpus":"x"}]}` + "\n",
	} {
		if _, _, err := read(t, text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzReadRecording(f *testing.F) {
	f.Add(`{"schema":"` + Schema + `"}` + "\n" + `{"time":1,"subject":{"scope":"host"},"quantity":"cpu_time","value":1}` + "\n")
	f.Add("{}")
	f.Fuzz(func(t *testing.T, text string) {
		_, batches, err := read(t, text)
		for _, tick := range batches {
			if len(tick) == 0 {
				t.Error("an empty tick")
			}
		}
		_ = err
	})
}
