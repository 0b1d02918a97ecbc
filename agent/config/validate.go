package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// Validate reports all that is wrong with c on any host, joined, each as
// strictyaml.Error with its field. Whether the CPUs exist is the host's to say.
func (c *NodeConfig) Validate() error {
	v := &validator{}
	v.word("apiVersion", c.APIVersion, APIVersion)
	v.word("kind", c.Kind, Kind)
	v.policy(c)
	v.cpus(c)
	v.devices(c)
	v.list("confine", c.Confine, checkGroupGlob)
	v.list("protected", c.Protected, checkGroupGlob)
	for _, class := range place.Classes() {
		v.limits("classes."+class.String(), c.Classes.Of(class))
	}
	v.classes(c)
	v.workloads(c)
	v.guard(&c.Guard)
	v.agent(&c.Agent)
	v.kubernetes(c)
	return errors.Join(v.errs...)
}

// validator collects what is wrong.
type validator struct{ errs []error }

func (v *validator) fail(field string, err error) {
	if err != nil {
		v.errs = append(v.errs, &strictyaml.Error{Field: field, Err: err})
	}
}

func (v *validator) want(ok bool, field, form string, args ...any) {
	if !ok {
		v.fail(field, fmt.Errorf(form, args...))
	}
}

func (v *validator) word(field, got, want string) {
	v.want(got != "", field, "is missing: it is %s", want)
	v.want(got == "" || got == want, field, "%q is not %s", got, want)
}

// NewPolicy returns the policy with its options.
func (c *NodeConfig) NewPolicy() (place.Policy, error) {
	named, err := policies.Find(c.Policy.Name)
	if err != nil {
		return nil, &strictyaml.Error{Field: "policy.name", Err: err}
	}
	p, err := named.New(c.Policy.Options)
	if err != nil {
		return nil, &strictyaml.Error{Field: optionOf(err, c.Policy.Options), Err: err}
	}
	if u, ok := p.(interface{ Unenforced() error }); ok {
		if err := u.Unenforced(); err != nil {
			return nil, &strictyaml.Error{Field: "policy.options", Err: err}
		}
	}
	return p, nil
}

// optionOf returns the field of the option that err is about.
func optionOf(err error, options map[string]any) string {
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if strings.Contains(err.Error(), strconv.Quote(name)) {
			return "policy.options." + name
		}
	}
	return "policy.options"
}

func (v *validator) policy(c *NodeConfig) {
	if _, err := c.NewPolicy(); err != nil {
		v.errs = append(v.errs, err)
	}
}

func (v *validator) cpus(c *NodeConfig) {
	if !c.Allowed.IsEmpty() {
		v.want(c.Allowed.Contains(c.Reserved), "reserved", "CPUs %s are not allowed ones", c.Reserved.Minus(c.Allowed))
		v.want(c.Allowed.Contains(c.Floor), "floor", "CPUs %s are not allowed ones", c.Floor.Minus(c.Allowed))
	}
	v.want(!c.NoFloor || c.Floor.IsEmpty(), "noFloor", "there is a floor: %s", c.Floor)
}

// list checks the items of a list, none of which may be there twice.
func (v *validator) list(field string, items []string, check func(string) error) {
	for i, item := range items {
		at := fmt.Sprintf("%s[%d]", field, i)
		v.fail(at, check(item))
		v.want(!slices.Contains(items[:i], item), at, "%q is there twice", item)
	}
}

// form checks a word.
func form(re, what string) func(string) error {
	form := regexp.MustCompile(re)
	return func(word string) error {
		if !form.MatchString(word) {
			return fmt.Errorf("%q is not %s", word, what)
		}
		return nil
	}
}

func (v *validator) limits(field string, l Limits) {
	const least, most = 10, cpuset.Limit * 1000
	if l.Quota != 0 && l.Quota != place.Unlimited && (l.Quota < least || l.Quota > most) {
		v.fail(field+".quota", fmt.Errorf("%s is not %s to %s", l.Quota, place.Milli(least), place.Milli(most)))
		return
	}
	v.fail(field, l.Cgroup().Validate())
}

