package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/agent/metrics"
	"berth.dev/berth/agent/page"
	"berth.dev/berth/guard"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
)

func agentCommand() *cobra.Command {
	var opt daemon.Options
	var format string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Keep this host as a NodeConfig says, and serve the API",
		Long: `Keep this host as a NodeConfig says, and serve the API.

The agent watches control groups come and go. A group that the configuration matches
gets its place at once: CPUs, memory nodes and limits; one that vanishes is
released. Everyone else is kept off exclusive CPUs where confine says so. Values
that others change are repaired, and left to them if they keep at it.

Beside that it guards: it says which workload suffers, from what and by whom and, if
the configuration's guard.mode is enforce, moves the neighbour aside, measures whether
that helped, and gives it back when it is no longer needed and at the end.

  --config FILE   what the host is to be like (docs/nodeconfig.md). It is read again
                  when it changes and on SIGHUP, and only what differs is applied. A
                  file that is not valid is refused, and what was stays in force.
  --socket PATH   where berth run, ps, map and other clients find the agent; by
                  default /run/berth/agent.sock for root, else in
                  $XDG_RUNTIME_DIR/berth or /tmp/berth-UID
  --dry-run       say which groups match and what each would get on a host without
                  other workloads; nothing is changed

/metrics for Prometheus and the status page are at http://127.0.0.1:9750, or
where agent.metrics says, and on the socket.

SIGTERM and SIGINT end the agent. All stays in place then, and the next start goes
on where this one ended; with --restore-on-exit, or restoreOnExit in the
configuration, every value and group is given back. After a kill -9, start it
again, or give everything back with berth restore.

Only one agent keeps a host. Under systemd it says when it is ready and feeds the
watchdog. docs/agent.md describes the API.

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
			opt.Root, opt.Web = root, web(root, rootDir(cmd))
			opt.Sensors = func() (daemon.Sensors, error) { return guard.OpenHost(rootDir(cmd)) }
			if dryRun {
				return previewAgent(cmd.Context(), cmd.OutOrStdout(), opt)
			}
			if opt.Log, err = logTo(cmd.ErrOrStderr(), format); err != nil {
				return err
			}
			hangup := make(chan os.Signal, 1)
			signal.Notify(hangup, syscall.SIGHUP)
			defer signal.Stop(hangup)
			opt.Reload, opt.Supervisor = hangup, supervisor()
			outlivePipe()
			return daemon.Run(cmd.Context(), opt)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opt.File, "config", "", "NodeConfig `file`; without one the defaults hold, and nothing matches")
	fs.StringVar(&opt.Socket, "socket", "", "`path` of the API's socket")
	fs.StringVar(&format, "log-format", "text", "text or json, on the standard error stream")
	fs.BoolVar(&opt.RestoreOnExit, "restore-on-exit", false, "give every value and group back at the end")
	fs.BoolVar(&dryRun, "dry-run", false, "say what would be placed where, and change nothing")
	completeWords(cmd, "log-format", "text", "json")
	return cmd
}

// web shows the metrics and the status page.
func web(root *kernel.Root, dir string) func(context.Context, api.Server) (http.Handler, error) {
	return func(ctx context.Context, s api.Server) (http.Handler, error) {
		hardware := observe.OpenHardware(dir)
		m, err := metrics.New(s.View, metrics.Options{Root: root.FS(), Hardware: hardware})
		if err != nil {
			return nil, errors.Join(err, hardware.Close())
		}
		go m.Follow(ctx, s.History)
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", m.Handler())
		mux.Handle("/", page.Handler(s))
		return mux, nil
	}
}

// logTo returns a logger of the given format.
func logTo(w io.Writer, format string) (*slog.Logger, error) {
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, nil)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, nil)), nil
	}
	return nil, exitStatus{exitUsage, fmt.Errorf("--log-format %q: not text or json", format)}
}

// supervisor is who started this process, as sd_notify(3) and
// sd_watchdog_enabled(3) say.
func supervisor() daemon.Supervisor {
	s := daemon.Supervisor{Socket: os.Getenv("NOTIFY_SOCKET")}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID")
	if err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		s.Watchdog = time.Duration(usec) * time.Microsecond
	}
	return s
}

// previewAgent says what the agent would do first.
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
			fmt.Fprintf(w, "%s\n    refused: %v\n", onLine(d.ID), d.Err)
			continue
		}
		fmt.Fprintf(w, "%s\n    class %s, CPUs %s", onLine(d.ID), d.Class, d.CPUs)
		if !d.Own.IsEmpty() {
			fmt.Fprintf(w, ", of which its own %s", d.Own)
		}
		if !d.Mems.IsEmpty() {
			fmt.Fprintf(w, ", memory nodes %s", d.Mems)
		}
		fmt.Fprintln(w)
	}
	return nil
}
