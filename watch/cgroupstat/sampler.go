package cgroupstat

import (
	"errors"
	"slices"
	"strings"

	"berth.dev/berth/watch"
)

// Sampler reads many groups, in the order of their names. It is for one
// goroutine at a time. Costly signals are worth a Sampler of their own that is
// asked less often.
type Sampler struct {
	trees   []Tree
	want    []Signal
	readers []*Reader
	buf     []byte
}

// NewSampler returns a Sampler of the given signals, all if none is given, in the
// given trees, and without groups.
func NewSampler(trees []Tree, want ...Signal) *Sampler {
	return &Sampler{trees: trees, want: want}
}

// Failure is a group that could not be read.
type Failure struct {
	Group string
	Err   error
}

// Add opens a group. One that is there already is left as it is.
func (s *Sampler) Add(group string) error {
	i, found := s.search(group)
	if found {
		return nil
	}
	r, err := Open(s.trees, group, s.want...)
	if err != nil {
		return err
	}
	r.Use(&s.buf)
	s.readers = slices.Insert(s.readers, i, r)
	return nil
}

// Remove closes a group; it is no error if there is none.
func (s *Sampler) Remove(group string) error {
	i, found := s.search(group)
	if !found {
		return nil
	}
	r := s.readers[i]
	s.readers = slices.Delete(s.readers, i, i+1)
	return r.Close()
}

func (s *Sampler) search(group string) (int, bool) {
	return slices.BinarySearchFunc(s.readers, group, func(r *Reader, group string) int {
		return strings.Compare(r.subject.Name, group)
	})
}

// Sample appends the samples of all groups, stamped with now. A group that fails
// does not keep the others from being read; one that is gone is removed too.
func (s *Sampler) Sample(now watch.Time, to []watch.Sample) ([]watch.Sample, []Failure) {
	var failed []Failure
	for _, r := range s.readers {
		var err error
		if to, err = r.Read(now, to); err != nil {
			failed = append(failed, Failure{r.subject.Name, err})
		}
	}
	for _, f := range failed {
		if errors.Is(f.Err, watch.ErrGone) {
			s.Remove(f.Group)
		}
	}
	return to, failed
}

// Signals says of a group what Reader.Signals does; nil if it is not among those
// that are read.
func (s *Sampler) Signals(group string) []Status {
	i, found := s.search(group)
	if !found {
		return nil
	}
	return s.readers[i].Signals()
}

// Close closes all groups.
func (s *Sampler) Close() error {
	var errs []error
	for _, r := range s.readers {
		errs = append(errs, r.Close())
	}
	s.readers = nil
	return errors.Join(errs...)
}
