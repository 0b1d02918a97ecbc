package plain

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestColumns(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	Columns(&b, [][]string{{"id", "CPUs", ""}, {"\x1b[31mµ\x1b[0m", "4", "x"}, {"long"}}, 1)
	want := "id    CPUs\n\x1b[31mµ\x1b[0m        4  x\nlong\n"
	if got := b.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text  string
		width int
		want  []string
	}{
		{"", 10, []string{""}},
		{"one two three", 7, []string{"one two", "three"}},
		{"µµµµ µµ", 7, []string{"µµµµ µµ"}},
		{"some 2 MiB.", 8, []string{"some", "2 MiB."}},
		{"incomprehensibilities is long", 8, []string{"incomprehensibilities", "is long"}},
	} {
		if got := Wrap(tt.text, tt.width); !slices.Equal(got, tt.want) {
			t.Errorf("Wrap(%q, %d) = %q, want %q", tt.text, tt.width, got, tt.want)
		}
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 64 << 20: "64 MiB", 8 << 30: "8 GiB", 5 << 50: "5120 TiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 cores", 1: "1 core", 2: "2 cores"} {
		if got := Count(n, "core"); got != want {
			t.Errorf("Count(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestSpark(t *testing.T) {
	t.Parallel()
	for want, values := range map[string][]float64{
		"":     nil,
		"▁▁":   {0, 0},
		"▁▅█":  {0, 1, 2},
		"█ ▃":  {4, math.NaN(), 1},
		"   ▁": {math.NaN(), math.NaN(), math.NaN(), 0},
	} {
		if got := Spark(values); got != want {
			t.Errorf("%v is %q, want %q", values, got, want)
		}
	}
}
