package load

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// recordBytes is the size of one article in the store: its lines end in '\n',
// the first is the title, the second the author, the rest are paragraphs.
const recordBytes = 1024

// The shape of an article's text.
const (
	titleBytes  = 48
	authorBytes = 24
	paragraphs  = 4
	related     = 8 // other articles that are named below each
)

// store is the working set: articles of equal size in one string, so that the
// garbage collector sees a single object without pointers, however large.
type store struct{ text string }

// newStore fills a store of at least one article and about size bytes with
// words. The same seed gives the same store.
func newStore(size int64, seed uint64) store {
	random := rand.New(rand.NewPCG(seed, 0x73746f7265)) // "store"
	records := int(max(size/recordBytes, 1))
	text := make([]byte, 0, records*recordBytes)
	for range records {
		end := len(text) + recordBytes
		text = appendLine(text, titleBytes, random)
		text = appendLine(text, authorBytes, random)
		for i := range paragraphs {
			text = appendLine(text, (end-len(text))/(paragraphs-i), random)
		}
	}
	return store{unsafe.String(&text[0], len(text))} // text is not written again
}

// mapped is the same store in a file without a name, as long as the process lives.
func (s store) mapped(name string) (mapped store, err error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return store{}, fmt.Errorf("article store: %w", err)
	}
	defer file.Close()
	if err := os.Remove(name); err != nil {
		return store{}, fmt.Errorf("article store: %w", err)
	}
	if _, err := file.WriteString(s.text); err != nil {
		return store{}, fmt.Errorf("article store: %w", err)
	}
	if err := file.Sync(); err != nil { // clean pages can be reclaimed
		return store{}, fmt.Errorf("article store: %w", err)
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, len(s.text), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return store{}, fmt.Errorf("map article store: %w", err)
	}
	if err := unix.Madvise(memory, unix.MADV_RANDOM); err != nil { // one page at a time
		return store{}, fmt.Errorf("map article store: %w", err)
	}
	return store{unsafe.String(&memory[0], len(memory))}, nil
}

// appendLine adds size bytes: words and '\n'.
func appendLine(text []byte, size int, random *rand.Rand) []byte {
	const words = "harbour quay mooring tide ballast mast rigging keel draught beacon anchor pilot hawser capstan fairway lighter "
	end := len(text) + size - 1
	for len(text) < end {
		from := random.IntN(len(words))
		text = append(text, words[from:min(len(words), from+end-len(text))]...)
	}
	return append(text, '\n')
}

// articles is how many articles the store holds.
func (s store) articles() int { return len(s.text) / recordBytes }

// article is what the template renders. Its strings point into the store.
type article struct {
	ID         int
	Title      string
	Author     string
	Paragraphs [paragraphs]string
	Related    [related]string // titles
}

// draw fills a with any article, all being equally likely, and the titles of
// others: reads all over the store, as a cache of real objects has them.
func (s store) draw(random *rand.Rand, a *article) {
	a.ID = random.IntN(s.articles())
	rest := s.record(a.ID)
	a.Title, rest, _ = strings.Cut(rest, "\n")
	a.Author, rest, _ = strings.Cut(rest, "\n")
	for i := range a.Paragraphs {
		a.Paragraphs[i], rest, _ = strings.Cut(rest, "\n")
	}
	for i := range a.Related {
		a.Related[i], _, _ = strings.Cut(s.record(random.IntN(s.articles())), "\n")
	}
}

// record is the text of article id.
func (s store) record(id int) string { return s.text[id*recordBytes : (id+1)*recordBytes] }
