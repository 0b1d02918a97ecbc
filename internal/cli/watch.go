package cli

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/watch"
)

func watchCommand() *cobra.Command {
	f := watchOptions{}
	cmd := &cobra.Command{
		Use:   "watch [GROUP | UNIT | WORKLOAD | PID | PROGRAM]...",
		Short: "Show live how workloads and control groups fare",
		Long: `Show live how workloads and control groups fare: those named, or those that come
first by --sort. Groups that have others below them are shown if they are named.
Processes in no group of their own are shown by program: "process nginx".

  CPU        CPU time used, in CPUs, and its history
  STALL%     time in which some task waited for a CPU (pressure stall information)
  DELAY      time that threads waited for a CPU, per second (run delay)
  P99        99th percentile of run-queue latency (with --probe)
  THROTTLE%  enforcement periods in which its own quota ran out
  MEMORY     memory in use
  SWITCH     context switches per second
  IPC        instructions per cycle
  GHZ        mean clock rate of the CPUs that it may use
  CACHE      bytes held in last-level caches
  MEMBW      bytes to and from memory per second
  SENT, RECEIVED  bytes per second over the network, loopback left out
  RTT        mean round-trip time of its TCP connections to other hosts
  RESENT%    TCP segments that were sent again, of those sent
The host's line has the watts of its processor packages and their memory, where the
kernel counts them. A figure that this host does not provide is –; the last nine have a
column only if some group has them, and --signals says why not. These (but SENT and
RECEIVED), DELAY and P99 are of the groups that are named, or of the eight that used most
CPU time at first. On a terminal each table takes the place of the last, elsewhere one
follows the other.

--record stores the samples, -o json prints them: one a line. A recording
can be shown again by --replay and judged by berth diagnose --replay.

Exit status: 0, also when interrupted; 1 if the host or the recording cannot be
read, 2 for wrong usage.`,
		Example: `  sudo berth watch                          # the groups that use most CPU time, every second
  sudo berth watch nginx.service --probe    # and how long it waits for a CPU
  berth watch --sort delay --top 20 --interval 5s
  berth watch --signals                     # what this host tells, and why not the rest
  berth watch --record bad-day.jsonl        # berth diagnose --replay judges it later`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.observe.register(cmd, false)
	cmd.Flags().BoolVar(&f.once, "once", false, "show one interval; of a recording, the last")
	cmd.Flags().BoolVar(&f.signals, "signals", false, "list the signals: whether they are there, why not, what reading them costs")
	cmd.Flags().IntVarP(&f.top, "top", "n", 10, "show the first `number` of groups")
	wordFlag(cmd, "sort", "", "`key`: cpu, stall, delay, throttled or memory", sortKeys()...)
	outputFlag(cmd, "text or json")
	return cmd
}

// watchOptions are the flags of berth watch.
type watchOptions struct {
	observe       observeFlags
	once, signals bool
	top           int
}

func (f *watchOptions) run(cmd *cobra.Command, args []string) (err error) {
	if f.top < 1 {
		return exitStatus{exitUsage, fmt.Errorf("--top %d: at least 1", f.top)}
	}
	o, err := f.observe.open(cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	if f.signals {
		return f.showSignals(cmd, o)
	}
	var named []string
	for _, arg := range args {
		workload, err := o.find(arg)
		if err != nil {
			return fmt.Errorf("watch %w", err)
		}
		named = append(named, workload)
	}
	return f.show(cmd, o, named)
}

// show prints tick by tick; of two for each interval that is shown, the first
// shows nothing.
func (f *watchOptions) show(cmd *cobra.Command, o *observation, named []string) error {
	out := cmd.OutOrStdout()
	table := newWatchTable(&o.header, named)
	text := func() string { return table.text(word(cmd, "sort"), f.top) }
	clear := ""
	if isTerminal(out) && !f.once {
		clear = clearScreen
	}
	n := 0
	for samples, err := range o.follow(table, named, len(named) == 0) {
		if err != nil {
			return err
		}
		n++
		if isJSON(cmd) {
			if err := watch.Write(out, samples); err != nil {
				return err
			}
			if f.once && n == 2 {
				return nil
			}
			continue
		}
		if n < 2 || f.once && f.observe.replay != "" {
			continue
		}
		if _, err := fmt.Fprint(out, clear+text()); err != nil || f.once {
			return err
		}
		if clear != "" && f.observe.replay != "" {
			wait(cmd.Context(), f.observe.interval)
		}
		if cmd.Context().Err() != nil {
			return nil
		}
	}
	if f.once && f.observe.replay != "" && !isJSON(cmd) {
		_, err := fmt.Fprint(out, text())
		return err
	}
	return nil
}

func (f *watchOptions) showSignals(cmd *cobra.Command, o *observation) error {
	rows := [][]string{{"SIGNAL", "OF", "THERE", "ONE READING", "NOTE"}}
	for _, s := range o.header.Signals {
		there, cost, note := "yes", absent, s.Note
		if s.CostSeconds > 0 {
			cost = time.Duration(s.CostSeconds * 1e9).Round(100 * time.Nanosecond).String()
		}
		if !s.Available {
			there, note = "no", s.Reason
			if s.Remedy != "" {
				note += "; " + s.Remedy
			}
		}
		rows = append(rows, []string{s.Name, s.Of, there, cost, dash(note)})
	}
	return show(cmd, o.header.Signals, func() string {
		var b strings.Builder
		plain.Columns(&b, rows, 3)
		return b.String()
	})
}

func sortKeys() []string { return []string{"cpu", "stall", "delay", "throttled", "memory"} }

// watchTable holds the figures of each group by the last ticks.
type watchTable struct {
	header *observe.Header
	named  []string // empty is all
	always string   // has a row in any case; "" is nobody
	groups map[string]*watchRow
	host   watchRow
	now    watch.Time
}

// watchRow is one group.
type watchRow struct {
	name    string
	history []float64 // of CPU time used; NaN where it is missing
	// now has the values of this tick, silent counts the ticks without any.
	now    map[watch.Quantity]float64
	silent int
	levels watch.Levels
}

const historyLength = 20

func newWatchTable(h *observe.Header, named []string) *watchTable {
	return &watchTable{header: h, named: named, groups: map[string]*watchRow{}, host: *newWatchRow("")}
}

// add takes in a tick.
func (t *watchTable) add(samples []watch.Sample) {
	if len(samples) == 0 {
		return
	}
	t.now = samples[0].Time
	before, at := map[*watchRow]map[watch.Quantity]float64{}, watch.Time(0) // of programs that are new
	for _, s := range samples {
		switch row := t.row(s.Subject); {
		case row == nil || s.By != "":
		case s.Time == t.now:
			row.now[s.Quantity] += s.Value // the caches and links are added up
		case s.Subject.Scope == watch.Process:
			if before[row] == nil {
				before[row] = map[watch.Quantity]float64{}
			}
			before[row][s.Quantity], at = s.Value, s.Time
		}
	}
	for row, values := range before {
		row.levels.Tick(at, values)
	}
	for group, row := range t.groups {
		if row.update(t.now); row.silent > 1 {
			delete(t.groups, group) // it is gone
		}
	}
	t.host.update(t.now)
}

// row returns the row of the whole of a subject, or of one of its caches or links, which
// are added up.
func (t *watchTable) row(s watch.Subject) *watchRow {
	if s.Part != (watch.Part{}) && s.Part.Kind != watch.Cache && s.Part.Kind != watch.Link {
		return nil
	}
	switch s.Scope {
	case watch.Host:
		return &t.host
	case watch.Process:
		if s.Name == "" {
			return nil // all of them
		}
		fallthrough
	case watch.Group:
		row := t.groups[detect.Name(s)]
		if row == nil {
			row = newWatchRow(shownName(t.header, detect.Name(s)))
			t.groups[detect.Name(s)] = row
		}
		return row
	}
	return nil
}

func newWatchRow(name string) *watchRow {
	return &watchRow{name: name, now: map[watch.Quantity]float64{}}
}

// update takes in the values of a tick.
func (r *watchRow) update(now watch.Time) {
	r.silent++
	if len(r.now) > 0 {
		r.silent = 0
	}
	r.levels.Tick(now, r.now)
	r.now = map[watch.Quantity]float64{}
	r.history = append(r.history, r.level(watch.CPUTime))
	r.history = r.history[max(0, len(r.history)-historyLength):]
}

func (r *watchRow) level(q watch.Quantity) float64 { return orNaN(r.levels.Level(q)) }

func orNaN(v float64, ok bool) float64 {
	if !ok {
		return math.NaN()
	}
	return v
}

// busiest returns the workloads that used CPU time, those that used most first.
func (t *watchTable) busiest() []string {
	var all []string
	for name, row := range t.groups {
		if row.level(watch.CPUTime) > 0 {
			all = append(all, name)
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.groups[b].level(watch.CPUTime), t.groups[a].level(watch.CPUTime)), strings.Compare(a, b))
	})
	return all
}

