package cli

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/replay"
)

// streamRun holds the results of the streams of a generated scenario: by policy, then by
// seed from 1 on.
type streamRun struct {
	policies  []string
	summaries [][]*replay.Summary
}

// measureStreams runs all streams under all policies, as many at a time as there
// are CPUs.
func measureStreams(s *replay.Scenario, policies []string, seeds int) (*streamRun, error) {
	run := &streamRun{policies: policies, summaries: make([][]*replay.Summary, len(policies))}
	for i := range policies {
		run.summaries[i] = make([]*replay.Summary, seeds)
	}
	errs := make([]error, seeds)
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for k := range seeds {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			stream := s.Stream(uint64(k + 1))
			for i, policy := range policies {
				var err error
				if run.summaries[i][k], err = stream.Measure(policy); err != nil {
					errs[k] = errors.Join(errs[k], fmt.Errorf("seed %d: %w", k+1, err))
				}
			}
		})
	}
	all.Wait()
	return run, errors.Join(errs...)
}

func (r *streamRun) lines(file string) (lines []replayLine) {
	for i, policy := range r.policies {
		for k, summary := range r.summaries[i] {
			lines = append(lines, replayLine{File: file, Policy: policy, Seed: k + 1, Summary: summary})
		}
	}
	return lines
}

// streamFigure is one row of the table; NaN is absent.
type streamFigure struct {
	name   string
	digits int
	of     func(s *replay.Summary) float64
}

func streamFigures() []streamFigure {
	mean := func(of func(s *replay.Summary) replay.Spread) func(s *replay.Summary) float64 {
		return func(s *replay.Summary) float64 {
			if of(s).Workloads == 0 {
				return math.NaN()
			}
			return of(s).Mean
		}
	}
	return []streamFigure{
		{"admitted", 1, func(s *replay.Summary) float64 { return float64(s.Admitted) }},
		{"refused", 1, func(s *replay.Summary) float64 { return float64(s.Refused) }},
		{"CPUs granted", 1, func(s *replay.Summary) float64 { return s.Granted }},
		{"CPUs in use", 2, func(s *replay.Summary) float64 { return s.Average.Used }},
		{"CPUs promised, not there", 2, func(s *replay.Summary) float64 { return s.Average.Missing }},
		{"NUMA nodes each, LSE and LSR", 3, mean(func(s *replay.Summary) replay.Spread { return s.Nodes })},
		{"L3 domains each, LSE and LSR", 3, mean(func(s *replay.Summary) replay.Spread { return s.L3s })},
		{"NUMA nodes each, LS", 3, mean(func(s *replay.Summary) replay.Spread { return s.PoolNodes })},
		{"cores shared with strangers", 2, func(s *replay.Summary) float64 { return s.Average.SharedCores }},
		{"  best effort aside", 2, func(s *replay.Summary) float64 { return s.Average.Beside }},
		{"moved on release", 1, func(s *replay.Summary) float64 { return float64(s.Moves) }},
		{"left per NUMA node", 2, func(s *replay.Summary) float64 { return s.Average.Left }},
		{"left on the best node", 2, func(s *replay.Summary) float64 { return s.Average.Largest }},
	}
}

// figures returns one figure of every stream under a policy.
func (r *streamRun) figures(policy int, f *streamFigure) []float64 {
	var all []float64
	for _, s := range r.summaries[policy] {
		all = append(all, f.of(s))
	}
	return all
}

// table writes the means and, where there are several of both, the differences
// from the first policy.
func (r *streamRun) table(b *strings.Builder) {
	seeds := len(r.summaries[0])
	head := []string{"mean of " + plain.Count(seeds, "stream")}
	right := []int{}
	for i, policy := range r.policies {
		head = append(head, plain.Line(policy))
		right = append(right, i+1)
	}
	means, differences := [][]string{head}, [][]string{append([]string{"difference from " + plain.Line(r.policies[0])}, head[2:]...)}
	for _, f := range streamFigures() {
		base := r.figures(0, &f)
		row, difference := []string{f.name}, []string{f.name}
		for i := range r.policies {
			all := r.figures(i, &f)
			row = append(row, meanOf(all, f.digits))
			if i > 0 {
				difference = append(difference, pairedText(replay.Pair(base, all), f.digits))
			}
		}
		means, differences = append(means, row), append(differences, difference)
	}
	plain.Columns(b, means, right...)
	if seeds > 1 && len(r.policies) > 1 {
		b.WriteByte('\n')
		plain.Columns(b, differences, right[:len(right)-1]...)
		b.WriteString("± is half a 95 % interval of Student's t over the paired streams\n")
	}
}

// meanOf writes the mean of those figures that there are.
func meanOf(all []float64, digits int) string {
	sum, n := 0.0, 0
	for _, x := range all {
		if !math.IsNaN(x) {
			sum += x
			n++
		}
	}
	if n == 0 {
		return absent
	}
	return strconv.FormatFloat(sum/float64(n), 'f', digits, 64)
}

func pairedText(p replay.Paired, digits int) string {
	switch {
	case p.Pairs < 2:
		return absent
	case math.Abs(p.Mean)+p.Half < 1e-9: // alike but for rounding
		return "0"
	}
	return fmt.Sprintf("%+.*f ± %.*f", digits, p.Mean, digits, p.Half)
}
