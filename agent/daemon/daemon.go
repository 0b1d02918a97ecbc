// Package daemon is `berth agent`: it keeps one host as a NodeConfig says.
//
// It opens the node for good, watches which control groups come and go, gives those
// that the configuration matches their place and releases those that vanish,
// repairs what drifts, follows the configuration file, and serves the API. One
// goroutine, the loop, decides; others only wait for something and tell it.
//
// What a change comes to is package agent's, what a configuration means
// agent/config's, and how others ask agent/api's.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/systemd"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/cgroupstat"
)

// Options say how the agent runs, beside its configuration. The zero value is the
// live host under the default configuration.
type Options struct {
	// Root is the kernel's files; nil is the live host. Paths of the configuration
	// lie below it.
	Root *kernel.Root
	// Machine is the hardware; nil reads it from Root.
	Machine *machine.Machine
	// File is the NodeConfig; "" stands for the defaults.
	File string
	// Socket replaces the configuration's agent.socket, if not "".
	Socket string
	// RestoreOnExit gives everything back at the end, whatever the configuration
	// says.
	RestoreOnExit bool
	// Reload asks to read the configuration again; nil is never, but for changes of
	// the file.
	Reload <-chan os.Signal
	// Web makes what a browser or a scraper sees, of what the agent knows: at the
	// address of agent.metrics and on a socket beside that of the API (api.PagePath). It
	// may follow the agent until the context ends. Nil is nothing.
	Web func(context.Context, api.Server) (http.Handler, error)
	// Sensors opens what the guard reads the host by; nil is no guard.
	Sensors func() (Sensors, error)
	// Supervisor is who started this process.
	Supervisor Supervisor
	// Log gets every event; nil discards them.
	Log *slog.Logger
	// Interval is the time between readings of statistics; 0 is 1 s.
	Interval time.Duration
	// window is the guard's; 0 is its default.
	window time.Duration
	// firstRetry is from a failure to open a door of the page to the next attempt; 0 is
	// the default.
	firstRetry time.Duration
}

// open opens the live host, and reads its hardware, if no other was named.
func (o *Options) open() (err error) {
	if o.Root == nil {
		if o.Root, err = systemd.Open("/"); err != nil {
			return err
		}
	}
	if o.Machine == nil {
		o.Machine, err = sysfs.Read(o.Root.FS())
	}
	return err
}

// historySize is how many events are kept for clients that come later.
const historySize = 1024

// Run is the agent: it returns when the context ends, or with what it cannot go on
// without. A second agent with the same state is refused with an *agent.BusyError.
func Run(ctx context.Context, opt Options) (err error) {
	d, err := start(ctx, opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	return d.run(ctx)
}

type daemon struct {
	opt     Options
	root    *kernel.Root
	log     *slog.Logger
	history *api.History
	keeper  *keeper
	meter   *meter
	loop    *loop
	guard   *Guard
	file    *file
	tick    *time.Timer         // of the meter's next reading
	groups  *cgroupstat.Watcher // nil with affinity
	api     net.Listener
	pages   []*page // doors of the status page
	started time.Time
}

// start opens everything. What is open after an error is closed.
func start(ctx context.Context, opt Options) (d *daemon, err error) {
	d = &daemon{log: opt.Log, started: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
			d = nil
		}
	}()
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if err := opt.open(); err != nil {
		return d, err
	}
	opt.Interval = cmp.Or(opt.Interval, time.Second)
	opt.firstRetry = cmp.Or(opt.firstRetry, firstRetry)
	d.opt, d.root = opt, opt.Root
	d.history = api.NewHistory(historySize, uint64(d.started.UnixMicro()))
	if d.file, err = openFile(opt.File); err != nil {
		return d, err
	}
	conf, text, err := d.file.read()
	if err != nil {
		return d, err
	}
	d.keeper = newKeeper(d.log, d.history)
	dir := d.path(StateDir(conf))
	d.guard, err = NewGuard(GuardOptions{
		Root: d.root, Dir: agent.GuardDir(dir), Program: "berth agent", Sensors: opt.Sensors, Machine: opt.Machine, Window: opt.window,
		Workloads: d.keeper.changes, Record: d.keeper.record, lock: &d.keeper.mu,
	})
	if err != nil {
		return d, err
	}
	base := agent.Options{Root: d.root, Machine: opt.Machine, Dir: dir}
	if err := d.guard.recover(); err != nil {
		return d, err
	}
	if opt.Sensors != nil && d.guard.host != nil {
		base.Root = d.guard.host.Base(func() { poke(d.guard.uncovered) })
	}
	d.loop = newLoop(d.keeper, base, conf)
	d.loop.guard = d.guard.follow
	d.loop.file, d.loop.versions = d.file, versions{d.path(versionsDir(conf))}
	if err := d.loop.open(ctx); err != nil {
		return d, err
	}
	d.loop.remember(text)
	if err := d.watch(); err != nil {
		return d, err
	}
	return d, d.listen(conf)
}

