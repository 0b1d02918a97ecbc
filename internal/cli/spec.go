package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/power"
	"berth.dev/berth/kernel/traffic"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// specFlags are the flags for a workload's request and limits, of run and resize.
type specFlags struct {
	class            place.Class
	cpus             place.Milli
	cpuset, mems     cpuset.Set
	bind             place.Bind
	exclusive        place.Exclusivity
	memory           place.Bytes
	quota            quota
	weight, ioWeight int
	mode             place.Mode
	shared           place.Milli
	send, receive    traffic.Rate
	group            string
	classes          map[agent.ClassKind]*className

	devices, affinity, antiAffinity []string
	hugePages, hints                map[string]string
}

func (f *specFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.TextVar(&f.class, "class", place.LS, "`class` of service: LSE (exclusive cores), LSR (exclusive CPUs, shared with best effort), LS (shared pool), BE (best effort, cpu.idle)")
	fs.TextVar(&f.cpus, "cpus", place.Milli(0), "`amount` of CPU time to ask for, as in 4, 2.5 or 500m; LSE and LSR get that many exclusive CPUs")
	fs.TextVar(&f.cpuset, "cpuset", cpuset.Set{}, "the very CPUs to have, as a `list` such as 0-3, instead of those that the policy would choose")
	fs.TextVar(&f.bind, "bind", place.BindAny, "`policy` of how exclusive CPUs lie on cores: FullPCPUs or SpreadByPCPUs (default the policy's)")
	fs.TextVar(&f.exclusive, "exclusive", place.CPULevel, "`level`: keep others off the whole core (PCPULevel) or NUMA node (NUMANodeLevel), too")
	fs.TextVar(&f.mems, "mems", cpuset.Set{}, "NUMA nodes to be on, as a `list`")
	fs.TextVar(&f.memory, "memory", place.Bytes(0), "`limit` of memory, as in 512Mi or 2Gi; max removes a limit")
	fs.Var(&share{&f.weight}, "weight", "`share` of CPU time among workloads, 1 to 10000; the kernel's default is 100")
	fs.TextVar(&f.quota, "quota", quota{}, "most CPU `time`: CPUs (2, 500m), part of one CPU (50%) or time per period (200ms/100ms); max removes a limit")
	fs.Var(&share{&f.ioWeight}, "io-weight", "`share` of disk time among workloads, 1 to 10000; the kernel's default is 100")
	fs.Var(&rate{&f.send}, "send", "most that it may send through all network devices together, as in `100Mbit`; max removes a limit")
	fs.Var(&rate{&f.receive}, "receive", "most that it may receive, as in `100Mbit`; max removes a limit")
	fs.TextVar(&f.mode, "mode", place.Auto, "how much of --cpus is exclusive: all (exclusive), none (shared), or the whole CPUs (mixed, and --shared from a pool; default by class)")
	fs.TextVar(&f.shared, "shared", place.Milli(0), "with --mode mixed, `amount` of --cpus that comes from a pool (default what it has beyond whole CPUs)")
	fs.StringArrayVar(&f.devices, "device", nil, "`device` to have and to be near, NAME or KIND=COUNT, of those of the agent's configuration; may be repeated")
	fs.StringToStringVar(&f.hugePages, "hugepages", nil, "huge pages to find room for near its CPUs, and to have no more of, as in `2Mi=512Mi`")
	fs.StringArrayVar(&f.affinity, "affinity", nil, "`name` of a workload whose NUMA nodes it prefers; may be repeated")
	fs.StringArrayVar(&f.antiAffinity, "anti-affinity", nil, "`name` of a workload whose NUMA nodes it avoids; may be repeated")
	fs.StringVar(&f.group, "group", "", "`name` of a group of workloads: policies that know groups place them near each other")
	f.classes = classFlags(cmd)
	fs.StringToStringVar(&f.hints, "hint", nil, "words for the policy, as in `balloon=NAME` (see go doc of the policy)")
	completeWords(cmd, "mode", place.Exclusive.String(), place.Shared.String(), place.Mixed.String())
	completeWords(cmd, "class", classWords()...)
	completeWords(cmd, "bind", place.FullPCPUs.String(), place.SpreadByPCPUs.String())
	completeWords(cmd, "exclusive", place.PCPULevel.String(), place.NUMANodeLevel.String())
}

