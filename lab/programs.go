package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/program"
)

// The tenants besides the servers that are known by name (program.Servers).
const (
	Article = "article" // the built-in one
	Command = "program" // a user's command
	Outside = "running" // one that runs already; it is only asked and watched
)

const (
	// readyLimit is how long a program may take until it listens, answerLimit until it
	// then answers well.
	readyLimit  = time.Minute
	answerLimit = 15 * time.Second
	askEvery    = 50 * time.Millisecond
	// sessions are what the generator holds open to PostgreSQL, which has a process for
	// each and takes 100 by default.
	sessions = 32
	// runs are how many of a command there may be at once.
	runs = 32
)

// probe is the service of a tenant that is not built in.
func (t TenantSpec) probe() (load.Target, error) { return program.Probe(t.Probe, t.Ask) }

// runner is a new service that runs the tenant's Exec, and what that is asked. The server, if
// the lab knows it, listens at an address.
func (t TenantSpec) runner(server string) (*program.Exec, load.Target, error) {
	ask, err := load.RangeIn(t.Exec)
	if err != nil {
		return nil, load.Target{}, fmt.Errorf("exec %q: %w", t.Exec, err)
	}
	command := t.Exec
	if _, port, err := net.SplitHostPort(server); err == nil {
		command = strings.ReplaceAll(command, "{port}", port)
	}
	e := &program.Exec{Address: "@berth-lab-" + rand.Text(), Command: command}
	return e, load.Target{Protocol: load.Exec, Addr: e.Address, Path: ask}, nil
}

// builtIn reports whether the tenant is the lab's own.
func (t TenantSpec) builtIn() bool { return t.Service == Article || t.Service == "" }

// String names the tenant.
func (t TenantSpec) String() string {
	switch {
	case t.Service == Command:
		return t.Command
	case t.Service == Outside && t.PID != 0:
		return fmt.Sprintf("process %d", t.PID)
	case t.Service == Outside:
		return t.Group
	}
	return t.Service
}

// validate says what is wrong with a tenant that is not built in.
func (t TenantSpec) validate() error {
	known, names := false, []string{Article}
	for _, s := range program.Servers() {
		known = known || s.Name == t.Service
		names = append(names, s.Name)
	}
	started := known || t.Service == Command
	for _, rule := range []struct {
		broken bool
		says   string
	}{
		{!started && t.Service != Article && t.Service != Outside, fmt.Sprintf("tenant service %q: want one of %s, %s, %s", t.Service, strings.Join(names, ", "), Command, Outside)},
		{t.Service == Command && strings.TrimSpace(t.Command) == "", "tenant command: want what starts it"},
		{t.Service != Command && t.Command != "", fmt.Sprintf("tenant command: service %s has none", t.Service)},
		{t.Figures != "" && t.Exec == "", "figures: want --exec, the benchmark that prints them"},
		{t.Exec != "" && strings.TrimSpace(t.Exec) == "", "exec: want a command"},
		{t.Exec != "" && (t.Probe != "" || t.Ask != ""), fmt.Sprintf("tenant %s: want one of --exec, and --probe with --ask", t)},
		{t.Exec != "" && t.builtIn(), "exec: the built-in tenant is asked for articles: say --tenant COMMAND ('sleep infinity' to measure the command of --exec by itself)"},
		{t.Exec != "" && t.Service == Outside, fmt.Sprintf("tenant %s: --exec starts processes in the place of the tenant, and one that runs already is left alone: use --probe", t)},
		{(t.Service == Command || t.Service == Outside) && t.Probe == "" && t.Exec == "", fmt.Sprintf("tenant %s: want --probe, the URL at which it answers: http://, redis://, memcached:// or postgres://; or --exec, a command that asks it", t)},
		{(known || t.builtIn()) && t.Probe != "", fmt.Sprintf("tenant %s: it is known where it answers: leave out --probe", t)},
		{t.builtIn() && t.Ask != "", "ask: the built-in tenant is asked for articles"},
		{t.Service == Outside && (t.PID != 0) == (t.Group != ""), "tenant that runs: want either its process or its control group"},
		{t.Service != Outside && (t.PID != 0 || t.Group != ""), fmt.Sprintf("tenant %s: the lab starts it, so it has no process or group of its own", t)},
		{t.PID < 0, fmt.Sprintf("pid %d: no process has that number", t.PID)},
		{!t.builtIn() && t.ServiceTime != 0, fmt.Sprintf("service-time: tenant %s needs what it needs: say --rate", t)},
		{t.Connections < 0 || t.Connections > 4096, fmt.Sprintf("connections: %d: want at most 4096", t.Connections)},
	} {
		if rule.broken {
			return errors.New(rule.says)
		}
	}
	if t.Figures != "" {
		if _, err := program.FormatNamed(t.Figures); err != nil {
			return err
		}
	}
	if t.Exec != "" {
		_, _, err := t.runner("")
		return err
	}
	if t.Probe == "" {
		return nil
	}
	_, err := t.probe()
	return err
}