// text is the host's line and the table.
func (t *watchTable) text(key string, top int) string {
	columns := watchColumns()
	by := columns[slices.IndexFunc(columns, func(c watchColumn) bool { return c.key == key })]
	var rows []*watchRow
	idle := 0
	for group, row := range t.groups {
		switch {
		case len(t.named) > 0 && !slices.Contains(t.named, group): // not asked for
		case len(t.named) == 0 && row.name != t.always && key != "memory" && !(row.level(watch.CPUTime) > 0):
			idle++
		default:
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *watchRow) int {
		return cmp.Or(cmp.Compare(by.value(b), by.value(a)), strings.Compare(a.name, b.name))
	})
	left := max(0, len(rows)-top)
	if i := slices.IndexFunc(rows, func(r *watchRow) bool { return r.name == t.always }); i >= top {
		rows[top-1] = rows[i]
	}
	rows = rows[:len(rows)-left]
	var b strings.Builder
	fmt.Fprintf(&b, "%.1f s  host: %s CPUs used, CPU stall %s %%%s\n", t.now.Seconds(),
		number2(t.host.level(watch.CPUTime)), percentCell(t.host.level(watch.CPUSome)), t.watts())
	table := make([][]string, 1+len(rows))
	add := func(title string, cell func(*watchRow) string) {
		table[0] = append(table[0], title)
		for i, r := range rows {
			table[i+1] = append(table[i+1], cell(r))
		}
	}
	what := "GROUP"
	if slices.ContainsFunc(rows, func(r *watchRow) bool { _, ok := programOf(r.name); return ok }) {
		what = "GROUP OR PROCESS"
	}
	add(what, func(r *watchRow) string { return plain.Line(r.name) })
	var right []int
	for i, c := range columns {
		if c.rare && !slices.ContainsFunc(rows, func(r *watchRow) bool { return !math.IsNaN(c.value(r)) }) {
			continue
		}
		right = append(right, len(table[0]))
		add(c.title, func(r *watchRow) string { return c.cell(c.value(r)) })
		if i == 0 {
			add("", func(r *watchRow) string { return plain.Spark(r.history) })
		}
	}
	plain.Columns(&b, table, right...)
	switch {
	case left > 0 && idle > 0:
		fmt.Fprintf(&b, "not shown: %d, and %d that used no CPU time\n", left, idle)
	case left > 0:
		fmt.Fprintf(&b, "not shown: %d\n", left)
	case idle > 0:
		fmt.Fprintf(&b, "not shown: %d that used no CPU time\n", idle)
	}
	return b.String()
}

