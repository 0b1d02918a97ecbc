// Package batch computes how much CPU time and memory of a node is left for batch and mid
// work beside what the others use: Koordinator's extended resources, by its formulas
// (docs.koordinator.sh, pkg/slo-controller/noderesource), so that its scheduler and pods
// work on. It is pure.
package batch

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"

	"berth.dev/berth/internal/plain"
)

// Amount is CPU time in thousandths of a CPU, and memory in bytes.
type Amount struct{ Milli, Memory int64 }

// Kind is the priority class that decides who counts as what.
type Kind uint8

// The kinds, by Koordinator's priority classes.
const (
	Prod  Kind = iota // 9000 to 9999, and all that say nothing
	Mid               // 7000 to 7999
	Batch             // 5000 to 5999
	Free              // 3000 to 3999
)

// KindOf is the kind of a pod: its label koordinator.sh/priority-class wins over its
// priority, and that over its class of service.
func KindOf(label string, priority int32, bestEffort bool) Kind {
	switch label {
	case "koord-prod":
		return Prod
	case "koord-mid":
		return Mid
	case "koord-batch":
		return Batch
	case "koord-free":
		return Free
	}
	switch {
	case priority >= 9000 && priority <= 9999:
		return Prod
	case priority >= 7000 && priority <= 7999:
		return Mid
	case priority >= 5000 && priority <= 5999:
		return Batch
	case priority >= 3000 && priority <= 3999:
		return Free
	case bestEffort:
		return Batch
	}
	return Prod
}

// Pod is what of a pod counts.
type Pod struct {
	Kind Kind
	// LSE pods count by the CPU time that they request: nobody else can use theirs.
	LSE     bool
	Request Amount
	// Used is nil where it is not known; then the request counts.
	Used *Amount
}

// Node is what of a node counts.
type Node struct {
	// Capacity is what it has, Reserved what the kubelet or the node keeps for itself.
	Capacity, Reserved Amount
	// Used is used by all, System by what is not in pods.
	Used, System Amount
	Pods         []Pod
	// Gone is used by pods that are there no more, and of which figures are left.
	Gone Amount
	// Reclaimable is what prod pods request and by prediction will not use (package predict).
	Reclaimable Amount
}

// Policy says what of a pod is subtracted.
type Policy = plain.Enum[policyWords]

// The policies.
const (
	Usage           Policy = iota // what it uses
	Request                       // what it requests
	MaxUsageRequest               // the larger of both
)

type policyWords struct{}

func (policyWords) Words() []string { return []string{"usage", "request", "maxUsageRequest"} }

// Strategy says how much is given away. The zero value is Koordinator's default.
type Strategy struct {
	CPU    Policy `json:"cpu"`
	Memory Policy `json:"memory"`
	// CPUReclaim and MemoryReclaim are percent of the capacity that others may use up to; 0
	// is 60 and 65.
	CPUReclaim    int `json:"cpuReclaimPercent"`
	MemoryReclaim int `json:"memoryReclaimPercent"`
	// CPUMost and MemoryMost are percent of the capacity that batch has at most; 0 is no
	// bound.
	CPUMost    int `json:"cpuMostPercent"`
	MemoryMost int `json:"memoryMostPercent"`
	// MidCPU and MidMemory are percent of the capacity that mid has at most; 0 is 100. Of
	// what prod pods do not request, MidUnallocated percent are mid's, too.
	MidCPU         int `json:"midCPUPercent"`
	MidMemory      int `json:"midMemoryPercent"`
	MidUnallocated int `json:"midUnallocatedPercent"`
	// MidStatic gives mid so many percent of the capacity, whatever is used; 0 is off.
	MidStatic int `json:"midStaticPercent"`
	// MidMargin is percent that a predicted peak is raised by; 0 is 10. MidColdStart is how many
	// minutes long use is looked at before anything is predicted from it; 0 is 1,440, a day.
	MidMargin    int `json:"midMarginPercent"`
	MidColdStart int `json:"midColdStartMinutes"`
}

// Validate reports percentages that are none, and a policy that a resource cannot have.
func (s *Strategy) Validate() error {
	var errs []error
	for _, p := range []struct {
		name  string
		value int
	}{
		{"cpuReclaimPercent", s.CPUReclaim}, {"memoryReclaimPercent", s.MemoryReclaim}, {"cpuMostPercent", s.CPUMost}, {"memoryMostPercent", s.MemoryMost},
		{"midCPUPercent", s.MidCPU}, {"midMemoryPercent", s.MidMemory}, {"midUnallocatedPercent", s.MidUnallocated},
		{"midStaticPercent", s.MidStatic}, {"midMarginPercent", s.MidMargin},
	} {
		if p.value < 0 || p.value > 100 {
			errs = append(errs, fmt.Errorf("%s %d: want 0 to 100", p.name, p.value))
		}
	}
	if s.MidColdStart < 0 || s.MidColdStart > mostColdStart {
		errs = append(errs, fmt.Errorf("midColdStartMinutes %d: want 0 to %d, a week", s.MidColdStart, mostColdStart))
	}
	if s.CPU == Request {
		errs = append(errs, errors.New("cpu: request is a policy of memory only; want usage or maxUsageRequest"))
	}
	return errors.Join(errs...)
}

