package observe

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"time"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/pods"
)

// Schema names the version of Header.
const Schema = "berth.dev/recording/v1"

// Header is the first line of a recording; a stream of samples as watch.Write
// makes it follows.
type Header struct {
	Schema string    `json:"schema"`
	Began  time.Time `json:"began,omitzero"`
	Kernel string    `json:"kernel,omitempty"`
	// Machine is nil where the hardware is not known.
	Machine *machine.Machine `json:"machine,omitempty"`
	// Groups are those that were there at the start.
	Groups  []Group  `json:"groups,omitempty"`
	Signals []Signal `json:"signals,omitempty"`
}

// Group is what is known of a control group.
type Group struct {
	// Path is as in watch.Subject.
	Path string `json:"path"`
	// Name is that of the workload or of the container in it; "" if it is neither.
	Name string `json:"name,omitempty"`
	// Pod is whose container it is; nil means none, or not known.
	Pod *pods.Name `json:"pod,omitempty"`
	// CPUs are those it may run on; empty is unknown.
	CPUs cpuset.Set `json:"cpus,omitzero"`
}

// WriteHeader begins a recording.
func WriteHeader(w io.Writer, h Header) error {
	h.Schema = Schema
	line, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// gzipped is how what gzip has compressed begins (RFC 1952).
const gzipped = "\x1f\x8b"

// ReadRecording reads the header of a recording, plain or compressed by gzip, and yields its
// samples tick by tick. A bare stream of samples has an empty header.
func ReadRecording(r io.Reader) (Header, iter.Seq2[[]watch.Sample, error], error) {
	in := bufio.NewReader(r)
	if magic, _ := in.Peek(len(gzipped)); string(magic) == gzipped {
		text, err := gzip.NewReader(in)
		if err != nil {
			return Header{}, nil, fmt.Errorf("read recording: %w", err)
		}
		in = bufio.NewReader(text)
	}
	line, err := in.ReadBytes('\n')
	if err != nil && err != io.EOF {
		return Header{}, nil, fmt.Errorf("read recording: %w", err)
	}
	var h Header
	if err := json.Unmarshal(line, &h); err != nil {
		return Header{}, nil, fmt.Errorf("read recording: line 1: %w", err)
	}
	switch h.Schema {
	case Schema:
		return h, ticks(watch.Read(in)), nil
	case "":
		return Header{}, ticks(watch.Read(io.MultiReader(bytes.NewReader(line), in))), nil
	}
	return Header{}, nil, fmt.Errorf("read recording: schema %q: this program reads %q", h.Schema, Schema)
}

// ticks joins the samples up to one that is later than all before it.
func ticks(samples iter.Seq2[watch.Sample, error]) iter.Seq2[[]watch.Sample, error] {
	return func(yield func([]watch.Sample, error) bool) {
		var tick []watch.Sample
		for s, err := range samples {
			if err != nil {
				yield(nil, err)
				return
			}
			if len(tick) > 0 && s.Time > tick[0].Time {
				if !yield(tick, nil) {
					return
				}
				tick = nil
			}
			tick = append(tick, s)
		}
		if len(tick) > 0 {
			yield(tick, nil)
		}
	}
}