// watts is what the processors and their memory take, "" where that is not counted.
func (t *watchTable) watts() string {
	packages, memory := t.host.level(watch.EnergyPackages), t.host.level(watch.EnergyMemory)
	switch {
	case math.IsNaN(packages):
		return ""
	case math.IsNaN(memory):
		return fmt.Sprintf(", packages %s W", tenths(packages))
	}
	return fmt.Sprintf(", packages %s W, memory %s W", tenths(packages), tenths(memory))
}

// watchColumn is a figure of a group, NaN where it is missing.
type watchColumn struct {
	key   string // of --sort, "" for none
	title string
	value func(*watchRow) float64
	cell  func(float64) string
	rare  bool // it is left out where no group has it, as on most hosts
}

func watchColumns() []watchColumn {
	level := func(q watch.Quantity) func(*watchRow) float64 {
		return func(r *watchRow) float64 { return r.level(q) }
	}
	gauge := func(q watch.Quantity) func(*watchRow) float64 {
		return func(r *watchRow) float64 { return orNaN(r.levels.Value(q)) }
	}
	throttled := func(r *watchRow) float64 {
		if periods := r.level(watch.CPUPeriods); periods != 0 {
			return r.level(watch.CPUThrottledPeriods) / periods
		}
		return r.level(watch.CPUThrottledPeriods)
	}
	return []watchColumn{
		{"cpu", "CPU", level(watch.CPUTime), number2, false},
		{"stall", "STALL%", level(watch.CPUSome), percentCell, false},
		{"delay", "DELAY", level(watch.CPUWait), number2, false},
		{"", "P99", gauge(watch.QueueP99), waitCell, false},
		{"throttled", "THROTTLE%", throttled, percentCell, false},
		{"memory", "MEMORY", gauge(watch.Memory), memoryCell, false},
		{"", "SWITCH", level(watch.Switches), wholeCell, true},
		{"", "IPC", func(r *watchRow) float64 { return r.level(watch.Instructions) / r.level(watch.Cycles) }, number2, true},
		{"", "GHZ", func(r *watchRow) float64 { return orNaN(r.levels.Value(watch.Frequency)) / 1e9 }, number2, true},
		{"", "CACHE", gauge(watch.LLCOccupancy), memoryCell, true},
		{"", "MEMBW", level(watch.Bandwidth), memoryCell, true},
		{"", "SENT", level(watch.NetSent), memoryCell, true},
		{"", "RECEIVED", level(watch.NetReceived), memoryCell, true},
		{"", "RTT", gauge(watch.RoundTrip), waitCell, true},
		{"", "RESENT%", func(r *watchRow) float64 { return r.level(watch.Retransmits) / r.level(watch.Segments) }, percentCell, true},
	}
}

// absent stands for a figure that is missing.
const absent = "–"

func decimals(v float64, n int) string {
	if math.IsNaN(v) {
		return absent
	}
	return strconv.FormatFloat(v, 'f', n, 64)
}

func number2(v float64) string { return decimals(v, 2) }

func wholeCell(v float64) string { return decimals(v, 0) }

func tenths(v float64) string { return decimals(v, 1) }

func percentCell(v float64) string { return tenths(100 * v) }

func waitCell(seconds float64) string {
	d := time.Duration(seconds * 1e9)
	switch {
	case math.IsNaN(seconds):
		return absent
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

func memoryCell(v float64) string {
	if math.IsNaN(v) {
		return absent
	}
	return plain.Bytes(int64(v))
}
