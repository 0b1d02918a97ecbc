package cgroupstat

import (
	"errors"
	"slices"
	"strings"

	"berth.dev/berth/watch"
)

// refresh is how many rounds go by until what is repeated is read again.
const refresh = 16

// Sampler reads many groups, each of one of some tiers, in the order of their names.
// It is for one goroutine at a time.
//
// What most groups tell changes only while they use CPU time. A file that was read
// since the group last used some is not read again, but its samples are repeated; it
// is read all the same every 16th round, a part of the groups in each, as other groups
// may have had the kernel take memory away.
type Sampler struct {
	trees   []Tree
	tiers   [][]Signal
	readers []*Reader
	tier    []int // of readers
	sink    sink
	now     watch.Time
	round   int
	all     int // rounds in which all groups were read
}

// Request says what is read of the groups of a tier.
type Request struct {
	// Read are the signals of which there is to be a sample.
	Read Set
	// Fresh are those of them that are read even if the group has used no CPU time.
	Fresh Set
	// Still are those that are repeated whatever the group did, if they were read or
	// repeated in the round before: the caller knows that nothing has changed since.
	Still Set
	// Quiet are those that are repeated once, and no more until they are read again: the
	// caller keeps what was told last.
	Quiet Set
}

// NewSampler returns a Sampler without groups in the given trees. For each tier it
// takes the signals whose files stay open while a group is in it; all others are
// opened when they are read.
func NewSampler(trees []Tree, tiers ...[]Signal) *Sampler {
	return &Sampler{trees: trees, tiers: tiers}
}

// Failure is a group that could not be read.
type Failure struct {
	Group string
	Err   error
}

// Add opens a group in a tier, or moves it there. If no tree has it, it is
// watch.ErrGone.
func (s *Sampler) Add(group string, tier int) error {
	i, found := s.search(group)
	if found {
		s.tier[i] = tier
		return s.readers[i].keep(s.tiers[tier])
	}
	r, err := open(s.trees, group, s.tiers[tier])
	if err != nil {
		return err
	}
	r.sink = &s.sink
	s.readers = slices.Insert(s.readers, i, r)
	s.tier = slices.Insert(s.tier, i, tier)
	return nil
}

// Remove closes a group; a group that is not there is no error.
func (s *Sampler) Remove(group string) error {
	i, found := s.search(group)
	if !found {
		return nil
	}
	r := s.readers[i]
	s.readers = slices.Delete(s.readers, i, i+1)
	s.tier = slices.Delete(s.tier, i, i+1)
	return r.Close()
}

func (s *Sampler) search(group string) (int, bool) {
	return slices.BinarySearchFunc(s.readers, group, func(r *Reader, group string) int {
		return strings.Compare(r.subject.Name, group)
	})
}

// Sample appends the samples of all groups, by the request for their tier, stamped with
// now. Calls with the same now are one round, in which a file is read once. A group that fails does not keep the others from being read; one that is gone is
// removed too.
func (s *Sampler) Sample(now watch.Time, to []watch.Sample, tiers ...Request) ([]watch.Sample, []Failure) {
	var failed []Failure
	if s.begin(now) {
		s.all++
	}
	for i, r := range s.readers {
		q := tiers[s.tier[i]]
		if q.Read == 0 {
			continue
		}
		var err error
		if to, err = r.read(now, q, turn{s.round, (s.all+i)%refresh == 0}, to); err != nil {
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

// SampleGroup appends the samples of one group; watch.ErrGone is for one that is not
// among those that are read, too.
func (s *Sampler) SampleGroup(now watch.Time, group string, q Request, to []watch.Sample) ([]watch.Sample, error) {
	i, found := s.search(group)
	if !found {
		return to, watch.ErrGone
	}
	s.begin(now)
	return s.readers[i].read(now, q, turn{round: s.round}, to)
}

// begin begins a round, unless it has begun.
func (s *Sampler) begin(now watch.Time) bool {
	if s.round > 0 && now == s.now {
		return false
	}
	s.now = now
	s.round++
	return true
}

// Reads returns how many files of the groups that are read now were read so far.
func (s *Sampler) Reads() (n int) {
	for _, r := range s.readers {
		n += r.reads
	}
	return n
}

// Open returns how many files are open.
func (s *Sampler) Open() (n int) {
	for _, r := range s.readers {
		for i := range r.files {
			if r.files[i].open {
				n++
			}
		}
	}
	return n
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
	s.readers, s.tier = nil, nil
	return errors.Join(errs...)
}
