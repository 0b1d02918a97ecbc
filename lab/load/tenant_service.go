package load

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/template"
	"time"
)

// articlePath is where the service answers.
const articlePath = "/article"

// maxExcerpt bounds the rendered text in an answer, in bytes.
const maxExcerpt = 1024

// page renders one article; the store holds text that is HTML already.
const page = `<article id="{{.ID}}"><h1>{{.Title}}</h1><p class="author">{{.Author}}</p>
{{range $i, $p := .Paragraphs}}<p id="p{{$i}}">{{$p}}</p>
{{end}}<ul>{{range .Related}}<li>{{.}}</li>{{end}}</ul></article>
`

// Tenant is the article service, a small real HTTP service: it looks an article up in
// a working set held in memory, renders it through a template, and answers with JSON.
// Service time and working set are adjustable.
//
// It answers GET /article, GET /tile and GET /healthz, and where it keeps its times GET
// /times. It is an http.Handler.
type Tenant struct {
	config  TenantConfig
	store   store
	page    *template.Template
	mux     *http.ServeMux
	disk    *disk
	workers chan struct{} // a place for each that renders tiles
	caller  *caller
	// stopwatch is nil where nobody asks for times.
	stopwatch *stopwatch
	counter   atomic.Uint64 // requests so far: what each request draws its articles from
	scratch   sync.Pool     // of *scratch
}

// scratch is what one request works in.
type scratch struct {
	source  rand.PCG
	article article
	html    bytes.Buffer
	excerpt bytes.Buffer
	body    bytes.Buffer
}

// articleAnswer is the JSON of a response: the first article and a digest of them all.
type articleAnswer struct {
	ID       int    `json:"id"`
	Title    string `json:"title"`
	HTML     string `json:"html"`
	Articles int    `json:"articles"` // how many were rendered
	Bytes    int    `json:"bytes"`    // how much came out of it
	Digest   uint32 `json:"digest"`   // CRC-32 of all that was rendered
}

// NewTenant builds the service and fills its article store. It calls nobody.
func NewTenant(c TenantConfig) (*Tenant, error) { return NewService(ServiceConfig{TenantConfig: c}) }

// NewService builds a service that may call others.
func NewService(service ServiceConfig) (*Tenant, error) {
	c := service.TenantConfig
	if err := service.Validate(); err != nil {
		return nil, fmt.Errorf("tenant config: %w", err)
	}
	parsed, err := template.New("page").Parse(page)
	if err != nil {
		return nil, fmt.Errorf("parse template: %w", err)
	}
	articles := newStore(c.WorkingSetBytes, c.Seed)
	if c.File != "" {
		if articles, err = articles.mapped(c.File); err != nil {
			return nil, err
		}
	}
	s := &Tenant{config: c, store: articles, page: parsed, mux: http.NewServeMux(), caller: newCaller(service)}
	if c.Disk != "" {
		if s.disk, err = openDisk(c.Disk); err != nil {
			return nil, err
		}
	}
	s.workers = make(chan struct{}, cmp.Or(c.Procs, runtime.NumCPU()))
	s.scratch.New = func() any { return new(scratch) }
	s.mux.HandleFunc("GET "+articlePath, s.serveArticle)
	s.mux.HandleFunc("GET "+tilePath, s.serveTile)
	if service.Timed {
		s.stopwatch = newStopwatch()
		s.mux.HandleFunc("GET "+timesPath, s.serveTimes)
	}
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		// A client that went away is no concern of the service's, here and below.
		_, _ = w.Write([]byte("ok\n"))
	})
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Tenant) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Tenant) serveArticle(w http.ResponseWriter, r *http.Request) {
	times, err := timesOf(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	began, request := time.Now(), s.counter.Add(1)
	waited, err := s.caller.call(r.Context(), request)
	work := s.scratch.Get().(*scratch)
	defer s.scratch.Put(work)
	err = errors.Join(err, s.readDisk(request))
	for range times {
		err = errors.Join(err, s.render(work, request))
	}
	s.stopwatch.record(time.Since(began), waited, err != nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(work.body.Len()))
	_, _ = w.Write(work.body.Bytes())
}

// timesOf reads the query of a request, "" or "times=20": how often its work is done.
func timesOf(query string) (int, error) {
	if query == "" {
		return 1, nil
	}
	text, ok := strings.CutPrefix(query, "times=")
	times, err := strconv.Atoi(text)
	if !ok || err != nil || times < 1 || times > maxTimes {
		return 0, fmt.Errorf("query %q: want times=1 to times=%d", query, maxTimes)
	}
	return times, nil
}

// Times returns the path of requests that do the work of one on path so often.
func Times(path string, times int) string {
	if times == 1 {
		return path
	}
	return path + "?times=" + strconv.Itoa(times)
}

// render does the work of one request and leaves the answer in work.body. The
// articles are drawn evenly from the whole store, from the request's number.
func (s *Tenant) render(work *scratch, request uint64) error {
	work.source.Seed(s.config.Seed, request)
	random := rand.New(&work.source)
	result := articleAnswer{ID: -1, Articles: s.config.Units}
	work.excerpt.Reset()
	for i := range s.config.Units {
		s.store.draw(random, &work.article)
		work.html.Reset()
		if err := s.page.Execute(&work.html, &work.article); err != nil {
			return fmt.Errorf("render article %d: %w", work.article.ID, err)
		}
		if i == 0 {
			result.ID, result.Title = work.article.ID, work.article.Title
			work.excerpt.Write(work.html.Bytes()[:min(work.html.Len(), maxExcerpt)])
		}
		result.Bytes += work.html.Len()
		result.Digest = crc32.Update(result.Digest, crc32.IEEETable, work.html.Bytes())
	}
	result.HTML = work.excerpt.String()
	work.body.Reset()
	encoder := json.NewEncoder(&work.body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(result); err != nil {
		return fmt.Errorf("encode article %d: %w", result.ID, err)
	}
	return nil
}
