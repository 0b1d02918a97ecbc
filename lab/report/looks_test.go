package report

import (
	"fmt"
	"testing"

	"berth.dev/berth/lab"
)

// No two scenarios look alike while there are looks left, and the built-in ones always have the same.
func TestLooksDiffer(t *testing.T) {
	t.Parallel()
	rows := []lab.Row{{Scenario: "mine"}, {Scenario: lab.Baseline}, {Scenario: lab.BaselineAgain}, {Scenario: lab.Unisolated}, {Scenario: "idle"}, {Scenario: "net-ceiling"}, {Scenario: "net-first"}}
	looks, by := looksOf(rows), map[Look]string{}
	for _, row := range rows {
		look := looks[row.Scenario]
		if look < 1 || look > Looks || by[look] != "" {
			t.Errorf("%s has look %d, as %q", row.Scenario, look, by[look])
		}
		by[look] = row.Scenario
	}
	if looks["idle"] != looksOf([]lab.Row{{Scenario: "idle"}})["idle"] || looks[lab.Baseline] != 1 {
		t.Errorf("looks of the built-in scenarios: %v", looks)
	}
	for i := range 2 * Looks {
		rows = append(rows, lab.Row{Scenario: fmt.Sprint("more", i)})
	}
	for name, look := range looksOf(rows) {
		if look < 1 || look > Looks {
			t.Errorf("%s has look %d of %d", name, look, Looks)
		}
	}
}

// Lines between blocks are drawn where a block has several rounds.
func TestCutsBetweenBlocks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		blocks []int
		cuts   int
	}{{[]int{0, 0, 1, 1, 2, 2}, 2}, {[]int{0, 1, 2, 0, 1}, 0}, {[]int{0}, 0}} {
		var p played
		for _, b := range c.blocks {
			p.rounds = append(p.rounds, round{Decoded: lab.Decoded{Round: &lab.Round{Block: b}}})
		}
		if _, slots, cuts := p.timeline(func(round) string { return "" }); len(cuts) != c.cuts || len(slots) != len(c.blocks) {
			t.Errorf("%v: %d lines, want %d", c.blocks, len(cuts), c.cuts)
		}
	}
}
