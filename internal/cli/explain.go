package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/knob"
	"berth.dev/berth/place"
)

func explainCommand() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "explain NAME",
		Short: "Say what a workload has and why",
		Long: `Say what a workload has and why: in a sentence, then what is set.

-v adds the candidates at each choice, and what decided. Ranks are short lists of
numbers, compared from the first on; the lowest wins, and ties end in the lowest CPU
number. A workload whose CPUs were named by hand had nothing to choose.

Exit status: 0, 1 if there is no such workload or it cannot be read, 2 for wrong
usage.`,
		Example: `  berth explain api
  berth explain api -v      # with the candidates, and what decided`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withReader(cmd, func(n node) error {
				id, err := workloadID(cmd.Context(), n, args[0])
				if err != nil {
					return err
				}
				w, err := getOrWaiting(cmd.Context(), n, id)
				if err != nil {
					return err
				}
				if w.State == agent.Waiting {
					return show(cmd, w, func() string { return waits(&w, time.Now()) + "\n" })
				}
				s, err := n.State(cmd.Context())
				if err != nil {
					return err
				}
				net := netOf(cmd.Context(), n, &w)
				return show(cmd, w, func() string { return sentence(&w, s) + "\n\n" + explanation(&w, net, verbose) })
			})
		},
	}
	oneName(cmd)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "also the candidates at each choice, and what decided")
	outputFlag(cmd, "text or json")
	socketFlag(cmd)
	return cmd
}

// netOf returns the network class of a workload, nil for none. That it cannot be read becomes a note:
// all else is told.
func netOf(ctx context.Context, n node, w *agent.Workload) *agent.ClassUse {
	if w.Classes[agent.NetClass] == "" {
		return nil
	}
	classes, err := n.ClassReport(ctx)
	if err != nil {
		w.Notes = append(w.Notes, "what its network class has of devices cannot be read: "+err.Error())
	}
	return classes.NetOf(w)
}

// getOrWaiting returns a workload, also one that has no place yet.
func getOrWaiting(ctx context.Context, n node, id string) (agent.Workload, error) {
	w, err := n.Get(ctx, id)
	if !is[*place.NotHeldError](err) {
		return w, err
	}
	waiting, wrong := listWaiting(ctx, n)
	if wrong != nil {
		return w, wrong
	}
	if i := slices.IndexFunc(waiting, func(w agent.Workload) bool { return w.ID() == id }); i >= 0 {
		return waiting[i], nil
	}
	return w, err
}

// sentence says which CPUs a workload has, and which it cannot have and why.
func sentence(w *agent.Workload, s *place.State) string {
	r, g := &w.Spec.Request, w.Grant
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", plain.Line(w.ID()))
	switch {
	case g.Own.IsEmpty():
		fmt.Fprintf(&b, "shares %s", cpuWords(w.CPUs))
	case g.Own == w.CPUs:
		fmt.Fprintf(&b, "has %s to itself", cpuWords(g.Own))
	default:
		fmt.Fprintf(&b, "has %s to itself and shares %s", cpuWords(g.Own), cpuWords(w.CPUs.Minus(g.Own)))
	}
	fmt.Fprintf(&b, " (%s: %s).", r.Class, r.Class.Traits().About)
	for _, o := range s.Obstacles(r) {
		if o.CPUs = o.CPUs.Minus(w.CPUs); o.Rule != "shared" && !o.CPUs.IsEmpty() {
			fmt.Fprintf(&b, " %s.", plain.Line(o.String()))
		}
	}
	return strings.Join(plain.Wrap(b.String(), 100), "\n")
}

// backendWords is how workloads are placed, as people know it.
func backendWords(backend string) string {
	if backend == "hybrid" {
		return "cgroup v1 and v2"
	}
	return backend
}

func cpuWords(cpus cpuset.Set) string {
	if cpus.Len() == 1 {
		return "CPU " + cpus.String()
	}
	return "CPUs " + cpus.String()
}

