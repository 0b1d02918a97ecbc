package place

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/machine"
)

// Policy answers requests. It keeps nothing between calls: all it needs to know
// is in the State. The same state and request always give the same offer.
type Policy interface {
	// Name is the policy's name, as in "berth".
	Name() string
	// Place offers a grant for a workload that holds nothing yet. Errors are of
	// the types of this package. A refused request that asks for an explanation
	// gets the decisions so far (State.Answer), with why each candidate cannot hold it.
	Place(s *State, r *Request) (Offer, error)
}

// Starter is a Policy that wants something held on an empty machine, such as
// pools that exist before their members.
type Starter interface {
	Start(s *State) (Offer, error)
}

// Resizer is a Policy that can change a held grant in place: grow next to the held
// CPUs, shrink without moving. s is the state without the workload, old its grant.
type Resizer interface {
	Resize(s *State, r *Request, old *Grant) (Offer, error)
}

// Releaser is a Policy for which giving back changes pools, besides the one grant.
type Releaser interface {
	Release(s *State, g *Grant) (Offer, error)
}

// Saved is the part of a State that is stored over a restart.
type Saved struct {
	Grants []*Grant `json:"grants"`
	Pools  []Pool   `json:"pools,omitempty"`
}

// Start returns the state of an empty machine under p.
func Start(p Policy, t *Topology, c Config) (*State, error) {
	s, err := New(t, c)
	if err != nil {
		return nil, err
	}
	starter, ok := p.(Starter)
	if !ok {
		return s, nil
	}
	o, err := starter.Start(s)
	if err != nil {
		return nil, err
	}
	return s.Commit(o)
}

// Place checks the request and asks p for an offer. With an error, Offer.Why is
// all that is set, and only if r.Explain.
func Place(p Policy, s *State, r *Request) (Offer, error) {
	if err := s.mayPlace(r); err != nil {
		return Offer{}, err
	}
	o, err := p.Place(s, r)
	return s.answer(o, r, err)
}

func (s *State) mayPlace(r *Request) error {
	if _, held := s.Grant(r.ID); held {
		return &HeldError{r.ID}
	}
	return r.Validate()
}

// Resize asks p to change a held grant in place. A policy that cannot refuses
// with a *RejectedError. Offer.Why is as of Place.
func Resize(p Policy, s *State, r *Request) (Offer, error) {
	if err := r.Validate(); err != nil {
		return Offer{}, err
	}
	old, held := s.Grant(r.ID)
	if !held {
		return Offer{}, &NotHeldError{r.ID}
	}
	resizer, ok := p.(Resizer)
	if !ok {
		return Offer{}, &RejectedError{ID: r.ID, Reason: "policy " + p.Name() + " cannot resize in place"}
	}
	without, err := s.Release(r.ID)
	if err != nil {
		return Offer{}, err
	}
	o, err := resizer.Resize(without, r, old)
	o.base = s
	return s.answer(o, r, err)
}

// Answer returns the offer of a grant, or the error with the grant's explanation.
func (s *State) Answer(g *Grant, err error) (Offer, error) {
	if err != nil {
		return Offer{Why: g.Why}, err
	}
	return Offer{Grant: g, base: s}, nil
}

// answer completes the explanation of a refusal: it explains memory and devices,
// which all policies ask the state for.
func (s *State) answer(o Offer, r *Request, err error) (Offer, error) {
	if err == nil || !r.Explain {
		return o, err
	}
	why := o.Why
	if why == nil {
		why = NewWhy(r)
	}
	var memory *MemoryError
	var device *DeviceError
	switch {
	case errors.As(err, &memory):
		why.Nodes(s.t, memory.Resource, func(pos int) string {
			free, total, ok := s.FreeBytes(s.t.units[machine.Node][pos].ID, memory.Resource)
			if !ok {
				return "has none"
			}
			return fmt.Sprintf("%d of %d bytes free", free, total)
		})
	case errors.As(err, &device):
		s.explainDevices(why, r)
	}
	return Offer{Why: why}, err
}

// Release asks p for the offer that releases a workload.
func Release(p Policy, s *State, id string) (Offer, error) {
	g, held := s.Grant(id)
	if !held {
		return Offer{}, &NotHeldError{id}
	}
	if releaser, ok := p.(Releaser); ok {
		o, err := releaser.Release(s, g)
		o.Drop = []string{id}
		return o, err
	}
	return Offer{Drop: []string{id}, base: s}, nil
}

// Save returns all grants and pools, for Reinstate.
func (s *State) Save() Saved {
	saved := Saved{Grants: slices.Collect(s.grants.all())}
	for p := range s.Pools() {
		saved.Pools = append(saved.Pools, *p)
	}
	return saved
}

// Reinstate commits saved pools and grants as they are, in any order, on a fresh
// State of New. It leaves out those that no longer fit, because the machine or the
// configuration changed, and reports them as joined errors. The state is valid
// nevertheless, and the caller may place those workloads anew.
func (s *State) Reinstate(saved Saved) (*State, error) {
	var errs []error
	try := func(o Offer) {
		next, err := s.Commit(o)
		if err != nil {
			errs = append(errs, err)
			return
		}
		s = next
	}
	for _, p := range saved.Pools {
		o := s.Offer()
		o.Pools = []Pool{p}
		try(o)
	}
	order := slices.DeleteFunc(slices.Clone(saved.Grants), func(g *Grant) bool { return g == nil })
	slices.SortStableFunc(order, func(a, b *Grant) int { return strings.Compare(a.ID, b.ID) })
	for _, g := range order {
		if _, held := s.Grant(g.ID); held {
			errs = append(errs, &HeldError{g.ID})
			continue
		}
		o := s.Offer()
		o.Grant = g
		try(o)
	}
	return s, errors.Join(errs...)
}
