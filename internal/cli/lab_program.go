package cli

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
)

// labProgramFlags have programs of the user's stand for tenant and neighbour.
type labProgramFlags struct{ tenant, neighbour, unit string }

func (f *labProgramFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.tenant, "tenant", "", "tenant in place of the built-in one: "+strings.Join(serverNames(), ", ")+", or a `command` that starts it (with --probe)")
	fs.StringVar(&f.unit, "unit", "", "measure what runs in this systemd `unit`, as --cgroup")
	fs.StringVar(&f.neighbour, "neighbour", lab.IsolationSpec().Neighbour.Kernel, "neighbour: "+kernelNames()+", or a `command` of your own")
}

// bindTenant has flags set the fields of a tenant that is not built in.
func bindTenant(fs *pflag.FlagSet, t *lab.TenantSpec) {
	fs.StringVar(&t.Probe, "probe", t.Probe, "`URL` at which the tenant answers: http://, redis://, memcached:// or postgres://")
	fs.StringVar(&t.Ask, "ask", t.Ask, "what it is asked, as in 'GET key:{0-999}' or 'SELECT 1': a `request` with a number of that range")
	fs.IntVar(&t.Connections, "connections", t.Connections, "connections to the tenant (default 256; PostgreSQL 32)")
	fs.IntVar(&t.PID, "pid", t.PID, "measure the `process` that runs already, with those below it; it is not restarted, moved or changed")
	fs.StringVar(&t.Group, "cgroup", t.Group, "measure what runs in the control group of this `path`; it is not restarted, moved or changed")
}

func serverNames() []string {
	var names []string
	for _, s := range program.Servers() {
		names = append(names, s.Name)
	}
	return names
}

// apply enters into e what the flags ask for.
func (f *labProgramFlags) apply(cmd *cobra.Command, e *lab.Spec) error {
	set := cmd.Flags().Changed
	t := &e.Tenant
	if set("unit") {
		if set("cgroup") || set("pid") {
			return fmt.Errorf("--unit %s: want one of --pid, --unit and --cgroup", f.unit)
		}
		root, err := systemd.Open(rootDir(cmd))
		if err == nil {
			t.Group, err = systemd.ControlGroup(cmd.Context(), root, f.unit)
		}
		if err != nil {
			return fmt.Errorf("--unit: %w", err)
		}
	}
	runs := set("unit") || set("cgroup") || set("pid")
	switch {
	case runs && set("tenant"):
		return fmt.Errorf("--tenant %q: what runs already is not started: leave it out, or --pid, --unit and --cgroup", f.tenant)
	case runs:
		t.Service = lab.Outside
		e.Beside()
	case set("tenant") && (f.tenant == lab.Article || slices.Contains(serverNames(), f.tenant)):
		t.Service = f.tenant
	case set("tenant"):
		t.Service, t.Command = lab.Command, f.tenant
	case set("probe") && t.Service == lab.Article:
		return fmt.Errorf("--probe %s: whose answers? Say --tenant COMMAND, --pid, --unit or --cgroup", t.Probe)
	}
	if set("neighbour") {
		isKernel := slices.ContainsFunc(noise.Kernels(), func(k noise.Kernel) bool { return k.Name == f.neighbour })
		if isKernel || !strings.ContainsAny(f.neighbour, " /") && !isCommand(f.neighbour) {
			e.Neighbour.Kernel, e.Neighbour.Command = f.neighbour, nil
		} else {
			e.Neighbour = noise.Config{Kernel: "program", Command: program.Shell(f.neighbour), Threads: 1, Intensity: 100}
		}
	}
	return nil
}

// isCommand reports whether a word is one that the shell would find.
func isCommand(word string) bool {
	_, err := exec.LookPath(word)
	return err == nil
}