// classes checks the classes of other kinds, and that those of workloads are there.
func (v *validator) classes(c *NodeConfig) {
	sets := c.Classes.kinds()
	for _, kind := range slices.Sorted(maps.Keys(sets)) {
		if sets[kind] == nil {
			continue
		}
		for _, e := range strictyaml.Errors(sets[kind].Validate()) {
			v.fail("classes."+kind+"."+e.Field, e.Err)
		}
	}
	for i := range c.Workloads {
		asked := c.Workloads[i].ClassesOf()
		for _, kind := range slices.Sorted(maps.Keys(asked)) {
			name, set, field := asked[kind], sets[kind], fmt.Sprintf("workloads[%d].%s", i, kind)
			switch {
			case name == noClass:
			case set == nil || len(set.Names()) == 0:
				v.fail(field, fmt.Errorf("there is no class %q: classes.%s has none", name, kind))
			case !set.Has(name):
				v.fail(field, fmt.Errorf("there is no class %q%s", name, strictyaml.Nearest(name, set.Names())))
			}
		}
	}
}

var checkName = form(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$`, "a name: 1 to 63 letters, digits, '-', '_' or '.', a letter or digit first")

func (v *validator) devices(c *NodeConfig) {
	checkPCI := form(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`, "a PCI address such as 0000:3b:00.0 (lspci -D shows them)")
	named := map[string]bool{}
	for i, d := range c.Devices {
		field := fmt.Sprintf("devices[%d]", i)
		v.fail(field+".name", checkName(d.Name))
		v.want(!named[d.Name], field+".name", "there are two devices %q", d.Name)
		named[d.Name] = true
		if d.PCI != "" {
			v.fail(field+".pci", checkPCI(d.PCI))
		}
		if d.Kind != "" {
			v.fail(field+".kind", checkName(d.Kind))
		}
	}
}

// devicesOf checks that the devices that a workload asks for are there.
func (v *validator) devicesOf(c *NodeConfig, w *Workload, field string) {
	has := func(is func(Device) bool) bool { return slices.ContainsFunc(c.Devices, is) }
	for i, text := range w.Devices {
		at := fmt.Sprintf("%s.devices[%d]", field, i)
		d, err := place.ParseDevice(text)
		if err != nil {
			continue // said by uses
		}
		for _, name := range d.Names {
			v.want(has(func(o Device) bool { return o.Name == name }), at, "there is no device %q in devices", name)
		}
		v.want(d.Kind == "" || has(func(o Device) bool { return o.Kind == d.Kind }), at, "there is no device of kind %q in devices", d.Kind)
	}
}

// uses checks what a workload asks for beside CPUs and memory.
func (v *validator) uses(w *Workload, field string) {
	for i, text := range w.Devices {
		_, err := place.ParseDevice(text)
		v.fail(fmt.Sprintf("%s.devices[%d]", field, i), err)
	}
	for _, size := range slices.Sorted(maps.Keys(w.HugePages)) {
		_, err := place.ParseHugePages(size, w.HugePages[size].String())
		v.fail(field+".hugePages", err)
	}
	v.want(w.Mode != place.Exclusive && w.Mode != place.Mixed || w.CPUs > 0, field+".mode", "%s: say how many CPUs with cpus", w.Mode)
	v.want(w.Shared == 0 || w.Mode == place.Mixed, field+".shared", "is for mode mixed only")
	v.want(w.Shared != place.Unlimited, field+".shared", "max is no CPU time to ask for")
	for _, list := range []struct {
		field string
		names []string
	}{{"affinity", w.Affinity}, {"antiAffinity", w.AntiAffinity}} {
		v.list(field+"."+list.field, list.names, func(name string) error {
			if name == "" {
				return errors.New("is empty: name a workload")
			}
			return nil
		})
	}
}

func (v *validator) workloads(c *NodeConfig) {
	named, matched := map[string]int{}, map[string]int{}
	for i := range c.Workloads {
		w, field := &c.Workloads[i], fmt.Sprintf("workloads[%d]", i)
		v.fail(field+".name", checkName(w.Name))
		if j, ok := named[w.Name]; ok {
			v.fail(field+".name", fmt.Errorf("workloads[%d] is named %q too", j, w.Name))
		} else {
			named[w.Name] = i
		}
		if j, ok := matched[w.Match.key()]; ok {
			v.fail(field+".match", fmt.Errorf("is never reached: workload %q matches the same", c.Workloads[j].Name))
		} else {
			matched[w.Match.key()] = i
		}
		v.match(field+".match", &w.Match)
		v.devicesOf(c, w, field)
		if w.Group != "" {
			v.fail(field+".group", checkName(w.Group))
			v.want(slices.ContainsFunc(c.Workloads, func(o Workload) bool { return o.Group == w.Group && o.Name != w.Name }), field+".group", "no other workload is in group %q: a group has two or more", w.Group)
		}
		before := len(v.errs)
		v.asked(w, field)
		if len(v.errs) == before {
			v.limits(field, c.LimitsOf(w))
		}
	}
}

