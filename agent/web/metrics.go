// Package web is what the agent shows over HTTP beside its API: the metrics for
// Prometheus and the status page.
//
// The metrics tell what the machine and each workload have, what the sampler last
// read of them, what happened, and what the agent itself costs. docs/metrics.md is
// the reference for users. A scrape shows the last reading and takes none of the
// workloads; scrapes within api.Freshness show the same. So they may come as often
// as they like. Labels are bounded: never a process id, and at most
// maxSeries workloads. What a host does not tell is absent, and
// berth_signal_available says why.
//
// The page shows the machine as a picture of who owns what, what each workload uses,
// and what happened lately and why. It is one document with its style sheet and
// script, which ask for Status while somebody looks; texts of workloads reach the
// document as text only. docs/agent.md says where it is served.
//
// Both only read. Reading workloads, listening and alerting are left to others.
package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
)

// MetricsOptions say what is shown. The zero value is the live host without hardware
// counters.
type MetricsOptions struct {
	// Root is the host's file tree, for /proc; nil is the live host's.
	Root fs.FS
	// Hardware tells the counters of the machine. It may be nil.
	Hardware Hardware
	// Pod says which container of a pod a workload is, by its id; false means none. With it
	// all series of workloads have the labels namespace, pod and container, "" for none. Nil
	// is a host that is no node of Kubernetes.
	Pod func(id string) (pods.Name, bool)
	// PodEvents are how many events on pods came to which end; nil is none that writes any.
	PodEvents func() map[string]uint64
	// Kinds are kinds of events besides those of an agent. Their counts begin at zero, too.
	Kinds []string
	// List are the workloads with what Berth limits of them; nil shows no limits.
	List func(context.Context) ([]agent.Workload, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// maxSeries is how many workloads have series of their own. The best class comes first,
// then the lowest id.
const maxSeries = 500

// Metrics is everything that a scrape shows. Its methods may be called
// concurrently.
type Metrics struct {
	view      api.View
	workloads int
	pod       func(id string) (pods.Name, bool)
	podEvents func() map[string]uint64
	list      func(context.Context) ([]agent.Workload, error)
	host      *host
	families  map[string]*prometheus.Desc
	sources   map[source]target
	registry  *prometheus.Registry
	told
}

// NewMetrics returns the metrics of an agent. A View that is also a Signaller says why a
// workload's figures are absent.
func NewMetrics(view api.View, opt MetricsOptions) *Metrics {
	if opt.Root == nil {
		opt.Root = os.DirFS("/")
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	m := &Metrics{
		view:      view,
		workloads: maxSeries,
		pod:       opt.Pod,
		podEvents: opt.PodEvents,
		list:      opt.List,
		host:      &host{root: opt.Root, hardware: opt.Hardware, now: opt.Now},
		families:  map[string]*prometheus.Desc{},
		sources:   sources(),
		registry:  prometheus.NewRegistry(),
		told:      newTold(opt.Kinds),
	}
	for _, f := range families(opt.Pod != nil) {
		m.families[f.name] = prometheus.NewDesc(f.name, f.help, f.labels, nil)
	}
	own := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	m.registry.MustRegister(m, m.events, m.refused, m.took, m.actions, own)
	return m
}

// Handler answers scrapes. Where the agent cannot tell its state the answer is
// status 500 with the reason.
func (m *Metrics) Handler() http.Handler {
	var recent api.Recent[[]*dto.MetricFamily]
	once := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return recent.Get(m.registry.Gather) })
	return promhttp.HandlerFor(once, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Describe is prometheus.Collector's.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range m.families {
		to <- desc
	}
}

// Collect is prometheus.Collector's.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	s := scrape{m, to}
	if err := s.all(context.Background()); err != nil {
		to <- prometheus.NewInvalidMetric(m.families["berth_agent_info"], fmt.Errorf("collect metrics: %w", err))
	}
}

// scrape is one collection.
type scrape struct {
	*Metrics
	to chan<- prometheus.Metric
}

func (s scrape) all(ctx context.Context) error {
	about, errAbout := s.view.About(ctx)
	config, errConfig := s.view.Config(ctx)
	stats, errStats := s.view.Stats(ctx)
	machine, errMachine := s.view.Machine(ctx)
	guard, errGuard := s.view.Guard(ctx)
	classes, errClasses := s.view.ClassReport(ctx)
	var list []agent.Workload
	var errList error
	if s.list != nil {
		list, errList = s.list(ctx)
	}
	if err := errors.Join(errAbout, errConfig, errStats, errMachine, errGuard, errList); err != nil {
		return err
	}
	shown := s.placed(machine, stats, list)
	if errClasses == nil { // the status page tells the error
		s.classUse(classes)
		s.network(classes, shown)
	}
	s.agent(about, config)
	s.cpus(machine)
	s.guard(guard, shown)
	s.node()
	s.signals()
	return nil
}

// gauge shows a value of one of families.
func (s scrape) gauge(name string, value float64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(s.families[name], prometheus.GaugeValue, value, labels...)
}

func (s scrape) counter(name string, value float64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(s.families[name], prometheus.CounterValue, value, labels...)
}

