package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/place"
)

//go:embed page.html page.css page.js
var assets embed.FS

// policy lets the page load its own files and ask its own server, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Handler serves the page at "/" with what it needs beside it:
//
//	/page.css, /page.js
//	/status.json?after=SEQ    Status, with the events above SEQ
//	/explanation.json?id=ID   api.Explanation of one workload
//	/hour.json                Past, the last hour
//
// Only GET and HEAD are answered. An error is a line of text. The agent is asked at most
// once in api.Freshness, however many look. A nil hour leaves the past and the load of CPUs
// out.
func Handler(s api.Server, hour *Hour) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", asset("page.html", "text/html; charset=utf-8"))
	mux.Handle("GET /page.css", asset("page.css", "text/css; charset=utf-8"))
	mux.Handle("GET /page.js", asset("page.js", "text/javascript; charset=utf-8"))
	var recent api.Recent[*snapshot]
	now := func(r *http.Request) (*snapshot, error) {
		// Other requests get the same, so that it does not end with this one.
		ctx := context.WithoutCancel(r.Context())
		return recent.Get(func() (*snapshot, error) { return snapshotOf(ctx, s, hour) })
	}
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, r *http.Request) {
		after, err := strconv.ParseUint(cmp.Or(r.URL.Query().Get("after"), "0"), 10, 64)
		if err != nil {
			http.Error(w, "after: not the number of an event", http.StatusBadRequest)
			return
		}
		snap, err := now(r)
		if err != nil {
			fail(w, err)
			return
		}
		reply(w, snap.text(after))
	})
	mux.HandleFunc("GET /explanation.json", func(w http.ResponseWriter, r *http.Request) {
		var text []byte
		snap, err := now(r)
		if err == nil {
			text, err = snap.explain(context.WithoutCancel(r.Context()), s, r.URL.Query().Get("id"))
		}
		if err != nil {
			fail(w, err)
			return
		}
		reply(w, text)
	})
	mux.HandleFunc("GET /hour.json", func(w http.ResponseWriter, _ *http.Request) {
		text, err := json.Marshal(hour.past(time.Now(), s.History))
		if err != nil {
			fail(w, err)
			return
		}
		reply(w, text)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		mux.ServeHTTP(w, r)
	})
}

// asset serves an embedded file, which a browser keeps and asks about.
func asset(name, kind string) http.Handler {
	text, err := assets.ReadFile(name)
	if err != nil {
		panic(err) // it is not embedded
	}
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(text))
	})
}

func reply(w http.ResponseWriter, text []byte) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // a client that left misses nothing
}

func fail(w http.ResponseWriter, err error) {
	w.Header().Set("Cache-Control", "no-store")
	status := http.StatusInternalServerError
	var gone *place.NotHeldError
	switch {
	case errors.As(err, &gone):
		status = http.StatusNotFound
	case errors.Is(err, errBusy):
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, err.Error(), status)
}
