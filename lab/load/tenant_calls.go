package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// ServiceConfig is a tenant that calls other services before it answers a request.
type ServiceConfig struct {
	TenantConfig
	// Addrs are the services that it may call, by number.
	Addrs []string `json:"addrs,omitempty"`
	// Steps are the calls of a request. Those of a step are made at once, and the next step
	// when all have been answered.
	Steps [][]Call `json:"steps,omitempty"`
	// Timed has it keep the ServiceTimes of its requests.
	Timed bool `json:"timed,omitempty"`
}

// Call is a request to another service.
type Call struct {
	To    int     `json:"to"`              // number of the service, from 0
	Share float64 `json:"share,omitempty"` // of requests that make it (0-1), drawn for each; 0 is all
	Times int     `json:"times,omitempty"` // how often, one after the other; 0 is once
}

// Bounds of a ServiceConfig.
const (
	MaxCalls     = 64  // of a service, repeated ones counted once
	MaxCallTimes = 100 // of a call
)

// Validate says what is wrong with c.
func (c ServiceConfig) Validate() error {
	if err := c.TenantConfig.Validate(); err != nil {
		return err
	}
	calls := 0
	for _, step := range c.Steps {
		for _, call := range step {
			calls++
			switch {
			case call.To < 0 || call.To >= len(c.Addrs):
				return fmt.Errorf("steps: call of service %d: there are addresses of %d", call.To, len(c.Addrs))
			case !(call.Share >= 0 && call.Share <= 1):
				return fmt.Errorf("steps: share %g: want 0 to 1", call.Share)
			case call.Times < 0 || call.Times > MaxCallTimes:
				return fmt.Errorf("steps: times %d: want at most %d", call.Times, MaxCallTimes)
			}
		}
	}
	if calls > MaxCalls {
		return fmt.Errorf("steps: %d calls: want at most %d", calls, MaxCalls)
	}
	return nil
}

// caller makes the calls of a service.
type caller struct {
	config ServiceConfig
	client http.Client
}

// newCaller returns nil for a service that calls nobody.
func newCaller(c ServiceConfig) *caller {
	if len(c.Steps) == 0 {
		return nil
	}
	// As many connections are kept as the generator has: none is opened in the middle of a round.
	return &caller{c, http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}}
}

// call makes the calls of a request and returns how long they took.
func (c *caller) call(ctx context.Context, request uint64) (time.Duration, error) {
	if c == nil {
		return 0, nil
	}
	began := time.Now()
	random := rand.New(rand.NewPCG(c.config.Seed^0x63616c6c, request)) // "call"
	for _, step := range c.config.Steps {
		var due []Call
		for _, call := range step {
			if random.Float64() < cmp.Or(call.Share, 1) {
				due = append(due, call)
			}
		}
		if err := c.together(ctx, due); err != nil {
			return time.Since(began), err
		}
	}
	return time.Since(began), nil
}

// together makes calls at once.
func (c *caller) together(ctx context.Context, calls []Call) error {
	if len(calls) == 0 {
		return nil
	}
	errs := make([]error, len(calls))
	var others sync.WaitGroup
	for i := 1; i < len(calls); i++ {
		others.Go(func() { errs[i] = c.one(ctx, calls[i]) })
	}
	errs[0] = c.one(ctx, calls[0])
	others.Wait()
	return errors.Join(errs...)
}

// one makes a call, as often as it says.
func (c *caller) one(ctx context.Context, call Call) error {
	url := "http://" + c.config.Addrs[call.To] + articlePath
	for range max(call.Times, 1) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("call %s: %w", url, err)
		}
		response, err := c.client.Do(request)
		if err != nil {
			return fmt.Errorf("call: %w", err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return fmt.Errorf("call %s: %w", url, err)
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("call %s: %s", url, response.Status)
		}
	}
	return nil
}
