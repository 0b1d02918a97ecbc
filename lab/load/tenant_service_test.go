package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newService(tb testing.TB, c TenantConfig) *Tenant {
	tb.Helper()
	s, err := NewTenant(c)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// get asks a service and returns the response, its body read.
func get(tb testing.TB, s http.Handler, method, path string) (*http.Response, string) {
	tb.Helper()
	recorder := httptest.NewRecorder()
	s.ServeHTTP(recorder, httptest.NewRequest(method, path, nil))
	response := recorder.Result()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return response, string(body)
}

func TestArticle(t *testing.T) {
	t.Parallel()
	s := newService(t, TenantConfig{Units: 3, WorkingSetBytes: 100 << 10, Seed: 5})
	response, body := get(t, s, "GET", articlePath)
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("status %d, header %v", response.StatusCode, response.Header)
	}
	if got := response.Header.Get("Content-Length"); got != fmt.Sprint(len(body)) {
		t.Errorf("Content-Length %s of a body of %d bytes", got, len(body))
	}
	var got articleAnswer
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got.ID < 0 || got.ID >= 100 || got.Articles != 3 || got.Bytes < 3*recordBytes || got.Digest == 0 {
		t.Errorf("answer %+v", got)
	}
	for _, want := range []string{"<article id=\"" + fmt.Sprint(got.ID) + "\">", "<h1>" + got.Title + "</h1>", `<p id="p0">`} {
		if !strings.Contains(got.HTML, want) {
			t.Errorf("no %s in %s", want, got.HTML)
		}
	}
}

// The network's part stays small, whatever the work is.
func TestAnswerIsSmall(t *testing.T) {
	t.Parallel()
	for _, units := range []int{0, 1, 100} {
		_, body := get(t, newService(t, TenantConfig{Units: units, WorkingSetBytes: 1 << 20}), "GET", articlePath)
		if len(body) > 2048 {
			t.Errorf("%d units: %d bytes", units, len(body))
		}
	}
}

func TestNoUnits(t *testing.T) {
	t.Parallel()
	_, body := get(t, newService(t, TenantConfig{}), "GET", articlePath)
	if diff := cmp.Diff(`{"id":-1,"title":"","html":"","articles":0,"bytes":0,"digest":0}`+"\n", body); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// Two services of the same config give the same answers in the same order, and
// no request is like the one before.
func TestSameSeedSameAnswers(t *testing.T) {
	t.Parallel()
	config := TenantConfig{Units: 2, WorkingSetBytes: 1 << 20, Seed: 9}
	one, two := newService(t, config), newService(t, config)
	config.Seed++
	other := newService(t, config)
	previous, alike := "", 0
	for range 20 {
		_, a := get(t, one, "GET", articlePath)
		_, b := get(t, two, "GET", articlePath)
		_, c := get(t, other, "GET", articlePath)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Fatalf("same seed (-one +two):\n%s", diff)
		}
		if a == c || a == previous {
			alike++
		}
		previous = a
	}
	if alike > 0 {
		t.Errorf("%d answers like another's", alike)
	}
}

func TestConcurrentRequests(t *testing.T) {
	t.Parallel()
	s := newService(t, TenantConfig{Units: 2, WorkingSetBytes: 64 << 10})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 20 {
				if response, body := get(t, s, "GET", articlePath); response.StatusCode != 200 || !json.Valid([]byte(body)) {
					t.Errorf("status %d, %q", response.StatusCode, body)
				}
			}
		})
	}
	group.Wait()
}

func TestOtherRequests(t *testing.T) {
	t.Parallel()
	s := newService(t, TenantConfig{})
	for _, test := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/healthz", 200, "ok\n"},
		{"POST", "/healthz", 405, "Method Not Allowed\n"},
		{"POST", articlePath, 405, "Method Not Allowed\n"},
		{"GET", "/", 404, "404 page not found\n"},
		{"GET", articlePath + "/1", 404, "404 page not found\n"},
	} {
		response, body := get(t, s, test.method, test.path)
		if response.StatusCode != test.status || body != test.body {
			t.Errorf("%s %s: %d %q, want %d %q", test.method, test.path, response.StatusCode, body, test.status, test.body)
		}
	}
}

func TestTenantValidate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config TenantConfig
		want   string // "" is good
	}{
		{TenantConfig{}, ""},
		{TenantConfig{Units: 50, WorkingSetBytes: 64 << 20, Procs: 2, Seed: 1}, ""},
		{TenantConfig{Units: -1}, "units -1: want 0 to 1000000"},
		{TenantConfig{Units: maxUnits + 1}, "units 1000001: want 0 to 1000000"},
		{TenantConfig{WorkingSetBytes: -1}, "workingSetBytes -1: want 0 to 1099511627776"},
		{TenantConfig{WorkingSetBytes: maxWorkingSet + 1}, "workingSetBytes 1099511627777: want 0 to 1099511627776"},
		{TenantConfig{Units: -1, Procs: -2}, "units -1: want 0 to 1000000; procs -2: want 0 to 4096"},
	} {
		got := ""
		if err := test.config.Validate(); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%+v: %q, want %q", test.config, got, test.want)
		}
	}
	if _, err := NewTenant(TenantConfig{Units: -1}); err == nil {
		t.Error("New took a bad config")
	}
}

func ExampleTenant() {
	service, err := NewTenant(TenantConfig{Units: 1, WorkingSetBytes: 1 << 20, Seed: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	recorder := httptest.NewRecorder()
	service.ServeHTTP(recorder, httptest.NewRequest("GET", "/healthz", nil))
	fmt.Print(recorder.Body)
	// Output: ok
}

// BenchmarkRender shows what a unit costs and that the cost is in proportion.
func BenchmarkRender(b *testing.B) {
	for _, set := range []int64{1 << 20, 64 << 20} {
		for _, units := range []int{0, 1, 10, 50} {
			b.Run(fmt.Sprintf("set=%dMiB/units=%d", set>>20, units), func(b *testing.B) {
				s := newService(b, TenantConfig{Units: units, WorkingSetBytes: set, Seed: 1})
				work := new(scratch)
				request := uint64(0)
				b.ReportAllocs()
				for b.Loop() {
					request++
					if err := s.render(work, request); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
