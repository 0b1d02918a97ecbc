package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
)

// The bounds of what a client may cost.
const (
	maxBody      = 1 << 20          // bytes of a request
	maxHeader    = 16 << 10         // bytes of its header
	headerTime   = 5 * time.Second  // to send the header
	readTime     = 10 * time.Second // to send all of it
	answerTime   = time.Minute      // to work on it and take the answer
	idleTime     = 10 * time.Second // between requests of a connection
	eventTime    = 10 * time.Second // to take an event of a stream
	maxSpecs     = 1024             // workloads to place in one change
	maxListeners = 64               // streams of events at once
	userStreams  = 16               // of those, of one user
)

// Server answers requests from what stands behind it. Its fields are all required.
type Server struct {
	Node     Node
	View     View
	Guardian Guardian
	Configs  Configurator
	History  *History
	// Admin reports whether a user may do what root may. Root and this process's own
	// user always may.
	Admin func(uid int) bool
}

// route is one thing that can be asked for.
type route struct {
	method, path string // path is below /v1/
	about        string
	query        []parameter
	body         reflect.Type // nil: none is read
	status       int          // if all goes well; 0 is 200
	answer       reflect.Type // nil: none
	stream       bool         // answers are lines of JSON
	errors       []string     // kinds beside those that every route has
	serve        func(*http.Request, any) (any, error)
}

// parameter is one that may stand in the query.
type parameter struct {
	name, kind, about string
}

// refusals are the kinds of errors of whatever places.
var refusals = func() []string {
	var kinds []string
	for _, r := range place.Refusals() {
		switch r.(type) {
		case *place.HeldError, *place.NotHeldError: // said where they can be
		default:
			kinds = append(kinds, r.Kind())
		}
	}
	return append(kinds, "claimed", "missing", "group", "not-supported", "kernel", "disk-full")
}()

// routes are all that the server answers.
func (s *Server) routes() []route {
	explain := []parameter{{"explain", "boolean", "ask the policy for its reasons"}}
	spec, workload := reflect.TypeFor[agent.Spec](), reflect.TypeFor[agent.Workload]()
	return append(s.configRoutes(), []route{
		view(s, "agent", "Who answers.", View.About),
		view(s, "machine", "The hardware, and who holds what of it.", View.Machine),
		view(s, "config", "The active configuration.", View.Config),
		view(s, "stats", "The latest figures of every workload, by rising id.", View.Stats),
		view(s, "classes", "What classes there are, by kind, who has which, and what is left.", View.ClassReport),
		view(s, "guard", "Where the guard stands: who suffers and from whom, and which actions are active.", View.Guard),
		{
			method: "PUT", path: "guard", about: "Restore everything, then set the guard's mode until the configuration's changes.",
			body: reflect.TypeFor[guardMode](), answer: reflect.TypeFor[Guard](),
			errors: []string{"denied", "not-supported", "kernel", "disk-full"}, serve: s.setGuardMode,
		},
		{method: "GET", path: "workloads", about: "All workloads, by rising id.", answer: reflect.TypeFor[list](), serve: s.list},
		{
			method: "POST", path: "workloads", about: "Place a new workload.", query: explain, body: spec, status: http.StatusCreated, answer: workload,
			errors: append([]string{"held", "denied"}, refusals...), serve: withSpec(s, Node.Place),
		},
		{
			method: "POST", path: "preview", about: "What placing or, for an id that is held, resizing would come to. Nothing is changed.",
			query: explain, body: spec, answer: reflect.TypeFor[Draft](), errors: append([]string{"denied"}, refusals...), serve: withSpec(s, draftOf),
		},
		{
			method: "POST", path: "groups", about: "Place new workloads, all of them or none, in one change.", query: explain, body: reflect.TypeFor[together](), status: http.StatusCreated,
			answer: reflect.TypeFor[list](), errors: append([]string{"held", "denied"}, refusals...),
			serve: withSpecs(s, func(n Node, ctx context.Context, specs []agent.Spec) (any, error) {
				all, err := n.PlaceTogether(ctx, specs)
				return list{append([]agent.Workload{}, all...)}, err
			}),
		},
		{
			method: "POST", path: "groups/preview", about: "What placing new workloads as a whole would come to. Nothing is changed.", query: explain, body: reflect.TypeFor[together](),
			answer: reflect.TypeFor[Drafts](), errors: append([]string{"held", "denied"}, refusals...),
			serve: withSpecs(s, func(n Node, ctx context.Context, specs []agent.Spec) (any, error) {
				all, plan, err := n.PreviewTogether(ctx, specs)
				return Drafts{append([]agent.Workload{}, all...), append(kernel.Plan{}, plan...)}, err
			}),
		},
		{
			method: "GET", path: "workloads/{id}", about: "One workload.", answer: workload, errors: []string{"not-held"},
			serve: func(r *http.Request, _ any) (any, error) { return s.Node.Get(r.Context(), r.PathValue("id")) },
		},
		{
			method: "PUT", path: "workloads/{id}", about: "Resize a workload: its request, given CPUs and limits. Group, process and owner stay.",
			query: explain, body: spec, answer: workload, errors: append([]string{"not-held", "denied"}, refusals...), serve: withSpec(s, Node.Resize),
		},
		{
			method: "DELETE", path: "workloads/{id}", about: "Release a workload.", query: []parameter{{"kill", "boolean", "kill its processes"}, {"keep", "boolean", "let its processes run on, in the groups that they came from"}},
			status: http.StatusNoContent, errors: []string{"not-held", "denied", "occupied", "kernel", "disk-full"},
			serve: func(r *http.Request, _ any) (any, error) {
				leaving := agent.WhenEmpty
				for _, how := range []agent.Leaving{agent.Kill, agent.Keep} {
					if r.URL.Query().Get(string(how)) == "true" {
						if leaving != agent.WhenEmpty {
							return nil, &RequestError{http.StatusBadRequest, "kill and keep: only one of them", rewrite}
						}
						leaving = how
					}
				}
				return nil, s.Node.Release(r.Context(), r.PathValue("id"), leaving)
			},
		},
		{
			method: "POST", path: "workloads/{id}/move", about: "Give a workload other CPUs, and memory nodes if there are any.",
			body: reflect.TypeFor[move](), answer: workload, errors: append([]string{"not-held", "denied"}, refusals...),
			serve: func(r *http.Request, body any) (any, error) {
				to := body.(*move)
				return s.Node.Move(r.Context(), r.PathValue("id"), to.CPUs, to.Mems)
			},
		},
		{
			method: "GET", path: "workloads/{id}/explain", about: "Why a workload is where it is.",
			answer: reflect.TypeFor[Explanation](), errors: []string{"not-held"},
			serve: func(r *http.Request, _ any) (any, error) { return s.Explain(r.Context(), r.PathValue("id")) },
		},
		{
			method: "GET", path: "events", about: "Events as they come, one per line, until the client leaves; those kept that came before first.",
			query: []parameter{
				{"after", "integer", "only events with a seq above this one"},
				{"follow", "boolean", "false ends after the events that are kept"},
			},
			answer: reflect.TypeFor[Event](), stream: true,
		},
	}...)
}