// asked checks what a workload asks for.
func (v *validator) asked(w *Workload, field string) {
	v.want(w.CPUs != place.Unlimited, field+".cpus", "max is no CPU time to ask for")
	v.want(w.Memory != place.Unlimited, field+".memory", "max is no memory to ask for")
	v.uses(w, field)
	if w.CPUs >= 0 && w.Memory >= 0 && w.Shared >= 0 {
		r := w.Request(cmp.Or(w.Name, field))
		v.fail(field, r.Validate())
	}
	v.limits(field+".limits", w.Limits)
}

// key is the same for matches that are alike.
func (m *Match) key() string {
	var container Container
	if m.Container != nil {
		container = *m.Container
	}
	return fmt.Sprintf("%q %q %t %t %#v", m.Cgroup, m.Unit, m.Delegated, m.Container != nil, container)
}

func (v *validator) match(field string, m *Match) {
	ways := 0
	for _, set := range []bool{m.Cgroup != "", m.Unit != "", m.Container != nil} {
		if set {
			ways++
		}
	}
	v.want(ways == 1, field, "has %d of cgroup, unit and container; one is needed", ways)
	if m.Cgroup != "" {
		v.fail(field+".cgroup", checkGroupGlob(m.Cgroup))
	}
	if m.Unit != "" {
		v.fail(field+".unit", checkGlob(m.Unit))
		v.want(kernel.IsUnit(m.Unit), field+".unit", "%q does not end in .service, .scope or .slice, which have groups", m.Unit)
	}
	if m.Container != nil {
		v.container(field+".container", m.Container)
	}
}

func (v *validator) container(field string, m *Container) {
	runtimes := runtimes()
	v.want(m.Runtime == "" || slices.Contains(runtimes, m.Runtime), field+".runtime", "there is no runtime %q%s", m.Runtime, strictyaml.Nearest(m.Runtime, runtimes))
	v.want(m.Runtime != "" || m.ID != "" || m.Pod != "" || m.Name != "" || m.Namespace != "" || len(m.Label) > 0, field, "says nothing; set runtime, id, pod or name")
	for _, g := range []struct{ name, glob string }{{"id", m.ID}, {"pod", m.Pod}, {"name", m.Name}} {
		if g.glob != "" {
			v.fail(field+"."+g.name, checkGlob(g.glob))
		}
	}
	// The agent knows a container by the path of its group. A front-end that is told more
	// (config.ContainerID) may lift this.
	const below = "match the id or pod, or start the container below a parent group of its own and match that with cgroup"
	for _, of := range []struct {
		name, reason, remedy string
		set                  bool
	}{
		{"name", "only lxc and nspawn write it into the cgroup path", "set runtime to one of them, " + below, m.Name != "" && m.Runtime != "lxc" && m.Runtime != "nspawn"},
		{"namespace", "no runtime writes namespaces into the cgroup path", below, m.Namespace != ""},
		{"label", "no runtime writes labels into the cgroup path", below, len(m.Label) > 0},
	} {
		if of.set {
			v.fail(field+"."+of.name, &kernel.NotSupportedError{Feature: "match of a container's " + of.name, Reason: of.reason, Remedy: of.remedy})
		}
	}
}

func (v *validator) guard(g *Guard) {
	v.want(slices.Contains(GuardModes(), g.Mode), "guard.mode", "%q is no mode; there are: off, observe, preview, enforce", g.Mode)
	v.want(slices.Contains(guardProbes(), g.Probe), "guard.probe", "%q is none of needed, eager, never, always", g.Probe)
	for _, use := range g.Outsiders {
		v.want(slices.Contains(GuardOutsiderUses(), use), "guard.outsiders", "%q is not idle, nice or affinity", use)
	}
	v.want(time.Duration(g.Hold) >= time.Second, "guard.hold", "%s is less than 1s", g.Hold)
	v.list("guard.sensitive", g.Sensitive, checkGroupGlob)
	v.list("guard.bestEffort", g.BestEffort, checkGroupGlob)
	v.list("guard.allowed", g.Allowed, checkGroupGlob)
	s := g.Suppression
	if s == nil {
		return
	}
	const at = "guard.suppression."
	v.want(s.Group == "" || strings.Trim(s.Group, "/") == s.Group && path.Clean(s.Group) == s.Group, at+"group", "%q is no path of a group, without a slash before it", s.Group)
	v.want(slices.Contains([]string{"", "cpus", "quota"}, s.By), at+"by", "%q is not cpus or quota", s.By)
	v.want(s.Threshold >= 0 && s.Threshold <= 100, at+"threshold", "%d is not 1 to 100", s.Threshold)
	v.want(s.Reserve >= 0, at+"reserve", "max is no CPU time to keep")
}

