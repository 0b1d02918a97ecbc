package load

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// service is one with a small store.
func service(t *testing.T, c ServiceConfig) *httptest.Server {
	t.Helper()
	c.Units, c.WorkingSetBytes, c.Timed = 1, 4096, true
	s, err := NewService(c)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server
}

// counting counts what it is asked, and answers after a while with a status.
func counting(t *testing.T, wait time.Duration, status int) (addr string, count *atomic.Int64) {
	t.Helper()
	count = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != articlePath {
			t.Errorf("asked for %s", r.URL.Path)
		}
		count.Add(1)
		time.Sleep(wait)
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), count
}

func askStatus(t *testing.T, server *httptest.Server) int {
	t.Helper()
	response, err := http.Get(server.URL + articlePath)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode
}

// Each call is made as often as it says, and what waiting took is no time of its own.
func TestCalls(t *testing.T) {
	t.Parallel()
	const wait, requests = 10 * time.Millisecond, 80
	slow, slowCount := counting(t, wait, 200)
	twice, twiceCount := counting(t, 0, 200)
	rare, rareCount := counting(t, 0, 200)
	s := service(t, ServiceConfig{Addrs: []string{slow, twice, rare}, Steps: [][]Call{{{To: 0}, {To: 0}}, {{To: 1, Times: 2}, {To: 2, Share: 0.25}}}})
	for range requests {
		if status := askStatus(t, s); status != 200 {
			t.Fatalf("status %d", status)
		}
	}
	if a, b, c := slowCount.Load(), twiceCount.Load(), rareCount.Load(); a != 2*requests || b != 2*requests || c < 2 || c > 48 {
		t.Errorf("%d, %d and %d calls in %d requests, want 2 each, 2 each, and one of four", a, b, c, requests)
	}
	addr := s.Listener.Addr().String()
	times, err := TakeTimes(t.Context(), addr)
	if err != nil || times.Requests != requests || times.Failed != 0 {
		t.Fatalf("%+v, %v", times, err)
	}
	us := float64(wait.Microseconds())
	if times.Whole.P50 < us || times.Whole.P50-times.Own.P50 < us || times.Own.P50 < 1 || times.Whole.Mean < us || times.Whole.P99 < times.Whole.P50 {
		t.Errorf("%+v: want %g µs of waiting in the whole, and not in its own", times, us)
	}
	if again, err := TakeTimes(t.Context(), addr); err != nil || again != (ServiceTimes{}) {
		t.Errorf("taken again: %+v, %v", again, err)
	}
}

// A request whose call fails, fails: with the reason, at every step.
func TestCallFails(t *testing.T) {
	t.Parallel()
	broken, _ := counting(t, 0, http.StatusTeapot)
	s := service(t, ServiceConfig{Addrs: []string{broken}, Steps: [][]Call{{{To: 0}}}})
	front := service(t, ServiceConfig{Addrs: []string{s.Listener.Addr().String()}, Steps: [][]Call{{{To: 0}}}})
	if status := askStatus(t, front); status != http.StatusInternalServerError {
		t.Errorf("status %d", status)
	}
	for _, server := range []*httptest.Server{s, front} {
		if times, err := TakeTimes(t.Context(), server.Listener.Addr().String()); err != nil || times.Requests != 1 || times.Failed != 1 {
			t.Errorf("%+v, %v; want one request that failed", times, err)
		}
	}
	s.Close()
	if status := askStatus(t, front); status != http.StatusInternalServerError {
		t.Errorf("status %d after the service behind it is gone", status)
	}
	if _, err := TakeTimes(t.Context(), s.Listener.Addr().String()); err == nil {
		t.Error("times of a service that is gone")
	}
}

// Nobody keeps times who was not asked to, and nobody reads what is none.
func TestTakeTimesRefuses(t *testing.T) {
	t.Parallel()
	plain, err := NewTenant(TenantConfig{Units: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, handler := range []http.Handler{plain, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "no JSON") })} {
		server := httptest.NewServer(handler)
		if times, err := TakeTimes(t.Context(), server.Listener.Addr().String()); err == nil {
			t.Errorf("%+v", times)
		}
		server.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := TakeTimes(ctx, "127.0.0.1:1"); err == nil {
		t.Error("no error when cancelled")
	}
}

func TestServiceConfigValidate(t *testing.T) {
	t.Parallel()
	addrs := []string{"127.0.0.1:1"}
	for want, c := range map[string]ServiceConfig{
		"units":                {TenantConfig: TenantConfig{Units: -1}},
		"call of service 1":    {Addrs: addrs, Steps: [][]Call{{{To: 1}}}},
		"call of service -1":   {Addrs: addrs, Steps: [][]Call{{{To: -1}}}},
		"share 1.5":            {Addrs: addrs, Steps: [][]Call{{{Share: 1.5}}}},
		"times 101":            {Addrs: addrs, Steps: [][]Call{{{Times: 101}}}},
		"65 calls: want at mo": {Addrs: addrs, Steps: [][]Call{make([]Call, 40), make([]Call, 25)}},
	} {
		if _, err := NewService(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestUnitCost(t *testing.T) {
	t.Parallel()
	cost, err := UnitCost(TenantConfig{WorkingSetBytes: 1 << 16})
	if err != nil || cost < 100*time.Nanosecond || cost > 10*time.Millisecond {
		t.Errorf("%s, %v", cost, err)
	}
	if _, err := UnitCost(TenantConfig{WorkingSetBytes: -1}); err == nil {
		t.Error("no error of a store of less than nothing")
	}
}

// What a call costs in time beside the callee's own work.
func BenchmarkCall(b *testing.B) {
	leaf, err := NewService(ServiceConfig{TenantConfig: TenantConfig{WorkingSetBytes: 4096}})
	if err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(leaf)
	defer server.Close()
	c := newCaller(ServiceConfig{Addrs: []string{server.Listener.Addr().String()}, Steps: [][]Call{{{To: 0}}}})
	for b.Loop() {
		if _, err := c.call(b.Context(), 1); err != nil {
			b.Fatal(err)
		}
	}
}
