package balloons

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// Validate reports the first thing that makes no sense on any machine, as a
// *place.InvalidError.
func (p Policy) Validate() error {
	seen := map[string]bool{}
	for i := range p.Types {
		ty := &p.Types[i]
		reason := ty.check()
		if reason == "" && seen[ty.Name] {
			reason = "is listed twice"
		}
		seen[ty.Name] = true
		if reason == "" && len(ty.Components) > 0 {
			reason = p.checkComposite(ty)
		}
		if reason != "" {
			return &place.InvalidError{Reason: fmt.Sprintf("balloon type %q: %s", ty.Name, reason)}
		}
	}
	if bad := badGlob(p.ReservedNamespaces); bad != "" {
		return &place.InvalidError{Reason: "reserved namespaces: " + bad}
	}
	if !p.Branches.Known() || !p.Cores.Known() {
		return &place.InvalidError{Reason: "unknown order"}
	}
	return nil
}

// check returns the defect of a type, "" if it has none.
func (ty *Type) check() string {
	switch {
	case ty.Name == "" || strings.ContainsAny(ty.Name, "/= \t\n"):
		return "a name has at least a letter, and no space, / or ="
	case min(ty.MinCPUs, ty.MaxCPUs, ty.MinBalloons, ty.MaxBalloons, ty.Slots) < 0:
		return "a number is negative"
	case ty.MaxCPUs > 0 && ty.MinCPUs > ty.MaxCPUs:
		return "minCPUs above maxCPUs"
	case ty.MaxBalloons > 0 && ty.MinBalloons > ty.MaxBalloons:
		return "minBalloons above maxBalloons"
	case !ty.Branches.Known() || !ty.Cores.Known() || !ty.Fill.Known() || !ty.ShareIdle.Known():
		return "unknown order, fill or level"
	case ty.BalanceComponents && len(ty.Components) == 0:
		return "no components to balance"
	case len(ty.Lists) > 0 && (ty.MinCPUs != 0 || ty.MaxCPUs != 0 || ty.MinBalloons != 0 || len(ty.Components) > 0):
		return "lists make the size and the instances"
	}
	if _, ok := keysIn(ty.GroupBy); !ok {
		return "groupBy: ${ without }"
	}
	keys, _ := keysIn(ty.GroupBy)
	if i := slices.IndexFunc(keys, func(k string) bool { return !knownKey(k) }); i >= 0 {
		return "groupBy: unknown key " + keys[i]
	}
	for i := range ty.Match {
		if reason := ty.Match[i].check(); reason != "" {
			return "matchExpressions: " + reason
		}
	}
	return badGlob(ty.Namespaces)
}

// checkComposite returns the defect of a type with components.
func (p *Policy) checkComposite(ty *Type) string {
	if ty.MinCPUs != 0 || ty.MaxCPUs != 0 || ty.CPUClass != "" || ty.Overcommit || ty.Branches != AsPolicy || ty.Cores != AsPolicy ||
		len(ty.PreferNear) > 0 || ty.PreferIsolated || ty.PreferCoreKind != "" {
		return "a composite's size and CPUs are those of its components"
	}
	for _, name := range ty.Components {
		switch c := p.find(name); {
		case c == nil:
			return "no component " + name
		case len(c.Components) > 0:
			return "component " + name + " has components itself"
		case len(c.Lists) > 0:
			return "component " + name + " has lists"
		}
	}
	return ""
}

// checkLists refuses lists that are not there, or named twice.
func (p *Policy) checkLists(s *place.State) error {
	may := s.Ownable(place.LS)
	var all cpuset.Set
	for i := range p.Types {
		for _, list := range p.Types[i].Lists {
			if list.IsEmpty() || list.Overlaps(all) || !may.Contains(list) {
				return &place.InvalidError{Reason: fmt.Sprintf("balloon type %q: list %q is empty, held twice, or not free to use", p.Types[i].Name, list)}
			}
			all = all.Union(list)
		}
	}
	return nil
}
