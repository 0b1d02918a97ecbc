package beside

import (
	"fmt"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/report"
	"berth.dev/berth/lab/stats"
	"berth.dev/berth/machine"
)

// Pinning asks what cores of its own bring a service, and what they cost.
func Pinning() *Experiment { return pinning.make() }

const (
	shared = "shared"
	spread = "anti-affinity"
	pinned = "pinned"
)

var pinning = newPinning() // a function, as its words look at the design

func newPinning() *design {
	return &design{
		name: "pinning", schema: "berth.dev/lab-pinning/v1", spec: usual,
		cells: []cell{
			{name: alone, means: "the tenant alone, on all shared CPUs"},
			{name: shared, means: "both on all shared CPUs, as services are by default", neighbour: true},
			{name: spread, means: "the neighbour kept to a part of the CPUs, the tenant on all: cores are still shared", neighbour: true, place: apart},
			{name: pinned, means: "whole cores of their own for both, memory bound to their nodes", neighbour: true, place: isolated(lab.Isolation{Split: true})},
		},
		versus:  []stats.Versus{{Cell: spread, Against: shared}, {Cell: pinned, Against: shared}, {Cell: pinned, Against: spread}},
		figures: []stats.Figure{lab.P50, lab.P95, lab.P99, lab.Throughput, lab.Work},
		words:   pinningWords,
		lacks: func(m *machine.Machine) error {
			if len(m.ByKind(machine.Core)) < 2 {
				return &kernel.NotSupportedError{Feature: "cores of their own", Reason: "this machine has one core"}
			}
			return nil
		},
		tables: func(v *view) []report.Block {
			return []report.Block{report.Costs(v.measured, v.Judged, "tenant", "neighbour"), v.billTable()}
		},
	}
}

// apart keeps the neighbour where pinned has it, and leaves the tenant everywhere.
func apart(b *lab.Testbed) (lab.Settings, error) {
	split, err := b.Settings(lab.Isolation{Split: true})
	if err != nil {
		return nil, err
	}
	return lab.Settings{lab.Neighbour: split[lab.Neighbour]}, nil
}

func pinningWords(v *view) []string {
	if text := v.nothing(); text != "" {
		return []string{text}
	}
	var answer []string
	if v.Ran(shared) {
		harm := v.Of(shared, alone, lab.P99.Name)
		answer = append(answer, fmt.Sprintf("On shared cores one request in 100 takes %s beside the neighbour, and %s alone (against alone: %s).", v.P99(shared), v.P99(alone), verdict(harm)))
	}
	for _, c := range []struct{ name, does string }{{pinned, "Cores of its own"}, {spread, "Keeping the neighbour to a part of the cores"}} {
		if !v.Ran(c.name) || !v.Ran(shared) {
			continue
		}
		against := v.Of(c.name, shared, lab.P99.Name)
		says := map[stats.Verdict]string{
			stats.Better:     fmt.Sprintf("%s help%s: p99 %s, ×%s of that on shared cores.", c.does, plural(c.name), v.P99(c.name), span(against)),
			stats.Worse:      fmt.Sprintf("%s make%s it worse here: p99 %s, ×%s of that on shared cores.", c.does, plural(c.name), v.P99(c.name), span(against)),
			stats.Equivalent: fmt.Sprintf("%s change%s nothing here: p99 %s, as on shared cores within 10 %%.", c.does, plural(c.name), v.P99(c.name)),
		}[against.Verdict]
		if says == "" {
			says = fmt.Sprintf("Whether %s help%s, this run cannot tell (p99 %s, ×%s of that on shared cores).", strings.ToLower(c.does[:1])+c.does[1:], plural(c.name), v.P99(c.name), span(against))
		}
		answer = append(answer, says)
	}
	if b, ok := v.bill(); ok {
		answer = append(answer, b.words())
		if v.Of(pinned, shared, lab.P99.Name).Verdict == stats.Better {
			answer = append(answer, fmt.Sprintf("Do it: berth run --class LSE --cpus %d -- SERVICE", b.Reserved))
		}
	}
	return answer
}

func plural(cell string) string {
	if cell == pinned {
		return ""
	}
	return "s"
}

// verdict is a comparison in words.
func verdict(c stats.Compared) string {
	switch c.Verdict {
	case stats.Worse, stats.Better:
		return "×" + span(c)
	case stats.Equivalent:
		return "alike within 10 %"
	}
	return "not decided, ×" + span(c)
}

// bill is what cores of its own cost.
type bill struct {
	report.Bill
	kept  stats.Interval
	price float64 // of a machine; 0 is unknown
}

// bill is that of pinned against shared.
func (v *view) bill() (b bill, ok bool) {
	t := v.measured.Total(pinned)
	if t.Seconds == 0 || !v.Ran(shared) {
		return b, false
	}
	b = bill{Bill: report.Bill{Of: t.SharedCPUs, Used: t.Tenant.CPUSeconds / t.Seconds}, price: v.Experiment.Experiment.NodePrice}
	b.Reserved = v.stood(pinned, lab.Tenant).Len()
	kept := v.Of(pinned, shared, lab.Work.Name)
	b.kept = kept.Interval
	return b, b.Reserved > 0
}

// extra is how many machines more the neighbour's work takes, of a hundred.
func extra(kept float64) float64 { return max(0, 100*(1/kept-1)) }

// machines is how many more it takes, with the interval.
func (b bill) machines() string {
	if b.kept.Estimate <= 0 {
		return "unknown: the neighbour did no work"
	}
	text := fmt.Sprintf("%.0f more machines for every 100", extra(b.kept.Estimate))
	if b.kept.Known() {
		text += fmt.Sprintf(" (%.0f to %.0f)", extra(b.kept.High), extra(b.kept.Low))
	}
	return text
}

func (b bill) words() string {
	text := fmt.Sprintf("The bill: %s.", b.Bill)
	if b.kept.Estimate > 0 {
		text += fmt.Sprintf(" The neighbour does %.0f %% of what it does on shared cores: the same work takes %s", 100*b.kept.Estimate, b.machines())
		if b.price > 0 {
			text += fmt.Sprintf(", %s for each of the 100", b.cost())
		}
		text += "."
	}
	return text
}

// cost is that of one machine's share in the extra ones.
func (b bill) cost() string { return fmt.Sprintf("%.2f", b.price*extra(b.kept.Estimate)/100) }

func (v *view) billTable() report.Block {
	b, ok := v.bill()
	if !ok {
		return report.Block{}
	}
	facts := append(b.Facts("tenant"), report.Fact{Name: "for the same work", Value: b.machines()})
	if b.price > 0 && b.kept.Estimate > 0 {
		facts = append(facts, report.Fact{Name: "price", Value: fmt.Sprintf("%s on top of %g for each machine", b.cost(), b.price)})
	}
	return report.Block{Heading: "The bill of pinning", Facts: facts}
}
