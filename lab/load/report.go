package load

import (
	"bufio"
	"io"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"berth.dev/berth/lab/stats"
)

// span is the window and the instant at which the generator gave up waiting.
type span struct{ start, end, closed int64 }

// answered says whether a good answer to a request arrived in the window.
func (s span) answered(r Result) bool { return r.Err == "" && r.Done >= s.start && r.Done < s.end }

// until is an instant that came, or else when the generator gave up waiting for it.
func (s span) until(t int64) int64 {
	if t == 0 {
		return s.closed
	}
	return t
}

// summarize counts the requests of a run; settle are those due before the window.
func summarize(settle, window []Result, s span) (Report, error) {
	report := Report{WindowStart: s.start, WindowEnd: s.end, Offered: len(window)}
	for _, r := range settle {
		if s.answered(r) {
			report.DoneInWindow++
		}
	}
	for _, r := range window {
		switch {
		case r.Done == 0:
			report.Unfinished++
		case r.Err == "":
			report.Done++
		default:
			report.Failed++
			if report.Errors == nil {
				report.Errors = make(map[string]int)
			}
			report.Errors[r.Err]++
		}
		if s.answered(r) {
			report.DoneInWindow++
		}
	}
	err := report.split(window, s)
	return report, err
}

// spread counts the requests of each of several servers.
func (report *Report) spread(window []Result, servers int) {
	if servers < 2 {
		return
	}
	report.Servers = make([]int, servers)
	for i, r := range window {
		if r.Seen == 0 {
			continue // nobody has got it
		}
		report.Servers[r.Server]++
		if i > 0 && window[i-1].Seen != 0 && window[i-1].Server == r.Server {
			report.Same++
		}
	}
}

// each is what every server got of a run; requests that no server has got are left out.
func each(settle, window []Result, servers int, s span) ([]Served, error) {
	all := make([]Served, servers)
	for _, r := range settle {
		if s.answered(r) {
			all[r.Server].DoneInWindow++
		}
	}
	response := stats.NewHistogram()
	for i := range all {
		to := &all[i]
		response.Reset()
		for _, r := range window {
			if r.Seen == 0 || int(r.Server) != i {
				continue
			}
			to.Offered++
			if s.answered(r) {
				to.DoneInWindow++
			}
			if r.Done == 0 || r.Err != "" {
				to.Censored++
			} else {
				to.Done++
			}
			if err := response.RecordValue(micros(s.until(r.Done) - r.Due)); err != nil {
				return nil, err
			}
		}
		text, err := stats.Encode(response)
		if err != nil {
			return nil, err
		}
		to.Response = text
	}
	return all, nil
}

// split fills in Seconds; window is in order of Due.
func (report *Report) split(window []Result, s span) error {
	phases := newPhases()
	for start := s.start; start < s.end; start += int64(time.Second) {
		n := 0
		for n < len(window) && window[n].Due < start+int64(time.Second) {
			n++
		}
		second, err := phases.second(window[:n], s)
		if err != nil {
			return err
		}
		report.Seconds = append(report.Seconds, second)
		window = window[n:]
	}
	return nil
}

// phases are the histograms of one second, used again for the next.
type phases struct{ response, service, queue, lag *hdrhistogram.Histogram }

func newPhases() *phases {
	return &phases{stats.NewHistogram(), stats.NewHistogram(), stats.NewHistogram(), stats.NewHistogram()}
}

func (p *phases) second(results []Result, s span) (Second, error) {
	for _, h := range []*hdrhistogram.Histogram{p.response, p.service, p.queue, p.lag} {
		h.Reset()
	}
	second := Second{Offered: len(results)}
	for _, r := range results {
		if r.Done == 0 || r.Err != "" {
			second.Censored++
		}
		if err := p.record(r, s); err != nil {
			return Second{}, err
		}
	}
	for _, part := range []struct {
		to   *string
		from *hdrhistogram.Histogram
	}{{&second.Response, p.response}, {&second.Service, p.service}, {&second.Queue, p.queue}, {&second.Lag, p.lag}} {
		encoded, err := stats.Encode(part.from)
		if err != nil {
			return Second{}, err
		}
		*part.to = encoded
	}
	return second, nil
}

// record enters each phase that r reached: one that it did not leave, until all was closed.
func (p *phases) record(r Result, s span) error {
	err := p.response.RecordValue(micros(s.until(r.Done) - r.Due))
	if err == nil {
		err = p.lag.RecordValue(micros(s.until(r.Seen) - r.Due))
	}
	if err == nil && r.Seen != 0 {
		err = p.queue.RecordValue(micros(s.until(r.Sent) - r.Seen))
	}
	if err == nil && r.Sent != 0 {
		err = p.service.RecordValue(micros(s.until(r.Done) - r.Sent))
	}
	return err
}

// micros rounds nanoseconds to what a histogram holds.
func micros(ns int64) int64 { return min(max((ns+500)/1000, 0), stats.MaxLatency) }

const rawHeader = "seq,due_ns,seen_ns,sent_ns,done_ns,error\n"

// writeRaw writes a line per request; instants are relative to the window's
// start, and empty where something did not happen.
func writeRaw(w io.Writer, window []Result, start int64) error {
	out := bufio.NewWriterSize(w, 64<<10)
	if _, err := out.WriteString(rawHeader); err != nil {
		return err
	}
	var line []byte
	for _, r := range window {
		line = strconv.AppendInt(line[:0], int64(r.Seq), 10)
		line = append(line, ',')
		line = strconv.AppendInt(line, r.Due-start, 10)
		for _, t := range []int64{r.Seen, r.Sent, r.Done} {
			line = append(line, ',')
			if t != 0 {
				line = strconv.AppendInt(line, t-start, 10)
			}
		}
		line = append(line, ',')
		switch {
		case r.Done == 0:
			line = append(line, "unfinished"...)
		case r.Err != "":
			line = append(append(append(line, '"'), r.Err...), '"') // no text has a quote in it
		}
		line = append(line, '\n')
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return out.Flush()
}