// classFlags adds the flags that ask for a class, one for each kind.
func classFlags(cmd *cobra.Command) map[agent.ClassKind]*className {
	classes := map[agent.ClassKind]*className{}
	for kind, usage := range map[agent.ClassKind]string{
		agent.CacheClass: "cache `class` to have, one that berth classes lists; none is no class, and '' that of its class of service",
		agent.IOClass:    "I/O `class` to have, one that berth classes lists; none is no class, and '' that of its class of service",
		agent.NetClass:   "network `class` to have, one that berth classes lists; none is no class, and '' that of its class of service",
		agent.PowerClass: "power `profile` of its exclusive CPUs, one that berth classes lists; none is no profile, and '' that of its class of service",
	} {
		classes[kind] = new(className)
		cmd.Flags().Var(classes[kind], string(kind), usage)
	}
	completeWords(cmd, string(agent.PowerClass), power.Builtins()...)
	return classes
}

// setClasses asks for the classes that flags name, and reports whether any does.
func setClasses(cmd *cobra.Command, s *agent.Spec, classes map[agent.ClassKind]*className) (some bool) {
	for kind, name := range classes {
		if cmd.Flags().Changed(string(kind)) {
			s.SetClass(kind, string(*name))
			some = true
		}
	}
	return some
}

// forHand are the classes of commands that are run by hand: all but that of the host's
// own services.
func forHand() []place.Class {
	return slices.DeleteFunc(place.Classes(), func(c place.Class) bool { return c.Traits().Reserved })
}

func classWords() (words []string) {
	for _, c := range forHand() {
		words = append(words, c.String())
	}
	return words
}

func classHelp() string {
	var b strings.Builder
	for _, c := range forHand() {
		fmt.Fprintf(&b, "  %-3s  %s\n", c, c.Traits().About)
	}
	return b.String()
}

// apply has a spec be as the flags say. All that is wrong is told at once.
func (f *specFlags) apply(cmd *cobra.Command, s *agent.Spec) error {
	r, l := &s.Request, &s.Limits
	var errs []error
	if f.cpus < 0 {
		errs = append(errs, fmt.Errorf("--cpus %s: not an amount to ask for", f.cpus))
	}
	if cmd.Flags().Changed("memory") && f.memory == 0 {
		errs = append(errs, errors.New("--memory 0: not a limit; max removes a limit"))
	}
	if f.class.Traits().Reserved {
		errs = append(errs, fmt.Errorf("--class %s: the host's own services are not run by hand", f.class))
	}
	for flag, set := range map[string]func(){
		"class": func() {
			if l.Idle == cgroup.On && r.Class.Traits().Idle {
				l.Idle = cgroup.Leave // it was the former class's, written down by an earlier Berth
			}
			r.Class = f.class
		},
		"cpus":      func() { r.Milli = int(f.cpus) },
		"bind":      func() { r.Bind, r.BindRequired = f.bind, f.bind != place.BindAny },
		"exclusive": func() { r.Exclusivity = f.exclusive },
		"cpuset":    func() { s.CPUs = f.cpuset },
		"memory":    func() { l.MemoryMax = int64(f.memory) },
		"weight":    func() { l.Weight, l.Idle = f.weight, cgroup.Leave },
		"quota":     func() { l.Quota, l.Period = f.quota.quota, f.quota.period },
		"io-weight": func() { l.IOWeight = f.ioWeight },
		"send":      func() { s.Bandwidth.Send = f.send },
		"receive":   func() { s.Bandwidth.Receive = f.receive },
	} {
		if cmd.Flags().Changed(flag) {
			set()
		}
	}
	if cmd.Flags().Changed("mems") {
		s.Mems = f.mems
	}
	if s.Bandwidth.Around && (cmd.Flags().Changed("send") || cmd.Flags().Changed("receive")) {
		errs = append(errs, errors.New("--send, --receive: its pod says what that may send and receive, by annotations"))
	}
	setClasses(cmd, s, f.classes)
	errs = append(errs, f.applyUses(cmd, s))
	if r.Class.Traits().Own && r.Milli == 0 && s.CPUs.IsEmpty() {
		errs = append(errs, fmt.Errorf("--class %s: it has CPUs of its own: say how many with --cpus, or which with --cpuset", r.Class))
	}
	if err := errors.Join(errs...); err != nil {
		return exitStatus{exitUsage, err}
	}
	r.Nodes, r.NodesRequired = s.Mems, !s.Mems.IsEmpty()
	r.Explain = true // for berth explain, later
	return nil
}

