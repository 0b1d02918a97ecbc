package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/blockio"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/resctrl"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/place"
)

// CheckHost returns what says all that an agent of this user on this host could not do of
// a configuration that is valid: each as strictyaml.Error with its field. Of opt, Root and
// Machine count.
func CheckHost(opt Options) (func(*config.NodeConfig) error, error) {
	if err := opt.open(); err != nil {
		return nil, err
	}
	base := agent.Options{Root: opt.Root, Machine: opt.Machine}
	return func(c *config.NodeConfig) error { return hostErrors(base, c) }, nil
}

// hostCheck collects what a host cannot do.
type hostCheck struct{ errs []error }

func (h *hostCheck) fail(field string, err error) {
	if err != nil {
		h.errs = append(h.errs, &strictyaml.Error{Field: field, Err: err})
	}
}

func hostErrors(base agent.Options, c *config.NodeConfig) error {
	h := &hostCheck{}
	for field, all := range map[string][]string{"protected": c.Protected, "guard.sensitive": c.Guard.Sensitive, "guard.bestEffort": c.Guard.BestEffort, "guard.allowed": c.Guard.Allowed} {
		h.globs(field, all, globsWithBelow)
	}
	h.globs("confine", c.Confine, globs)
	h.cpus(base, c)
	h.limits(base.Root, c)
	h.classes(base.Root, c)
	if _, err := adminsOf(c); err != nil {
		h.errs = append(h.errs, err)
	}
	gid, err := groupID(c.Agent.Group)
	if err != nil {
		h.errs = append(h.errs, err)
	} else {
		h.doors(c, base.Root.Name(), gid)
	}
	return errors.Join(h.errs...)
}

func (h *hostCheck) globs(field string, all []string, read func(string, []string) ([]string, error)) {
	for i, glob := range all {
		_, err := read(field, []string{glob})
		h.fail(fmt.Sprintf("%s[%d]", field, i), err)
	}
}

// cpus checks that the CPUs are there, and that the policy can work with them.
func (h *hostCheck) cpus(base agent.Options, c *config.NodeConfig) {
	t, err := place.NewTopology(base.Machine)
	if err != nil {
		h.fail("", err)
		return
	}
	before := len(h.errs)
	online := t.Online()
	absent := func(field string, cpus cpuset.Set) {
		if !cpus.IsEmpty() {
			h.fail(field, fmt.Errorf("CPUs %s are not there, or offline; this host has %s", cpus, online))
		}
	}
	absent("reserved", c.Reserved.Minus(online))
	absent("floor", c.Floor.Minus(online))
	if !c.Allowed.Overlaps(online) {
		absent("allowed", c.Allowed)
	}
	memory, _ := kernel.ReadMemory(base.Root.FS()) // what is not known bounds nothing
	has := config.Size{CPUs: online.Len(), Memory: memory.Total}
	for i := range c.Workloads {
		for _, e := range c.Workloads[i].Beyond(has) {
			h.fail(fmt.Sprintf("workloads[%d].%s", i, e.Field), e.Err)
		}
	}
	for _, class := range place.Classes() {
		if l := c.Classes.Of(class); slices.ContainsFunc(c.Workloads, func(w config.Workload) bool { return w.Class == class }) {
			for _, e := range l.Beyond(has) {
				h.fail(fmt.Sprintf("classes.%s.%s", class, e.Field), e.Err)
			}
		}
	}
	policy, err := c.NewPolicy()
	if err != nil || len(h.errs) > before {
		return // said already
	}
	for i, d := range c.Devices {
		if d.PCI != "" {
			_, err := pciNode(base.Root, d.PCI)
			h.fail(fmt.Sprintf("devices[%d].pci", i), err)
		}
		for node := range d.Nodes.All() {
			if _, ok := t.Node(node); !ok {
				h.fail(fmt.Sprintf("devices[%d].nodes", i), fmt.Errorf("NUMA node %d is not there", node))
			}
		}
	}
	if len(h.errs) > before {
		return
	}
	conf := placeConfig(base.Root, c)
	if _, err := place.New(t, conf); err != nil {
		h.fail("allowed", err)
	} else if _, err := place.Start(policy, t, conf); err != nil {
		h.fail("policy.options", err)
	}
}

// placeConfig is what of a host may be given away, its devices near the NUMA nodes that
// the kernel tells. What it does not tell has no locality.
func placeConfig(root *kernel.Root, c *config.NodeConfig) place.Config {
	p := c.PlaceConfig()
	for i, d := range c.Devices {
		if d.PCI == "" || !d.Nodes.IsEmpty() {
			continue
		}
		if node, err := pciNode(root, d.PCI); err == nil && node >= 0 {
			p.Devices[i].Nodes, _ = cpuset.Of(node)
		}
	}
	return p
}

