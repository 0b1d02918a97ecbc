package place

import (
	"iter"
	"sort"
	"strings"
)

// chunkLen bounds how many grants one change copies.
const chunkLen = 32

// table is a persistent table of grants, ordered by id, or by group and id: a
// change copies one chunk and the spine, older tables stay as they were.
type table struct {
	grouped bool
	chunks  []*chunk
	n       int
}

// chunk is a run of grants, never empty.
type chunk struct {
	n    int
	room [chunkLen]*Grant
}

func (c *chunk) grants() []*Grant { return c.room[:c.n] }

type key struct{ group, id string }

func (l *table) key(g *Grant) key {
	if l.grouped {
		return key{g.Request.Group, g.ID}
	}
	return key{id: g.ID}
}

// compare orders a grant against a key, in the order of the table.
func (l *table) compare(g *Grant, k *key) int {
	if l.grouped {
		if order := strings.Compare(g.Request.Group, k.group); order != 0 {
			return order
		}
	}
	return strings.Compare(g.ID, k.id)
}

// find returns the chunk where k is or belongs, its place there, and whether it
// is there.
func (l *table) find(k key) (pos, at int, ok bool) {
	pos = sort.Search(len(l.chunks), func(i int) bool { return l.compare(l.chunks[i].room[0], &k) > 0 }) - 1
	if pos < 0 {
		return 0, 0, false
	}
	c := l.chunks[pos]
	at = sort.Search(c.n, func(i int) bool { return l.compare(c.room[i], &k) >= 0 })
	return pos, at, at < c.n && l.compare(c.room[at], &k) == 0
}

func (l *table) get(id string) *Grant {
	if pos, at, ok := l.find(key{id: id}); ok {
		return l.chunks[pos].room[at]
	}
	return nil
}

// group yields the grants of a group; l is grouped.
func (l *table) group(name string) iter.Seq[*Grant] {
	return func(yield func(*Grant) bool) {
		pos, at, _ := l.find(key{group: name})
		for ; pos < len(l.chunks); pos++ {
			for _, g := range l.chunks[pos].grants()[at:] {
				if g.Request.Group != name || !yield(g) {
					return
				}
			}
			at = 0
		}
	}
}

// with returns l with g in it, in place of a grant of the same id.
func (l *table) with(g *Grant) table {
	if len(l.chunks) == 0 {
		return table{l.grouped, []*chunk{{1, [chunkLen]*Grant{g}}}, 1}
	}
	pos, at, ok := l.find(l.key(g))
	fresh := *l.chunks[pos]
	if ok {
		fresh.room[at] = g
		return table{l.grouped, l.replace(pos, &fresh), l.n}
	}
	if fresh.n < chunkLen {
		fresh.insert(at, g)
		return table{l.grouped, l.replace(pos, &fresh), l.n + 1}
	}
	var second chunk
	second.n = copy(second.room[:], fresh.room[chunkLen/2:])
	fresh.n = chunkLen / 2
	clear(fresh.room[fresh.n:])
	if at <= fresh.n {
		fresh.insert(at, g)
	} else {
		second.insert(at-fresh.n, g)
	}
	return table{l.grouped, l.replace(pos, &fresh, &second), l.n + 1}
}

func (c *chunk) insert(at int, g *Grant) {
	copy(c.room[at+1:], c.room[at:c.n])
	c.room[at] = g
	c.n++
}

// without returns l without g.
func (l *table) without(g *Grant) table {
	pos, at, ok := l.find(l.key(g))
	if !ok {
		return *l
	}
	fresh := *l.chunks[pos]
	if fresh.n--; fresh.n == 0 {
		return table{l.grouped, l.replace(pos), l.n - 1}
	}
	copy(fresh.room[at:], fresh.room[at+1:])
	fresh.room[fresh.n] = nil
	return table{l.grouped, l.replace(pos, &fresh), l.n - 1}
}

func (l *table) replace(pos int, by ...*chunk) []*chunk {
	spine := make([]*chunk, 0, len(l.chunks)+1)
	spine = append(append(spine, l.chunks[:pos]...), by...)
	return append(spine, l.chunks[pos+1:]...)
}

func (l *table) all() iter.Seq[*Grant] {
	return func(yield func(*Grant) bool) {
		for _, c := range l.chunks {
			for _, g := range c.grants() {
				if !yield(g) {
					return
				}
			}
		}
	}
}
