package load

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel/sched"
)

// Generator sends the requests of one run after the other, over the same connections: New,
// Run, Report; Drain, Prepare, Run, Report; Close.
type Generator struct {
	config     Config
	clock      clock
	to         []address
	poll       *poller
	conns      []conn
	dispatcher *dispatcher
	protocol   protocol
	requests   [][]byte // one after the other
	buffer     []byte
	raw        *os.File // nil: no raw file
	texts      map[fault]string
	failures   map[string]string // by what the service said

	down       []int32 // connections to be opened again
	retryAt    int64   // when to try one of them; 0: not now
	reconnects int
	lost       string // why a connection could not be opened again, last time

	// What Run leaves for Report.
	span   span
	cpu    [2]int64 // processor time at the window's start and end, nanoseconds
	policy sched.State
	cut    bool // clients wanted more requests than there was room for
}

// address is where a server listens.
type address struct {
	socket unix.Sockaddr
	family int
}

// conn is one connection to the service; its number is its index.
type conn struct {
	fd       int // none: closed
	opening  bool
	request  []byte
	unsent   int      // bytes of the request, or of the greeting, still to be written
	answered bool     // it has carried a whole response since it was opened
	greeting greeting // nil once the session is open
	response reader
}

// New opens the connections and prepares everything that the first run needs.
func New(c Config) (_ *Generator, err error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("load config: %w", err)
	}
	g := &Generator{
		config: c,
		clock:  newClock(),
		conns:  make([]conn, c.Connections),
		buffer: make([]byte, 64<<10),
		texts:  make(map[fault]string), failures: make(map[string]string),
		down: make([]int32, 0, c.Connections),
	}
	if g.protocol, err = c.speak(); err != nil {
		return nil, fmt.Errorf("load config: %w", err)
	}
	for i := range g.conns {
		g.conns[i] = conn{fd: none, response: g.protocol.reader()}
	}
	for _, addr := range c.addrs() {
		var to address
		if to.socket, to.family, err = resolve(addr); err != nil {
			return nil, err
		}
		g.to = append(g.to, to)
	}
	g.poll, err = newPoller(false)
	if err == nil {
		err = g.Prepare(c)
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// Prepare makes ready for the next run, which is to the same service. No request of the
// run before may be under way any more (Drain).
func (g *Generator) Prepare(c Config) error {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("load config: %w", err)
	}
	is, was := c.Target, g.config.Target
	is.Path, was.Path = "", ""
	if is != was || !slices.Equal(c.Others, g.config.Others) || c.Connections != len(g.conns) {
		return fmt.Errorf("load config: addr %s, connections %d: want those of the run before, %s and %d", strings.Join(c.addrs(), " "), c.Connections, strings.Join(g.config.addrs(), " "), len(g.conns))
	}
	if left := g.underWay(); left > 0 {
		return fmt.Errorf("%d requests of the run before are under way: drain first", left)
	}
	g.cut, g.config, g.reconnects, g.lost, g.down, g.retryAt = false, c, 0, "", g.down[:0], 0
	requests, err := c.requests()
	if err != nil {
		return fmt.Errorf("load config: %w", err)
	}
	g.requests = requests
	// Due instants are relative until Run knows the origin; the memory is touched now.
	if c.Clients > 0 {
		g.dispatcher = newClosed(c.Clients, int(c.Rate*(c.Settle+c.Window).Seconds()), c.Connections)
	} else {
		g.dispatcher = newDispatcher(Schedule(c.Rate, c.Seed, c.Settle+c.Window), int64(c.Settle), c.Connections)
	}
	if n := len(g.to); n > 1 {
		g.dispatcher.serve(n, newRouter(c.Routing, n, c.Seed))
	}
	if err := g.record(c.RawFile); err != nil {
		return fmt.Errorf("raw file: %w", err)
	}
	return g.connect()
}

// record makes the raw file, if there is to be one, empty.
func (g *Generator) record(name string) (err error) {
	if g.raw != nil {
		err = g.raw.Close()
		g.raw = nil
	}
	if err == nil && name != "" {
		g.raw, err = os.Create(name)
	}
	return err
}

// connect opens the connections that are not open, one after the other.
func (g *Generator) connect() error {
	for i := range g.conns {
		c := &g.conns[i]
		if c.opening || c.greeting != nil {
			unix.Close(c.fd) // not yet of any use
			c.fd, c.opening = none, false
		}
		if c.fd == none {
			fd, err := dial(g.to[g.dispatcher.server(i)])
			if err != nil {
				return fmt.Errorf("connect %s: %w", g.config.Addr, err)
			}
			c.fd, c.unsent, c.answered, c.greeting = fd, 0, false, nil
			if err := greet(fd, g.protocol.greet(g.config.Target)); err != nil {
				return fmt.Errorf("connect %s, connection %d: %w", g.config.Addr, i+1, err)
			}
			if err := g.poll.control(unix.EPOLL_CTL_ADD, fd, i, unix.EPOLLIN); err != nil {
				return err
			}
		}
		g.dispatcher.release(i)
	}
	return nil
}

// underWay is how many requests the service has not answered.
func (g *Generator) underWay() int {
	if g.dispatcher == nil {
		return 0
	}
	n := 0
	for i := range g.conns {
		if g.dispatcher.busy(i) {
			n++
		}
	}
	return n
}

// Close closes the connections and the raw file.
func (g *Generator) Close() error {
	var errs []error
	for i := range g.conns {
		if g.conns[i].fd != none {
			errs = append(errs, unix.Close(g.conns[i].fd))
			g.conns[i].fd = none
		}
	}
	if g.poll != nil {
		errs = append(errs, g.poll.close())
		g.poll = nil
	}
	if g.raw != nil {
		errs = append(errs, g.raw.Close())
		g.raw = nil
	}
	return errors.Join(errs...)
}

// Report is what became of the requests of Run; it also writes the raw file.
func (g *Generator) Report() (Report, error) {
	settle, window := g.dispatcher.results[:g.dispatcher.first], g.dispatcher.results[g.dispatcher.first:]
	report, err := summarize(settle, window, g.span)
	report.spread(window, len(g.to))
	if err == nil && g.config.EachServer {
		report.Each, err = each(settle, window, len(g.to), g.span)
	}
	if err != nil {
		return Report{}, err
	}
	report.Reconnects = g.reconnects
	report.CPUSeconds = float64(g.cpu[1]-g.cpu[0]) / 1e9
	report.Policy = g.policy.String()
	report.Perturbed = stragglers(g.policy)
	if g.cut {
		report.Perturbed = append(report.Perturbed, "clients stopped: there was no room for more requests (rate)")
	}
	if g.lost != "" {
		report.Perturbed = append(report.Perturbed, "a lost connection could not be opened again: "+g.lost)
	}
	if g.raw != nil {
		if err := writeRaw(g.raw, window, g.span.start); err != nil {
			return Report{}, fmt.Errorf("write %s: %w", g.config.RawFile, err)
		}
	}
	return report, nil
}