// view is the route of what a View tells.
func view[A any](s *Server, path, about string, ask func(View, context.Context) (A, error)) route {
	return route{
		method: "GET", path: path, about: about, answer: reflect.TypeFor[A](),
		serve: func(r *http.Request, _ any) (any, error) { return ask(s.View, r.Context()) },
	}
}

// withSpec serves a request whose body is a spec.
func withSpec[A any](s *Server, serve func(Node, context.Context, agent.Spec) (A, error)) func(*http.Request, any) (any, error) {
	return func(r *http.Request, body any) (any, error) {
		spec := *body.(*agent.Spec)
		spec.Request.Explain = r.URL.Query().Get("explain") == "true"
		if id := r.PathValue("id"); id != "" && id != spec.Request.ID {
			return nil, &RequestError{http.StatusBadRequest, fmt.Sprintf("the path is about workload %q, the body about %q", id, spec.Request.ID), ""}
		}
		if err := spec.Validate(); err != nil {
			return nil, &RequestError{http.StatusBadRequest, err.Error(), ""}
		}
		return serve(s.Node, r.Context(), spec)
	}
}

// withSpecs serves a request whose body are specs.
func withSpecs(s *Server, serve func(Node, context.Context, []agent.Spec) (any, error)) func(*http.Request, any) (any, error) {
	return func(r *http.Request, body any) (any, error) {
		specs := body.(*together).Specs
		if len(specs) == 0 {
			return nil, &RequestError{http.StatusBadRequest, "specs is empty: there is nothing to place", ""}
		}
		if len(specs) > maxSpecs {
			return nil, &RequestError{http.StatusBadRequest, fmt.Sprintf("specs has %d workloads; at most %d are placed in one change", len(specs), maxSpecs), "send several requests"}
		}
		for i := range specs {
			specs[i].Request.Explain = r.URL.Query().Get("explain") == "true"
			if err := specs[i].Validate(); err != nil {
				return nil, &RequestError{http.StatusBadRequest, err.Error(), ""}
			}
		}
		return serve(s.Node, r.Context(), specs)
	}
}

func draftOf(n Node, ctx context.Context, spec agent.Spec) (Draft, error) {
	w, plan, err := n.Preview(ctx, spec)
	return Draft{w, append(kernel.Plan{}, plan...)}, err
}