// explanation describes the CPUs and limits of a workload, what its network class has, if that is known,
// and, below a line "why", the candidates at each choice.
func explanation(w *agent.Workload, net *agent.ClassUse, why bool) string {
	var b strings.Builder
	r, g := &w.Spec.Request, w.Grant
	asked := r.Class.String()
	if r.Milli > 0 {
		asked += ", " + place.Milli(r.Milli).String() + " CPU"
	}
	rows := [][]string{{"workload", plain.Line(w.ID())}, {"class", asked}, {"runs on", cell(w.CPUs)}}
	add := func(name, text string) {
		if text != "" {
			rows = append(rows, []string{name, plain.Line(text)})
		}
	}
	add("exclusive", g.Own.String())
	add("kept idle", g.Fence.String())
	add("memory nodes", w.Mems.String())
	for _, kind := range agent.ClassKinds() {
		asked, has := w.Spec.Classes[kind], w.Classes[kind]
		if asked == "" && has != "" {
			has += ", of class " + r.Class.String()
		}
		add(string(kind)+" class", cmp.Or(has, asked))
	}
	if net != nil {
		for i := range net.Links {
			l := &net.Links[i]
			add("through "+l.Device, fmt.Sprintf("%s (%s: %s)", l.Text(), strings.ToUpper(string(l.By)), l.Why))
		}
		add("received", strings.Join(net.Received(), ", "))
	}
	add("network", bandwidthText(&w.Spec.Bandwidth))
	add("limits", limitsText(&w.Limits))
	if p99 := w.Spec.P99Seconds; p99 > 0 {
		add("p99 to keep", time.Duration(p99*float64(time.Second)).Round(time.Microsecond).String())
	}
	for _, a := range r.Memory {
		if size, ok := strings.CutPrefix(a.Resource, place.HugePagesPrefix); ok {
			add("huge pages", fmt.Sprintf("%s of %s", place.Bytes(a.Bytes), size))
		}
	}
	add("set by", backendWords(w.Backend))
	add("group", w.Group)
	for _, key := range slices.Sorted(maps.Keys(w.Spec.Annotations)) {
		if field, ok := strings.CutPrefix(key, agent.SourcePrefix); ok {
			add(field+" from", w.Spec.Annotations[key])
		}
	}
	plain.Columns(&b, rows)
	for _, note := range w.Notes {
		fmt.Fprintf(&b, "note: %s\n", plain.Line(note))
	}
	if !why {
		return b.String()
	}
	b.WriteString("\nwhy\n")
	if g.Why == nil || len(g.Why.Decisions) == 0 {
		b.WriteString("  there was nothing to choose\n")
		return b.String()
	}
	for _, d := range g.Why.Decisions {
		explainDecision(&b, d)
	}
	return b.String()
}

// bandwidthText says what a workload, or the pod around it, may send and receive.
func bandwidthText(b *agent.Bandwidth) string {
	var parts []string
	if b.Send > 0 {
		parts = append(parts, "sends at most "+b.Send.String())
	}
	if b.Receive > 0 {
		parts = append(parts, "receives at most "+b.Receive.String())
	}
	text := strings.Join(parts, ", ")
	if text != "" && b.Around {
		text = "its pod " + text
	}
	return text
}

// limitsText writes the limits that are set, in the words of the flags.
func limitsText(l *cgroup.Limits) string {
	var parts []string
	settings := l.Settings()
	for _, id := range settings.IDs() {
		value := settings[id]
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case id.Type == knob.Switch && value == id.Default:
			parts = append(parts, "not "+id.Words)
			continue
		case id.Type == knob.Switch:
			parts = append(parts, id.Words)
			continue
		case id.Type != knob.Share && value == id.Default || strings.HasPrefix(value, knob.Max):
			continue // taken away
		case id.Type == knob.Bandwidth:
			value = quota{l.Quota, l.Period}.String()
		case id.Type == knob.Bytes && err == nil:
			value = place.Bytes(n).String()
		case id.Type == knob.Time && err == nil:
			value = (time.Duration(n) * time.Microsecond).String()
		}
		parts = append(parts, strings.TrimSpace(id.Words+" "+value+" "+id.Key))
	}
	return strings.Join(parts, ", ")
}