// connectionsTo is how many the generator holds open to a service.
func (b *Testbed) connectionsTo(t load.Target) int {
	switch {
	case b.spec.Tenant.Connections > 0:
		return b.spec.Tenant.Connections
	case t.Protocol == "postgres":
		return sessions
	case t.Protocol == load.Exec:
		return runs
	}
	return connections
}

// startTenant starts what a setup says in a role, or finds it, and waits until it answers. The
// config is for a built-in one.
func (b *Testbed) startTenant(ctx context.Context, r Role, s setup, cfg load.ServiceConfig) (*child, load.Target, error) {
	switch s.service {
	case Article:
		return b.startArticle(ctx, r, cfg)
	case Outside:
		t, err := b.spec.Tenant.probe()
		if err == nil {
			err = program.Local(t)
		}
		if err != nil {
			return nil, t, err
		}
		c := &child{name: string(r), outside: b.outside}
		return c, program.Secret(t), answers(ctx, c, program.Secret(t))
	case Command:
		return b.startCommand(ctx, r)
	}
	return b.startServer(ctx, r, s)
}

// startCommand starts a user's command, and what runs another for each request if that is
// how it is asked.
func (b *Testbed) startCommand(ctx context.Context, r Role) (*child, load.Target, error) {
	cfg := program.Config{Argv: program.Shell(b.spec.Tenant.Command)}
	var t load.Target
	var err error
	if b.spec.Tenant.Exec != "" {
		cfg.Exec, t, err = b.spec.Tenant.runner("")
	} else if t, err = b.spec.Tenant.probe(); err == nil {
		t = program.Secret(t)
		err = vacant(t)
	}
	if err != nil {
		return nil, t, err
	}
	c, err := b.startProgram(ctx, r, cfg)
	if err == nil {
		err = b.succeeds(ctx, c, t, false)
	}
	return c, t, err
}

// succeeds waits until a program answers, or until a benchmark of it succeeds. Of a server that
// answered before no command of --exec is tried twice.
func (b *Testbed) succeeds(ctx context.Context, c *child, t load.Target, ready bool) error {
	if !b.tells() {
		return tries(ctx, c, t, ready, t.Check)
	}
	return tries(ctx, c, t, ready, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, tellLimit)
		defer cancel()
		_, err := program.Exec{Address: t.Addr}.Run(ctx)
		return err
	})
}

// startServer starts a server that is known by name, and fills it.
func (b *Testbed) startServer(ctx context.Context, r Role, s setup) (*child, load.Target, error) {
	server, ok := program.Find(s.service)
	if !ok {
		return nil, load.Target{}, fmt.Errorf("server %q: not known", s.service)
	}
	cfg, t, err := server.Prepare(cmp.Or(s.config.Procs, max(1, b.places.shared.Len()/max(1, b.opt.Servers))))
	if err != nil {
		return nil, t, err
	}
	if b.spec.Tenant.Ask != "" {
		t.Path = b.spec.Tenant.Ask
	}
	asked := t
	if b.spec.Tenant.Exec != "" {
		if cfg.Exec, asked, err = b.spec.Tenant.runner(t.Addr); err != nil {
			return nil, t, errors.Join(err, os.RemoveAll(cfg.Remove))
		}
	}
	c, err := b.startProgram(ctx, r, cfg)
	if err != nil {
		return c, t, errors.Join(err, os.RemoveAll(cfg.Remove)) // the keeper may never have got to it
	}
	greeting := t
	greeting.Path = server.Hello
	if err = answers(ctx, c, greeting); err == nil {
		err = server.Fill(ctx, t)
	}
	if err == nil {
		err = b.succeeds(ctx, c, asked, true)
	}
	return c, asked, err
}

