package cli

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/program"
	"berth.dev/berth/lab/stats"
)

type probeFlags struct {
	length  time.Duration
	clients int
	rate    float64
	ask     string
}

func labProbeCommand() *cobra.Command {
	var f probeFlags
	cmd := &cobra.Command{
		Use:   "probe URL",
		Short: "Load a service that runs, and say its requests per second and response times",
		Long: `Loads a service that runs already, and says how many requests per second it answers and
how long they take: for a look before a change and after it. Nothing of the service is
changed, and nothing is stored.

--clients ask in turn, each again when it was answered. What nobody asked while the
service stalled is not in the figures, so that a p99 is better than what users on a
schedule see. With --rate requests are due on a schedule whatever the answers do, and
a response time counts from the instant at which its request was due.

The generator runs on this host, one thread that competes with the service and its
neighbours for the CPUs, as wrk -t1 does. Beside a CPU hog one run of either may answer
twice as much as the next one: take several with the same flags, before and after in
turn. berth lab does that, and tells chance from effect.

Exit status: 0; 1 if it cannot be asked, or no request was answered; 2 for wrong usage;
130 if it was interrupted.`,
		Example: `  berth lab probe http://127.0.0.1/
  berth lab probe http://127.0.0.1:8080/item/{1-1000} --rate 500 --for 30s
  berth lab probe redis://127.0.0.1 --ask 'GET key:{0-999}'`,
		Args: argumentCount(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.DurationVar(&f.length, "for", 10*time.Second, "`time` to ask, 1s to 1m")
	fs.IntVar(&f.clients, "clients", 16, "connections, each of which asks again when it was answered")
	fs.Float64Var(&f.rate, "rate", 0, "requests per second on a schedule, over --clients connections")
	fs.StringVar(&f.ask, "ask", "", "what it is asked, as in 'GET key:{0-999}' or 'SELECT 1': a `request` with a number of that range")
	outputFlag(cmd, "text or json")
	return cmd
}

const (
	probeSettle = 500 * time.Millisecond // before the figures
	probeGrace  = 2 * time.Second        // for answers after the end
	// mostAsked is how many requests per second can be asked, probeRoom how many in all: each
	// takes 72 bytes.
	mostAsked = 100_000
	probeRoom = 3_000_000
)

// probed is what a service answered. Response times are in microseconds; those that are a
// lower bound, as requests failed or were never answered, are in atLeast.
type probed struct {
	URL       string             `json:"url"`
	Seconds   float64            `json:"seconds"`
	Clients   int                `json:"clients"`
	Rate      float64            `json:"rate,omitempty"`
	PerSecond float64            `json:"requestsPerSecond"`
	Times     map[string]float64 `json:"responseMicroseconds"`
	AtLeast   []string           `json:"atLeast,omitempty"`
	Asked     int                `json:"asked"`
	Failed    int                `json:"failed"`
	// Unanswered requests were under way when the grace was over.
	Unanswered int            `json:"unanswered"`
	Errors     map[string]int `json:"errors,omitempty"`
	// Late is by how much the generator itself was late with 1 in 100 requests, in
	// microseconds; absent without a schedule.
	Late  *float64 `json:"generatorLateMicroseconds,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// probedTimes are the percentiles that are told.
var probedTimes = []struct {
	name string
	p    float64
}{{"p50", 50}, {"p95", 95}, {"p99", 99}}

func (f *probeFlags) run(cmd *cobra.Command, url string) error {
	target, err := program.Probe(url, f.ask)
	most := math.Floor(min(mostAsked, probeRoom/(probeSettle+f.length).Seconds()))
	switch {
	case err != nil:
		return exitStatus{exitUsage, err}
	case f.length < time.Second || f.length > time.Minute:
		return exitStatus{exitUsage, fmt.Errorf("--for %s: want 1s to 1m", f.length)}
	case f.clients < 1 || f.clients > 1024:
		return exitStatus{exitUsage, fmt.Errorf("--clients %d: want 1 to 1024", f.clients)}
	case cmd.Flags().Changed("rate") && !(f.rate >= 1 && f.rate <= most):
		return exitStatus{exitUsage, fmt.Errorf("--rate %g: want 1 to %.0f requests per second for %s", f.rate, most, f.length)}
	}
	target = program.Secret(target)
	if err := target.Check(cmd.Context()); cmd.Context().Err() != nil {
		return exitStatus{code: exitInterrupted}
	} else if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	c := load.Config{Target: target, Rate: f.rate, Seed: 1, Connections: f.clients, Settle: probeSettle, Window: f.length, Grace: probeGrace}
	if f.rate == 0 {
		c.Rate, c.Clients = most, f.clients
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "asking for %s\n", f.length)
	type outcome struct {
		report load.Report
		err    error
	}
	ended := make(chan outcome, 1)
	go func() {
		r, err := loadOnce(c)
		ended <- outcome{r, err}
	}()
	select {
	case <-cmd.Context().Done():
		return exitStatus{code: exitInterrupted}
	case o := <-ended:
		if o.err != nil {
			return fmt.Errorf("ask %s: %w", url, o.err)
		}
		p, err := f.sum(url, o.report)
		if err == nil {
			err = show(cmd, p, p.text)
		}
		if err == nil && o.report.Done == 0 {
			err = fmt.Errorf("ask %s: no request was answered", url)
		}
		return err
	}
}

// loadOnce asks in this process: the loop keeps a thread of its own.
func loadOnce(c load.Config) (r load.Report, err error) {
	g, err := load.New(c)
	if err != nil {
		return r, err
	}
	var now unix.Timespec
	if err = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err == nil {
		err = g.Run(now.Nano())
	}
	if err == nil {
		r, err = g.Report()
	}
	return r, errors.Join(err, g.Close())
}

func (f *probeFlags) sum(url string, r load.Report) (*probed, error) {
	var response, lag []stats.Distribution
	censored := 0
	for _, s := range r.Seconds {
		d, err := stats.Decode(s.Response)
		if err != nil {
			return nil, err
		}
		late, err := stats.Decode(s.Lag)
		if err != nil {
			return nil, err
		}
		response, lag, censored = append(response, d), append(lag, late), censored+s.Censored
	}
	p := &probed{
		URL: url, Seconds: f.length.Seconds(), Clients: f.clients, Rate: f.rate,
		PerSecond: float64(r.DoneInWindow) / f.length.Seconds(), Times: map[string]float64{},
		Asked: r.Offered, Failed: r.Failed, Unanswered: r.Unfinished, Errors: r.Errors,
	}
	p.Notes = slices.DeleteFunc(r.Perturbed, func(note string) bool {
		return !strings.Contains(note, "lost connection") && !strings.Contains(note, "no room")
	})
	all := stats.Merge(response...)
	for _, t := range probedTimes {
		if us, ok := all.Quantile(t.p); ok {
			p.Times[t.name] = us
			if stats.AtLeast(censored, r.Offered, t.p) {
				p.AtLeast = append(p.AtLeast, t.name)
			}
		}
	}
	if late, ok := stats.Merge(lag...).Quantile(99); ok && f.rate > 0 {
		p.Late = &late
	}
	return p, nil
}

func (p *probed) text() string {
	heads, cells := []string{"REQUESTS/S"}, []string{strconv.FormatFloat(p.PerSecond, 'f', 0, 64)}
	for _, t := range probedTimes {
		text := absent
		if us, ok := p.Times[t.name]; ok {
			text = lab.Latency(us)
			if slices.Contains(p.AtLeast, t.name) {
				text = "≥" + text
			}
		}
		heads, cells = append(heads, strings.ToUpper(t.name)), append(cells, text)
	}
	heads, cells = append(heads, "FAILED"), append(cells, strconv.Itoa(p.Failed+p.Unanswered))
	var b strings.Builder
	plain.Columns(&b, [][]string{heads, cells}, 0, 1, 2, 3, 4)
	for _, text := range slices.Sorted(maps.Keys(p.Errors)) {
		fmt.Fprintf(&b, "failed: %s (%d)\n", plain.Line(text), p.Errors[text])
	}
	if p.Unanswered > 0 {
		fmt.Fprintf(&b, "%d had no answer yet %s after the end\n", p.Unanswered, probeGrace)
	}
	if p.Late != nil && *p.Late > 1000 {
		fmt.Fprintf(&b, "the generator itself was late by %s with 1 in 100 requests: the figures are no better than that\n", lab.Latency(*p.Late))
	}
	for _, note := range p.Notes {
		b.WriteString(plain.Line(note) + "\n")
	}
	return b.String()
}
