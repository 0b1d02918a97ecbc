package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
	"berth.dev/berth/replay"
)

// exitUnexpected is the status of a replay in which an expectation failed.
const exitUnexpected = 3

type replayFlags struct {
	policies      []string
	machine       string // of pods
	explain, draw bool
	seeds         int    // 0 is the number in the file
	seed          uint64 // of the one stream to replay step by step; 0 for no stream
}

func replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay [--machine MACHINE] FILE...",
		Short: "Replay a scenario: who gets which CPUs, step by step, under which policy",
		Long:  replayHelp(),
		Example: `  berth replay examples/replay/*.yaml
  berth replay --explain --draw examples/replay/mixed-pod.yaml
  berth replay --policy berth,kubelet,koordinator examples/replay/churn-full.yaml
  berth replay --machine 2s16c2t kubelet.yaml deployment.yaml
  berth replay -o json examples/replay/mixed-pod.yaml | jq -r '[.step, .id, .own] | @tsv'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exitStatus{exitUsage, errors.New("replay: no scenario file is named (see 'berth replay --help')")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("seeds") && f.seeds < 1 {
				return exitStatus{exitUsage, fmt.Errorf("--seeds %d: want 1 stream or more", f.seeds)}
			}
			return f.run(cmd, args)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.machine, "machine", "", "the `machine` that pods of Kubernetes run on: a short form such as 2s16c2t, or a file (see 'berth topo --help')")
	fs.StringSliceVar(&f.policies, "policy", nil, "replay under this policy instead of the scenario's; several, between commas, are compared")
	fs.BoolVar(&f.explain, "explain", false, "show why each grant was chosen, and what lost on which rank")
	fs.BoolVar(&f.draw, "draw", false, "show the CPUs of the machine with their owners after each step")
	fs.IntVar(&f.seeds, "seeds", 0, "how many streams of a generated scenario to compare, from seed 1 on (default: what the file says)")
	fs.Uint64Var(&f.seed, "seed", 0, "replay the stream of this seed step by step, like a scenario with steps")
	outputFlag(cmd, "what to print: text or json (one object per line)")
	return cmd
}

func replayHelp() string {
	var b strings.Builder
	b.WriteString(`Replay a scenario file on paper: a machine, a policy and steps (place, release,
resize, restart). Nothing on this host is read or changed but the files named.
docs/replay.md describes the file.

Files with objects of Kubernetes (pods, deployments, jobs and all other kinds that make
pods) are read together as one scenario: all their pods come to the one --machine, each
as often as its replicas say. A KubeletConfiguration among them makes it a node with
that kubelet.

With several policies the same steps run under each, and the table compares what
was admitted and what it cost. Expectations are those of the scenario's own
policy: under another they are not looked at.

A scenario that generates streams is replayed once per seed: the tables have the
means, and the differences from the first policy with 95 % intervals. --seed N
replays one stream step by step.

Exit status: 0 all as expected, 1 a file could not be read or replayed, 2 wrong
usage, 3 an expectation failed.

