package load

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel/sched"
)

// Generator sends the requests of one run: New, Run, Report, Close.
type Generator struct {
	config     Config
	clock      clock
	to         unix.Sockaddr
	family     int
	poll       *poller
	conns      []conn
	dispatcher *dispatcher
	request    []byte
	buffer     []byte
	raw        *os.File // nil: no raw file
	texts      map[fault]string

	down       []int32 // connections to be opened again
	retryAt    int64   // when to try one of them; 0: not now
	reconnects int
	lost       string // why a connection could not be opened again, last time

	// What Run leaves for Report.
	span   span
	cpu    [2]int64 // processor time at the window's start and end, nanoseconds
	policy sched.State
}

// conn is one connection to the service; its number is its index.
type conn struct {
	fd       int // none: closed
	opening  bool
	unsent   int  // bytes of the request still to be written
	answered bool // it has carried a whole response since it was opened
	response response
}

// New opens the connections of a run and prepares everything that it needs.
func New(c Config) (*Generator, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("load config: %w", err)
	}
	g := &Generator{
		config:  c,
		clock:   newClock(),
		conns:   make([]conn, c.Connections),
		request: []byte("GET " + c.Path + " HTTP/1.1\r\nHost: " + c.Addr + "\r\nUser-Agent: berth-lab\r\n\r\n"),
		buffer:  make([]byte, 64<<10),
		texts:   make(map[fault]string),
		down:    make([]int32, 0, c.Connections),
	}
	for i := range g.conns {
		g.conns[i] = conn{fd: none, response: newResponse()}
	}
	// Due instants are relative until Run knows the origin; the memory is touched now.
	g.dispatcher = newDispatcher(Schedule(c.Rate, c.Seed, c.Settle+c.Window), int64(c.Settle), c.Connections)
	if err := g.open(); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// open opens the raw file and all connections, one after the other.
func (g *Generator) open() (err error) {
	if g.config.RawFile != "" {
		if g.raw, err = os.Create(g.config.RawFile); err != nil {
			return fmt.Errorf("raw file: %w", err)
		}
	}
	if g.to, g.family, err = resolve(g.config.Addr); err != nil {
		return err
	}
	if g.poll, err = newPoller(false); err != nil {
		return err
	}
	for i := range g.conns {
		fd, err := dial(g.to, g.family)
		if err != nil {
			return fmt.Errorf("connect %s: %w", g.config.Addr, err)
		}
		g.conns[i].fd = fd
		if err := g.poll.control(unix.EPOLL_CTL_ADD, fd, i, unix.EPOLLIN); err != nil {
			return err
		}
		g.dispatcher.release(i)
	}
	return nil
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
	if err != nil {
		return Report{}, err
	}
	report.Reconnects = g.reconnects
	report.CPUSeconds = float64(g.cpu[1]-g.cpu[0]) / 1e9
	report.Policy = g.policy.String()
	report.Perturbed = stragglers(g.policy)
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
