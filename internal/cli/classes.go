package cli

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/kernel/traffic"
)

// readClasses reads a file that defines classes: a NodeConfig, of any kind, or a file of the
// kind's own format, cache classes where it has partitions and else I/O classes. "" defines
// none.
func readClasses(name string) (c agent.ClassConfig, err error) {
	if name == "" {
		return c, nil
	}
	text, err := daemon.ReadFile(name)
	if err != nil {
		return c, err
	}
	switch {
	case strings.Contains(string(text), config.APIVersion):
		n, err := config.Parse(text, name)
		if err != nil {
			return c, err
		}
		c = daemon.ClassesOf(n)
	case strings.Contains(string(text), "partitions:"):
		c.Cache, err = resctrl.Parse(text, name)
	default:
		c.IO, err = blockio.Parse(text, name)
	}
	if err == nil && c == (agent.ClassConfig{}) {
		err = fmt.Errorf("%s: classes: it defines none", name)
	}
	return c, err
}

func classesCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "classes",
		Short: "Show the classes of caches, block I/O, power and the network, who has which, and what is left",
		Long: `Show the classes of caches, block I/O, power and the network, who has which, and what is left.

Cache classes are drawn. A column is a cache, by its id, with the highest way first, as
in the masks of resctrl: '#' is a way of the class, 'i' one that devices fill as well. MB
is memory bandwidth. DEFAULT is all work without a class. Groups of other programs are
shown and never changed.
I/O classes are listed with what they come to on the disks that there are now.
Of power there is a row for each profile: its CPUs, and what these have now.
Network classes are listed with their floor, ceiling and priority on each device, and
below them what single workloads may send and receive at most.

Classes come from the agent's configuration or, without an agent, from what the workloads
there are were started with. --file shows what a file would come to, and writes nothing.

Exit status: 0, 1 if this host has no such classes or the file does not fit it, 2 for wrong
usage.`,
		Example: `  berth classes
  berth classes --file classes.yaml       # what it would come to here
  berth run --cache-classes classes.yaml --cache gold -- ./api`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := reportClasses(cmd, file)
			if err != nil {
				return err
			}
			return show(cmd, r, r.text)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "show this `file` instead: a NodeConfig, or as of goresctrl or Koordinator")
	outputFlag(cmd, "text or json")
	socketFlag(cmd)
	return cmd
}

// classReport draws what there is, kind by kind.
type classReport struct{ agent.ClassReport }

// drawings are the pictures of kinds that have one; the others are a table.
var drawings = map[agent.ClassKind]func(*strings.Builder, *agent.ClassSection){agent.CacheClass: drawCaches}

func reportClasses(cmd *cobra.Command, file string) (r classReport, err error) {
	err = withReader(cmd, func(n node) error {
		if file == "" {
			r.ClassReport, err = n.ClassReport(cmd.Context())
			return err
		}
		config, err := readClasses(file)
		if err != nil {
			return err
		}
		all, err := n.List(cmd.Context())
		if err != nil {
			return err
		}
		root, err := kernel.Open(rootDir(cmd))
		if err != nil {
			return err
		}
		r.ClassReport, err = agent.ReportClasses(power.Over(traffic.Over(root)).FS(), config, all, true)
		return err
	})
	var lacks []error
	some := false
	for i := range r.Kinds {
		lacks = append(lacks, r.Kinds[i].Lacks())
		some = some || len(r.Kinds[i].Classes) > 0 || len(r.Kinds[i].Limits) > 0
	}
	if err == nil && !some {
		err = errors.Join(lacks...)
	}
	return r, err
}

func (r classReport) text() string {
	var b strings.Builder
	if r.Planned {
		b.WriteString("This is what the file comes to; nothing is written.\n\n")
	}
	kinds := slices.DeleteFunc(slices.Clone(r.Kinds), func(s agent.ClassSection) bool { return s.Lacks() == nil && len(s.Classes) == 0 && len(s.Limits) == 0 })
	if len(kinds) == 0 {
		b.WriteString("no classes are defined\n")
	}
	for i := range kinds {
		s := &kinds[i]
		if i > 0 {
			b.WriteString("\n")
		}
		if err := s.Lacks(); err != nil {
			fmt.Fprintf(&b, "%s\n", plain.Line(err.Error()))
			continue
		}
		fmt.Fprintf(&b, "%s classes", s.Kind)
		for i, supply := range s.Supplies {
			fmt.Fprintf(&b, "%s %d of %d %s are in use, %d left", map[bool]string{true: ":", false: ";"}[i == 0], supply.Total-supply.Left, supply.Total, supply.Name, supply.Left)
		}
		b.WriteString("\n")
		draw := drawings[s.Kind]
		if draw == nil {
			draw = drawTable
		}
		if len(s.Classes) > 0 {
			draw(&b, s)
		}
		drawLimits(&b, s.Limits)
		drawDrops(&b, s)
		for _, note := range s.Notes {
			fmt.Fprintf(&b, "note: %s\n", plain.Line(note))
		}
		for _, c := range s.Classes {
			for _, note := range c.Notes {
				fmt.Fprintf(&b, "note: class %s: %s\n", plain.Line(c.Name), plain.Line(note))
			}
		}
	}
	return b.String()
}

// drawTable writes what each class has in words.
func drawTable(b *strings.Builder, s *agent.ClassSection) {
	rows := [][]string{{"CLASS", "SETTINGS", "WORKLOADS"}}
	for i := range s.Classes {
		c := &s.Classes[i]
		var words []string
		for _, v := range c.Settings {
			words = append(words, v.Of+" "+v.Value)
		}
		rows = append(rows, []string{plain.Line(c.Name), plain.Line(strings.Join(words, ", ")), who(c)})
	}
	b.WriteString("\n")
	plain.Columns(b, rows)
}

