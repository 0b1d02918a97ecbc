package load

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStore(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		size     int64
		articles int
	}{
		{0, 1}, {1, 1}, {recordBytes, 1}, {2*recordBytes - 1, 1}, {2 * recordBytes, 2}, {1 << 20, 1024},
	} {
		s := newStore(test.size, 1)
		if s.articles() != test.articles || len(s.text) != test.articles*recordBytes {
			t.Errorf("store of %d bytes: %d articles in %d bytes, want %d", test.size, s.articles(), len(s.text), test.articles)
		}
		for id := range s.articles() {
			record := s.record(id)
			if lines := strings.Count(record, "\n"); lines != 2+paragraphs || !strings.HasSuffix(record, "\n") {
				t.Fatalf("article %d has %d lines: %q", id, lines, record)
			}
		}
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	const articles, draws = 16, 16_000
	s := newStore(articles*recordBytes, 1)
	random := rand.New(rand.NewPCG(1, 1))
	var a article
	seen := make([]int, articles)
	for range draws {
		s.draw(random, &a)
		seen[a.ID]++
		if want := strings.Split(s.record(a.ID), "\n"); a.Title != want[0] || a.Author != want[1] || a.Paragraphs[paragraphs-1] != want[1+paragraphs] {
			t.Fatalf("article %d read as %+v", a.ID, a)
		}
		for _, title := range a.Related {
			if len(title) != titleBytes-1 {
				t.Fatalf("title %q of %d bytes", title, len(title))
			}
		}
	}
	for id, n := range seen {
		if n < 800 || n > 1200 { // 1000 in the mean, standard deviation 31
			t.Errorf("article %d was drawn %d times of %d", id, n, draws)
		}
	}
}

func TestStoreSeed(t *testing.T) {
	t.Parallel()
	first, again, other := newStore(4096, 1), newStore(4096, 1), newStore(4096, 2)
	if first != again {
		t.Error("the same seed gives another store")
	}
	if first == other {
		t.Error("another seed gives the same store")
	}
}

func BenchmarkNewStore(b *testing.B) {
	for _, size := range []int64{1 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("%dMiB", size>>20), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				newStore(size, 1)
			}
		})
	}
}

// A store in a file has the same articles, and the file no name.
func TestMapped(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "articles")
	plain := newStore(100<<10, 3)
	mapped, err := plain.mapped(name)
	if err != nil {
		t.Fatal(err)
	}
	if mapped.text != plain.text {
		t.Error("the articles differ")
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := plain.mapped(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file of somebody else: %v", err)
	}
}
