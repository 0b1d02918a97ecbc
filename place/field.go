package place

import (
	"fmt"
	"slices"
	"strings"
)

// Field is a wish of a Request that a policy may not know. Its text is the name by which a
// configuration has it. A preference and a condition are two, as a policy may refuse what it
// does not know as a condition.
type Field string

// The fields.
const (
	FieldMixed            Field = "mode mixed"
	FieldBind             Field = "bind"
	FieldBindRequired     Field = "bind as a condition"
	FieldExclusivity      Field = "exclusive"
	FieldStrategy         Field = "strategy"
	FieldIsolated         Field = "isolated"
	FieldIsolatedRequired Field = "isolated as a condition"
	FieldCoreKind         Field = "coreKind"
	FieldNodes            Field = "nodes"
	FieldNodesRequired    Field = "nodes as a condition"
	FieldMaxNodes         Field = "maxNodes"
	FieldMemory           Field = "memory"
	FieldDevices          Field = "devices"
	FieldAffinity         Field = "affinity"
	FieldGroup            Field = "group"
	FieldHints            Field = "hints"
)

// Fields returns all fields.
func Fields() []Field {
	return []Field{
		FieldMixed, FieldBind, FieldBindRequired, FieldExclusivity, FieldStrategy, FieldIsolated, FieldIsolatedRequired, FieldCoreKind,
		FieldNodes, FieldNodesRequired, FieldMaxNodes, FieldMemory, FieldDevices, FieldAffinity, FieldGroup, FieldHints,
	}
}

// In reports whether a request has the wish.
func (f Field) In(r *Request) bool {
	switch f {
	case FieldMixed:
		return r.Mode == Mixed
	case FieldBind, FieldBindRequired:
		return r.Bind != BindAny && r.BindRequired == (f == FieldBindRequired)
	case FieldExclusivity:
		return r.Exclusivity != CPULevel
	case FieldStrategy:
		return r.Strategy != StrategyAny
	case FieldIsolated, FieldIsolatedRequired:
		return r.Isolated != Unasked && (r.Isolated == Require) == (f == FieldIsolatedRequired)
	case FieldCoreKind:
		return r.CoreKind != ""
	case FieldNodes, FieldNodesRequired:
		return !r.Nodes.IsEmpty() && r.NodesRequired == (f == FieldNodesRequired)
	case FieldMaxNodes:
		return r.MaxNodes > 0
	case FieldMemory:
		return len(r.Memory) > 0
	case FieldDevices:
		return len(r.Devices) > 0
	case FieldAffinity:
		return len(r.Affinity) > 0
	case FieldGroup:
		return r.Group != ""
	case FieldHints:
		return len(r.Hints) > 0
	}
	return false
}

// Ignorer is a Policy that does not know some fields: it answers as if they were not set.
// Every other field counts with it: some request is granted something else because of it,
// or refused. A Policy that is no Ignorer knows all fields.
type Ignorer interface {
	Ignores() []Field
}

// Ignored returns the wishes of a request that a policy ignores.
func Ignored(p Policy, r *Request) (ignored []Field) {
	if i, ok := p.(Ignorer); ok {
		ignored = slices.DeleteFunc(slices.Clone(i.Ignores()), func(f Field) bool { return !f.In(r) })
	}
	return ignored
}

// IgnoredText says in words what of a request a policy ignores, "" if nothing. What a group
// is to the node, all of it or none, does not depend on the policy.
func IgnoredText(p Policy, r *Request) string {
	var names, texts []string
	for _, f := range Ignored(p, r) {
		if f == FieldGroup {
			texts = append(texts, fmt.Sprintf("policy %s places it no nearer to its group than to others", p.Name()))
		} else {
			names = append(names, string(f))
		}
	}
	if len(names) > 0 {
		texts = append(texts, fmt.Sprintf("policy %s ignores what it asks for by %s", p.Name(), strings.Join(names, ", ")))
	}
	return strings.Join(texts, "; ")
}
