package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/place"
	"berth.dev/berth/place/policies"
)

// node places workloads: a running agent (*api.Client) or, without one,
// this process (*agent.Node), in turn with others by the lock of the state
// directory. One that is opened to read changes nothing.
type node interface {
	Place(ctx context.Context, spec agent.Spec) (agent.Workload, error)
	PlaceTogether(ctx context.Context, specs []agent.Spec) ([]agent.Workload, error)
	PreviewTogether(ctx context.Context, specs []agent.Spec) ([]agent.Workload, kernel.Plan, error)
	Resize(ctx context.Context, spec agent.Spec) (agent.Workload, error)
	Move(ctx context.Context, id string, cpus, mems cpuset.Set) (agent.Workload, error)
	Release(ctx context.Context, id string, leaving agent.Leaving) error
	List(ctx context.Context) ([]agent.Workload, error)
	Get(ctx context.Context, id string) (agent.Workload, error)
	State(ctx context.Context) (*place.State, error)
	ClassReport(ctx context.Context) (agent.ClassReport, error)
	Preview(ctx context.Context, spec agent.Spec) (agent.Workload, kernel.Plan, error)
	Close() error
}

// nodePatience is how long to wait for the node's lock. Others hold it for one
// change at a time, an agent for good.
const nodePatience = 10 * time.Second

type nodeFlags struct {
	policy  string
	confine []string
	classes map[agent.ClassKind]*string // files
	exists  bool                        // whether there is to be a node already
}

// classFiles are the flags that name files with classes, by kind.
var classFiles = []struct {
	kind        agent.ClassKind
	flag, usage string
}{
	{agent.CacheClass, "cache-classes", "`file` that defines cache classes: a NodeConfig, or as of goresctrl (docs/cache.md; default those for the workloads there are)"},
	{agent.IOClass, "io-classes", "`file` that defines I/O classes: a NodeConfig, or as of goresctrl or Koordinator (docs/io.md; default those for the workloads there are)"},
	{agent.NetClass, "net-classes", "`file` that defines network classes: a NodeConfig (docs/network.md; default those for the workloads there are)"},
	{agent.PowerClass, "power-classes", "`file` that defines power profiles: a NodeConfig (docs/power.md; default those for the workloads there are)"},
}

func (f *nodeFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	socketFlag(cmd)
	fs.StringVar(&f.policy, "policy", "", "`name` of the policy that chooses (see berth replay --help; default that of the workloads there are, else "+policies.Default+")")
	fs.StringArrayVar(&f.confine, "confine", nil, "keep control groups that match this `glob` off exclusive CPUs, as in system.slice or '*'; may be repeated (default as for the workloads there are)")
	f.classes = map[agent.ClassKind]*string{}
	for _, of := range classFiles {
		f.classes[of.kind] = fs.String(of.flag, "", of.usage)
	}
	completeWords(cmd, "policy", policies.Names()...)
}

// socketFlag adds the flags that say which node it is about.
func socketFlag(cmd *cobra.Command) {
	cmd.Flags().String("socket", "", "`path` of the agent's socket (default where berth agent has it, if one runs)")
	cmd.Flags().String("state", "", "state `directory` of the node to open, instead of asking an agent")
}

func socketOf(cmd *cobra.Command) string {
	socket, _ := cmd.Flags().GetString("socket")
	return socket
}

func stateOf(cmd *cobra.Command) (dir string, named bool) {
	if dir, _ = cmd.Flags().GetString("state"); dir != "" {
		return dir, true
	}
	return nodeDir(rootDir(cmd)), false
}

// nodeArgs are the flags that say which node it is about, as arguments.
func nodeArgs(cmd *cobra.Command) (args []string, err error) {
	if socket := socketOf(cmd); socket != "" {
		args = append(args, "--socket", socket)
	}
	if dir, named := stateOf(cmd); named {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		args = append(args, "--state", dir)
	}
	return args, nil
}

// open finds the agent of the host under --root, whose configuration decides instead of
// these flags, or opens the node; a reader reads its records, and changes nothing.
func (f *nodeFlags) open(cmd *cobra.Command, reader bool) (node, error) {
	c, err := dial(cmd)
	if err != nil {
		return nil, err
	}
	if c != nil {
		flags := []string{"policy", "confine"}
		for _, of := range classFiles {
			flags = append(flags, of.flag)
		}
		for _, flag := range flags {
			if set := cmd.Flags().Lookup(flag); set != nil && set.Changed {
				return nil, errors.Join(exitStatus{exitUsage, fmt.Errorf("--%s: the agent that runs decides it (see its configuration)", flag)}, c.Close())
			}
		}
		return c, nil
	}
	if err := checkElsewhere(cmd, !f.exists); err != nil {
		return nil, err
	}
	opt, err := f.options(cmd)
	if err != nil {
		return nil, err
	}
	if reader {
		return agent.NewReader(opt)
	}
	return lockNode(cmd.Context(), opt)
}