// applyUses takes over what a workload asks for beside CPUs, memory and limits.
func (f *specFlags) applyUses(cmd *cobra.Command, s *agent.Spec) error {
	r, changed := &s.Request, cmd.Flags().Changed
	if changed("mode") {
		r.Mode = f.mode
	}
	if changed("shared") {
		r.SharedMilli = int(f.shared)
	}
	switch own := r.Mode == place.Exclusive || r.Mode == place.Mixed; {
	case own && r.Milli == 0 && s.CPUs.IsEmpty():
		return fmt.Errorf("--mode %s: say how many CPUs with --cpus", r.Mode)
	case r.Mode == place.Mixed && !s.CPUs.IsEmpty():
		return errors.New("--mode mixed and --cpuset: the policy chooses which CPUs are its own; leave one out")
	case r.SharedMilli != 0 && r.Mode != place.Mixed:
		return errors.New("--shared: it is for --mode mixed")
	}
	if changed("device") {
		r.Devices = nil
		for _, text := range f.devices {
			d, err := place.ParseDevice(text)
			if err != nil {
				return fmt.Errorf("--device: %w", err)
			}
			r.Devices = append(r.Devices, d)
		}
	}
	if changed("hugepages") {
		r.Memory = nil
		for _, size := range slices.Sorted(maps.Keys(f.hugePages)) {
			a, err := place.ParseHugePages(size, f.hugePages[size])
			if err != nil {
				return fmt.Errorf("--hugepages: %w", err)
			}
			r.Memory = append(r.Memory, a)
		}
	}
	if changed("affinity") || changed("anti-affinity") {
		r.Affinity = nil
		for _, name := range f.affinity {
			r.Affinity = append(r.Affinity, config.AffinityTo(name, 1)...)
		}
		for _, name := range f.antiAffinity {
			r.Affinity = append(r.Affinity, config.AffinityTo(name, -1)...)
		}
	}
	if changed("group") {
		r.Group = f.group
	}
	if changed("hint") {
		r.Hints = f.hints
	}
	return nil
}

// validateCPUs refuses CPUs and memory nodes that the host does not have, or that are
// not to be given away, and more CPU time or memory than it has.
func (f *specFlags) validateCPUs(cmd *cobra.Command, n node) error {
	if f.cpuset.IsEmpty() && f.mems.IsEmpty() && f.quota.quota <= 0 && f.cpus <= 0 && f.memory <= 0 {
		return nil
	}
	s, err := n.State(cmd.Context())
	if err != nil {
		return err
	}
	var errs []error
	asked := config.Workload{CPUs: f.cpus, Limits: config.Limits{MemoryMax: f.memory, Quota: place.Milli(1000 * f.quota.cpus())}}
	for _, e := range asked.Beyond(sizeOf(cmd, s)) {
		flag := map[string]string{"cpus": "cpus", "limits.quota": "quota", "limits.memoryMax": "memory"}[e.Field]
		errs = append(errs, fmt.Errorf("--%s: %w", flag, e.Err))
	}
	cpus, mems := s.Config().Allowed, cpuset.Set{}
	for _, d := range s.Topology().Machine().ByKind(machine.Node) {
		if mems, err = mems.With(d.ID); err != nil {
			return err
		}
	}
	if none := f.cpuset.Minus(cpus); !none.IsEmpty() {
		errs = append(errs, fmt.Errorf("--cpuset %s: not there, or not for workloads (allowed): %s; the host has %s for them", f.cpuset, cpuWords(none), cpuWords(cpus)))
	}
	if none := f.mems.Minus(mems); !none.IsEmpty() && !mems.IsEmpty() {
		errs = append(errs, fmt.Errorf("--mems %s: memory nodes %s: not there; the host has %s", f.mems, none, mems))
	}
	return errors.Join(errs...)
}

