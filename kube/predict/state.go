package predict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
)

// MaxText is how long the text of a Predictor is at most, in bytes.
const MaxText = 32 << 20

// text is a Predictor in a file: what it has learnt, without its settings.
type text struct {
	Version int                   `json:"version"`
	Prod    *modelText            `json:"prod"`
	System  *modelText            `json:"system"`
	Pods    map[string]*modelText `json:"pods"`
}

// modelText is a model: weights, as multiples of least, by the number of their bucket.
type modelText struct {
	Last   time.Time     `json:"last"`
	Seen   int64         `json:"seenSeconds"`
	CPU    map[int]int64 `json:"cpu"`
	Memory map[int]int64 `json:"memory"`
}

const version = 2

// Text is what was learnt, for Restore.
func (p *Predictor) Text() ([]byte, error) {
	t := text{Version: version, Prod: textOf(&p.prod), System: textOf(&p.system), Pods: map[string]*modelText{}}
	for uid, m := range p.pods {
		t.Pods[uid] = textOf(m)
	}
	return json.Marshal(t)
}

func textOf(m *model) *modelText {
	if m.last.IsZero() {
		return nil
	}
	return &modelText{m.last, int64(m.seen / time.Second), sparse(m.cpu), sparse(m.memory)}
}

func sparse(weights []float64) map[int]int64 {
	all := map[int]int64{}
	for i, w := range weights {
		if n := int64(math.Round(w / least)); n > 0 {
			all[i] = n
		}
	}
	return all
}

// ErrClock is that samples are of the future: the clock is behind, or was ahead.
var ErrClock = errors.New("samples of the future")

// Restore takes what another Predictor had learnt by now, in place of what this one has. With an
// error, which may be ErrClock, nothing has changed.
func (p *Predictor) Restore(now time.Time, learnt []byte) error {
	if len(learnt) > MaxText {
		return fmt.Errorf("longer than %d MiB", MaxText>>20)
	}
	var t text
	lines := json.NewDecoder(bytes.NewReader(learnt))
	lines.DisallowUnknownFields()
	if err := lines.Decode(&t); err != nil {
		return err
	}
	switch {
	case t.Version != version:
		return fmt.Errorf("version %d: want %d", t.Version, version)
	case len(t.Pods) > maxPods:
		return fmt.Errorf("%d pods: want at most %d", len(t.Pods), maxPods)
	}
	next := Predictor{settings: p.settings, pods: make(map[string]*model, len(t.Pods))}
	for to, from := range map[*model]*modelText{&next.prod: t.Prod, &next.system: t.System} {
		if from == nil {
			continue
		}
		if err := from.model(to, now); err != nil {
			return err
		}
	}
	for uid, from := range t.Pods {
		m := &model{}
		if from == nil {
			return fmt.Errorf("pod %q: nothing", uid)
		}
		if err := from.model(m, now); err != nil {
			return fmt.Errorf("pod %q: %w", uid, err)
		}
		next.pods[uid] = m
	}
	*p = next
	return nil
}

func (t *modelText) model(m *model, now time.Time) (err error) {
	if t.Last.IsZero() || t.Seen < 0 || t.Seen > math.MaxInt32 {
		return fmt.Errorf("samples of %d s until %s: no model has that", t.Seen, t.Last.Format(time.RFC3339))
	}
	if t.Last.Sub(now) > old {
		return fmt.Errorf("%w: until %s", ErrClock, t.Last.Format(time.RFC3339))
	}
	m.last, m.seen = t.Last, time.Duration(t.Seen)*time.Second
	if m.cpu, err = dense(t.CPU, cpu); err == nil {
		m.memory, err = dense(t.Memory, memory)
	}
	return err
}

// most is more than the weight of all samples can be, one a minute.
const most = 1e6

func dense(weights map[int]int64, s *scale) ([]float64, error) {
	all := make([]float64, s.buckets)
	for i, n := range weights {
		if i < 0 || i >= s.buckets || n < 0 || float64(n) > most/least {
			return nil, fmt.Errorf("bucket %d: %d: no histogram has that", i, n)
		}
		all[i] = float64(n) * least
	}
	return all, nil
}
