package place

import (
	"cmp"
	"iter"
	"slices"
)

// chunkLen bounds what one change copies.
const chunkLen = 48

// ledger is a persistent table of grants, ordered by id: a change copies one
// chunk and the spine, older ledgers stay as they were.
type ledger struct {
	chunks [][]*Grant // none is empty
	n      int
}

// find returns the chunk where id is or belongs, its place there, and whether
// it is there.
func (l *ledger) find(id string) (chunk, at int, ok bool) {
	chunk, found := slices.BinarySearchFunc(l.chunks, id, func(c []*Grant, id string) int { return cmp.Compare(c[0].ID, id) })
	if found {
		return chunk, 0, true
	}
	if chunk > 0 {
		chunk--
	}
	if len(l.chunks) == 0 {
		return 0, 0, false
	}
	at, ok = slices.BinarySearchFunc(l.chunks[chunk], id, func(g *Grant, id string) int { return cmp.Compare(g.ID, id) })
	return chunk, at, ok
}

func (l *ledger) get(id string) *Grant {
	if chunk, at, ok := l.find(id); ok {
		return l.chunks[chunk][at]
	}
	return nil
}

// with returns l with g in it, in place of a grant of the same id.
func (l *ledger) with(g *Grant) ledger {
	if len(l.chunks) == 0 {
		return ledger{[][]*Grant{{g}}, 1}
	}
	chunk, at, ok := l.find(g.ID)
	old := l.chunks[chunk]
	if ok {
		fresh := slices.Clone(old)
		fresh[at] = g
		return ledger{l.replace(chunk, fresh), l.n}
	}
	fresh := make([]*Grant, 0, len(old)+1)
	fresh = append(append(append(fresh, old[:at]...), g), old[at:]...)
	if len(fresh) <= chunkLen {
		return ledger{l.replace(chunk, fresh), l.n + 1}
	}
	half := len(fresh) / 2
	return ledger{l.replace(chunk, fresh[:half:half], fresh[half:]), l.n + 1}
}

// without returns l without id.
func (l *ledger) without(id string) ledger {
	chunk, at, ok := l.find(id)
	if !ok {
		return *l
	}
	old := l.chunks[chunk]
	if len(old) == 1 {
		return ledger{l.replace(chunk), l.n - 1}
	}
	fresh := make([]*Grant, 0, len(old)-1)
	return ledger{l.replace(chunk, append(append(fresh, old[:at]...), old[at+1:]...)), l.n - 1}
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
