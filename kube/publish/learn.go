package publish

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kube/api"
	"berth.dev/berth/kube/predict"
)

// keepEvery is how often what was learnt is written down.
const keepEvery = 10 * time.Minute

// patience is how long a file of the future waits for a clock that is behind, as after a boot.
const patience = time.Hour

// learner is a predictor with its figures and its file.
type learner struct {
	*predict.Predictor
	opt    *Batch
	began  time.Time
	last   time.Time // of the figures
	kept   time.Time
	unkept error // of the last time
	unread error // why the file that is there was not taken
}

// newLearner reads what was learnt before. If that cannot be read, the learner begins anew, and
// says so.
func newLearner(b *Batch, now time.Time) (*learner, error) {
	s := predict.Settings{ColdStart: time.Duration(b.Strategy.MidColdStart) * time.Minute, Margin: b.Strategy.MidMargin}
	l := &learner{Predictor: predict.New(s), opt: b, began: now, kept: now}
	if b.Learnt == "" {
		return l, nil
	}
	l.unread = l.restore(now)
	if errors.Is(l.unread, predict.ErrClock) {
		return l, fmt.Errorf("%w; it waits %s for the clock", l.unread, patience)
	}
	if l.unread != nil {
		return l, fmt.Errorf("%w; it is learnt anew, and the file becomes %s", l.unread, l.aside())
	}
	return l, nil
}

// restore takes what is in the file, if there is one.
func (l *learner) restore(now time.Time) error {
	err := kernel.CheckPrivateDir(filepath.Dir(l.opt.Learnt))
	var text []byte
	if err == nil {
		text, err = kernel.ReadPrivateFile(l.opt.Learnt)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = l.Restore(now, text)
	}
	if err != nil {
		return fmt.Errorf("what was learnt of prod pods, in %s: %w", l.opt.Learnt, err)
	}
	return nil
}

// aside is where a file is moved that could not be read.
func (l *learner) aside() string { return l.opt.Learnt + ".unread" }

// learn learns from the last minute, and writes down what it knows now and then. Its error is why
// the file has not what was learnt.
func (l *learner) learn(now time.Time, pods []*api.Pod) error {
	if l.waits(now) {
		l.unread = l.restore(now)
		l.unkept = l.unread
	}
	if report, ok := l.opt.Meter.Report(predict.Every); ok && report.At.After(l.last) {
		l.Learn(now, report.System(), counted(pods, &report))
		l.last = report.At
	}
	if now.Sub(l.kept) >= keepEvery {
		l.kept, l.unkept = now, l.keep(now)
	}
	return l.unkept
}

// waits reports whether the clock may yet be put right, after which the file can be read. A
// clock that is set changes no difference of times of one process.
func (l *learner) waits(now time.Time) bool {
	return errors.Is(l.unread, predict.ErrClock) && now.Sub(l.began) < patience
}

// keep writes down what is known. A file that was not taken stays, under another name.
func (l *learner) keep(now time.Time) error {
	if l.opt.Learnt == "" {
		return nil
	}
	if l.waits(now) {
		return l.unread
	}
	text, err := l.Text()
	if err == nil {
		err = kernel.MakePrivateDir(filepath.Dir(l.opt.Learnt))
	}
	if err == nil && l.unread != nil {
		if err = os.Rename(l.opt.Learnt, l.aside()); err == nil || errors.Is(err, fs.ErrNotExist) {
			l.unread, err = nil, nil
		}
	}
	if err == nil {
		err = kernel.ReplacePrivateFile(l.opt.Learnt, text)
	}
	if err != nil {
		return fmt.Errorf("keep what was learnt of prod pods: %w", err)
	}
	return nil
}