Policies:
`)
	for _, p := range policies.All() {
		fmt.Fprintf(&b, "  %-14s %s\n", p.Name, p.About)
	}
	return strings.TrimRight(b.String(), "\n")
}

func (f *replayFlags) run(cmd *cobra.Command, files []string) error {
	if f.seed > 0 && f.seeds > 0 {
		return exitStatus{exitUsage, errors.New("--seed and --seeds: one stream step by step, or several compared")}
	}
	for i, name := range f.policies {
		if slices.Contains(f.policies[:i], name) {
			return exitStatus{exitUsage, fmt.Errorf("--policy names %q twice", name)}
		}
	}
	groups, err := f.groups(files)
	if err != nil {
		return err
	}
	var errs []error
	failed := 0
	for i, files := range groups {
		if i > 0 && !isJSON(cmd) {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		n, err := f.scenario(cmd, files)
		if err != nil {
			errs = append(errs, err)
		}
		failed += n
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if failed > 0 {
		return exitStatus{exitUnexpected, fmt.Errorf("%s not as expected", plain.Count(failed, "step"))}
	}
	return nil
}

// groups puts files with objects of Kubernetes together, the others each for itself.
func (f *replayFlags) groups(files []string) (groups [][]string, err error) {
	var objects []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		switch {
		case err == nil && replay.IsObjects(string(text)):
			objects = append(objects, file)
		default:
			groups = append(groups, []string{file})
		}
	}
	switch {
	case len(objects) > 0 && f.machine == "":
		return nil, exitStatus{exitUsage, fmt.Errorf("%s holds objects of Kubernetes: name the machine that they run on with --machine, such as --machine 2s16c2t", objects[0])}
	case len(objects) == 0 && f.machine != "":
		return nil, exitStatus{exitUsage, fmt.Errorf("--machine is for objects of Kubernetes; the machine of %s stands in it", files[0])}
	case len(objects) > 0:
		groups = append(groups, objects)
	}
	return groups, nil
}

// scenario replays a scenario file, or files with objects of Kubernetes, and returns how many
// steps were not as expected.
func (f *replayFlags) scenario(cmd *cobra.Command, files []string) (failed int, err error) {
	file := strings.Join(files, ", ")
	s, err := f.read(files)
	if err != nil {
		return 0, err
	}
	policies := f.policies
	if len(policies) == 0 {
		policies = []string{s.Policy}
	}
	for _, name := range policies {
		if _, err := s.PolicyFor(name); err != nil {
			return 0, exitStatus{exitUsage, fmt.Errorf("--policy: %w", err)}
		}
	}
	switch {
	case s.Generate == nil && (f.seed > 0 || f.seeds > 0):
		return 0, exitStatus{exitUsage, fmt.Errorf("--seed, --seeds: %s has steps, and no streams", file)}
	case s.Generate != nil && f.seed == 0:
		return 0, f.streams(cmd, file, s, policies)
	case s.Generate != nil:
		s = s.Stream(f.seed)
	}
	var results []*replay.Result
	for _, name := range policies {
		r, err := s.Run(name)
		if err != nil {
			return 0, fmt.Errorf("replay %s: %w", file, err)
		}
		results = append(results, r)
		failed += r.Failed()
	}
	return failed, showLines(cmd, replayLines(file, results), func() string { return f.text(file, s, results) })
}

// streams measures the streams of a generated scenario.
func (f *replayFlags) streams(cmd *cobra.Command, file string, s *replay.Scenario, policies []string) error {
	if f.draw || f.explain {
		return exitStatus{exitUsage, errors.New("--draw and --explain are of one stream: name it with --seed")}
	}
	seeds := s.Generate.Seeds
	if f.seeds > 0 {
		seeds = f.seeds
	}
	run, err := measureStreams(s, policies, seeds)
	if err != nil {
		return fmt.Errorf("replay %s: %w", file, err)
	}
	return showLines(cmd, run.lines(file), func() string {
		var b strings.Builder
		b.WriteString(replayHead(file, s))
		g := s.Generate
		fmt.Fprintf(&b, "%s each after %d to settle, load %v\n\n", plain.Count(g.Arrivals, "arrival"), g.Settle, g.Load)
		run.table(&b)
		return b.String()
	})
}

// replayHead is the title of a scenario and its machine.
func replayHead(file string, s *replay.Scenario) string {
	if s.About != "" {
		file += ": " + plain.Line(s.About)
	}
	head := file + "\n" + machineLine(s.Topology) + "\n"
	for _, note := range s.Notes {
		head += plain.Line(note) + "\n"
	}
	return head
}

// read reads a scenario file, whose machine and objects are looked for beside it, or
// objects of Kubernetes.
func (f *replayFlags) read(files []string) (*replay.Scenario, error) {
	text, err := os.ReadFile(files[0])
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	dir, isObjects := filepath.Dir(files[0]), replay.IsObjects(string(text))
	if isObjects {
		dir = "."
	}
	load := replay.Loader{
		Machine: func(source string) (*machine.Machine, error) { return loadMachine(dir, source) },
		File: func(name string) (string, error) {
			text, err := os.ReadFile(beside(dir, name))
			return string(text), err
		},
	}
	if isObjects {
		return replay.Apply(f.machine, files, load)
	}
	s, err := replay.Parse(string(text), load)
	if err != nil {
		return nil, fmt.Errorf("read scenario %s: %w", files[0], err)
	}
	return s, nil
}

func beside(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return dir + string(filepath.Separator) + file // one with a separator is a file
}

// loadMachine reads a short form, a table of lscpu or a file beside dir.
func loadMachine(dir, source string) (*machine.Machine, error) {
	if strings.Contains(source, "\n") {
		return sysfs.Lscpu(source)
	}
	if m, err := machine.Short(source); err == nil {
		return m, nil
	}
	return sysfs.Load(beside(dir, source))
}

// replayLine is a line of JSON: one step under one policy; where policies are compared,
// the summary of a policy after its steps; or the summary of one stream under one policy.
type replayLine struct {
	File   string `json:"file"`
	Policy string `json:"policy"`
	Seed   int    `json:"seed,omitempty"`
	*replay.StepResult
	Summary *replay.Summary `json:"summary,omitempty"`
}

func replayLines(file string, results []*replay.Result) (lines []replayLine) {
	for _, r := range results {
		for i := range r.Steps {
			lines = append(lines, replayLine{File: file, Policy: r.Policy, StepResult: &r.Steps[i]})
		}
		if len(results) > 1 {
			lines = append(lines, replayLine{File: file, Policy: r.Policy, Summary: &r.Summary})
		}
	}
	return lines
}

// showLines is show for several values, each a line of JSON.
func showLines[T any](cmd *cobra.Command, values []T, text func() string) error {
	if !isJSON(cmd) {
		return show(cmd, nil, text)
	}
	e := json.NewEncoder(cmd.OutOrStdout())
	for _, v := range values {
		if err := e.Encode(v); err != nil {
			return err
		}
	}
	return nil
}

// text writes a scenario and its results for a person.
func (f *replayFlags) text(file string, s *replay.Scenario, results []*replay.Result) string {
	var b strings.Builder
	b.WriteString(replayHead(file, s))
	if len(results) > 1 {
		if f.draw || f.explain {
			for _, r := range results {
				fmt.Fprintf(&b, "\npolicy %s\n", plain.Line(r.Policy))
				f.detail(&b, s, r)
			}
		}
		b.WriteByte('\n')
		compareReplay(&b, results)
		for _, r := range results {
			b.WriteString(ignoredText(r))
		}
		return b.String()
	}
	r := results[0]
	fmt.Fprintf(&b, "policy %s\n\n", plain.Line(r.Policy))
	replayTable(&b, s, r)
	b.WriteString(ignoredText(r))
	if f.draw || f.explain {
		f.detail(&b, s, r)
	}
	if r.Policy != s.Policy && slices.ContainsFunc(s.Steps, func(s replay.Step) bool { return s.Expect != nil }) {
		fmt.Fprintf(&b, "\nexpectations are those of policy %s and were not looked at\n", plain.Line(s.Policy))
	}
	return b.String()
}

// ignoredText warns of what a policy ignores of the steps, "" if nothing.
func ignoredText(r *replay.Result) string {
	steps := map[place.Field]int{}
	for i := range r.Steps {
		for _, f := range r.Steps[i].Ignored {
			steps[f]++
		}
	}
	var parts []string
	for _, f := range slices.Sorted(maps.Keys(steps)) {
		parts = append(parts, fmt.Sprintf("%s (%s)", f, plain.Count(steps[f], "step")))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("\nwarning: policy %s ignores %s\n", plain.Line(r.Policy), strings.Join(parts, ", "))
}

// detail shows why and where, step by step.
func (f *replayFlags) detail(b *strings.Builder, s *replay.Scenario, r *replay.Result) {
	d := newReplayDrawing(s.Topology)
	for i := range r.Steps {
		step := &r.Steps[i]
		fmt.Fprintf(b, "\nstep %d: %s\n", step.Step, stepTitle(step))
		if f.explain {
			explainStep(b, step)
		}
		if f.draw {
			d.draw(b, step.State)
		}
	}
}

func stepTitle(step *replay.StepResult) string {
	title := strings.TrimSpace(string(step.Do) + " " + step.ID)
	if step.Error != "" {
		title += ": " + step.Error
	}
	return plain.Line(title)
}

// machineLine is the machine in one line.
func machineLine(t *place.Topology) string {
	m := t.Machine()
	parts := strings.SplitN(headline(m), "\n", 3)
	return plain.Line(strings.Join(parts[:len(parts)-1], ": "))
}
