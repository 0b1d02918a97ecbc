package nodekit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel/traffic"
)

// Cable is a link between the network of this process and another one, with somebody who answers
// at one end: of what containers send it takes all, and it sends them as much as it can.
type Cable struct {
	Near          string // the device here
	NearIP, FarIP netip.Prefix
	// Sent and Received are about what containers send, and receive.
	Sent, Received *Peer

	far string
}

var cables atomic.Int32

// NewCable is one with names and addresses of its own, and without devices.
func NewCable() *Cable {
	n := cables.Add(1)
	at := func(host int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("10.99.%d.%d/24", n, host)) }
	return &Cable{Near: fmt.Sprintf("berth%d", n), far: fmt.Sprintf("far%d", n), NearIP: at(1), FarIP: at(2)}
}

// Lay makes the devices. They go with the other network, or this one. It is a
// *kernel.NotSupportedError where the kernel has no such devices.
func (c *Cable) Lay(other *os.File) error {
	err := traffic.AddPair(c.Near, c.far, other)
	if err == nil {
		err = traffic.Up(c.Near, c.NearIP)
	}
	if err == nil {
		err = netlink.In(other, func() error { return traffic.Up(c.far, c.FarIP) })
	}
	return err
}

// The ports of who takes, and of who gives.
const takes, gives = 7400, 7401

// Talk are the arguments for the program of Image that sends to, or receives from, who answers at
// an address.
func Talk(sends bool, at netip.Prefix) []string {
	what, port := "receive", uint16(gives)
	if sends {
		what, port = "send", takes
	}
	return []string{what, netip.AddrPortFrom(at.Addr(), port).String()}
}

// Answer has somebody answer at one of the addresses, in a network, nil for that of this process,
// until Close.
func (c *Cable) Answer(at netip.Prefix, network *os.File) error {
	for _, p := range []struct {
		port uint16
		is   **Peer
	}{{takes, &c.Sent}, {gives, &c.Received}} {
		peer := &Peer{gives: p.port == gives}
		listen := func() (err error) {
			peer.listener, err = net.Listen("tcp4", netip.AddrPortFrom(at.Addr(), p.port).String())
			return err
		}
		err := error(nil)
		if network == nil {
			err = listen()
		} else {
			err = netlink.In(network, listen)
		}
		if err != nil {
			return errors.Join(err, c.Close())
		}
		*p.is = peer
		go peer.serve()
	}
	return nil
}

// Close has nobody answer any more.
func (c *Cable) Close() (err error) {
	for _, p := range []*Peer{c.Sent, c.Received} {
		if p != nil {
			err = errors.Join(err, p.listener.Close())
		}
	}
	return err
}

// Peer is who answers. Bytes are those of the payload, by the kernel's count: a program may be
// without a CPU while they come.
type Peer struct {
	gives    bool
	listener net.Listener

	mu    sync.Mutex
	conns []*net.TCPConn
	since time.Time // of the first
}

func (p *Peer) serve() {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range p.conns {
			c.Close()
		}
	}()
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.conns = append(p.conns, c.(*net.TCPConn)); len(p.conns) == 1 {
			p.since = time.Now()
		}
		p.mu.Unlock()
		go func() {
			for b := make([]byte, 64<<10); err == nil; {
				if p.gives {
					_, err = c.Write(b)
				} else {
					_, err = c.Read(b)
				}
			}
		}()
	}
}

// Bytes are how many have passed since somebody connected, and when that was.
func (p *Peer) Bytes() (sum uint64, since time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		raw, err := c.SyscallConn()
		if err != nil {
			return 0, since, err
		}
		var info *unix.TCPInfo
		var failed error
		err = raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		switch {
		case err != nil || failed != nil:
			return 0, since, errors.Join(err, failed)
		case p.gives:
			sum += info.Bytes_acked
		default:
			sum += info.Bytes_received
		}
	}
	return sum, p.since, nil
}

// Rate is at least what passes within a while, in bits per second.
func (p *Peer) Rate(while time.Duration) (float64, error) {
	began := time.Now()
	was, _, err := p.Bytes()
	if err != nil {
		return 0, err
	}
	time.Sleep(while)
	is, _, err := p.Bytes()
	return float64(is-was) * 8 / time.Since(began).Seconds(), err
}

// Kept is an error if since somebody connected more has passed than a limit in bits per second
// allows: beyond the rate, 0.3 s of it may come at once, and what came before the connection was
// seen. It returns the rate until now, too.
func (p *Peer) Kept(limit float64) (rate float64, err error) {
	bytes, since, err := p.Bytes()
	if err != nil {
		return 0, err
	}
	took := time.Since(since).Seconds()
	const unseen = 256 << 10
	if most := 1.05*limit/8*(took+0.3) + unseen; float64(bytes) > most {
		err = fmt.Errorf("%d bytes have passed in %.1f s, want at most %.0f", bytes, took, most)
	}
	return float64(bytes) * 8 / took, err
}
