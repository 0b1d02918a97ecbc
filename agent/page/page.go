// Package page is the agent's status page: the machine as a picture of who owns
// what, what each workload uses, and what happened lately and why.
//
// The page only reads. It is one document with its style sheet and script, which
// ask for Status while somebody looks; texts of workloads reach the document as
// text only. docs/agent.md says where it is served.
package page

import (
	"bytes"
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
//
// Only GET and HEAD are answered. An error is a line of text.
func Handler(s api.Server) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", asset("page.html", "text/html; charset=utf-8"))
	mux.Handle("GET /page.css", asset("page.css", "text/css; charset=utf-8"))
	mux.Handle("GET /page.js", asset("page.js", "text/javascript; charset=utf-8"))
	mux.HandleFunc("GET /status.json", func(w http.ResponseWriter, r *http.Request) {
		var after uint64
		if text := r.URL.Query().Get("after"); text != "" {
			var err error
			if after, err = strconv.ParseUint(text, 10, 64); err != nil {
				http.Error(w, "after: not the number of an event", http.StatusBadRequest)
				return
			}
		}
		status, err := statusOf(r.Context(), s, after)
		reply(w, status, err)
	})
	mux.HandleFunc("GET /explanation.json", func(w http.ResponseWriter, r *http.Request) {
		e, err := s.Explain(r.Context(), r.URL.Query().Get("id"))
		reply(w, e, err)
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

func reply(w http.ResponseWriter, answer any, err error) {
	w.Header().Set("Cache-Control", "no-store")
	var text []byte
	if err == nil {
		text, err = json.Marshal(answer)
	}
	var gone *place.NotHeldError
	switch {
	case errors.As(err, &gone):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // a client that left misses nothing
	}
}
