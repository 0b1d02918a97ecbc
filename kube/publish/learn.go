package publish

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/api"
	"berth.dev/berth/kube/predict"
)

// keepEvery is how often what was learnt is written down.
const keepEvery = 10 * time.Minute

// learner is a predictor with its figures and its file.
type learner struct {
	*predict.Predictor
	opt    *Batch
	last   time.Time // of the figures
	kept   time.Time
	unkept error // of the last time
}

// newLearner reads what was learnt before. If that cannot be read, the learner begins anew, and
// says so.
func newLearner(b *Batch, now time.Time) (*learner, error) {
	s := predict.Settings{ColdStart: time.Duration(b.Strategy.MidColdStart) * time.Minute, Margin: b.Strategy.MidMargin}
	l := &learner{Predictor: predict.New(s), opt: b, kept: now}
	if b.Learnt == "" {
		return l, nil
	}
	err := kernel.CheckPrivateDir(filepath.Dir(b.Learnt))
	var text []byte
	if err == nil {
		text, err = kernel.ReadPrivateFile(b.Learnt)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = l.Restore(now, text)
	}
	if err != nil {
		return l, fmt.Errorf("what was learnt of prod pods, in %s: %w; it is learnt anew", b.Learnt, err)
	}
	return l, nil
}

// learn learns from the last minute, and writes down what it knows now and then. Its error is why
// the file has not what was learnt.
func (l *learner) learn(now time.Time, pods []*api.Pod) error {
	if report, ok := l.opt.Meter.Report(predict.Every); ok && report.At.After(l.last) {
		l.Learn(now, report.System(), counted(pods, &report))
		l.last = report.At
	}
	if now.Sub(l.kept) >= keepEvery {
		l.kept, l.unkept = now, l.keep()
	}
	return l.unkept
}

// keep writes down what is known.
func (l *learner) keep() error {
	if l.opt.Learnt == "" {
		return nil
	}
	text, err := l.Text()
	if err == nil {
		err = kernel.MakePrivateDir(filepath.Dir(l.opt.Learnt))
	}
	if err == nil {
		err = kernel.ReplacePrivateFile(l.opt.Learnt, text)
	}
	if err != nil {
		return fmt.Errorf("keep what was learnt of prod pods: %w", err)
	}
	return nil
}
