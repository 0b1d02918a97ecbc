package resctrl

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// part is a partition in the course of dividing a cache.
type part struct {
	name, field string
	allocation  byDomain
	exclusive   bool
	share       share
	need        int    // ways
	mask        uint64 // the result
}

// taken are the ways of a cache that other programs' groups share with nobody.
func (t *Tree) taken(r *Resource, id int) (ways uint64) {
	for i := range t.Groups {
		g := &t.Groups[i]
		if g.Own() || g.Mode != modeExclusive && g.Mode != modePseudoLocked {
			continue
		}
		ways |= g.Schemata.filled(r.Level(), id)
	}
	return ways
}

// partition divides one cache, but for the ways that are taken, among the partitions.
func partition(t *Tree, r *Resource, id int, taken uint64, kind string, parts []part) error {
	fixed := taken
	total, relative := 0, 0
	for i := range parts {
		p := &parts[i]
		var err error
		if p.share, err = shareOf(&p.allocation, id, kind); err != nil {
			return &FitError{p.field, err.Error()}
		}
		p.need = 0
		switch s := p.share; {
		case !s.given:
			p.mask = largest(r.Mask&^taken, r.Sparse)
		case s.mask != 0:
			if p.mask = s.mask; s.mask&^r.Mask != 0 {
				return &FitError{p.field, fmt.Sprintf("mask %x has more than the %d ways of cache id %d: at most %x fits", s.mask, r.Ways(), id, r.Mask)}
			}
			if both := s.mask & fixed; both != 0 {
				return &FitError{p.field, fmt.Sprintf("cache id %d: ways %s are another's already (%s)", id, waysText(both), owners(parts[:i], t, r, id, both))}
			}
			if err := legal(r, s.mask); err != nil {
				return &FitError{p.field, fmt.Sprintf("cache id %d: %v", id, err)}
			}
			fixed |= s.mask
		default:
			total += s.high
			relative++
		}
	}
	if relative == 0 {
		return nil
	}
	free := largest(r.Mask&^fixed, r.Sparse)
	if err := needs(r, id, free, total, parts); err != nil {
		return err
	}
	return lay(r, id, free, parts)
}

// needs says how many ways each partition of a percentage or number has.
func needs(r *Resource, id int, free uint64, total int, parts []part) error {
	n, used := bits.OnesCount64(free), 0
	var order []*part
	for i := range parts {
		p := &parts[i]
		switch s := p.share; {
		case !s.given || s.mask != 0:
		case s.ways > 0:
			if p.need = s.ways; s.ways < r.MinBits {
				return &FitError{p.field, fmt.Sprintf("%d ways are fewer than the %d that a mask must have here", s.ways, r.MinBits)}
			}
			used += s.ways
		default:
			order = append(order, p)
		}
	}
	if total > 100 {
		return &FitError{"partitions", fmt.Sprintf("%s of cache id %d: the partitions ask for %d%% together: take %d%% away", r.Name, id, total, total-100)}
	}
	slices.SortStableFunc(order, func(a, b *part) int { return cmp.Compare(a.share.high, b.share.high) })
	left := n - used
	want := left * total / 100
	for i, p := range order {
		p.need = max(left*p.share.high/100, r.MinBits)
		if rest := want - sumOf(order[:i]); i == len(order)-1 && i > 0 {
			p.need = max(rest, r.MinBits)
		}
		used += p.need
	}
	if used > n {
		return &FitError{"partitions", fmt.Sprintf("%s of cache id %d: the partitions need %d ways, each at least %d, and %d are free: join partitions, or give some fewer ways", r.Name, id, used, r.MinBits, n)}
	}
	return nil
}

func sumOf(parts []*part) (n int) {
	for _, p := range parts {
		n += p.need
	}
	return n
}

// lay gives each partition its ways, from the lowest on, by name. One with an exclusive
// class gets ways that devices do not fill, and so comes first if they are the highest, as
// they are on all known CPUs.
func lay(r *Resource, id int, free uint64, parts []part) error {
	devices := r.Filled(id)
	for _, exclusive := range []bool{true, false} {
		for i := range parts {
			p := &parts[i]
			if p.need == 0 || p.exclusive != exclusive && devices != 0 || !exclusive && devices == 0 {
				continue
			}
			from := free
			if p.exclusive {
				from = largest(free&^devices, r.Sparse)
			}
			if p.mask = lowest(from, p.need); bits.OnesCount64(p.mask) < p.need || !r.Sparse && !contiguous(p.mask) {
				return &FitError{p.field, fmt.Sprintf("%d ways in a row of %s, cache id %d: %d are free%s: give it fewer, or masks to all", p.need, r.Name, id, bits.OnesCount64(from),
					map[bool]string{true: " that no device fills"}[p.exclusive])}
			}
			free &^= p.mask
		}
	}
	return nil
}

