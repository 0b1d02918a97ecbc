package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
)

// The most connections of each door, and between attempts to open one of the page's.
const (
	apiConns   = 256
	pageConns  = 64
	userShare  = 4 // one user has a share of 1/userShare of a Unix socket's
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// apiDoor is that of the API's socket: for programs, which ask for the name that the
// client has for it.
func apiDoor() api.Door {
	conns := fewer(apiConns, 16)
	return api.Door{Host: api.Named("agent"), Conns: conns, PerUser: max(1, conns/userShare)}
}

// fewer is a number of connections, or less where that is more than a part of the
// descriptors that this process may have: the rest is for its own work.
func fewer(conns, part int) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur/uint64(part) < uint64(conns) {
		return max(1, int(limit.Cur)/part)
	}
	return conns
}

// page is a door of the status page. One that cannot be opened is tried again.
type page struct {
	api.Door
	listen func() (net.Listener, error)

	mu    sync.Mutex   // of what follows, which only start and then keepOpen write
	name  string       // what it listens on, for people
	open  net.Listener // nil: not open
	fault string       // why it is not
}

// pagesOf are the doors of the status page under a configuration: a socket beside that
// of the API, and an address.
func pagesOf(a *config.Agent, socket string, gid int) []*page {
	conns := fewer(pageConns, 32)
	name := api.PagePath(socket)
	pages := []*page{{
		Door:   api.Door{Host: api.Loopback, Links: true, Conns: conns, PerUser: max(1, conns/userShare)},
		name:   name,
		listen: func() (net.Listener, error) { return api.Listen(name, gid) },
	}}
	if a.Metrics == "off" || a.Metrics == "" {
		return pages
	}
	names := api.Named(a.Hosts...)
	host := func(name string) bool {
		return api.Loopback(name) || a.Network && api.Address(name) || names(name)
	}
	return append(pages, &page{
		Door:   api.Door{Host: host, Links: true, Conns: conns},
		name:   "http://" + a.Metrics,
		listen: func() (net.Listener, error) { return net.Listen("tcp", a.Metrics) },
	})
}

func (p *page) try() error {
	l, err := p.listen()
	if err != nil {
		p.shut(err)
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open, p.fault = l, ""
	if tcp, ok := l.Addr().(*net.TCPAddr); ok {
		p.name = "http://" + tcp.String()
	}
	return nil
}

func (p *page) shut(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open, p.fault = nil, fmt.Sprintf("%s: %v", p.name, err)
}

// pagesNow says where the status page is and, with the reasons, where it is to be and
// is not.
func (d *daemon) pagesNow() (served, unserved []string) {
	for _, p := range d.pages {
		p.mu.Lock()
		if p.open != nil {
			served = append(served, p.name)
		} else {
			unserved = append(unserved, p.fault)
		}
		p.mu.Unlock()
	}
	return served, unserved
}

// keepOpen answers at a door of the page until the context ends, from when it can be
// opened on. That it cannot is told once, and tried again.
func (d *daemon) keepOpen(ctx, base context.Context, p *page, h http.Handler) {
	shut := p.open == nil
	for wait := d.opt.firstRetry; ; wait = min(2*wait, lastRetry) {
		if p.open != nil {
			if shut {
				d.loop.note(api.Opened, "the status page is at "+p.name)
			}
			err := d.serve(ctx, base, p.Door, p.open, h)
			if ctx.Err() != nil {
				return
			}
			p.shut(err)
			d.noteUnserved(p)
			shut, wait = true, d.opt.firstRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		_ = p.try() // the error is in p.fault
	}
}

func (d *daemon) noteUnserved(p *page) {
	d.loop.note(agent.Failed, fmt.Sprintf("the status page is not served at %s; it is tried again; what answers there is not this agent", p.fault))
}

// serve answers on a listener behind a door until the context ends, and closes it;
// requests have the context base. The error says why it did not go on until then.
func (d *daemon) serve(ctx, base context.Context, door api.Door, l net.Listener, h http.Handler) error {
	s, bounded := door.Server(l, h)
	s.BaseContext = func(net.Listener) context.Context { return base }
	s.ErrorLog = slog.NewLogLogger(d.log.Handler(), slog.LevelWarn)
	closed := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { closed <- s.Close() })
	err := s.Serve(bounded)
	if !stop() {
		return <-closed
	}
	return errors.Join(fmt.Errorf("serve: %w", err), s.Close())
}
