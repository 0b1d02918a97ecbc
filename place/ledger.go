package place

import (
	"cmp"
	"iter"
	"slices"
)

// chunkLen bounds what one change copies.
const chunkLen = 48

// ledger is a persistent table of grants, ordered by id, or by group and id: a
// change copies one chunk and the spine, older ledgers stay as they were.
type ledger struct {
	grouped bool
	chunks  [][]*Grant // none is empty
	n       int
}

type key struct{ group, id string }

func (l *ledger) key(g *Grant) key {
	if l.grouped {
		return key{g.Request.Group, g.ID}
	}
	return key{id: g.ID}
}

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.group, o.group), cmp.Compare(k.id, o.id))
}

// find returns the chunk where k is or belongs, its place there, and whether it
// is there.
func (l *ledger) find(k key) (chunk, at int, ok bool) {
	if len(l.chunks) == 0 {
		return 0, 0, false
	}
	chunk, found := slices.BinarySearchFunc(l.chunks, k, func(c []*Grant, k key) int { return l.key(c[0]).compare(k) })
	if found {
		return chunk, 0, true
	}
	chunk = max(0, chunk-1)
	at, ok = slices.BinarySearchFunc(l.chunks[chunk], k, func(g *Grant, k key) int { return l.key(g).compare(k) })
	return chunk, at, ok
}

func (l *ledger) get(id string) *Grant {
	if chunk, at, ok := l.find(key{id: id}); ok {
		return l.chunks[chunk][at]
	}
	return nil
}

// group yields the grants of a group; l is grouped.
func (l *ledger) group(name string) iter.Seq[*Grant] {
	return func(yield func(*Grant) bool) {
		chunk, at, _ := l.find(key{group: name})
		for ; chunk < len(l.chunks); chunk++ {
			for _, g := range l.chunks[chunk][at:] {
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
		return ledger{l.grouped, [][]*Grant{{g}}, 1}
	}
	chunk, at, ok := l.find(l.key(g))
	old := l.chunks[chunk]
	if ok {
		fresh := slices.Clone(old)
		fresh[at] = g
		return ledger{l.grouped, l.replace(chunk, fresh), l.n}
	}
	fresh := make([]*Grant, 0, len(old)+1)
	fresh = append(append(append(fresh, old[:at]...), g), old[at:]...)
	if len(fresh) <= chunkLen {
		return ledger{l.grouped, l.replace(chunk, fresh), l.n + 1}
	}
	half := len(fresh) / 2
	return ledger{l.grouped, l.replace(chunk, fresh[:half:half], fresh[half:]), l.n + 1}
}

// without returns l without g.
func (l *ledger) without(g *Grant) ledger {
	chunk, at, ok := l.find(l.key(g))
	if !ok {
		return *l
	}
	old := l.chunks[chunk]
	if len(old) == 1 {
		return ledger{l.grouped, l.replace(chunk), l.n - 1}
	}
	fresh := make([]*Grant, 0, len(old)-1)
	return ledger{l.grouped, l.replace(chunk, append(append(fresh, old[:at]...), old[at+1:]...)), l.n - 1}
}

func (l *ledger) replace(chunk int, by ...[]*Grant) [][]*Grant {
	spine := make([][]*Grant, 0, len(l.chunks)+1)
	spine = append(spine, l.chunks[:chunk]...)
	spine = append(spine, by...)
	return append(spine, l.chunks[chunk+1:]...)
}

func (l *ledger) all() iter.Seq[*Grant] {
	return func(yield func(*Grant) bool) {
		for _, c := range l.chunks {
			for _, g := range c {
				if !yield(g) {
					return
				}
			}
		}
	}
}
