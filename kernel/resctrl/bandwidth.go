package resctrl

import (
	"cmp"
	"fmt"
	"strings"
)

// bandwidth computes the limits of memory bandwidth.
func (c *Config) bandwidth(r *Resource, l *Layout) error {
	name := strings.ToLower(r.Name) + "Allocation"
	for i := range l.Classes {
		a := &l.Classes[i]
		p, class := c.Partitions[a.Partition], c.class(a)
		outer, inner := p.MBAllocation, class.mb()
		if r.Name == "SMBA" {
			outer, inner = p.SMBAAllocation, class.smba()
		}
		line := Line{Resource: r.Name, Values: make([]Value, 0, len(r.Domains))}
		all, err := domainsOf(outer)
		own, errOwn := domainsOf(inner)
		if err = cmp.Or(err, errOwn); err != nil {
			return &FitError{a.field(name), err.Error()}
		}
		var of, has uint64
		for n, id := range r.Domains {
			if n == 0 || all.some != nil {
				if of, err = number(r, all.of(id)); err != nil {
					return &FitError{"partitions." + a.Partition + "." + name, err.Error()}
				}
			}
			if n == 0 || own.some != nil {
				if has, err = number(r, own.of(id)); err != nil {
					return &FitError{a.field(name), err.Error()}
				}
			}
			want := min(of, has)
			if r.Unit == Percent {
				want = of * has / 100
			}
			got := r.round(want)
			if n == 0 && got > want && want < r.Min {
				a.Notes = append(a.Notes, fmt.Sprintf("%s is %d%s, the least of this CPU, instead of %d", r.Name, got, r.Unit, want))
			}
			line.Values = append(line.Values, Value{id, got})
		}
		a.Schemata = append(a.Schemata, line)
	}
	return nil
}

// round is the step at or above a value, as the kernel would round it: "The available
// bandwidth control steps are: min_bandwidth + N * bandwidth_gran."
func (r *Resource) round(n uint64) uint64 {
	if n >= r.Max {
		return r.Max
	}
	if n <= r.Min {
		return r.Min
	}
	return min(r.Max, r.Min+(n-r.Min+r.Step-1)/r.Step*r.Step)
}

// number is a limit in the unit of the host; nothing is no limit.
func number(r *Resource, v any) (uint64, error) {
	if v == nil {
		return r.Max, nil
	}
	l, err := limitOf(v)
	if err != nil {
		return 0, err
	}
	switch {
	case r.Unit == Percent && l.percent > 0:
		return l.percent, nil
	case r.Unit == Percent:
		return 0, fmt.Errorf("this host limits %s in percent: add a percentage, or mount resctrl with mba_MBps", r.Name)
	case l.percent == 100 && l.mbps == 0:
		return r.Max, nil
	case l.mbps == 0:
		return 0, fmt.Errorf("this host limits %s in amounts (%s), and a percentage is none: add one, as in 20GBps", r.Name, r.Unit)
	case r.Unit == EighthG:
		return min(r.Max, (l.mbps+124)/125), nil
	}
	return l.mbps, nil
}
