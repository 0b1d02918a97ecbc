package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Client is one connection to a service, for the few requests whose latency nobody
// measures: whether it is ready, and what fills it.
type Client struct {
	target   Target
	protocol protocol
	conn     net.Conn
	reader   reader
	buffer   []byte
}

// clientLimit bounds what a client waits for.
const clientLimit = 10 * time.Second

// Dial opens a session.
func Dial(ctx context.Context, t Target) (*Client, error) {
	p, err := t.speak()
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: clientLimit}
	conn, err := dialer.DialContext(ctx, network(t.Addr), t.Addr)
	if err != nil {
		return nil, err
	}
	c := &Client{t, p, conn, p.reader(), make([]byte, 32<<10)}
	if err := c.greet(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// Close ends the session.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) greet(ctx context.Context) error {
	g := c.protocol.greet(c.target)
	if g == nil {
		return nil
	}
	var arrived []byte
	for {
		send, done, err := g.next(arrived)
		if err == nil && !done && len(send) > 0 {
			_, err = c.within(ctx, c.conn.Write, send)
		}
		if err != nil || done {
			return err
		}
		n, err := c.within(ctx, c.conn.Read, c.buffer)
		if err != nil {
			return err
		}
		arrived = c.buffer[:n]
	}
}

// within reads or writes until the limit, or the end of the context.
func (c *Client) within(ctx context.Context, do func([]byte) (int, error), p []byte) (int, error) {
	if err := c.conn.SetDeadline(time.Now().Add(clientLimit)); err != nil {
		return 0, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := do(p)
	var late net.Error
	switch {
	case ctx.Err() != nil:
		return n, ctx.Err()
	case errors.Is(err, io.EOF):
		return n, errors.New("the server closed the connection")
	case errors.As(err, &late) && late.Timeout():
		return n, fmt.Errorf("the server said nothing for %s: does it speak %s?", clientLimit, c.name())
	}
	return n, err
}

func (c *Client) name() string {
	if c.target.Protocol == "" {
		return "http"
	}
	return c.target.Protocol
}

// Do sends requests one after the other and reads their responses. The error is of the first that
// is none, or is a failure.
func (c *Client) Do(ctx context.Context, asks ...string) error {
	for _, ask := range asks {
		request, err := c.protocol.encode(c.target, ask)
		if err != nil {
			return err
		}
		if err := c.one(ctx, request); err != nil {
			return fmt.Errorf("%.60s: %w", ask, err)
		}
	}
	return nil
}

func (c *Client) one(ctx context.Context, request []byte) error {
	if _, err := c.within(ctx, c.conn.Write, request); err != nil {
		return err
	}
	c.reader.reset()
	for done := false; !done; {
		n, err := c.within(ctx, c.conn.Read, c.buffer)
		if err != nil {
			return err
		}
		if done, err = c.reader.read(c.buffer[:n]); err != nil {
			return err
		}
	}
	if failure, _ := c.reader.outcome(); len(failure) > 0 {
		return errors.New(said(failure))
	}
	return nil
}

// Check asks a target once, and says what is wrong with the answer.
func (t Target) Check(ctx context.Context) error {
	requests, err := t.requests(1)
	if err != nil {
		return err
	}
	c, err := Dial(ctx, t)
	if err != nil {
		return err
	}
	return errors.Join(c.one(ctx, requests[0]), c.Close())
}