// startProgram starts a program and its keeper in the place of a role.
func (b *Testbed) startProgram(ctx context.Context, r Role, cfg program.Config) (*child, error) {
	c, err := b.startRole(r, "__program")
	if err != nil {
		return nil, err
	}
	if err = c.send(cfg); err == nil {
		err = c.receive(ctx, startLimit, &program.Started{})
	}
	if err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

// vacant says that nobody answers where a program is going to: it would be measured in
// its place.
func vacant(t load.Target) error {
	conn, err := net.DialTimeout("tcp", t.Addr, time.Second)
	if err != nil {
		return nil
	}
	return errors.Join(fmt.Errorf("tenant: something listens at %s already: stop it, choose another port, or measure it as it runs with --pid, --unit or --cgroup", t.Addr), conn.Close())
}

// answers waits until a program does.
func answers(ctx context.Context, c *child, t load.Target) error {
	return tries(ctx, c, t, false, t.Check)
}

// tries waits until a check of what answers succeeds. Where that is ready, a command that fails
// is not run again.
func tries(ctx context.Context, c *child, t load.Target, ready bool, check func(context.Context) error) error {
	var spoke time.Time // when it first did anything but refuse the connection
	for began := time.Now(); ; {
		err := check(ctx)
		var refused *net.OpError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case c.gone() != nil:
			return fmt.Errorf("%s ended before it answered: %w", c.name, c.gone())
		case errors.As(err, &refused) && refused.Op == "dial" && c.outside == nil:
		case t.Protocol == load.Exec && !ready && !hopeless(err) && time.Since(began) < readyLimit:
			// the program may not be ready
		case t.Protocol == load.Exec && strings.Contains(err.Error(), "said nothing"):
			return fmt.Errorf("%s: a run of the command of --exec has not ended after 10 s: want one that ends, or --figures for a benchmark", c.name)
		case t.Protocol == load.Exec:
			return fmt.Errorf("%s: the command of --exec does not succeed: %w", c.name, err)
		case spoke.IsZero():
			spoke = time.Now()
		}
		if time.Since(began) > readyLimit || !spoke.IsZero() && time.Since(spoke) > answerLimit || c.outside != nil {
			return fmt.Errorf("%s: %s at %s does not answer %.60q: %w (is --probe where it listens, and what it speaks?)", c.name, orHTTP(t.Protocol), t.Addr, t.Path, err)
		}
		select {
		case <-time.After(askEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hopeless says whether the shell did not find the command of --exec, or could not run it, or
// that command did not end: no waiting helps.
func hopeless(err error) bool {
	text := err.Error()
	return strings.Contains(text, "exit status 127") || strings.Contains(text, "exit status 126") || strings.Contains(text, "said nothing")
}

func orHTTP(protocol string) string {
	if protocol == "" {
		return "http"
	}
	return protocol
}

// commandUnit is the unit of the work of a user's command.
const commandUnit = "CPU seconds"

// keepersTell gives keepers a moment to tell that their program has ended: others notice
// that it does not answer before its keeper has read its status.
func (p *processes) keepersTell() {
	const moment = 500 * time.Millisecond
	late := time.After(moment)
	for _, c := range p.tenants {
		if c.keeps {
			select {
			case <-c.exited:
			case <-late:
				return
			}
		}
	}
}

// halt stops the neighbour, and says how to wait until it has.
func (n *neighbour) halt() (halted func() error, err error) {
	if n.counters != nil {
		return n.child.halted, n.child.halt()
	}
	return func() error {
		if err := program.Halt(n.pid(), n.copies, haltLimit); err != nil {
			return fmt.Errorf("halt %s: %w", n.name, errors.Join(err, n.gone()))
		}
		return nil
	}, nil
}

// pause halts a neighbour that is kept, and waits until it has stopped.
func (n *neighbour) pause() error {
	if n.paused {
		return nil
	}
	halted, err := n.halt()
	if err != nil {
		return err
	}
	n.paused = true
	return halted()
}

// goOn lets a neighbour that was halted go on.
func (n *neighbour) goOn() error {
	if n.counters != nil {
		return n.resume()
	}
	return errors.Join(program.Resume(n.pid()), n.gone())
}

// end ends it, and all that it started.
func (n *neighbour) end() error {
	n.kill()
	if n.counters == nil {
		return nil
	}
	return n.counters.Close()
}