// dial finds the agent; without one, and unless a socket is named, the client
// is nil.
func dial(cmd *cobra.Command) (*api.Client, error) {
	named := socketOf(cmd)
	if _, own := stateOf(cmd); own {
		if named != "" {
			return nil, exitStatus{exitUsage, errors.New("--socket and --state: an agent has its own state; name one of the two")}
		}
		return nil, nil
	}
	socket := named
	if named == "" {
		if filepath.Clean(rootDir(cmd)) != "/" {
			return nil, nil
		}
		socket = api.SocketPath(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
	}
	c, err := api.Dial(cmd.Context(), socket)
	if is[*api.NoAgentError](err) && named == "" {
		return nil, nil
	}
	return c, err
}

// options are those of the node without an agent. Options without a flag are as they
// were when the node was opened last.
func (f *nodeFlags) options(cmd *cobra.Command) (agent.Options, error) {
	if _, err := policies.New(f.policy, nil); err != nil {
		return agent.Options{}, exitStatus{exitUsage, fmt.Errorf("--policy: %w", err)}
	}
	root, err := systemd.Open(rootDir(cmd))
	if err != nil {
		return agent.Options{}, err
	}
	var classes agent.ClassConfig
	for _, of := range classFiles {
		file := f.classes[of.kind]
		if file == nil || *file == "" {
			continue
		}
		c, err := readClasses(*file)
		if err == nil && !c.Defines(of.kind) {
			err = fmt.Errorf("--%s %s: it defines no %s classes", of.flag, *file, of.kind)
		}
		if err != nil {
			return agent.Options{}, err
		}
		classes = classes.With(of.kind, c)
	}
	dir, _ := stateOf(cmd)
	return agent.Options{
		Root: root, Dir: dir, Policies: policies.New, Settings: agent.Settings{PolicyName: f.policy, Confine: f.confine, Classes: classes},
		Events: func(e agent.Event) {
			if e.Kind == agent.Failed || e.Kind == agent.Dropped {
				what := strings.TrimSpace(fmt.Sprintf("%s %s%s", e.Kind, plain.Line(e.ID), plain.Line(e.Object)))
				fmt.Fprintf(cmd.ErrOrStderr(), "berth: %s: %s\n", what, plain.Line(e.Text))
			}
		},
	}, nil
}

// lockNode opens a node, with a BusyError where an agent keeps it.
func lockNode(ctx context.Context, opt agent.Options) (*agent.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	n, err := agent.Open(ctx, opt)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, agent.Busy(opt.Dir)
	}
	return n, err
}

// checkState refuses a named state directory that does not exist: a command that only
// reads, or changes placed workloads, must not make it.
func checkState(cmd *cobra.Command) error {
	dir, named := stateOf(cmd)
	if _, err := os.Stat(dir); named && errors.Is(err, fs.ErrNotExist) {
		return noState(dir)
	}
	return nil
}

func noState(dir string) error {
	return fmt.Errorf("--state %s: there is no such directory, and so no node", dir)
}

// withNode runs do on the agent at --socket, or on the node of the default options.
func withNode(cmd *cobra.Command, do func(node) error) error {
	return (&nodeFlags{}).with(cmd, false, do)
}

// withReader is withNode for a command that changes nothing.
func withReader(cmd *cobra.Command, do func(node) error) error {
	return (&nodeFlags{}).with(cmd, true, do)
}

// listWorkloads returns Berth's workloads on this host.
func listWorkloads(ctx context.Context, cmd *cobra.Command) ([]agent.Workload, error) {
	n, err := (&nodeFlags{}).open(cmd, true)
	if err != nil {
		return nil, err
	}
	all, err := n.List(ctx)
	return all, errors.Join(err, n.Close())
}

func (f *nodeFlags) with(cmd *cobra.Command, reader bool, do func(node) error) error {
	if err := checkState(cmd); err != nil {
		return err
	}
	f.exists = true
	n, err := f.open(cmd, reader)
	if err != nil {
		return err
	}
	return errors.Join(do(n), n.Close())
}

func nodeDir(root string) string {
	if filepath.Clean(root) != "/" {
		return filepath.Join(root, "run/berth/node")
	}
	return agent.StateDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
}

// oneName accepts the name of a workload and completes it.
func oneName(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return exitStatus{exitUsage, fmt.Errorf("%s: one NAME is needed, not %d (see berth ps)", cmd.Name(), len(args))}
		}
		if args[0] == "" {
			return exitStatus{exitUsage, fmt.Errorf("%s: NAME is empty (see berth ps)", cmd.Name())}
		}
		return nil
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_ = withReader(cmd, func(n node) error {
			all, err := n.List(cmd.Context())
			for i := range all {
				names = append(names, all[i].ID())
			}
			return err
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func completeWords(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}