func (d *daemon) path(p string) string {
	if d.root.Name() == "/" || p == "" {
		return p
	}
	return filepath.Join(d.root.Name(), p)
}

// StateDir is the state directory of a configuration; that of the default configuration is this
// user's, where berth run finds it.
func StateDir(c *config.NodeConfig) string {
	if c.Agent.StateDir == config.Default().Agent.StateDir {
		return agent.StateDir(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
	}
	return c.Agent.StateDir
}

func (d *daemon) watch() error {
	bases := d.keeper.node.Bases()
	trees, others, prefix, alike, err := treesOf(d.root, bases)
	if err != nil {
		return err
	}
	d.meter = newMeter(d.root.Name(), trees, others, d.opt.Interval)
	if len(trees) == 0 {
		return nil
	}
	d.loop.dir = bases[0]
	d.loop.prefix, d.guard.prefix = prefix, prefix
	if alike {
		d.meter.prefix = strings.TrimPrefix(prefix+"/", "/")
		d.guard.read = d.take
	}
	d.tick = time.NewTimer(d.opt.Interval)
	d.groups, err = cgroupstat.NewWatcher(cgroupstat.WatcherConfig{Root: trees[0].Dir, Rescan: time.Duration(d.loop.conf.Agent.Rescan), Keep: d.loop.names})
	return err
}

// listen opens the doors. Without the API's there is no agent; the page's are tried
// again later.
func (d *daemon) listen(conf *config.NodeConfig) (err error) {
	gid, err := groupID(conf.Agent.Group)
	if err != nil {
		return err
	}
	if d.api, err = api.Listen(d.socket(conf), gid); err != nil {
		return err
	}
	if d.opt.Web == nil {
		return nil
	}
	d.pages = pagesOf(&conf.Agent, d.socket(conf), gid)
	for _, p := range d.pages {
		if p.try() != nil {
			d.noteUnserved(p)
		}
	}
	return nil
}

// socket is the path of the API's socket; that of the default configuration is
// this user's.
func (d *daemon) socket(conf *config.NodeConfig) string {
	switch {
	case d.opt.Socket != "":
		return d.opt.Socket
	case conf.Agent.Socket == config.Default().Agent.Socket:
		return d.path(api.SocketPath(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR")))
	}
	return d.path(conf.Agent.Socket)
}

// groupID returns the number of a group, -1 for "".
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, &strictyaml.Error{Field: "agent.group", Err: fmt.Errorf("%w; name a group of this host, or give the number", err)}
	}
	return strconv.Atoi(g.Gid)
}

func adminsOf(c *config.NodeConfig) (map[int]bool, error) {
	all := map[int]bool{}
	for i, name := range c.Agent.Admins {
		uid, err := strconv.ParseUint(name, 10, 31)
		if err != nil {
			u, lookup := user.Lookup(name)
			if lookup != nil {
				return nil, &strictyaml.Error{Field: fmt.Sprintf("agent.admins[%d]", i), Err: fmt.Errorf("user %q: %w; name a user of this host, or give the number", name, lookup)}
			}
			if uid, err = strconv.ParseUint(u.Uid, 10, 31); err != nil {
				return nil, fmt.Errorf("agent.admins[%d]: user %q: %w", i, name, err)
			}
		}
		all[int(uid)] = true
	}
	return all, nil
}

func (d *daemon) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var others sync.WaitGroup
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	if err := d.serveAll(serving, ctx, stop, &others); err != nil {
		return err
	}
	events := make(chan cgroupstat.Event)
	src := d.sources(events)
	others.Go(func() { d.file.watch(ctx) })
	if d.groups != nil {
		others.Go(func() { d.hear(ctx, events, stop) })
		others.Go(func() { d.measure(ctx) })
	}
	d.guard.begin(context.WithoutCancel(ctx), d.loop.config())
	err := d.loop.run(ctx, src)
	close(d.loop.ended)
	d.guard.shut()
	d.loop.note(api.Stopping, d.ending())
	err = errors.Join(err, d.opt.Supervisor.tell("STOPPING=1"))
	stop(nil)
	stopServing()
	others.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	last := context.WithoutCancel(ctx)
	return errors.Join(err, d.keeper.do(last, func(n *agent.Node) error {
		if !d.restores() {
			return n.StopScaling(last)
		}
		_, err := n.Restore(last)
		return err
	}))
}

func (d *daemon) restores() bool { return d.opt.RestoreOnExit || d.loop.config().Agent.RestoreOnExit }

func (d *daemon) ending() string {
	if d.restores() {
		return "everything is to be given back"
	}
	return "everything stays in place"
}

func (d *daemon) where() string {
	text := "at " + d.api.Addr().String()
	if pages, _ := d.pagesNow(); len(pages) > 0 {
		text += "; the status page at " + strings.Join(pages, " and ")
	}
	return text
}

