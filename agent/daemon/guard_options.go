package daemon

import (
	"cmp"
	"context"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
)

// options are the guard's under a configuration.
func (g *Guard) options(c *config.NodeConfig, mode config.GuardMode) (opt guard.Options, err error) {
	opt = guard.Options{
		Sensors: g.sensors, Uncovered: g.uncovered, Machine: g.o.Machine, Workloads: g.Workloads, Window: g.o.Window,
		Probe: guard.ProbeUse(c.Guard.Probe), PeakBandwidth: float64(c.Guard.PeakBandwidth),
		Found: g.found, Repeat: g.o.Repeat, Acted: g.acted, Failed: func(err error) { g.complain("it goes on", err) },
	}
	if g.host != nil {
		opt.Actuator = g.host
	}
	if from, ok := g.sensors.(reader); ok && g.read != nil {
		opt.Read = func(samples []watch.Sample) { g.read(samples, from) }
	}
	for _, use := range c.Guard.Outsiders {
		opt.Outsiders = append(opt.Outsiders, guard.OutsiderUse(use))
	}
	opt.Control = control.Config{Mode: modeOf(mode), Own: g.sensors.OwnGroup(), Weigh: c.Guard.Weigh, Hold: time.Duration(c.Guard.Hold)}
	if opt.Control.Protected, err = globsWithBelow("protected", c.Protected); err != nil {
		return opt, err
	}
	if opt.Control.Allowed, err = globsWithBelow("guard.allowed", c.Guard.Allowed); err != nil {
		return opt, err
	}
	if s := c.Guard.Suppression; s != nil {
		group := s.Group
		if group == "" {
			group = path.Join(strings.Trim(g.prefix, "/"), "berth-idle")
			for _, pods := range []string{"kubepods.slice/kubepods-besteffort.slice", "kubepods/besteffort"} {
				if g.sensors.Has(pods) {
					group = pods
				}
			}
		}
		opt.Control.Suppression = &control.Suppression{
			Group: group, ByQuota: s.By == "quota", Threshold: float64(s.Threshold) / 100, Reserve: float64(s.Reserve) / 1000,
		}
	}
	return opt, nil
}

func modeOf(m config.GuardMode) control.Mode {
	switch m {
	case config.GuardPreview:
		return control.Preview
	case config.GuardEnforce:
		return control.Enforce
	}
	return control.Observe
}

// Workloads returns Berth's workloads, the groups that the configuration names, and those
// of pods.
func (g *Guard) Workloads(ctx context.Context) ([]guard.Workload, error) {
	g.mu.Lock()
	conf, known, names, since := g.conf, g.known, g.recorded, g.version
	g.mu.Unlock()
	all, version, err := g.o.Workloads(ctx, since)
	if err != nil {
		return nil, err
	}
	if version != since {
		known, names = g.knownOf(all, conf)
		g.mu.Lock()
		g.recorded = names
		if g.conf == conf {
			g.known, g.version = known, version
		}
		g.mu.Unlock()
	}
	var roles guard.Roles
	if roles.Sensitive, err = globsWithBelow("guard.sensitive", conf.Guard.Sensitive); err != nil {
		return nil, err
	}
	if roles.BestEffort, err = globsWithBelow("guard.bestEffort", conf.Guard.BestEffort); err != nil {
		return nil, err
	}
	if err := g.pods.Refresh(); err != nil {
		return nil, err
	}
	var groups []string
	if len(roles.Sensitive)+len(roles.BestEffort) > 0 || !g.pods.Empty() {
		if groups, err = g.sensors.Groups(); err != nil {
			return nil, err
		}
	}
	known, names = g.withPods(known, names, groups, conf)
	g.mu.Lock()
	g.names = names
	g.mu.Unlock()
	for _, group := range roles.Sensitive { // one that has others below it must be named in full
		if g.sensors.Has(group) && !slices.ContainsFunc(groups, func(o string) bool { return kernel.Within(o, cmp.Or(group, ".")) }) {
			groups = append(groups, group)
		}
	}
	return roles.Assign(known, groups, func(group string) string { return cmp.Or(names[group], group) }), nil
}

// systemPods is the namespace of what the cluster itself depends on.
const systemPods = "kube-system"

// withPods adds what is known of the containers in some groups: their names, and which are
// not to be acted on. A group whose name another user chose is none of a pod's, whatever it is called.
func (g *Guard) withPods(known map[string]guard.Workload, names map[string]string, groups []string, conf *config.NodeConfig) (map[string]guard.Workload, map[string]string) {
	if g.pods.Empty() {
		return known, names
	}
	known, names = maps.Clone(known), maps.Clone(names)
	chosen := g.chosen()
	for _, group := range groups {
		n, ok := g.pods.Of(group)
		if !ok || chosen(group) {
			continue
		}
		w, recorded := known[group]
		if w.Group = group; !recorded {
			names[group] = n.String()
			if n.QoS == pods.BestEffort {
				w.Class = place.BE
			}
		}
		if pod := path.Dir(group); pods.Parse(pod).Level == pods.OnePod {
			names[pod] = n.Namespace + "/" + n.Pod
		}
		byName := slices.ContainsFunc(conf.Protected, func(glob string) bool { return kernel.Covers(strings.Trim(glob, "/"), n.String()) })
		switch {
		case w.Protected:
		case n.Namespace == systemPods:
			w.Protected, w.Why = true, "the cluster depends on pods of the namespace "+systemPods
		case byName:
			w.Protected, w.Why = true, "the configuration names it"
		}
		if w.Protected { // of the others the guard finds out by itself whether they yield
			known[group] = w
		}
	}
	return known, names
}

// knownOf returns what Berth's records say of groups, and the names of those.
func (g *Guard) knownOf(all []agent.Workload, conf *config.NodeConfig) (known map[string]guard.Workload, names map[string]string) {
	known, names = map[string]guard.Workload{}, map[string]string{}
	for i := range all {
		class := all[i].Spec.Request.Class
		var groups []string
		for _, dir := range all[i].Dirs {
			if group, ok := g.sensors.Path(dir); ok {
				groups = append(groups, group)
			}
		}
		if group := strings.Trim(all[i].Group, "/"); len(all[i].Dirs) == 0 && group != "" && g.sensors.Has(group) {
			groups = append(groups, group) // of a container, whose group its runtime made
		}
		for _, group := range groups {
			names[group] = all[i].ID()
			known[group] = guard.Workload{
				Group: group, Class: class, Sensitive: class.Traits().Sensitive, Protected: conf.IsProtected("/" + group),
			}
		}
	}
	return known, names
}
