package machine

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"berth.dev/berth/cpuset"
)

// ErrInconsistent is the error of Validate if a machine is well-formed but its domains
// contradict each other: a CPU in two nodes (numa=fake=), a
// core split between sockets. Sources hand out such machines as they are.
var ErrInconsistent = errors.New("the machine's domains contradict each other")

// Validate reports everything that is wrong with m, joined.
//
// First come the rules of form: CPUs are those online, domains are ordered
// and numbered as their types say, sizes are whole KiB, distances are square.
// A machine of good form may still contradict itself; that error is
// ErrInconsistent. The rules: no CPU is in two domains of a kind; where a
// source has sockets, dies, nodes or cores, each CPU is in one (a CPU may
// lack an L2 or L3); a core is not split between domains of a wider kind, nor
// a die between sockets.
func (m *Machine) Validate() error {
	v := &violations{}
	m.checkText(v)
	m.checkCPUs(v)
	m.checkDomains(v)
	m.checkDistances(v)
	if len(v.errs) > 0 {
		return errors.Join(v.errs...)
	}
	m.checkPartition(v)
	m.checkContainment(v)
	if len(v.errs) > 0 {
		return &inconsistentError{v.errs}
	}
	return nil
}

type violations struct{ errs []error }

func (v *violations) addf(format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf(format, args...))
}

type inconsistentError struct{ errs []error }

func (e *inconsistentError) Error() string        { return errors.Join(e.errs...).Error() }
func (e *inconsistentError) Is(target error) bool { return target == ErrInconsistent }
func (e *inconsistentError) Unwrap() []error      { return e.errs }

func (m *Machine) checkText(v *violations) {
	for _, f := range []struct{ name, text string }{{"name", m.Name}, {"model", m.Model}, {"smt", m.SMT}} {
		if !utf8.ValidString(f.text) || strings.TrimSpace(f.text) != f.text || strings.ContainsAny(f.text, "\n\r\x00") {
			v.addf("%s %q: not one trimmed line of text", f.name, f.text)
		}
	}
}

func (m *Machine) checkCPUs(v *violations) {
	if m.Online.IsEmpty() {
		v.addf("online: no CPU")
	}
	if both := m.Online.Intersect(m.Offline); !both.IsEmpty() {
		v.addf("CPUs %s: online and offline", both)
	}
	if foreign := m.Isolated.Minus(m.Online.Union(m.Offline)); !foreign.IsEmpty() {
		v.addf("isolated CPUs %s: neither online nor offline", foreign)
	}
	var described cpuset.Set
	last := -1
	for _, c := range m.CPUs {
		next, err := described.With(c.ID)
		switch {
		case err != nil:
			v.addf("cpu %d: %w", c.ID, err)
		case c.ID <= last:
			v.addf("cpu %d: described after cpu %d", c.ID, last)
		}
		described, last = next, c.ID
		if c.Capacity < 0 || c.BaseKHz < 0 || c.MaxKHz < 0 {
			v.addf("cpu %d: negative capacity or frequency", c.ID)
		}
		if c.Kind != "" && c.Kind != KindP && c.Kind != KindE && c.Kind != KindLP {
			v.addf("cpu %d: kind %q is none of %s, %s, %s", c.ID, c.Kind, KindP, KindE, KindLP)
		}
	}
	if described != m.Online {
		v.addf("described CPUs %s: not those online, %s", described, m.Online)
	}
}

func (m *Machine) checkDomains(v *violations) {
	for i := range m.Domains {
		d := &m.Domains[i]
		if !d.Kind.Known() {
			v.addf("%s: no such kind of domain", d.Kind)
			continue
		}
		if i > 0 {
			checkOrder(v, &m.Domains[i-1], d)
		}
		if i == 0 || m.Domains[i-1].Kind != d.Kind {
			if d.Kind != Node && d.ID != 0 {
				v.addf("%s: the first is not number 0", d)
			}
		}
		m.checkDomain(v, d)
	}
}

