package web

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
)

// counted counts what the agent is asked.
type counted struct {
	*fakeAgent
	lists, gets atomic.Int64
}

func (c *counted) List(ctx context.Context) ([]agent.Workload, error) {
	c.lists.Add(1)
	return c.fakeAgent.List(ctx)
}

func (c *counted) Get(ctx context.Context, id string) (agent.Workload, error) {
	c.gets.Add(1)
	return c.fakeAgent.Get(ctx, id)
}

// However many look, the agent is asked once a second; a failure counts as an answer.
func TestAskedOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &counted{fakeAgent: newFake(t, "1s2c", 20)}
		history := api.NewHistory(100, 0)
		h := Handler(api.Server{Node: c, View: c, History: history}, nil)
		look := func(target string, want int) {
			t.Helper()
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					if status := get(h, "GET", target).StatusCode; status != want {
						t.Errorf("%s is %d, want %d", target, status, want)
					}
				})
			}
			all.Wait()
		}
		asked := func(lists, gets int64) {
			t.Helper()
			if l, g := c.lists.Load(), c.gets.Load(); l != lists || g != gets {
				t.Errorf("the agent was asked %d times for all and %d times for one, want %d and %d", l, g, lists, gets)
			}
		}
		look("/status.json", 200)
		look("/status.json?after=3", 200)
		asked(1, 0)
		time.Sleep(api.Freshness)
		look("/status.json", 200)
		asked(2, 0)

		// Explanations: one for each of a few workloads, and none for what is not there.
		explain := func(id string) string { return "/explanation.json?id=" + url.QueryEscape(id) }
		look(explain(c.list[0].ID()), 200)
		look(explain("none"), 404)
		asked(2, 1)
		for i := range c.list {
			want := http.StatusOK
			if i >= maxExplained {
				want = http.StatusServiceUnavailable
			}
			look(explain(c.list[i].ID()), want)
		}
		asked(2, maxExplained)
		time.Sleep(api.Freshness)
		look(explain(c.list[19].ID()), 200)
		asked(3, maxExplained+1)

		time.Sleep(api.Freshness)
		c.err = errors.New("the disk is gone")
		look("/status.json", 500)
		asked(4, maxExplained+1)
		c.err = nil
		look("/status.json", 500)
		time.Sleep(api.Freshness)
		look("/status.json", 200)
	})
}

// Events that a reader has are left out; those of an earlier start are no reader's.
func TestSnapshotEvents(t *testing.T) {
	t.Parallel()
	s := newFake(t, "1s2c", 1).server()
	for range 3 {
		s.History.Add(api.Event{Event: agent.Event{Kind: agent.Placed, ID: hostile}})
	}
	for target, want := range map[string]int{"/status.json": 3, "/status.json?after=1": 2, "/status.json?after=3": 0, "/status.json?after=99": 3} {
		if got := statusFrom(t, s, target); len(got.Events) != want || got.Events == nil {
			t.Errorf("%s has %d events, want %d", target, len(got.Events), want)
		}
	}
}

// Where the page is not served is on the page.
func TestUnservedIsAWarning(t *testing.T) {
	t.Parallel()
	p := newFake(t, "1s2c", 0)
	p.about.Unserved = []string{"http://127.0.0.1:9750: in use"}
	if got := statusFrom(t, p.server(), "/status.json"); len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], "in use") {
		t.Errorf("warnings %q", got.Warnings)
	}
}