// Handler returns the tree of handlers. It answers only requests that come through a
// Door of a Unix socket.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	listeners := &listeners{share: newShares(maxListeners, userStreams)}
	for _, rt := range s.routes() {
		mux.HandleFunc(rt.method+" /v1/"+rt.path, func(w http.ResponseWriter, r *http.Request) {
			body, err := rt.accept(w, r)
			switch {
			case err != nil:
				fail(w, err)
			case rt.stream:
				s.events(w, r, listeners)
			default:
				answer, err := rt.serve(r, body)
				if err != nil {
					fail(w, err)
					return
				}
				reply(w, cmp.Or(rt.status, http.StatusOK), answer)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fail(w, unknown(mux, r, w.Header())) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.URL.EscapedPath(); path.Clean(p) != p {
			fail(w, &RequestError{http.StatusBadRequest, fmt.Sprintf("path %q is not in its shortest form", p), "write '..' and '/' within a name as %2E%2E and %2F"})
			return
		}
		p, ok := PeerOf(r.Context())
		if !ok {
			fail(w, &RequestError{http.StatusForbidden, "the kernel does not name the user who asks", "ask through the agent's Unix socket"})
			return
		}
		admin := privileged(p.UID) || s.Admin != nil && s.Admin(p.UID)
		mux.ServeHTTP(w, r.WithContext(agent.WithCaller(r.Context(), agent.Caller{UID: p.UID, Admin: admin})))
	})
}

// unknown says why no route has a request.
func unknown(mux *http.ServeMux, r *http.Request, header http.Header) error {
	var allowed []string
	for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return &RequestError{http.StatusNotFound, fmt.Sprintf("nothing is at %q", r.URL.Path), "docs/openapi.json lists the paths"}
	}
	header.Set("Allow", strings.Join(allowed, ", "))
	return &RequestError{http.StatusMethodNotAllowed, fmt.Sprintf("%s is not for %q", r.Method, r.URL.Path), "use " + strings.Join(allowed, " or ")}
}

// accept checks the query and reads the body.
func (rt *route) accept(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := rt.checkQuery(r); err != nil {
		return nil, err
	}
	if rt.body == nil {
		return nil, nil
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, &RequestError{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", large.Limit), "send less at once"}
	}
	if err != nil {
		return nil, &RequestError{http.StatusBadRequest, "the body does not arrive: " + err.Error(), ""}
	}
	into := reflect.New(rt.body)
	if err := decode(text, into.Interface()); err != nil {
		return nil, &RequestError{http.StatusBadRequest, "the body is not what is asked for: " + err.Error(), ""}
	}
	return into.Interface(), nil
}

func (rt *route) checkQuery(r *http.Request) error {
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		i := slices.IndexFunc(rt.query, func(p parameter) bool { return p.name == name })
		if i < 0 || len(query[name]) != 1 {
			return &RequestError{http.StatusBadRequest, fmt.Sprintf("parameter %q is unknown here, or there twice", name), ""}
		}
		value, kind := query.Get(name), rt.query[i].kind
		_, err := strconv.ParseUint(value, 10, 64)
		if kind == "integer" && err != nil || kind == "boolean" && value != "true" && value != "false" {
			return &RequestError{http.StatusBadRequest, fmt.Sprintf("parameter %s=%q is not of type %s", name, value, kind), ""}
		}
	}
	return nil
}

func (s *Server) list(r *http.Request, _ any) (any, error) {
	all, err := s.Node.List(r.Context())
	return list{append([]agent.Workload{}, all...)}, err
}

// Explain says why a workload is where it is. Nothing is changed.
func (s *Server) Explain(ctx context.Context, id string) (Explanation, error) {
	w, err := s.Node.Get(ctx, id)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{ID: id, Grant: w.Grant}
	if w.Grant != nil && w.Grant.Why != nil {
		e.Why, e.Recorded = w.Grant.Why, true
		return e, nil
	}
	spec := w.Spec
	spec.Request.Explain = true
	now, _, err := s.Node.Preview(ctx, spec)
	if _, ok := errors.AsType[*place.RejectedError](err); ok {
		return e, nil // the policy does not resize: it tells nothing
	}
	if err == nil && now.Grant != nil {
		e.Why = now.Grant.Why
	}
	return e, err
}

// listeners are the streams of events.
type listeners struct {
	mu    sync.Mutex
	share *shares
}

// add counts a stream of a user, until done is called.
func (l *listeners) add(uid int) (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if full, byOthers := l.share.full(uid); full {
		reason := fmt.Sprintf("user %d has %d streams of events already", uid, l.share.taken[uid])
		if byOthers {
			reason = fmt.Sprintf("there are %d streams of events already", l.share.others)
		}
		return nil, &RequestError{http.StatusServiceUnavailable, reason, "end one of them"}
	}
	l.share.add(uid, 1)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.share.add(uid, -1)
	}, nil
}

// events streams the history.
func (s *Server) events(w http.ResponseWriter, r *http.Request, all *listeners) {
	p, _ := PeerOf(r.Context())
	done, err := all.add(p.UID)
	if err != nil {
		fail(w, err)
		return
	}
	defer done()
	after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	send := func(events []Event) error {
		if err := control.SetWriteDeadline(time.Now().Add(eventTime)); err != nil {
			return err
		}
		for _, e := range events {
			text, err := encode(e)
			if err != nil {
				return err
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
			after = e.Seq
		}
		return control.Flush()
	}
	if send(s.History.After(after)) != nil || r.URL.Query().Get("follow") == "false" {
		return
	}
	for {
		events, err := s.History.Wait(r.Context(), after)
		if err != nil || send(events) != nil {
			return
		}
	}
}
