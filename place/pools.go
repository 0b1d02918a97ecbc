package place

import "iter"

// Load is what those who share some CPUs take.
type Load struct {
	Grants int
	Milli  int // CPU time, in thousandths of a CPU
}

// PoolLoads yields the named pools by name, with what their members take. Do not
// change them.
func (s *State) PoolLoads() iter.Seq2[*Pool, Load] {
	return func(yield func(*Pool, Load) bool) {
		for _, b := range s.pools {
			if !yield(&b.Pool, Load{b.n, b.milli}) {
				return
			}
		}
	}
}