// pciNode is the NUMA node of a PCI device, negative if it has none
// (Documentation/ABI/testing/sysfs-bus-pci).
func pciNode(root *kernel.Root, address string) (int, error) {
	text, err := fs.ReadFile(root.FS(), "sys/bus/pci/devices/"+address+"/numa_node")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("there is no PCI device %s (lspci -D shows them)", address)
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// limits checks that the kernel has the limits, and groups to place at all.
func (h *hostCheck) limits(root *kernel.Root, c *config.NodeConfig) {
	if len(c.Workloads) == 0 {
		return
	}
	lacks, err := agent.Lacks(root)
	if err != nil {
		h.fail("workloads", err)
		return
	}
	check := func(field string, l config.Limits) {
		settings := l.Cgroup().Settings()
		for _, id := range settings.IDs() {
			h.fail(field+"."+id.Name, lacks(id.Knob))
		}
	}
	used := map[place.Class]bool{}
	for i := range c.Workloads {
		w := &c.Workloads[i]
		check(fmt.Sprintf("workloads[%d].limits", i), w.Limits)
		used[w.Class] = true
	}
	for _, class := range place.Classes() {
		if used[class] {
			check("classes."+class.String(), c.Classes.Of(class))
		}
	}
}

// classes checks that the host has what the classes of other kinds need, and room for them.
func (h *hostCheck) classes(root *kernel.Root, c *config.NodeConfig) {
	h.ioClasses(root, c.Classes.IO)
	h.power(root, c)
	h.network(root, c.Classes.Net)
	if c.Classes.Cache == nil {
		return
	}
	t, err := resctrl.Read(root.FS())
	if err == nil {
		_, err = c.Classes.Cache.Layout(t)
	}
	if fit, ok := errors.AsType[*resctrl.FitError](err); ok {
		h.fail("classes.cache."+fit.Field, errors.New(fit.Reason))
	} else {
		h.fail("classes.cache", err)
	}
}

// ioClasses checks that groups have what classes come to with the disks that there are now.
func (h *hostCheck) ioClasses(root *kernel.Root, c *blockio.Config) {
	if c == nil {
		return
	}
	if len(c.Cost) > 0 {
		h.fail("classes.io.cost", agent.LacksIOCost(root))
	}
	lacks, err := agent.Lacks(root)
	if errors.Is(err, kernel.ErrNotSupported) {
		return // by affinity, classes have priorities
	}
	devices, readErr := blockio.Read(root.FS(), "")
	if err := errors.Join(err, readErr); err != nil {
		h.fail("classes.io", err)
		return
	}
	for _, name := range c.Names() {
		l, _ := c.Limits(name, devices)
		settings, told := l.Settings(), map[string]bool{}
		for _, id := range settings.IDs() {
			if err := lacks(id.Knob); err != nil && !told[err.Error()] {
				told[err.Error()] = true
				h.fail("classes.io.classes."+name, err)
			}
		}
	}
}

// power checks that the host can do the profiles that workloads name: the others are left out
// where it cannot.
func (h *hostCheck) power(root *kernel.Root, c *config.NodeConfig) {
	for i := range c.Workloads {
		name := c.Workloads[i].Power
		if name == "" || name == "none" || !c.Classes.Power.Has(name) {
			continue
		}
		host, err := power.Read(power.Over(root).FS())
		if err == nil {
			_, err = host.Shared(power.Wish{CPUs: host.Online(), Name: name, Profile: c.Classes.Power.Find(name)})
		}
		h.fail(fmt.Sprintf("workloads[%d].power", i), err)
	}
}

// network checks that the devices are there, and have room for all floors.
func (h *hostCheck) network(root *kernel.Root, c *traffic.Config) {
	if c == nil {
		return
	}
	host, err := traffic.Read(traffic.Over(root).FS(), c)
	if err != nil {
		h.fail("classes.net", err)
		return
	}
	_, err = c.Layout(host)
	for _, e := range strictyaml.Errors(errors.Join(err, c.Absent(host, c.Names()...))) {
		h.fail("classes.net."+e.Field, e.Err)
	}
}

// doors checks that the agent can listen, and keep its records.
func (h *hostCheck) doors(c *config.NodeConfig, root string, gid int) {
	below := func(name string) string {
		if root == "/" {
			return name
		}
		return filepath.Join(root, name)
	}
	def := config.Default().Agent
	if c.Agent.Socket != def.Socket {
		h.fail("agent.socket", api.CheckSocket(below(c.Agent.Socket), gid))
	}
	if c.Agent.StateDir != def.StateDir {
		h.fail("agent.stateDir", canBePrivate(below(c.Agent.StateDir)))
	}
}

// canBePrivate reports why kernel.MakePrivateDir would refuse a directory.
func canBePrivate(dir string) error {
	err := kernel.CheckPrivateDir(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		err = kernel.CheckTrustedFile(dir)
	}
	return err
}
