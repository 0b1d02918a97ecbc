package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// NoAgentError is a socket at which no agent answers.
type NoAgentError struct {
	Socket string
	Err    error
}

func (e *NoAgentError) Error() string { return fmt.Sprintf("no agent at %s: %v", e.Socket, e.Err) }

// Unwrap returns what the system said.
func (e *NoAgentError) Unwrap() error { return e.Err }

// PeerError is a socket at which a user answers who is not to be believed: neither
// root nor this one.
type PeerError struct {
	Socket string
	UID    int
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("agent at %s: user %d listens there, neither root nor this one: not asked; if that is your agent, speak to it as that user", e.Socket, e.UID)
}

// checkPeer refuses who is not to be believed.
func checkPeer(socket string, conn net.Conn) error {
	p, err := peer(conn)
	if err != nil {
		return fmt.Errorf("agent at %s: who listens there: %w", socket, err)
	}
	if p.UID != 0 && p.UID != os.Geteuid() {
		return &PeerError{socket, p.UID}
	}
	return nil
}

// Client speaks to an agent. Its methods are those of a Node and a View; an error
// is an *Error that unwraps to the error that the agent had, or a *NoAgentError.
type Client struct{ http http.Client }

// patience is how long an agent may take to say that it is there. One that is stopped or
// hangs has a socket all the same.
const patience = 10 * time.Second

// Dial finds the agent at a socket, or returns a *NoAgentError. An agent of a user
// other than root and this one is a *PeerError. One that is silent for 10 s is an error.
func Dial(ctx context.Context, socket string) (*Client, error) {
	return dialWithin(ctx, socket, patience)
}

func dialWithin(ctx context.Context, socket string, patience time.Duration) (*Client, error) {
	c := &Client{}
	c.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if err != nil {
				return nil, &NoAgentError{socket, err}
			}
			if err := checkPeer(socket, conn); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return conn, nil
		},
	}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := c.About(asking)
	switch {
	case err != nil && asking.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("agent at %s: it has not answered within %v; if it hangs, end or restart it: %w", socket, patience, err)
	case err != nil:
		return nil, err
	}
	return c, nil
}

// Close gives the connections back.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// call sends a request and returns the answer, which is no problem.
func (c *Client) call(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var text io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		text = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://agent/v1/"+path, text)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(r)
	var none *NoAgentError
	switch {
	case errors.As(err, &none):
		return nil, none
	case err != nil:
		return nil, err
	case answer.StatusCode < 300:
		return answer, nil
	}
	defer answer.Body.Close()
	var p Problem
	if err := json.NewDecoder(answer.Body).Decode(&p); err != nil {
		return nil, fmt.Errorf("agent answers %s: %w", answer.Status, err)
	}
	return nil, errorOf(p)
}

