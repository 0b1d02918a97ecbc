package noise

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestSumLines(t *testing.T) {
	t.Parallel()
	words := make([]uint64, chunkWords)
	var want uint64
	for i := range words {
		words[i] = 1 << 40 // words within a line are not read
		if i%lineWords == 0 {
			words[i] = uint64(i)
			want += uint64(i)
		}
	}
	if got := sumLines(words); got != want {
		t.Errorf("sumLines = %d, want %d", got, want)
	}
}

func TestStoreLines(t *testing.T) {
	t.Parallel()
	words := make([]uint64, chunkWords)
	storeLines(words, 7)
	for i, w := range words {
		if w != 7 {
			t.Fatalf("word %d is %d", i, w)
		}
	}
}

func TestFourRows(t *testing.T) {
	t.Parallel()
	var m [4 * activations]float64
	var x [activations]float64
	var want float64
	for i := range m {
		m[i] = float64(i % 97)
		x[i%activations] = float64(i % activations % 13)
	}
	for i := range m {
		want += m[i] * x[i%activations]
	}
	if got := fourRows(&m, &x); got != want { // whole numbers: exact in any order
		t.Errorf("fourRows = %g, want %g", got, want)
	}
}

func TestStreamCoversItsWorkingSet(t *testing.T) {
	t.Parallel()
	w := &write{}
	var err error
	if w.stream, err = newStream(minBytes, 1); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.close() }()
	for round := uint64(1); round <= 2; round++ {
		var bytes uint64
		for bytes < minBytes {
			n, err := w.step()
			if err != nil {
				t.Fatal(err)
			}
			bytes += n
		}
		for i, word := range w.words {
			if word != round {
				t.Fatalf("round %d: word %d is %d", round, i, word)
			}
		}
	}
}

func TestMapWords(t *testing.T) {
	t.Parallel()
	words, err := mapWords(minBytes, unix.MADV_HUGEPAGE, 5)
	if err != nil {
		t.Fatal(err)
	}
	if len(words)*8 != minBytes {
		t.Errorf("%d words", len(words))
	}
	seen := map[uint64]bool{}
	for i := 0; i < len(words); i += pageBytes / 8 {
		seen[words[i]] = true
	}
	if len(seen) != minBytes/pageBytes {
		t.Errorf("%d different pages of %d", len(seen), minBytes/pageBytes)
	}
	if err := unmapWords(words); err != nil {
		t.Error(err)
	}
	if _, err := mapWords(1<<60, unix.MADV_HUGEPAGE, 1); err == nil {
		t.Error("an exbibyte was mapped")
	}
}

// Loads go to the first word of lines in both halves of the working set.
func TestRandomCoversItsWorkingSet(t *testing.T) {
	t.Parallel()
	const words = 256 * lineWords
	r := &random{words: make([]uint64, words), state: 1}
	want := uint64(0)
	for line := 0; line < words; line += lineWords {
		r.words[line] = 1
		for i := 1; i < lineWords; i++ {
			r.words[line+i] = 1 << 40
		}
	}
	for range 8 {
		n, err := r.step()
		if err != nil {
			t.Fatal(err)
		}
		want += n
	}
	if r.sum != want {
		t.Errorf("%d loads summed to %d: some were not of a line's first word", want, r.sum)
	}
	for _, half := range [][]uint64{r.words[:words/2], r.words[words/2:]} {
		before := r.sum
		clear(r.words)
		for line := 0; line < len(half); line += lineWords {
			half[line] = 1
		}
		if _, err := r.step(); err != nil {
			t.Fatal(err)
		}
		if hits := r.sum - before; hits < chunkLoads/4 || hits > chunkLoads*3/4 {
			t.Errorf("%d of %d loads went to one half", hits, chunkLoads)
		}
	}
}
