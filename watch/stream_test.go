package watch

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func readAll(text string) ([]Sample, error) {
	var all []Sample
	for s, err := range Read(strings.NewReader(text)) {
		if err != nil {
			return all, err
		}
		all = append(all, s)
	}
	return all, nil
}

func TestStreamRoundTrip(t *testing.T) {
	t.Parallel()
	want := []Sample{
		{Time: 1, Quantity: Steal, Value: 0.25},
		{Time: 1, Subject: Subject{Scope: Group, Name: "a b/ü"}, Quantity: QueuedBy, Value: 3, By: "c"},
		{Time: 2, Subject: Subject{Scope: Group, Name: "a", Part: Part{Cache, 1}}, Quantity: LLCOccupancy, Value: 1e9},
	}
	var b bytes.Buffer
	if err := Write(&b, want); err != nil {
		t.Fatal(err)
	}
	got, err := readAll(b.String())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := Write(&b, []Sample{{Value: math.NaN()}}); err == nil {
		t.Error("NaN was written")
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	good := `{"time":1,"subject":{"scope":"host"},"quantity":"steal","value":1}` + "\n"
	for _, bad := range []string{
		"\n", "x", "{}", "null", "[]", good[:20],
		strings.Replace(good, "steal", "stale", 1),
		strings.Replace(good, "host", "guest", 1),
		strings.Replace(good, `"value"`, `"values"`, 1),
		strings.Replace(good, `"time":1,`, "", 1),
		strings.Replace(good, `"value":1`, `"value":null`, 1),
		strings.Replace(good, `"value":1`, `"value":1e999`, 1),
		strings.TrimSpace(good) + strings.TrimSpace(good),
		strings.Repeat(" ", MaxLine) + good,
	} {
		got, err := readAll(good + bad)
		if err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("after %.80q: error %v", bad, err)
		}
		if len(got) != 1 {
			t.Errorf("after %.80q: %d samples, want the one before it", bad, len(got))
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"time":1,"subject":{"scope":"host"},"quantity":"steal","value":1}`)
	f.Add(`{"time":1,"subject":{"scope":"group","name":"a"},"quantity":"queued_by","value":1,"by":"b"}` + "\n{")
	f.Fuzz(func(t *testing.T, text string) {
		first, _ := readAll(text)
		var b bytes.Buffer
		if err := Write(&b, first); err != nil {
			t.Fatal(err)
		}
		again, err := readAll(b.String())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Error(diff)
		}
	})
}