const mostColdStart = 7 * 24 * 60

// TellsMid reports whether mid work is to have anything: any of its settings is there.
func (s *Strategy) TellsMid() bool { return s.Predicts() || s.MidStatic > 0 }

// Predicts reports whether Mid needs Node.Reclaimable.
func (s *Strategy) Predicts() bool {
	return s.MidStatic == 0 && s.MidCPU+s.MidMemory+s.MidUnallocated > 0
}

// one is a node seen by one resource.
type one struct {
	capacity, reserved, system, all, gone int64
	requested, used, larger               int64 // by those that batch work stands back from
	prod                                  int64 // requested by Prod
}

// Batch returns what batch work may use on a node. Percentages round down to a thousandth
// of a CPU or a byte.
func (s *Strategy) Batch(n *Node) Amount {
	return Amount{
		Milli:  most(give(s.CPU, n.cpu(), cmp.Or(s.CPUReclaim, 60)), n.Capacity.Milli, s.CPUMost),
		Memory: most(give(s.Memory, n.memory(), cmp.Or(s.MemoryReclaim, 65)), n.Capacity.Memory, s.MemoryMost),
	}
}

func give(p Policy, r one, reclaim int) int64 {
	left := r.capacity - percent(r.capacity, 100-reclaim)
	switch p {
	case Request:
		left -= r.reserved + r.requested
	case MaxUsageRequest:
		left -= max(r.system, r.reserved) + r.larger + r.gone
	default:
		left -= max(r.system, r.reserved) + r.used + r.gone
	}
	return max(left, 0)
}

func most(amount, capacity int64, bound int) int64 {
	if bound == 0 {
		return amount
	}
	return min(amount, percent(capacity, bound))
}

// Mid returns what mid work may use: the smaller of what prod is predicted not to use and of
// what is unused now, and a part of what prod does not request; up to a bound.
func (s *Strategy) Mid(n *Node) Amount {
	mid := func(r one, reclaimable int64, bound int) int64 {
		if s.MidStatic > 0 {
			return percent(r.capacity, s.MidStatic)
		}
		unused := max(r.capacity-r.all, 0)
		unallocated := max(r.capacity-max(r.system, r.reserved)-r.prod, 0)
		given := min(max(reclaimable, 0), unused) + percent(unallocated, s.MidUnallocated)
		return min(given, percent(r.capacity, cmp.Or(bound, 100)))
	}
	return Amount{mid(n.cpu(), n.Reclaimable.Milli, s.MidCPU), mid(n.memory(), n.Reclaimable.Memory, s.MidMemory)}
}

func (n *Node) cpu() one {
	r := one{capacity: n.Capacity.Milli, reserved: n.Reserved.Milli, system: n.System.Milli, all: n.Used.Milli, gone: n.Gone.Milli}
	for i := range n.Pods {
		p := &n.Pods[i]
		used := p.Request.Milli
		if p.Used != nil && !p.LSE {
			used = p.Used.Milli
		}
		r.add(p, p.Request.Milli, used)
	}
	return r
}

func (n *Node) memory() one {
	r := one{capacity: n.Capacity.Memory, reserved: n.Reserved.Memory, system: n.System.Memory, all: n.Used.Memory, gone: n.Gone.Memory}
	for i := range n.Pods {
		p := &n.Pods[i]
		used := p.Request.Memory
		if p.Used != nil {
			used = p.Used.Memory
		}
		r.add(p, p.Request.Memory, used)
	}
	return r
}

// add counts a pod that batch work stands back from.
func (r *one) add(p *Pod, request, used int64) {
	if p.Kind == Batch || p.Kind == Free {
		return
	}
	if p.Kind == Prod {
		r.prod += request
	}
	r.requested += request
	r.used += used
	r.larger += max(request, used)
}

// percent is exact: bytes times a hundred can be more than an int64 holds.
func percent(of int64, percent int) int64 {
	n := big.NewInt(of)
	n.Mul(n, big.NewInt(int64(percent)))
	return n.Quo(n, big.NewInt(100)).Int64()
}
