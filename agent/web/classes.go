package web

import (
	"math/bits"
	"slices"
	"strconv"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/kernel/resctrl"
)

// classUse shows how many workloads have each class, and how many CPUs each power profile.
func (s scrape) classUse(r agent.ClassReport) {
	for i := range r.Kinds {
		k := &r.Kinds[i]
		for j := range k.Classes {
			c := &k.Classes[j]
			if c.Foreign {
				continue
			}
			s.gauge("berth_class_workloads", float64(c.Placed()), string(k.Kind), label(c.Name))
			if k.Kind == agent.PowerClass {
				s.gauge("berth_power_profile_cpus", float64(c.CPUs.Len()), label(c.Name))
				for pool, percent := range c.Levels {
					s.gauge("berth_power_pool_clock_ratio", float64(percent)/100, pool)
				}
			}
		}
	}
}

// classes shows what each group of resctrl may have, those of other programs too: there are
// as many as the CPU has classes of service. A group of another program that is called like one of Berth's
// classes has a slash before its name: two series with the same labels would be refused, and all others with them.
func (s scrape) classes(t *resctrl.Tree) {
	foreign := func(g *resctrl.Group) bool { return g.Name != "" && !g.Own() }
	for i := range t.Groups {
		g := &t.Groups[i]
		name := g.Class()
		if foreign(g) && slices.ContainsFunc(t.Groups, func(o resctrl.Group) bool { return !foreign(&o) && o.Class() == name }) {
			name = "/" + name
		}
		for _, line := range g.Schemata {
			r := t.Find(line.Resource)
			if r == nil {
				continue
			}
			for _, v := range line.Values {
				cache := strconv.Itoa(v.Domain)
				switch {
				case r.Cache() && r.Level() == "L3":
					s.gauge("berth_llc_ways", float64(bits.OnesCount64(v.N)), label(name), cache, r.Kind())
				case r.Name == "MB" && v.N < r.Max:
					value, unit := r.Amount(v.N)
					s.gauge("berth_memory_bandwidth_limit", value, label(name), cache, unit)
				}
			}
		}
	}
	s.gauge("berth_cache_classes_left", float64(t.CLOSIDs()-len(t.Groups)))
}

// network shows what network classes may send, those of others included, and what was dropped, where
// that is known: of workloads that have series.
func (s scrape) network(r agent.ClassReport, shown []api.Owner) {
	for i := range r.Kinds {
		for _, c := range r.Kinds[i].Classes {
			for _, l := range c.Links {
				s.gauge("berth_network_ceiling_bytes_per_second", l.Ceiling/8, label(c.Name), l.Device)
				if l.Dropped != nil {
					s.counter("berth_network_dropped_packets_total", float64(*l.Dropped), label(c.Name), l.Device)
				}
			}
			if c.Dropped != nil {
				s.counter("berth_network_limit_dropped_packets_total", float64(*c.Dropped), label(c.Name), "")
			}
		}
		for _, d := range r.Kinds[i].Drops {
			if !slices.ContainsFunc(shown, func(o api.Owner) bool { return o.ID == d.Workload }) {
				continue
			}
			s.counter("berth_network_limit_dropped_packets_total", float64(d.Packets), "", label(d.Workload))
		}
	}
}
