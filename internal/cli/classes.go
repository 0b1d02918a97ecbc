package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/resctrl"
)

// readClasses reads a file that defines cache classes; "" defines none.
func readClasses(name string) (c agent.ClassConfig, err error) {
	if name == "" {
		return c, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return c, err
	}
	if strings.Contains(string(text), config.APIVersion) {
		n, err := config.Parse(text, name)
		if err != nil {
			return c, err
		}
		if n.Classes.Cache == nil {
			return c, fmt.Errorf("%s: classes.cache: it defines none", name)
		}
		return daemon.ClassesOf(n), nil
	}
	c.Cache, err = resctrl.Parse(text, name)
	return c, err
}

// readIOClasses reads a file that defines I/O classes.
func readIOClasses(name string) (*blockio.Config, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(string(text), config.APIVersion) {
		return blockio.Parse(text, name)
	}
	n, err := config.Parse(text, name)
	if err == nil && n.Classes.IO == nil {
		err = fmt.Errorf("%s: classes.io: it defines none", name)
	}
	if err != nil {
		return nil, err
	}
	return n.Classes.IO, nil
}

func classesCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "classes",
		Short: "Draw the ways of each cache by class, who has which class, and what is left",
		Long: `Draw the ways of each cache by class, who has which class, and what is left.

A column is a cache, by its id, with the highest way first, as in the masks of resctrl:
'#' is a way of the class, 'i' one that devices fill as well. MB is memory bandwidth.
DEFAULT is all work without a class. Groups of other programs are shown and never changed.

Classes come from the agent's configuration or, without an agent, from what the workloads
there are were started with. --file draws what a file would come to, and writes nothing.

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
	cmd.Flags().StringVarP(&file, "file", "f", "", "draw this `file` instead: a NodeConfig, or as of goresctrl")
	outputFlag(cmd, "text or json")
	socketFlag(cmd)
	return cmd
}

// classReport is what there is of caches and bandwidth.
type classReport struct {
	// Planned is true for a file that is not in force.
	Planned bool          `json:"planned,omitempty"`
	Tree    *resctrl.Tree `json:"resctrl"`
	Classes []classRow    `json:"classes"`
	// CLOSIDs and RMIDs are how many groups there can be, and Left how many more.
	CLOSIDs     int `json:"closids"`
	CLOSIDsLeft int `json:"closidsLeft"`
	RMIDs       int `json:"rmids,omitempty"`
	RMIDsLeft   int `json:"rmidsLeft,omitempty"`
}

type classRow struct {
	Name      string           `json:"name"`
	Partition string           `json:"partition,omitempty"`
	Mode      string           `json:"mode,omitempty"`
	Foreign   bool             `json:"foreign,omitempty"` // of another program
	InForce   bool             `json:"inForce"`
	Schemata  resctrl.Schemata `json:"schemata"`
	Workloads []string         `json:"workloads,omitempty"`
	Tasks     int              `json:"tasks"`
	Notes     []string         `json:"notes,omitempty"`
}

func reportClasses(cmd *cobra.Command, file string) (*classReport, error) {
	fsys := os.DirFS(rootDir(cmd))
	r := &classReport{Planned: file != ""}
	var err error
	if r.Tree, err = resctrl.Read(fsys); err != nil {
		return nil, err
	}
	config, workloads, err := classesInForce(cmd)
	if err == nil && file != "" {
		config, err = readClasses(file)
	}
	if err != nil {
		return nil, err
	}
	layout := &resctrl.Layout{}
	if config.Cache != nil {
		if layout, err = config.Cache.Layout(r.Tree); err != nil {
			return nil, err
		}
	}
	for i := range layout.Classes {
		a := &layout.Classes[i]
		r.Classes = append(r.Classes, classRow{Name: a.Name, Partition: a.Partition, Schemata: a.Schemata, Notes: a.Notes})
	}
	for i := range r.Tree.Groups {
		g := &r.Tree.Groups[i]
		at := slices.IndexFunc(r.Classes, func(c classRow) bool { return c.Name == g.Class() && (g.Own() || g.Name == "") })
		if at < 0 {
			name := g.Class()
			if at = len(r.Classes); !g.Own() && g.Name != "" {
				name = g.Name
			}
			r.Classes = append(r.Classes, classRow{Name: name, Foreign: g.Name != "" && !g.Own()})
		}
		c := &r.Classes[at]
		c.InForce, c.Mode = true, g.Mode
		if !r.Planned || c.Schemata == nil {
			c.Schemata = g.Schemata // what the kernel has
		}
		tids, err := resctrl.Tasks(fsys, r.Tree.Dir, g.Name)
		if err != nil {
			return nil, err
		}
		c.Tasks = len(tids)
	}
	for i := range workloads {
		name := config.ClassOf(agent.CacheClass, &workloads[i].Spec)
		if at := slices.IndexFunc(r.Classes, func(c classRow) bool { return c.Name == name && !c.Foreign }); name != "" && at >= 0 {
			r.Classes[at].Workloads = append(r.Classes[at].Workloads, workloads[i].ID())
		}
	}
	slices.SortStableFunc(r.Classes, func(a, b classRow) int {
		return cmp.Or(map[bool]int{true: 1}[a.Foreign]-map[bool]int{true: 1}[b.Foreign], cmp.Compare(a.Name, b.Name))
	})
	r.CLOSIDs = r.Tree.CLOSIDs()
	r.CLOSIDsLeft = r.CLOSIDs - len(r.Tree.Groups)
	if m := r.Tree.Monitoring; m != nil {
		r.RMIDs, r.RMIDsLeft = m.RMIDs, m.RMIDs-len(r.Tree.Groups)-len(r.Tree.Mon)
	}
	return r, nil
}

// classesInForce are the classes that the agent, or the node, has, and the workloads.
func classesInForce(cmd *cobra.Command) (c agent.ClassConfig, workloads []agent.Workload, err error) {
	err = withReader(cmd, func(n node) error {
		if workloads, err = n.List(cmd.Context()); err != nil {
			return err
		}
		switch n := n.(type) {
		case *api.Client:
			var now api.Config
			if now, err = n.Config(context.WithoutCancel(cmd.Context())); err == nil && now.Config != nil {
				c = daemon.ClassesOf(now.Config)
			}
		case *agent.Node:
			c = n.Classes()
		default:
			err = errors.New("classes: neither an agent nor a node")
		}
		return err
	})
	return c, workloads, err
}

func (r *classReport) text() string {
	var b strings.Builder
	if r.Planned {
		b.WriteString("This is what the file comes to; nothing is written.\n\n")
	}
	fmt.Fprintf(&b, "classes: %d of %d CLOSIDs are in use, %d left", r.CLOSIDs-r.CLOSIDsLeft, r.CLOSIDs, r.CLOSIDsLeft)
	if r.RMIDs > 0 {
		fmt.Fprintf(&b, "; monitoring: %d of %d RMIDs, %d left", r.RMIDs-r.RMIDsLeft, r.RMIDs, r.RMIDsLeft)
	}
	b.WriteString("\n")
	for i := range r.Tree.Resources {
		if res := &r.Tree.Resources[i]; res.Cache() {
			b.WriteString("\n")
			r.draw(&b, res)
		}
	}
	for _, c := range r.Classes {
		for _, note := range c.Notes {
			fmt.Fprintf(&b, "note: class %s: %s\n", plain.Line(c.Name), plain.Line(note))
		}
	}
	return b.String()
}

// maxColumns is how many caches are drawn; more are summed up where they are alike.
const maxColumns = 4

func (r *classReport) draw(b *strings.Builder, res *resctrl.Resource) {
	same := r.alike(res)
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
	for _, c := range r.Classes {
		line := c.Schemata.Line(res.Name)
		if line == nil {
			continue
		}
		row := []string{plain.Line(c.Name)}
		first := uint64(0)
		for i, id := range domains {
			n, _ := line.Get(id)
			if row = append(row, resctrl.Draw(res, n)); i == 0 {
				first = n
			}
		}
		row = append(row, fmt.Sprintf("%d of %d", bits.OnesCount64(first), res.Ways()), r.bandwidth(&c), who(&c))
		rows = append(rows, row)
	}
	rows = append(rows, r.free(res, domains))
	plain.Columns(b, rows)
	if left := len(res.Domains) - len(domains); !same && left > 0 {
		fmt.Fprintf(b, "and %d more caches: -o json has all\n", left)
	}
}

// alike reports whether all caches of a resource are divided alike.
func (r *classReport) alike(res *resctrl.Resource) bool {
	for _, c := range r.Classes {
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

func (r *classReport) bandwidth(c *classRow) string {
	res, line := r.Tree.Find("MB"), c.Schemata.Line("MB")
	if res == nil || line == nil || len(line.Values) == 0 {
		return "–"
	}
	return res.Text(line.Values[0].N)
}

// who has a class.
func who(c *classRow) string {
	switch {
	case c.Foreign:
		return fmt.Sprintf("another program's, %s", plain.Count(c.Tasks, "thread"))
	case c.Name == resctrl.Default:
		return "all without a class"
	case !c.InForce:
		return "nobody"
	}
	return plain.Line(strings.Join(c.Workloads, ", "))
}

// free draws the ways that no class has, or only the default one.
func (r *classReport) free(res *resctrl.Resource, domains []int) []string {
	row := []string{"(no class)"}
	count := 0
	for i, id := range domains {
		mask := res.Mask
		for _, c := range r.Classes {
			if line := c.Schemata.Line(res.Name); line != nil && c.Name != resctrl.Default {
				n, _ := line.Get(id)
				mask &^= n
			}
		}
		if row = append(row, resctrl.Draw(res, mask)); i == 0 {
			count = bits.OnesCount64(mask)
		}
	}
	return append(row, fmt.Sprintf("%d of %d", count, res.Ways()), "", "")
}