// fetch sends a request and reads the answer.
func fetch[A any](ctx context.Context, c *Client, method, path string, body any) (a A, err error) {
	answer, err := c.call(ctx, method, path, body)
	if err != nil {
		return a, err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(&a); err != nil {
		return a, fmt.Errorf("agent's answer to %s %s: %w", method, path, err)
	}
	return a, nil
}

// named is the path of a workload.
func named(id string) string {
	return "workloads/" + strings.ReplaceAll(url.PathEscape(id), ".", "%2E")
}

func explained(path string, spec *agent.Spec) string {
	if spec.Request.Explain {
		path += "?explain=true"
	}
	return path
}

// Place is agent.Node's.
func (c *Client) Place(ctx context.Context, spec agent.Spec) (agent.Workload, error) {
	return fetch[agent.Workload](ctx, c, "POST", explained("workloads", &spec), spec)
}

// Preview is agent.Node's.
func (c *Client) Preview(ctx context.Context, spec agent.Spec) (agent.Workload, kernel.Plan, error) {
	d, err := fetch[Draft](ctx, c, "POST", explained("preview", &spec), spec)
	return d.Workload, d.Plan, err
}

// PlaceTogether is agent.Node's.
func (c *Client) PlaceTogether(ctx context.Context, specs []agent.Spec) ([]agent.Workload, error) {
	l, err := fetch[list](ctx, c, "POST", explainedTogether("groups", specs), together{specs})
	return l.Workloads, err
}

// PreviewTogether is agent.Node's.
func (c *Client) PreviewTogether(ctx context.Context, specs []agent.Spec) ([]agent.Workload, kernel.Plan, error) {
	d, err := fetch[Drafts](ctx, c, "POST", explainedTogether("groups/preview", specs), together{specs})
	return d.Workloads, d.Plan, err
}

func explainedTogether(path string, specs []agent.Spec) string {
	if len(specs) == 0 {
		return path
	}
	return explained(path, &specs[0])
}

// Resize is agent.Node's.
func (c *Client) Resize(ctx context.Context, spec agent.Spec) (agent.Workload, error) {
	return fetch[agent.Workload](ctx, c, "PUT", explained(named(spec.Request.ID), &spec), spec)
}

// Move is agent.Node's.
func (c *Client) Move(ctx context.Context, id string, cpus, mems cpuset.Set) (agent.Workload, error) {
	return fetch[agent.Workload](ctx, c, "POST", named(id)+"/move", move{cpus, mems})
}

// Release is agent.Node's.
func (c *Client) Release(ctx context.Context, id string, leaving agent.Leaving) error {
	how := ""
	if leaving != agent.WhenEmpty {
		how = "?" + string(leaving) + "=true"
	}
	answer, err := c.call(ctx, "DELETE", named(id)+how, nil)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// Get is agent.Node's.
func (c *Client) Get(ctx context.Context, id string) (agent.Workload, error) {
	return fetch[agent.Workload](ctx, c, "GET", named(id), nil)
}

// List is agent.Node's.
func (c *Client) List(ctx context.Context) ([]agent.Workload, error) {
	l, err := fetch[list](ctx, c, "GET", "workloads", nil)
	return l.Workloads, err
}

// State is agent.Node's; explanations are not in it.
func (c *Client) State(ctx context.Context) (*place.State, error) {
	m, err := c.Machine(ctx)
	if err != nil {
		return nil, err
	}
	t, err := place.NewTopology(m.Machine)
	if err != nil {
		return nil, fmt.Errorf("agent's machine: %w", err)
	}
	fresh, err := place.New(t, m.Config)
	if err != nil {
		return nil, fmt.Errorf("agent's machine: %w", err)
	}
	s, err := fresh.Reinstate(m.Saved)
	if err != nil {
		return nil, fmt.Errorf("agent's state: %w", err)
	}
	return s, nil
}

// Explain says why a workload is where it is.
func (c *Client) Explain(ctx context.Context, id string) (Explanation, error) {
	return fetch[Explanation](ctx, c, "GET", named(id)+"/explain", nil)
}

// About says who answers.
func (c *Client) About(ctx context.Context) (About, error) {
	return fetch[About](ctx, c, "GET", "agent", nil)
}

// Machine is the hardware and who holds what of it.
func (c *Client) Machine(ctx context.Context) (Machine, error) {
	return fetch[Machine](ctx, c, "GET", "machine", nil)
}

// Config is the active configuration.
func (c *Client) Config(ctx context.Context) (Config, error) {
	return fetch[Config](ctx, c, "GET", "config", nil)
}

// Stats are the latest figures of every workload.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	return fetch[Stats](ctx, c, "GET", "stats", nil)
}

// ClassReport is agent.Node's.
func (c *Client) ClassReport(ctx context.Context) (agent.ClassReport, error) {
	return fetch[agent.ClassReport](ctx, c, "GET", "classes", nil)
}

// Events yields the events with a Seq above the given one: those that are kept
// and, if follow, those that come until the context ends or the agent stops. An error
// is the last that is yielded.
func (c *Client) Events(ctx context.Context, after uint64, follow bool) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		answer, err := c.call(ctx, "GET", fmt.Sprintf("events?after=%d&follow=%t", after, follow), nil)
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer answer.Body.Close()
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, maxBody)
		for lines.Scan() {
			var e Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				yield(Event{}, fmt.Errorf("agent's event: %w", err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(Event{}, fmt.Errorf("agent's events: %w", err))
		}
	}
}