// sources are those of the loop. They are made before anybody takes an event of the groups.
func (d *daemon) sources(events <-chan cgroupstat.Event) sources {
	present := 0
	if d.groups != nil {
		present = d.groups.Pending()
	}
	return sources{
		groups: events, present: present, file: d.file.changed, hangup: d.opt.Reload,
		read:  func() (*config.NodeConfig, []byte, error) { return d.file.read(d.loop.hostErrors) },
		where: d.where(), tell: d.opt.Supervisor.tell, alive: d.opt.Supervisor.Watchdog / 2, follow: d.meter.follow,
	}
}

// serveAll answers at all doors until the context ends; requests have the context base.
// That the API's socket cannot be served any more stops the agent.
func (d *daemon) serveAll(ctx, base context.Context, stop context.CancelCauseFunc, others *sync.WaitGroup) error {
	server := api.Server{Node: d.keeper, View: d, Guardian: d.guard, Configs: d, History: d.history, Admin: d.loop.isAdmin}
	if d.opt.Web != nil {
		web, err := d.opt.Web(base, server)
		if err != nil {
			return err
		}
		for _, p := range d.pages {
			others.Go(func() { d.keepOpen(ctx, base, p, web) })
		}
	}
	others.Go(func() {
		if err := d.serve(ctx, base, apiDoor(), d.api, server.Handler()); err != nil {
			stop(err)
		}
	})
	return nil
}

func (d *daemon) hear(ctx context.Context, events chan<- cgroupstat.Event, stop context.CancelCauseFunc) {
	for {
		e, err := d.groups.Next(ctx)
		if err != nil {
			if ctx.Err() == nil {
				stop(fmt.Errorf("watch groups: %w", err))
			}
			return
		}
		select {
		case events <- e:
		case <-ctx.Done():
			return
		}
	}
}

// measure takes readings while the guard does not.
func (d *daemon) measure(ctx context.Context) {
	defer d.tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-d.tick.C:
			d.tick.Reset(time.Until(now.Add(d.opt.Interval)))
			d.meter.read(now, d.started)
		}
	}
}

// overdue is how many intervals the meter waits for the next window of the guard. To read
// for itself it has to open all groups: too much to do for a window that is late, on a host
// that is busy.
const overdue = 3

// take has the meter take what the guard has just read of all groups, in place of its
// next reading.
func (d *daemon) take(samples []watch.Sample, from reader) {
	d.tick.Reset(overdue * d.opt.Interval)
	d.meter.take(time.Now(), d.started, samples, from)
}

func (d *daemon) close() error {
	var errs []error
	if d.guard != nil {
		d.guard.shut()
	}
	listeners := []net.Listener{d.api}
	for _, p := range d.pages {
		listeners = append(listeners, p.open)
	}
	for _, l := range listeners {
		if l == nil {
			continue
		}
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if d.groups != nil {
		errs = append(errs, d.groups.Close())
	}
	if d.meter != nil {
		errs = append(errs, d.meter.close())
	}
	if d.file != nil {
		errs = append(errs, d.file.close())
	}
	if d.keeper != nil && d.keeper.node != nil {
		errs = append(errs, d.keeper.close())
	}
	return errors.Join(errs...)
}

// About says who answers.
func (d *daemon) About(ctx context.Context) (a api.About, err error) {
	a = d.loop.about()
	a.PID, a.Started, a.Crowded = os.Getpid(), d.started, []cgroupstat.Crowd{}
	if d.groups != nil {
		a.Crowded = d.groups.Crowds()
	}
	_, a.Unserved = d.pagesNow()
	err = d.keeper.do(ctx, func(n *agent.Node) error {
		a.Backend = n.Backend()
		return nil
	})
	return a, err
}

// Machine is the hardware and who holds what of it.
func (d *daemon) Machine(ctx context.Context) (api.Machine, error) {
	var s *place.State
	s, err := d.keeper.State(ctx)
	if err != nil {
		return api.Machine{}, err
	}
	return api.MachineOf(s), nil
}

// ClassReport says what classes there are.
func (d *daemon) ClassReport(ctx context.Context) (r agent.ClassReport, err error) {
	err = d.keeper.do(ctx, func(n *agent.Node) error {
		r, err = n.ClassReport(ctx)
		return err
	})
	return r, err
}

// Config is the configuration in force.
func (d *daemon) Config(context.Context) (api.Config, error) {
	c := d.loop.configView()
	c.File = d.opt.File
	return c, nil
}

// Guard is where the guard stands.
func (d *daemon) Guard(ctx context.Context) (api.Guard, error) { return d.guard.Guard(ctx) }

// Stats are the figures of the last reading.
func (d *daemon) Stats(ctx context.Context) (api.Stats, error) { return d.meter.Stats(ctx) }

// Signals says for each signal of workloads whether it is there, and if not, why not.
func (d *daemon) Signals() map[string]error { return d.meter.Signals() }