func checkOrder(v *violations, prev, d *Domain) {
	switch {
	case d.Kind < prev.Kind, d.Kind == prev.Kind && d.ID <= prev.ID:
		v.addf("%s: listed after %s", d, prev)
	case d.Kind != prev.Kind || d.Kind == Node:
	case d.ID != prev.ID+1:
		v.addf("%s: follows %s with a gap", d, prev)
	default:
		a, _ := prev.CPUs.First()
		if b, _ := d.CPUs.First(); b < a {
			v.addf("%s: not numbered by the lowest CPU", d)
		}
	}
}

func (m *Machine) checkDomain(v *violations, d *Domain) {
	if foreign := d.CPUs.Minus(m.Online); !foreign.IsEmpty() {
		v.addf("%s: CPUs %s are not online", d, foreign)
	}
	if d.CPUs.IsEmpty() && d.Kind != Node {
		v.addf("%s: no CPUs", d)
	}
	if d.Bytes < 0 || d.Bytes%1024 != 0 {
		v.addf("%s: %d bytes are not whole KiB", d, d.Bytes)
	}
	if d.Bytes != 0 && d.Kind != Node && d.Kind != L3 && d.Kind != L2 {
		v.addf("%s: has a size but holds no memory", d)
	}
	if d.KernelID < -1 {
		v.addf("%s: kernel id %d", d, d.KernelID)
	}
	if d.Kind == Node && (d.ID < 0 || d.ID >= cpuset.Limit || d.KernelID != d.ID) {
		v.addf("%s: number or kernel id %d is not the kernel's node number", d, d.KernelID)
	}
}

func (m *Machine) checkDistances(v *violations) {
	if m.Distances == nil {
		return
	}
	n := len(m.ByKind(Node))
	if len(m.Distances) != n {
		v.addf("distances: %d rows for %d nodes", len(m.Distances), n)
	}
	for i, row := range m.Distances {
		if len(row) != n {
			v.addf("distances row %d: %d numbers for %d nodes", i, len(row), n)
		}
		for _, d := range row {
			if d < 0 || d > 255 {
				v.addf("distances row %d: %d is out of range 0-255", i, d)
			}
		}
	}
}

func (m *Machine) checkPartition(v *violations) {
	for _, k := range Kinds() {
		domains := m.ByKind(k)
		var seen cpuset.Set
		for i := range domains {
			d := &domains[i]
			if twice := seen.Intersect(d.CPUs); !twice.IsEmpty() {
				v.addf("%s: CPUs %s are in another %s too", d, twice, k)
			}
			seen = seen.Union(d.CPUs)
		}
		if k == L3 || k == L2 || len(domains) == 0 {
			continue
		}
		if missing := m.Online.Minus(seen); !missing.IsEmpty() {
			v.addf("%s: CPUs %s are in none", k, missing)
		}
	}
}

func (m *Machine) checkContainment(v *violations) {
	cores, dies := m.ByKind(Core), m.ByKind(Die)
	for _, outer := range []Kind{Socket, Die, Node, L3, L2} {
		m.checkSplit(v, cores, outer)
	}
	m.checkSplit(v, dies, Socket)
}

// checkSplit reports the inner domains that lie across domains of kind outer.
// Where outer domains overlap (numa=fake=), checkPartition says so.
func (m *Machine) checkSplit(v *violations, inner []Domain, outer Kind) {
	owner := m.owners(outer)
	for i := range inner {
		in := &inner[i]
		first, _ := in.CPUs.First()
		at := owner[first]
		for cpu := range in.CPUs.All() {
			if owner[cpu] != at {
				v.addf("%s (CPUs %s): split between domains of kind %s", in, in.CPUs, outer)
				break
			}
		}
	}
}

// owners returns, by CPU, the position in ByKind(k) of its domain plus 1; 0 if it is in none.
func (m *Machine) owners(k Kind) *[cpuset.Limit]int {
	var owner [cpuset.Limit]int
	domains := m.ByKind(k)
	for i := range domains {
		for cpu := range domains[i].CPUs.All() {
			owner[cpu] = i + 1
		}
	}
	return &owner
}
