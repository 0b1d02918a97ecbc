package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/agent/web"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/watch"
)

func agentCommand() *cobra.Command {
	var opt daemon.Options
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Keep this host as a NodeConfig says, and serve the API",
		Long: `Keep this host as a NodeConfig says, and serve the API.

The agent watches control groups come and go. A group that the configuration matches
gets CPUs, memory nodes and limits at once; one that vanishes is released. Other
groups are kept off exclusive CPUs where confine says so. Values that another writer
changes are repaired, and left to that writer after several times.

It also runs the guard, which says which workload suffers, from what and because of
which neighbour. If the configuration's guard.mode is enforce, the guard slows that
neighbour down, measures whether that helped, and reverts it when it is no longer
needed and at the end.

  --config FILE   the wanted state of the host (docs/nodeconfig.md). It is read again
                  when it changes and on SIGHUP, and only what differs is applied. A
                  file that is not valid is refused, and the one before stays active.
  --socket PATH   where berth run, ps, map and other clients find the agent; by
                  default /run/berth/agent.sock for root, else in
                  $XDG_RUNTIME_DIR/berth or /tmp/berth-UID
  --dry-run       say which groups match and what each would get on a host without
                  other workloads; nothing is changed

/metrics for Prometheus and the status page are at http://127.0.0.1:9750, or
where agent.metrics says, and on a socket of their own, page.sock beside that of
the API. Where they cannot be served, the agent says so and tries again.

With agent.group, the members of that group may use the socket: all of them may
read, place their own processes, and change and release what they placed. Only root
and the users in agent.admins may do more.

SIGTERM and SIGINT end the agent. Everything stays in place then, and the next start goes
on where this one ended; with --restore-on-exit, or restoreOnExit in the
configuration, every value and group is restored. After a kill -9, start it
again, or restore everything with berth restore.

Only one agent keeps a host. Under systemd it says when it is ready and feeds the
watchdog. docs/api.md describes the API.

Exit status: 0 after a signal, 1 if it cannot go on, or a file is not valid,
2 for wrong usage.`,
		Example: `  berth config check /etc/berth/node.yaml
  berth agent --config /etc/berth/node.yaml --dry-run
  berth agent --config /etc/berth/node.yaml
  curl --unix-socket /run/berth/agent.sock http://agent/v1/workloads`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := systemd.Open(rootDir(cmd))
			if err != nil {
				return err
			}
			opt.Root = root
			opt.Sensors = func() (daemon.Sensors, error) { return guard.OpenHost(rootDir(cmd)) }
			if dryRun {
				return previewAgent(cmd.Context(), cmd.OutOrStdout(), opt)
			}
			opt.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			if word(cmd, "log-format") == "json" {
				opt.Log = slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil))
			}
			opt.Web = webHandler(root, rootDir(cmd), opt.Log)
			hangup := Hangups()
			defer signal.Stop(hangup)
			opt.Reload, opt.Supervisor = hangup, supervisor()
			ignoreSIGPIPE()
			defer TuneRuntime(30, 1)() // with more CPUs, each thing to do wakes another thread, which finds nothing
			return daemon.Run(cmd.Context(), opt)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opt.File, "config", "", "NodeConfig `file`; without one the defaults hold, and nothing matches")
	fs.StringVar(&opt.Socket, "socket", "", "`path` of the API's socket")
	wordFlag(cmd, "log-format", "", "text or json, on the standard error stream", "text", "json")
	fs.BoolVar(&opt.RestoreOnExit, "restore-on-exit", false, "restore every value and group at the end")
	fs.BoolVar(&dryRun, "dry-run", false, "say what would be placed where, and change nothing")
	return cmd
}

// webHandler shows the metrics and the status page. It logs which counters of the hardware
// they lack, and why.
func webHandler(root *kernel.Root, dir string, log *slog.Logger) func(context.Context, api.Server) (http.Handler, error) {
	return func(ctx context.Context, s api.Server) (http.Handler, error) {
		hardware := observe.OpenHardware(dir)
		for _, q := range []watch.Quantity{watch.Cycles, watch.LLCOccupancy} {
			if err := hardware.Why(q); err != nil {
				log.Info("missing", "text", err.Error())
			}
		}
		m := web.NewMetrics(s.View, web.MetricsOptions{Root: root.FS(), Hardware: hardware, List: s.Node.List})
		go m.Follow(ctx, s.History)
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", m.Handler())
		hour := web.NewHour(root.FS())
		go hour.Follow(ctx)
		mux.Handle("/", web.Handler(s, hour))
		return mux, nil
	}
}

// supervisor is the service manager of this process, by the environment of
// sd_notify(3) and sd_watchdog_enabled(3).
func supervisor() daemon.Supervisor {
	s := daemon.Supervisor{Socket: os.Getenv("NOTIFY_SOCKET")}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID")
	if err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		s.Watchdog = time.Duration(usec) * time.Microsecond
	}
	return s
}

// previewAgent prints the first changes that the agent would make.
func previewAgent(ctx context.Context, w io.Writer, opt daemon.Options) error {
	drafts, err := daemon.Preview(ctx, opt)
	if err != nil {
		return err
	}
	if len(drafts) == 0 {
		_, err := fmt.Fprintln(w, "no group matches")
		return err
	}
	for _, d := range drafts {
		if d.Err != nil {
			fmt.Fprintf(w, "%s\n    refused: %v\n", plain.Line(d.ID), plain.Line(d.Err.Error()))
			continue
		}
		fmt.Fprintf(w, "%s\n    class %s, CPUs %s", plain.Line(d.ID), d.Class, d.CPUs)
		if !d.Own.IsEmpty() {
			fmt.Fprintf(w, ", of which its own %s", d.Own)
		}
		if !d.Mems.IsEmpty() {
			fmt.Fprintf(w, ", memory nodes %s", d.Mems)
		}
		if limits := limitsText(&d.Limits); limits != "" {
			fmt.Fprintf(w, ", limits: %s", limits)
		}
		fmt.Fprintln(w)
	}
	return nil
}
