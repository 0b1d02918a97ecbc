// Package metrics shows to Prometheus what a plugin of a container runtime places on a
// Kubernetes node, and what the kernel tells of the containers: the series of berth agent
// (docs/metrics.md), with the labels namespace, pod and container.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/config"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/agent/web"
	"berth.dev/berth/cpuset"
	"berth.dev/berth/guard/observe"
	"berth.dev/berth/kernel"
	"berth.dev/berth/place"
	"berth.dev/berth/watch/pods"
)

// Node is what has the places; an *agent.Node is one.
type Node interface {
	List(ctx context.Context) ([]agent.Workload, error)
	State(ctx context.Context) (*place.State, error)
	ClassReport(ctx context.Context) (agent.ClassReport, error)
	Backend() string
}

// Options say what is shown. Root and Node must be set.
type Options struct {
	Root *kernel.Root
	Node Node
	// Policy is the name of the policy that places.
	Policy string
	// Guard says where a guard stands; nil means none.
	Guard func(context.Context) (api.Guard, error)
	// PodEvents are how many events on pods came to which end; nil is none that writes any.
	PodEvents func() map[string]uint64
	// Kinds are kinds of events that Note may be told of, besides those of an agent.
	Kinds []string
	// Failed is told what could not be read, once; nil is nobody.
	Failed func(error)
	// Interval is the time between readings at least, however often it is scraped; 0 is 1 s.
	Interval time.Duration
}

// Server shows the metrics. Several goroutines may use it.
type Server struct {
	opt     Options
	meter   *daemon.Meter
	history *api.History
	metrics *web.Metrics
	began   time.Time
	changed atomic.Bool // something happened since follow looked
	looked  time.Time   // when it did

	mu     sync.Mutex
	groups int
	pods   map[string]pods.Name // by workload
	said   string               // the last error
}

// New opens what is read. Run reads.
func New(opt Options) (*Server, error) {
	meter, err := daemon.OpenMeter(opt.Root, opt.Interval)
	if err != nil {
		return nil, fmt.Errorf("open metrics: %w", err)
	}
	s := &Server{opt: opt, meter: meter, began: time.Now(), pods: map[string]pods.Name{}}
	s.changed.Store(true)
	s.history = api.NewHistory(1024, uint64(s.began.UnixMicro()))
	s.metrics = web.NewMetrics(view{s}, web.MetricsOptions{
		Root: opt.Root.FS(), Hardware: observe.OpenHardware(opt.Root.Name()), Pod: s.pod, PodEvents: opt.PodEvents, Kinds: opt.Kinds, List: opt.Node.List,
	})
	return s, nil
}

// Note counts an event, after which the workloads may be others. It does not wait.
func (s *Server) Note(e api.Event) {
	s.history.Add(e)
	s.changed.Store(true)
}

// Run reads the figures that no scrape does, and follows the workloads, until the context ends. It
// closes the Server.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.metrics.Follow(ctx, s.history) // the context's end
	}()
	s.meter.Run(ctx, func() {
		err := s.follow(ctx)
		if err == nil || ctx.Err() != nil || s.said == err.Error() {
			return
		}
		if s.said = err.Error(); s.opt.Failed != nil {
			s.opt.Failed(err)
		}
	})
	<-done
	return s.meter.Close()
}

// lookAgain is after how long follow looks though nothing happened that it was told.
const lookAgain = 15 * time.Second

// follow has the meter read the workloads that there are now. To list them takes longer than to
// read most of them, so it is done only after an event.
func (s *Server) follow(ctx context.Context) (err error) {
	if !s.changed.Swap(false) && time.Since(s.looked) < lookAgain {
		return nil
	}
	s.looked = time.Now()
	defer func() {
		if err != nil {
			s.changed.Store(true)
		}
	}()
	all, err := s.opt.Node.List(ctx)
	if err != nil {
		return err
	}
	groups, own, names := make(map[string]string, len(all)), map[string]cpuset.Set{}, make(map[string]pods.Name, len(all))
	for i := range all {
		w := &all[i]
		groups[w.ID()] = strings.Trim(w.Group, "/")
		if w.Grant != nil && !w.Grant.Own.IsEmpty() {
			own[w.ID()] = w.Grant.Own
		}
		if n, ok := podOf(w); ok {
			names[w.ID()] = n
		}
	}
	s.mu.Lock()
	s.groups, s.pods = len(groups), names
	s.mu.Unlock()
	return s.meter.Follow(groups, own)
}

// podOf is the container that a workload is, by its id NAMESPACE/POD/CONTAINER, which may
// have something behind a "~".
func podOf(w *agent.Workload) (n pods.Name, ok bool) {
	id, _, _ := strings.Cut(w.ID(), "~")
	parts := strings.Split(id, "/")
	if len(parts) != 3 || parts[0] != w.Spec.Request.Namespace {
		return n, false
	}
	return pods.Name{Namespace: parts[0], Pod: parts[1], Container: parts[2], UID: w.Spec.Request.Group}, true
}

func (s *Server) pod(id string) (pods.Name, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.pods[id]
	return n, ok
}

// Handler answers scrapes at /metrics.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics.Handler())
	return mux
}

// Listen opens an address, which must not be one that other hosts reach unless network is
// true: there is no password.
func Listen(address string, network bool) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("metrics at %q: want HOST:PORT: %w", address, err)
	}
	if !network && !api.Loopback(host) {
		return nil, fmt.Errorf("metrics at %q: other hosts reach that, and there is no password; allow it, or name 127.0.0.1", address)
	}
	return net.Listen("tcp", address)
}

// Serve answers at an open address until the context ends, and closes it.
func (s *Server) Serve(ctx context.Context, l net.Listener, network bool) error {
	door := api.Door{Host: func(name string) bool { return api.Loopback(name) || network && api.Address(name) }, Conns: 32}
	server, bounded := door.Server(l, s.Handler())
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(bounded); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// view is what the metrics are made of.
type view struct{ s *Server }

// About says who answers.
func (v view) About(context.Context) (api.About, error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	return api.About{Backend: v.s.opt.Node.Backend(), Policy: v.s.opt.Policy, PID: os.Getpid(), Started: v.s.began, Groups: v.s.groups}, nil
}

// Machine is the hardware and who holds what of it.
func (v view) Machine(ctx context.Context) (api.Machine, error) {
	s, err := v.s.opt.Node.State(ctx)
	if err != nil {
		return api.Machine{}, err
	}
	return api.MachineOf(s), nil
}

// Config has nothing: a plugin is configured by flags.
func (v view) Config(context.Context) (api.Config, error) { return api.Config{Loaded: v.s.began}, nil }

// ClassReport says what classes there are.
func (v view) ClassReport(ctx context.Context) (agent.ClassReport, error) {
	return v.s.opt.Node.ClassReport(ctx)
}

// Stats are the figures of now.
func (v view) Stats(ctx context.Context) (api.Stats, error) { return v.s.meter.Stats(ctx) }

// Signals says for each signal of workloads whether it is there.
func (v view) Signals() map[string]error { return v.s.meter.Signals() }

// Guard is where the guard stands.
func (v view) Guard(ctx context.Context) (api.Guard, error) {
	if v.s.opt.Guard == nil {
		return api.Guard{Mode: config.GuardOff, Configured: config.GuardOff, Workloads: map[string]string{}}, nil
	}
	return v.s.opt.Guard(ctx)
}
