// Package neighbours measures which neighbour hurts: every pattern of use that lab/noise
// has, at several intensities, and real programs, beside tenants of several kinds. It ends
// with the patterns in the order of the harm that they do on this machine.
//
// A Result is everything that was measured; Sheet is a pure function of it. Processes,
// load and control groups are those of lab.
package neighbours

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
)

// Schema names the version of the result file's format.
const Schema = "berth.dev/lab-neighbours/v1"

// Spec is what was asked for.
type Spec struct {
	// Tenants are the kinds of tenant: see Tenants.
	Tenants []string `json:"tenants"`
	// Kernels are patterns of lab/noise, each at every intensity: the share of the time in
	// which each thread wants to work, in percent. There is a thread per shared CPU.
	Kernels     []string `json:"kernels"`
	Intensities []int    `json:"intensities"`
	// Programs are real ones. Those that are not installed are skipped.
	Programs []Program `json:"programs,omitempty"`
	// Isolation is in force beside every neighbour; its zero value is nothing.
	Isolation lab.Isolation `json:"isolation,omitzero"`

	// Blocks is how often each cell is run, if For leaves the time for it. In the result of a
	// complete run it is how often it was.
	Blocks int          `json:"blocks"`
	For    lab.Duration `json:"for,omitempty"`
	// Settle is discarded at the start of a round, Warm where the neighbour is a program, which
	// may take a while to do what it does; Window is measured.
	Settle lab.Duration `json:"settle"`
	Warm   lab.Duration `json:"warm"`
	Window lab.Duration `json:"window"`
	// Rate is in requests per second. Demand is the share (0-1) of the shared CPUs that each
	// tenant wants alone.
	Rate   float64 `json:"rate"`
	Demand float64 `json:"demand"`
	CPUs   string  `json:"cpus,omitempty"`
	// Weight is the CPU weight of the run's groups together, 0 for the usual 100: more keeps a
	// host's other work from taking part.
	Weight int `json:"weight,omitempty"`
	// Seed fixes the arrivals and the order of cells; 0 lets the clock choose.
	Seed uint64 `json:"seed,omitempty"`
}

// Program is a neighbour that is a program.
type Program struct {
	Name string `json:"name"`
	// Command is a program and its arguments. In them {cpus} stands for the number of shared
	// CPUs, {dir} for the run's folder, {disk} for the lab's slow disk, and {source} for a C
	// file of a few thousand lines.
	Command []string `json:"command"`
	// Copies are run at once; 0 is 1, PerCPU one for each shared CPU.
	Copies int `json:"copies,omitempty"`
}

// PerCPU stands for as many copies of a program as there are shared CPUs.
const PerCPU = -1

// Tenant is a kind of tenant.
type Tenant struct {
	Name, Means string
	// Bytes is its working set, Disk whether every fifth request reads a slow disk.
	Bytes int64
	Disk  bool
}

// Tenants lists them.
func Tenants() []Tenant {
	return []Tenant{
		{Name: "small", Means: "articles from 256 KiB, which a core's own caches hold", Bytes: 256 << 10},
		{Name: "store", Means: "articles from 64 MiB, which come from the last-level cache and memory", Bytes: 64 << 20},
		{Name: "disk", Means: "as small, and every fifth request reads a slow disk of the lab's own", Bytes: 256 << 10, Disk: true},
	}
}

func tenantNamed(name string) (Tenant, bool) {
	i := slices.IndexFunc(Tenants(), func(t Tenant) bool { return t.Name == name })
	if i < 0 {
		return Tenant{}, false
	}
	return Tenants()[i], true
}

// kernels are those that need no network link.
func kernels() []noise.Kernel {
	return slices.DeleteFunc(noise.Kernels(), func(k noise.Kernel) bool { return k.Link })
}

func kernelNamed(name string) (noise.Kernel, bool) {
	kernels := kernels()
	i := slices.IndexFunc(kernels, func(k noise.Kernel) bool { return k.Name == name })
	if i < 0 {
		return noise.Kernel{}, false
	}
	return kernels[i], true
}

// Default is the experiment unless told otherwise.
func Default() Spec {
	e := Spec{
		Intensities: []int{25, 100}, Blocks: 16, For: lab.Duration(20 * time.Minute),
		Settle: lab.Duration(100 * time.Millisecond), Warm: lab.Duration(time.Second), Window: lab.Duration(500 * time.Millisecond),
		Rate: 1000, Demand: 0.3,
		Programs: []Program{
			{Name: "stress-ng-cpu", Command: []string{"stress-ng", "--cpu", "{cpus}"}},
			{Name: "stress-ng-cache", Command: []string{"stress-ng", "--cache", "{cpus}"}},
			{Name: "stress-ng-stream", Command: []string{"stress-ng", "--stream", "{cpus}"}},
			{Name: "fio", Command: []string{
				"fio", "--name=read", "--filename={disk}", "--readonly", "--rw=randread", "--bs=128k", "--direct=1", "--ioengine=psync",
				"--numjobs=4", "--thread", "--time_based", "--runtime=3600",
			}},
			{Name: "cc", Command: []string{"cc", "-O2", "-c", "-o", "/dev/null", "{source}"}, Copies: PerCPU},
		},
	}
	for _, t := range Tenants() {
		e.Tenants = append(e.Tenants, t.Name)
	}
	for _, k := range kernels() {
		e.Kernels = append(e.Kernels, k.Name)
	}
	return e
}

