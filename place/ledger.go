package place

import (
	"iter"
	"slices"
	"strings"
)

// chunkLen bounds what one change copies.
const chunkLen = 32

// ledger is a persistent table of grants, ordered by id, or by group and id: a
// change copies one chunk and the spine, older ledgers stay as they were.
type ledger struct {
	grouped bool
	chunks  []*chunk
	n       int
}

// chunk is a run of grants, never empty.
type chunk []*Grant

type key struct{ group, id string }

func (l *ledger) key(g *Grant) key {
	if l.grouped {
		return key{g.Request.Group, g.ID}
	}
	return key{id: g.ID}
}

func (k key) compare(o key) int {
	if order := strings.Compare(k.group, o.group); order != 0 {
		return order
	}
	return strings.Compare(k.id, o.id)
}

// find returns the chunk where k is or belongs, its place there, and whether it
// is there.
func (l *ledger) find(k key) (pos, at int, ok bool) {
	if len(l.chunks) == 0 {
		return 0, 0, false
	}
	pos, found := slices.BinarySearchFunc(l.chunks, k, func(c *chunk, k key) int { return l.key((*c)[0]).compare(k) })
	if found {
		return pos, 0, true
	}
	pos = max(0, pos-1)
	at, ok = slices.BinarySearchFunc(*l.chunks[pos], k, func(g *Grant, k key) int { return l.key(g).compare(k) })
	return pos, at, ok
}

func (l *ledger) get(id string) *Grant {
	if pos, at, ok := l.find(key{id: id}); ok {
		return (*l.chunks[pos])[at]
	}
	return nil
}

// group yields the grants of a group; l is grouped.
func (l *ledger) group(name string) iter.Seq[*Grant] {
	return func(yield func(*Grant) bool) {
		pos, at, _ := l.find(key{group: name})
		for ; pos < len(l.chunks); pos++ {
			for _, g := range (*l.chunks[pos])[at:] {
				if g.Request.Group != name || !yield(g) {
					return
				}
			}
			at = 0
		}
	}
}

// with returns l with g in it, in place of a grant of the same id.
func (l *ledger) with(g *Grant) ledger {
	if len(l.chunks) == 0 {
		return ledger{l.grouped, []*chunk{{g}}, 1}
	}
	pos, at, ok := l.find(l.key(g))
	old := *l.chunks[pos]
	if ok {
		fresh := slices.Clone(old)
		fresh[at] = g
		return ledger{l.grouped, l.replace(pos, fresh), l.n}
	}
	fresh := make(chunk, 0, len(old)+1)
	fresh = append(append(append(fresh, old[:at]...), g), old[at:]...)
	if len(fresh) <= chunkLen {
		return ledger{l.grouped, l.replace(pos, fresh), l.n + 1}
	}
	half := len(fresh) / 2
	return ledger{l.grouped, l.replace(pos, fresh[:half:half], fresh[half:]), l.n + 1}
}

// without returns l without g.
func (l *ledger) without(g *Grant) ledger {
	pos, at, ok := l.find(l.key(g))
	if !ok {
		return *l
	}
	old := *l.chunks[pos]
	if len(old) == 1 {
		return ledger{l.grouped, l.replace(pos), l.n - 1}
	}
	fresh := make(chunk, 0, len(old)-1)
	return ledger{l.grouped, l.replace(pos, append(append(fresh, old[:at]...), old[at+1:]...)), l.n - 1}
}

func (l *ledger) replace(pos int, by ...chunk) []*chunk {
	spine := make([]*chunk, 0, len(l.chunks)+1)
	spine = append(spine, l.chunks[:pos]...)
	for i := range by {
		spine = append(spine, &by[i])
	}
	return append(spine, l.chunks[pos+1:]...)
}

func (l *ledger) all() iter.Seq[*Grant] {
	return func(yield func(*Grant) bool) {
		for _, c := range l.chunks {
			for _, g := range *c {
				if !yield(g) {
					return
				}
			}
		}
	}
}