// within is the mask of a class in its partition's. Percentages are of the partition's ways;
// p% is 0-p%. A mask that does not fit the partition is taken as numbers from its lowest way on.
func within(r *Resource, mask uint64, s share) (uint64, error) {
	n := bits.OnesCount64(mask)
	if n == 0 {
		return 0, errors.New("the partition has no ways")
	}
	switch {
	case !s.given:
		return mask, legal(r, mask)
	case s.mask != 0:
		if s.mask&^mask != 0 {
			s.mask <<= bits.TrailingZeros64(mask)
		}
		if s.mask&^mask != 0 {
			return 0, fmt.Errorf("mask %x is not within the %d ways of its partition, %x", s.mask, n, mask)
		}
		return s.mask, legal(r, s.mask)
	case s.ways > 0:
		if s.ways > n || s.ways < r.MinBits {
			return 0, fmt.Errorf("%d ways: its partition has %d, and a mask has at least %d", s.ways, n, r.MinBits)
		}
		return lowest(mask, s.ways), nil
	}
	low, high := 0, (s.high-1)*n/100
	if s.low > 0 {
		low = (s.low - 1) * n / 100
	}
	if least := r.MinBits; high-low+1 < least {
		if least > n {
			return 0, fmt.Errorf("its partition has %d ways, and a mask has at least %d", n, least)
		}
		high = low + least - 1
		if high >= n {
			low, high = n-least, n-1
		}
	}
	return lowest(mask, high+1) &^ lowest(mask, low), nil
}

// legal says why the kernel refuses a mask.
func legal(r *Resource, mask uint64) error {
	switch {
	case bits.OnesCount64(mask) < r.MinBits:
		return fmt.Errorf("mask %x has fewer than %d ways", mask, r.MinBits)
	case !r.Sparse && !contiguous(mask):
		return fmt.Errorf("mask %x has gaps, which this cache does not take (sparse_masks)", mask)
	}
	return nil
}

// contiguous reports whether a mask has no gaps.
func contiguous(mask uint64) bool {
	return mask != 0 && bits.OnesCount64(mask) == bits.Len64(mask)-bits.TrailingZeros64(mask)
}

// lowest are the n lowest ways of a mask.
func lowest(mask uint64, n int) (low uint64) {
	for ; n > 0 && mask != 0; n-- {
		low |= mask & -mask
		mask &= mask - 1
	}
	return low
}

// largest is the longest run of ways in a mask, the lowest of several; all of it where masks
// may have gaps.
func largest(mask uint64, sparse bool) (best uint64) {
	if sparse {
		return mask
	}
	for mask != 0 {
		start := bits.TrailingZeros64(mask)
		n := bits.TrailingZeros64(^(mask >> start))
		run := (uint64(1)<<n - 1) << start
		if n == 64 {
			run = mask
		}
		if n > bits.OnesCount64(best) {
			best = run
		}
		mask &^= run
	}
	return best
}

// owners names who has ways.
func owners(parts []part, t *Tree, r *Resource, id int, ways uint64) string {
	var names []string
	for i := range parts {
		if parts[i].share.given && parts[i].mask&ways != 0 {
			names = append(names, "partition "+parts[i].name)
		}
	}
	for i := range t.Groups {
		g := &t.Groups[i]
		if !g.Own() && g.Mode == modeExclusive && g.Schemata.filled(r.Level(), id)&ways != 0 {
			names = append(names, "group "+g.Name+" of another program")
		}
	}
	return strings.Join(names, ", ")
}

// waysText writes ways by their numbers: "0-3,5".
func waysText(mask uint64) string {
	var b strings.Builder
	for mask != 0 {
		start := bits.TrailingZeros64(mask)
		n := bits.TrailingZeros64(^(mask >> start))
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		if fmt.Fprint(&b, start); n > 1 {
			fmt.Fprintf(&b, "-%d", start+n-1)
		}
		if n == 64 {
			break
		}
		mask &^= (uint64(1)<<n - 1) << start
	}
	return b.String()
}
