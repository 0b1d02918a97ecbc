package watch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
)

// Write appends samples to a stream: one line of JSON each. A value that is not
// finite is an error.
func Write(w io.Writer, samples []Sample) error {
	encoder := json.NewEncoder(w)
	for _, s := range samples {
		if err := encoder.Encode(s); err != nil {
			return fmt.Errorf("write sample of %s: %w", s.Subject, err)
		}
	}
	return nil
}

// MaxLine is the longest line that Read takes, in bytes.
const MaxLine = 1 << 16

// Read yields the samples of a stream that Write made, in their order. It ends
// with the first error. An unknown field or quantity is one: the stream is of a
// newer version then.
func Read(r io.Reader) iter.Seq2[Sample, error] {
	return func(yield func(Sample, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, MaxLine)
		n := 0
		for lines.Scan() {
			n++
			s, err := parse(lines.Bytes())
			if err != nil {
				yield(Sample{}, fmt.Errorf("read sample: line %d: %w", n, err))
				return
			}
			if !yield(s, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(Sample{}, fmt.Errorf("read sample: line %d: %w", n+1, err))
		}
	}
}

func parse(line []byte) (Sample, error) {
	// Pointers tell what is absent from what is zero.
	var s struct {
		Time     *Time     `json:"time"`
		Subject  *Subject  `json:"subject"`
		Quantity *Quantity `json:"quantity"`
		Value    *float64  `json:"value"`
		By       string    `json:"by"`
	}
	if err := strict(line, &s); err != nil {
		return Sample{}, err
	}
	if s.Time == nil || s.Subject == nil || s.Quantity == nil || s.Value == nil {
		return Sample{}, errors.New("time, subject, quantity or value is missing")
	}
	return Sample{Time: *s.Time, Subject: *s.Subject, Quantity: *s.Quantity, Value: *s.Value, By: s.By}, nil
}

func strict(line []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}