// truth is 1 for true.
func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (s scrape) agent(a api.About, c api.Config) {
	s.gauge("berth_agent_info", 1, a.Backend, a.Policy)
	s.gauge("berth_watched_groups", float64(a.Groups))
	seen, kept := 0, 0
	for _, c := range a.Crowded {
		seen, kept = seen+c.Seen, kept+c.Kept
	}
	s.gauge("berth_crowded_subtrees", float64(len(a.Crowded)))
	s.gauge("berth_crowded_subtree_groups", float64(seen), "seen")
	s.gauge("berth_crowded_subtree_groups", float64(kept), "kept")
	s.gauge("berth_waiting_workloads", float64(len(a.Waiting)))
	if s.podEvents != nil {
		for outcome, n := range s.podEvents() {
			s.counter("berth_pod_events_total", float64(n), outcome)
		}
	}
	s.gauge("berth_config_last_reload_successful", truth(c.Refused == ""))
	if !c.Loaded.IsZero() {
		s.gauge("berth_config_last_reload_success_timestamp_seconds", seconds(c.Loaded))
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// placed shows the workloads, and returns those that have series of their own.
func (s scrape) placed(m api.Machine, stats api.Stats, list []agent.Workload) (shown []api.Owner) {
	if !stats.Time.IsZero() {
		s.gauge("berth_last_sample_timestamp_seconds", seconds(stats.Time))
	}
	count := map[place.Class]int{}
	for i := range m.Owners {
		count[m.Owners[i].Class]++
	}
	for _, class := range place.Classes() {
		s.gauge("berth_workloads", float64(count[class]), class.String())
	}
	owners := slices.Clone(m.Owners)
	slices.SortStableFunc(owners, func(a, b api.Owner) int {
		return cmp.Compare(slices.Index(place.Classes(), a.Class), slices.Index(place.Classes(), b.Class))
	})
	shown = owners[:min(len(owners), s.workloads)]
	s.gauge("berth_hidden_workloads", float64(len(owners)-len(shown)))
	asked := make(map[string]int, len(m.Saved.Grants))
	for _, g := range m.Saved.Grants {
		asked[g.ID] = g.Request.Milli
	}
	figures := make(map[string][]api.Figure, len(stats.Workloads))
	for _, w := range stats.Workloads {
		figures[w.ID] = w.Figures
	}
	listed := make(map[string]*agent.Workload, len(list))
	for i := range list {
		listed[list[i].ID()] = &list[i]
	}
	for i := range shown {
		o := &shown[i]
		s.workload(o, asked[o.ID], figures[o.ID])
		if w := listed[o.ID]; w != nil {
			s.limits(w, s.labels(o.ID, o.Class))
		}
	}
	return shown
}

// usualPeriod is that of a quota without one (cgroup.Limits).
const usualPeriod = 100 * time.Millisecond

// limits shows what Berth limits of a workload, or of its pod, beside its classes: what is 0 it leaves
// as found, and less than that is no limit. The limit of its p99 is its own.
func (s scrape) limits(w *agent.Workload, who []string) {
	l, net := &w.Limits, &w.Spec.Bandwidth
	if w.Spec.P99Seconds > 0 {
		s.gauge("berth_workload_p99_limit_seconds", w.Spec.P99Seconds, who...)
	}
	show := func(resource, unit, device string, value float64) {
		if value > 0 {
			s.gauge("berth_workload_limit", value, slices.Concat(who, []string{resource, unit, device})...)
		}
	}
	show("cpu", "cpus", "", l.Quota.Seconds()/cmp.Or(l.Period, usualPeriod).Seconds())
	show("memory", "bytes", "", float64(l.MemoryMax))
	show("memory_high", "bytes", "", float64(l.MemoryHigh))
	show("pids", "threads", "", float64(l.PIDsMax))
	show("net_send", "bytes_per_second", "", float64(net.Send)/8)
	show("net_receive", "bytes_per_second", "", float64(net.Receive)/8)
	// An old record may have two entries of a device, of which the last says what is in force. Two series of
	// the same labels would cost all others their answer.
	devices := map[string]cgroup.IOMax{}
	for _, m := range l.IOMax {
		devices[m.Device] = m.Over(devices[m.Device])
	}
	for _, m := range devices {
		show("io_read", "bytes_per_second", m.Device, float64(m.ReadBPS))
		show("io_write", "bytes_per_second", m.Device, float64(m.WriteBPS))
		show("io_read", "operations_per_second", m.Device, float64(m.ReadIOPS))
		show("io_write", "operations_per_second", m.Device, float64(m.WriteIOPS))
	}
}

// workload shows one workload.
func (s scrape) workload(o *api.Owner, milli int, figures []api.Figure) {
	who := s.labels(o.ID, o.Class)
	s.gauge("berth_workload_cpus", float64(o.CPUs.Len()), who...)
	s.gauge("berth_workload_exclusive_cpus", float64(o.Own.Len()), who...)
	if milli > 0 {
		s.gauge("berth_workload_requested_cpus", float64(milli)/1000, who...)
	}
	devices := map[target]float64{}
	for i := range figures {
		f := &figures[i]
		t, ok := s.sources[source{f.Quantity, f.Part.Kind}]
		switch {
		case !ok:
		case f.Part.Kind == watch.Device: // added up: a host may have many
			devices[t] += f.Value
		default:
			s.figure(t, f, who)
		}
	}
	for t, sum := range devices {
		s.counter(t.family, sum, who...)
	}
}

// labels say whose a series is.
func (s scrape) labels(id string, class place.Class) []string {
	all := []string{label(id), class.String()}
	if s.pod != nil {
		n, _ := s.pod(id)
		all = append(all, n.Namespace, n.Pod, n.Container)
	}
	return all
}

// label is an id as the value of a label, which must be UTF-8; names of groups
// need not be.
func label(id string) string {
	if utf8.ValidString(id) {
		return id
	}
	return strconv.QuoteToASCII(id)
}
