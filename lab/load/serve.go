package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// maxLine bounds a line of the parent's: a Config with a path for each tile takes 1 MiB.
const maxLine = 16 << 20

// errGone says that the input ended before the run did.
var errGone = errors.New("parent gone: input ended")

// command is a line of the parent's: a Config, or how long to Drain at most.
type command struct {
	Config
	Drain time.Duration `json:"drain,omitempty"`
}

// Drained answers a command to drain.
type Drained struct {
	// Left is how many requests the service still has not answered.
	Left int `json:"left"`
}

// Serve is the generator's process. It reads a Config (one line of JSON),
// opens the connections, prints {"ready":true}, reads {"start": t0} with t0 in
// CLOCK_MONOTONIC nanoseconds, runs, and prints its Report (one line of JSON). Then it
// goes on with the next line: {"drain": nanoseconds}, answered by Drained, or the
// Config of a further run over the same connections.
//
// The end of the input between runs is a normal end. At any other time it means that the
// parent is gone: Serve returns an error while it prepares, and once it is ready
// calls gone from another goroutine, which should end the process.
//
// Scheduling policy and affinity are the parent's business; Serve leaves them. A
// real-time policy must not come before ready, and must have been taken back before the
// next Config: until it is ready Serve collects garbage, and the Go runtime's threads
// wait for each other in a way that never ends where they share one CPU and none is ever
// preempted by its equals. From ready on nothing is collected.
func Serve(in io.Reader, out io.Writer, gone func()) error {
	s := &served{lines: make(chan []byte, 2), out: json.NewEncoder(out)}
	go s.read(in, gone)
	runtime.GOMAXPROCS(2) // the loop's and one for whoever else wakes up
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	percent := debug.SetGCPercent(-1) // but when it prepares
	defer debug.SetGCPercent(percent)
	var g *Generator
	defer func() {
		if g != nil {
			g.Close()
		}
	}()
	for {
		line := <-s.lines
		if len(line) == 0 && g != nil {
			return nil
		}
		var c command
		if err := decode(line, &c); err != nil {
			return fmt.Errorf("load config: %w", err)
		}
		var err error
		switch {
		case c.Drain > 0 && g != nil:
			err = s.drain(g, c.Drain)
		case c.Drain > 0: // wrk leaves nothing under way
			err = s.say("drained", Drained{})
		case c.Wrk != nil:
			err = s.wrk(c.Config)
		case g == nil:
			if g, err = New(c.Config); err == nil {
				s.perturbed = steady()
				err = s.run(g)
			}
		default:
			if err = g.Prepare(c.Config); err == nil {
				err = s.run(g)
			}
		}
		if err != nil {
			return err
		}
	}
}

// served is a generator's process.
type served struct {
	lines chan []byte
	out   *json.Encoder
	// Whichever of the two is set last is seen by whoever set it.
	running, ended atomic.Bool // from ready to report; the input
	perturbed      []string
}

// read reads lines, and notices their end whatever the generator is doing.
func (s *served) read(in io.Reader, gone func()) {
	defer close(s.lines)
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		select {
		case s.lines <- bytes.Clone(scanner.Bytes()):
		default: // no further line is read
		}
	}
	s.ended.Store(true)
	if s.running.Load() {
		gone()
	}
}

func (s *served) drain(g *Generator, limit time.Duration) error {
	left, err := g.Drain(limit)
	if err != nil {
		return err
	}
	return s.say("drained", Drained{left})
}

// begin says that a run is ready, and returns the instant at which it is to begin.
func (s *served) begin() (origin int64, err error) {
	s.running.Store(true)
	if s.ended.Load() {
		return 0, fmt.Errorf("load: %w", errGone)
	}
	if err := s.say("ready", struct {
		Ready bool `json:"ready"`
	}{true}); err != nil {
		return 0, err
	}
	var start struct {
		Start int64 `json:"start"`
	}
	if err := decode(<-s.lines, &start); err != nil {
		return 0, fmt.Errorf("load start: %w", err)
	}
	if start.Start <= 0 {
		return 0, errors.New("load start: want {\"start\": nanoseconds of CLOCK_MONOTONIC}")
	}
	return start.Start, nil
}

// run runs what was prepared.
func (s *served) run(g *Generator) error {
	runtime.GC()
	origin, err := s.begin()
	if err != nil {
		return err
	}
	if err := g.Run(origin); err != nil {
		return err
	}
	report, err := g.Report()
	if err != nil {
		return err
	}
	report.Perturbed = append(s.perturbed[:len(s.perturbed):len(s.perturbed)], report.Perturbed...)
	s.running.Store(false)
	return s.say("report", report)
}

func (s *served) say(what string, line any) error {
	if err := s.out.Encode(line); err != nil {
		return fmt.Errorf("print %s: %w", what, err)
	}
	return nil
}

// decode reads one line of JSON, strictly; no line at all is errGone.
func decode(line []byte, into any) error {
	if len(line) == 0 {
		return errGone
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if decoder.More() {
		return errors.New("more than one value on the line")
	}
	return nil
}
