package load

import (
	"net/http"
	"testing"
)

// A request does its work as often as it asks for, within bounds, and answers as
// otherwise. It counts allocations, and so is not parallel.
func TestTimes(t *testing.T) {
	s, err := NewTenant(TenantConfig{Units: 3, WorkingSetBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		articlePath:                       http.StatusOK,
		Times(articlePath, 1):             http.StatusOK,
		Times(articlePath, maxTimes):      http.StatusOK,
		Times(articlePath, maxTimes+1):    http.StatusBadRequest,
		articlePath + "?times=0":          http.StatusBadRequest,
		articlePath + "?times=":           http.StatusBadRequest,
		articlePath + "?often=2":          http.StatusBadRequest,
		articlePath + "?times=2&often=20": http.StatusBadRequest,
	} {
		if response, body := get(t, s, "GET", path); response.StatusCode != want {
			t.Errorf("%s: status %d, want %d: %s", path, response.StatusCode, want, body)
		}
	}
	// What is done so often is the usual work: it allocates as much more.
	work := func(times int) float64 {
		return testing.AllocsPerRun(5, func() { get(t, s, "GET", Times(articlePath, times)) })
	}
	if once, often := work(1), work(100); often < 10*once {
		t.Errorf("%v allocations for a request, %v for one of 100 times its work", once, often)
	}
}