// Validate says what is wrong, naming the field.
func (e Spec) Validate() error {
	in := func(d lab.Duration, least, most time.Duration) bool {
		return time.Duration(d) >= least && time.Duration(d) <= most
	}
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{len(e.Tenants) == 0, "tenants: none: want at least one of " + tenantNames()},
		{len(e.Kernels)*len(e.Intensities)+len(e.Programs) == 0, "kernels: none, and no programs: nothing to compare"},
		{e.Blocks < 1 || e.Blocks > lab.MaxBlocks, fmt.Sprintf("blocks: %d: want 1 to %d", e.Blocks, lab.MaxBlocks)},
		{!in(e.For, 0, 30*24*time.Hour), fmt.Sprintf("for: %s: want at most 720h", e.For)},
		{!in(e.Settle, 0, time.Hour), fmt.Sprintf("settle: %s: want 0 to 1h", e.Settle)},
		{!in(e.Warm, 0, time.Hour), fmt.Sprintf("warm: %s: want 0 to 1h", e.Warm)},
		{!in(e.Window, 200*time.Millisecond, time.Hour), fmt.Sprintf("window: %s: want 200ms to 1h", e.Window)},
		{!(e.Rate >= 1 && e.Rate <= 50_000), fmt.Sprintf("rate: %g: want 1 to 50000 requests per second", e.Rate)},
		{!(e.Demand > 0 && e.Demand <= 1), fmt.Sprintf("demand: %g: want more than 0 and at most 1", e.Demand)},
		{e.Weight < 0 || e.Weight > 10_000, fmt.Sprintf("weight: %d: want 1 to 10000", e.Weight)},
		{e.Isolation.MemoryMax+e.Isolation.MemoryHigh+e.Isolation.MemoryLow != 0, "isolation: limits of memory: nothing is short of it here"},
	} {
		if rule.broken {
			return fmt.Errorf("experiment: %s", rule.says)
		}
	}
	if _, err := cpuset.Parse(e.CPUs); err != nil {
		return fmt.Errorf("experiment: cpus: %w", err)
	}
	return e.validateLists()
}

func (e Spec) validateLists() error {
	for i, name := range e.Tenants {
		if _, ok := tenantNamed(name); !ok || slices.Contains(e.Tenants[:i], name) {
			return fmt.Errorf("experiment: tenants: %q: want each of %s at most once", name, tenantNames())
		}
	}
	for i, name := range e.Kernels {
		if _, ok := kernelNamed(name); !ok || slices.Contains(e.Kernels[:i], name) {
			return fmt.Errorf("experiment: kernels: %q: want each of %s at most once", name, strings.Join(Default().Kernels, ", "))
		}
	}
	for i, percent := range e.Intensities {
		if percent < 1 || percent > 100 || slices.Contains(e.Intensities[:i], percent) {
			return fmt.Errorf("experiment: intensities: %d: want each of 1 to 100 at most once", percent)
		}
	}
	seen := map[string]bool{}
	for _, p := range e.Programs {
		_, kernel := kernelNamed(p.Name)
		switch {
		case p.Name == "" || strings.Trim(p.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" || seen[p.Name] || kernel:
			return fmt.Errorf("experiment: programs: name %q: want one of its own, of letters, digits, '-', '_' and '.'", p.Name)
		case len(p.Command) == 0 || p.Command[0] == "":
			return fmt.Errorf("experiment: programs: %s: command: want a program and its arguments", p.Name)
		case p.Copies < PerCPU || p.Copies > 64:
			return fmt.Errorf("experiment: programs: %s: copies: %d: want 1 to 64, or %d for one per CPU", p.Name, p.Copies, PerCPU)
		}
		seen[p.Name] = true
	}
	return nil
}

func tenantNames() string {
	var names []string
	for _, t := range Tenants() {
		names = append(names, t.Name)
	}
	return strings.Join(names, ", ")
}

// length is about how long the run takes with so many of its programs.
func (e Spec) length(programs int) time.Duration {
	const between, before, fit, start = 40 * time.Millisecond, 4 * time.Second, 4 * time.Second, 200 * time.Millisecond
	round := time.Duration(e.Settle+e.Window) + between
	block := time.Duration(len(e.Tenants)) * (time.Duration(2+len(e.Kernels)*len(e.Intensities))*round +
		time.Duration(programs)*(round+time.Duration(e.Warm)-time.Duration(e.Settle)+start))
	length := before + time.Duration(len(e.Tenants))*fit + time.Duration(e.Blocks)*block
	if e.For > 0 {
		length = min(length, time.Duration(e.For))
	}
	return length
}

// base is what the lab is asked for.
func (e Spec) base() lab.Spec {
	base := lab.IsolationSpec()
	base.Name, base.Blocks, base.For, base.Settle, base.Window = "neighbours", e.Blocks, e.For, e.Settle, e.Window
	base.Tenant.Demand, base.CPUs, base.Seed, base.ThreadsPerCPU = e.Demand, e.CPUs, e.Seed, 1
	return base
}
