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
)

// errGone says that the input ended before the run did.
var errGone = errors.New("parent gone: input ended")

// Serve is the generator's process. It reads a Config (one line of JSON),
// opens the connections, prints {"ready":true}, reads {"start": t0} with t0 in
// CLOCK_MONOTONIC nanoseconds, runs, and prints its Report (one line of JSON).
//
// The end of the input before that means that the parent is gone: Serve returns
// an error while it prepares, and once it is ready calls gone from another
// goroutine, which should end the process.
//
// Scheduling policy and affinity are the parent's business; Serve leaves them. A
// real-time policy must not come before ready: until then Serve collects garbage,
// and the Go runtime's threads wait for each other in a way that never ends where
// they share one CPU and none is ever preempted by its equals. From ready on
// nothing is collected.
func Serve(in io.Reader, out io.Writer, gone func()) error {
	// Whichever of the two is set last is seen by whoever set it.
	var running, ended atomic.Bool // from ready to report; the input
	lines := make(chan []byte, 2)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(in)
		for scanner.Scan() {
			select {
			case lines <- bytes.Clone(scanner.Bytes()):
			default: // no further line is read
			}
		}
		ended.Store(true)
		if running.Load() {
			gone()
		}
	}()

	runtime.GOMAXPROCS(2) // the loop's and one for whoever else wakes up
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var config Config
	if err := decode(<-lines, &config); err != nil {
		return fmt.Errorf("load config: %w", err)
	}
	g, err := New(config)
	if err != nil {
		return err
	}
	defer g.Close()
	perturbed := steady()
	runtime.GC()
	percent := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(percent)

	running.Store(true)
	if ended.Load() {
		return fmt.Errorf("load: %w", errGone)
	}
	if _, err := fmt.Fprintln(out, `{"ready":true}`); err != nil {
		return fmt.Errorf("print ready: %w", err)
	}
	var start struct {
		Start int64 `json:"start"`
	}
	if err := decode(<-lines, &start); err != nil {
		return fmt.Errorf("load start: %w", err)
	}
	if start.Start <= 0 {
		return errors.New("load start: want {\"start\": nanoseconds of CLOCK_MONOTONIC}")
	}
	if err := g.Run(start.Start); err != nil {
		return err
	}
	report, err := g.Report()
	if err != nil {
		return err
	}
	report.Perturbed = append(perturbed, report.Perturbed...)
	running.Store(false)
	if err := json.NewEncoder(out).Encode(report); err != nil {
		return fmt.Errorf("print report: %w", err)
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