func (v *validator) agent(a *Agent) {
	for _, p := range []struct{ field, path string }{{"socket", a.Socket}, {"stateDir", a.StateDir}} {
		v.want(path.IsAbs(p.path) && path.Clean(p.path) == p.path, "agent."+p.field, "%q is no absolute path in its shortest form", p.path)
	}
	// sockaddr_un has 108 bytes with the zero at the end, unix(7).
	v.want(len(a.Socket) < 108, "agent.socket", "is %d bytes long; a socket's path has at most 107", len(a.Socket))
	v.want(path.Base(a.Socket) != "page.sock", "agent.socket", "%q is where the status page's socket is; name it agent.sock", a.Socket)
	v.list("agent.admins", a.Admins, form(`^[^\s:/]+$`, "the name or the number of a user"))
	v.list("agent.hosts", a.Hosts, form(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`, "the name of a host, without port"))
	if a.Metrics != "off" && a.Metrics != "" {
		host, port, err := net.SplitHostPort(a.Metrics)
		_, wrong := strconv.ParseUint(port, 10, 16)
		v.want(err == nil && wrong == nil, "agent.metrics", "%q is no HOST:PORT, nor off", a.Metrics)
		local := host == "localhost" || net.ParseIP(host).IsLoopback()
		v.want(local || a.Network || err != nil || wrong != nil, "agent.metrics",
			"other hosts can reach %q, without a password; use 127.0.0.1, or set agent.network: true if that is meant", a.Metrics)
	}
	v.want(time.Duration(a.Rescan) >= time.Second, "agent.rescan", "%s is less than 1s", a.Rescan)
	v.want(a.YieldAfter >= 1, "agent.yieldAfter", "%d is less than 1", a.YieldAfter)
}

// PlaceConfig returns what place may give away.
func (c *NodeConfig) PlaceConfig() place.Config {
	p := place.Config{Allowed: c.Allowed, Reserved: c.Reserved, Floor: c.Floor, NoFloor: c.NoFloor}
	for _, d := range c.Devices {
		p.Devices = append(p.Devices, place.Device{Name: d.Name, Kind: d.Kind, Nodes: d.Nodes})
	}
	return p
}

// WorkloadLabel is the label of a request that a NodeConfig made; its value is the name of
// the entry.
const WorkloadLabel = "berth.dev/workload"

// AffinityTo draws to the workloads that an entry makes, and to the one of that id, or,
// with a sign of -1, keeps apart from them.
func AffinityTo(name string, sign int) []place.Affinity {
	weight := 10 * sign
	return []place.Affinity{{Labels: map[string]string{WorkloadLabel: name}, Weight: weight}, {ID: name, Weight: weight}}
}

// Request returns what a workload that is known as id asks for.
func (w *Workload) Request(id string) place.Request {
	r := place.Request{
		ID: id, Class: w.Class, Milli: int(w.CPUs), Bind: w.Bind, Exclusivity: w.Exclusive, Strategy: w.Strategy, Nodes: w.Nodes,
	}
	r.Mode, r.SharedMilli, r.Group, r.Hints = w.Mode, int(w.Shared), w.Group, w.Hints
	for _, text := range w.Devices {
		if d, err := place.ParseDevice(text); err == nil {
			r.Devices = append(r.Devices, d)
		}
	}
	if w.Memory > 0 {
		r.Memory = []place.Amount{{Resource: place.Memory, Bytes: int64(w.Memory)}}
	}
	for _, size := range slices.Sorted(maps.Keys(w.HugePages)) {
		if a, err := place.ParseHugePages(size, w.HugePages[size].String()); err == nil {
			r.Memory = append(r.Memory, a)
		}
	}
	for _, name := range w.Affinity {
		r.Affinity = append(r.Affinity, AffinityTo(name, 1)...)
	}
	for _, name := range w.AntiAffinity {
		r.Affinity = append(r.Affinity, AffinityTo(name, -1)...)
	}
	return r
}
