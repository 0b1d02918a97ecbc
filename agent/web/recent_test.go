package web

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/agent/api"
)

// asked counts the questions for the machine, which the agent's node answers.
type asked struct {
	api.View
	machine atomic.Int64
}

func (a *asked) Machine(ctx context.Context) (api.Machine, error) {
	a.machine.Add(1)
	return a.View.Machine(ctx)
}

// Scrapes ask the agent once a second, however many there are.
func TestScrapesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &asked{View: testView()}
		m := NewMetrics(a, MetricsOptions{Root: hostFiles(1000)})
		h := m.Handler()
		for second := range int64(3) {
			var all sync.WaitGroup
			for range 4 { // as many as are answered at a time
				all.Go(func() {
					for range 10 {
						w := httptest.NewRecorder()
						if h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil)); w.Code != http.StatusOK {
							t.Errorf("status %d: %s", w.Code, w.Body)
						}
					}
				})
			}
			all.Wait()
			if n := a.machine.Load(); n != second+1 {
				t.Errorf("in second %d the agent has been asked %d times", second, n)
			}
			time.Sleep(api.Freshness)
		}
	})
}