// drawLimits writes what single workloads may send and receive.
func drawLimits(b *strings.Builder, limits []agent.WorkloadLimit) {
	if len(limits) == 0 {
		return
	}
	rows := [][]string{{"WORKLOAD", "SENDS AT MOST", "RECEIVES AT MOST"}}
	for _, l := range limits {
		name := plain.Line(l.Workload)
		if l.Around {
			name = "the pod of " + name
		}
		row := []string{name}
		for _, most := range []float64{l.Send, l.Receive} {
			text := absent
			if most > 0 {
				text = traffic.Rate(most).String()
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	b.WriteString("\n")
	plain.Columns(b, rows)
}

// drawDrops writes which packets were dropped, and by what.
func drawDrops(b *strings.Builder, s *agent.ClassSection) {
	rows := [][]string{{"DROPPED", "BY", "OF"}}
	add := func(packets *uint64, by, of string) {
		if packets != nil && *packets > 0 {
			rows = append(rows, []string{strconv.FormatUint(*packets, 10), plain.Line(by), plain.Line(of)})
		}
	}
	for i := range s.Classes {
		c := &s.Classes[i]
		for _, l := range c.Links {
			add(l.Dropped, l.Device, "class "+c.Name)
		}
		add(c.Dropped, "what they receive together", "class "+c.Name)
	}
	for _, d := range s.Drops {
		add(&d.Packets, "its limit", d.Workload)
	}
	if len(rows) > 1 {
		b.WriteString("\n")
		plain.Columns(b, rows)
	}
}

// drawCaches draws the ways of each cache.
func drawCaches(b *strings.Builder, s *agent.ClassSection) {
	for i := range s.Resctrl.Resources {
		if res := &s.Resctrl.Resources[i]; res.Cache() {
			b.WriteString("\n")
			drawCache(b, s, res)
		}
	}
}

// maxColumns is how many caches are drawn; more are summed up where they are alike.
const maxColumns = 4

func drawCache(b *strings.Builder, s *agent.ClassSection, res *resctrl.Resource) {
	same := alike(s, res)
	domains := res.Domains
	if same || len(domains) > maxColumns {
		domains = domains[:min(len(domains), 1)]
		if !same {
			domains = res.Domains[:min(len(res.Domains), maxColumns)]
		}
	}
	header := []string{res.Name}
	for _, id := range domains {
		name := fmt.Sprintf("cache %d", id)
		if same && len(res.Domains) > 1 {
			name = fmt.Sprintf("each of %d caches", len(res.Domains))
		}
		header = append(header, name)
	}
	rows := [][]string{append(header, "WAYS", "MB", "WORKLOADS")}
	for _, c := range s.Classes {
		line := c.Schemata.Line(res.Name)
		if line == nil {
			continue
		}
		row := []string{plain.Line(c.Name)}
		first := uint64(0)
		for i, id := range domains {
			n, _ := line.Get(id)
			if row = append(row, resctrl.Draw(res, id, n)); i == 0 {
				first = n
			}
		}
		row = append(row, fmt.Sprintf("%d of %d", bits.OnesCount64(first), res.Ways()), bandwidthOf(s, &c), who(&c))
		rows = append(rows, row)
	}
	rows = append(rows, freeWays(s, res, domains))
	plain.Columns(b, rows)
	if left := len(res.Domains) - len(domains); !same && left > 0 {
		fmt.Fprintf(b, "and %d more caches: -o json has all\n", left)
	}
}

// alike reports whether all caches of a resource are divided alike.
func alike(s *agent.ClassSection, res *resctrl.Resource) bool {
	for _, id := range res.Domains {
		if res.Filled(id) != res.Filled(res.Domains[0]) {
			return false
		}
	}
	for _, c := range s.Classes {
		if line := c.Schemata.Line(res.Name); line != nil {
			for _, v := range line.Values {
				if v.N != line.Values[0].N {
					return false
				}
			}
		}
	}
	return true
}

func bandwidthOf(s *agent.ClassSection, c *agent.ClassUse) string {
	res, line := s.Resctrl.Find("MB"), c.Schemata.Line("MB")
	if res == nil || line == nil || len(line.Values) == 0 {
		return "–"
	}
	return res.Text(line.Values[0].N)
}

// who has a class.
func who(c *agent.ClassUse) string {
	switch {
	case c.Foreign && strings.HasPrefix(c.Name, resctrl.GuardPrefix):
		return fmt.Sprintf("the guard's, %s", plain.Count(c.Tasks, "thread"))
	case c.Foreign:
		return fmt.Sprintf("another program's, %s", plain.Count(c.Tasks, "thread"))
	case c.Name == resctrl.Default:
		return "all without a class"
	case !c.InForce:
		return "nobody"
	}
	return plain.Line(strings.Join(c.Workloads, ", "))
}

// freeWays draws the ways that no class has, or only the default one.
func freeWays(s *agent.ClassSection, res *resctrl.Resource, domains []int) []string {
	row := []string{"(no class)"}
	count := 0
	for i, id := range domains {
		mask := res.Mask
		for _, c := range s.Classes {
			if line := c.Schemata.Line(res.Name); line != nil && c.Name != resctrl.Default {
				n, _ := line.Get(id)
				mask &^= n
			}
		}
		if row = append(row, resctrl.Draw(res, id, mask)); i == 0 {
			count = bits.OnesCount64(mask)
		}
	}
	return append(row, fmt.Sprintf("%d of %d", count, res.Ways()), "", "")
}