// share is a flag's value that is a weight as the kernel has them; 0 means none.
type share struct{ of *int }

// Type returns "int".
func (share) Type() string { return "int" }

// String returns the number, "" for none.
func (s *share) String() string {
	if s.of == nil || *s.of == 0 {
		return ""
	}
	return strconv.Itoa(*s.of)
}

// Set refuses what the kernel has no weight for.
func (s *share) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 10000 {
		return fmt.Errorf("%q is not a share from 1 to 10000; 100 is the kernel's default", text)
	}
	*s.of = n
	return nil
}

// rate is a flag's value of bits per second; max is no limit.
type rate struct{ of *traffic.Rate }

// Type returns "rate".
func (rate) Type() string { return "rate" }

// String returns the rate, "" for none.
func (r *rate) String() string {
	if r.of == nil || *r.of == 0 {
		return ""
	}
	return r.of.String()
}

// Set reads a rate or max.
func (r *rate) Set(text string) error {
	if text == "max" {
		*r.of = 0
		return nil
	}
	return r.of.UnmarshalText([]byte(text))
}

// quota is CPU time per period; a period of 0 is the kernel's default.
type quota struct{ quota, period time.Duration }

// quotaPeriod is the kernel's default.
const quotaPeriod = 100 * time.Millisecond

// cpus is how many CPUs' time it is; negative without a limit.
func (q quota) cpus() float64 { return q.quota.Seconds() / cmp.Or(q.period, quotaPeriod).Seconds() }

// UnmarshalText reads "2", "500m", "50%", "200ms/100ms" and "max".
func (q *quota) UnmarshalText(text []byte) error {
	word := string(text)
	if of, per, ok := strings.Cut(word, "/"); ok {
		return q.times(of, per)
	}
	number, percent := strings.CutSuffix(word, "%")
	var n place.Milli
	if err := n.UnmarshalText([]byte(number)); err != nil {
		return err
	}
	if n == place.Unlimited && !percent {
		*q = quota{quota: cgroup.Unlimited}
		return nil
	}
	if n <= 0 || percent && strings.HasSuffix(number, "m") {
		return fmt.Errorf("%q: not a limit of CPU time", word)
	}
	if percent {
		n /= 100
	}
	*q = quota{time.Duration(n) * quotaPeriod / 1000, quotaPeriod}
	return nil
}

func (q *quota) times(of, per string) (err error) {
	if q.quota, err = time.ParseDuration(of); err != nil {
		return err
	}
	if q.period, err = time.ParseDuration(per); err != nil {
		return err
	}
	if q.quota <= 0 || q.period <= 0 {
		return fmt.Errorf("%s/%s: not a time per period", of, per)
	}
	return nil
}

// String writes the time per period.
func (q quota) String() string {
	switch q.quota {
	case 0:
		return ""
	case cgroup.Unlimited:
		return "max"
	}
	return fmt.Sprintf("%s/%s", q.quota, cmp.Or(q.period, quotaPeriod))
}

// MarshalText writes the text of String.
func (q quota) MarshalText() ([]byte, error) { return []byte(q.String()), nil }
