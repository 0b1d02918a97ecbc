package guarded

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"berth.dev/berth/guard"
	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/internal/netlink"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab"
)

// Child is the guard as a process that a run of the lab has beside tenant and neighbour, in their
// network, and with mounts of its own. It reads a lab.GuardConfig and then lab.GuardOrders, and
// answers each, until its input ends. Then it takes back what it has changed.
func Child(ctx context.Context, in io.Reader, out io.Writer) error {
	return serve(in, out, func(cfg lab.GuardConfig) (failing, error) {
		if err := netlink.ShowDevices(); err != nil {
			return nil, err
		}
		opt := guard.Options{Machine: cfg.Machine, Window: time.Duration(cfg.Window)}
		return open(ctx, time.Now(), control.Observe, cfg.Groups, opt)
	})
}

// failing is a guard that tells of its errors, too.
type failing interface {
	watcher
	failures() []failure
}

// serve answers with a guard that is opened for it.
func serve(in io.Reader, out io.Writer, open func(lab.GuardConfig) (failing, error)) (err error) {
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	var cfg lab.GuardConfig
	if err := orders.Decode(&cfg); err != nil {
		return fmt.Errorf("guard of the lab: read its config: %w", err)
	}
	w, err := open(cfg)
	if lacks := lacking(err); lacks != nil {
		return answers.Encode(lab.GuardAnswer{Lacks: lacks})
	}
	if err != nil {
		return fmt.Errorf("guard of the lab: %w", err)
	}
	defer func() { err = errors.Join(err, w.close()) }()
	answer, began := lab.GuardAnswer{}, time.Duration(0)
	for {
		if err := answers.Encode(answer); err != nil {
			return err
		}
		var order lab.GuardOrder
		if err := orders.Decode(&order); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("guard of the lab: read an order: %w", err)
		}
		now, err := w.now()
		if err != nil {
			return err
		}
		_, events := w.take()
		mode := control.Enforce
		if answer = (lab.GuardAnswer{}); order.Act {
			began = now
		} else {
			mode, answer.Acts = control.Observe, acts(events, w.failures(), began)
		}
		if err := w.SetMode(context.Background(), mode); err != nil {
			return err
		}
	}
}

// acts are the events of the guard since an instant, at which it was told to act, and its errors,
// those of before as well.
func acts(events []Event, failed []failure, since time.Duration) (all []lab.Act) {
	for _, f := range failed {
		all = append(all, lab.Act{At: (f.at - since).Seconds(), Failed: true, What: f.err.Error()})
	}
	for _, e := range events {
		if e.Mode == control.Enforce {
			all = append(all, lab.Act{At: e.At - since.Seconds(), Applied: e.Outcome == control.Applied, What: e.Words})
		}
	}
	slices.SortStableFunc(all, func(a, b lab.Act) int { return cmp.Compare(a.At, b.At) })
	return all
}

// lacking says why this host can have no guard; nil of other errors.
func lacking(err error) *kernel.NotSupportedError {
	const feature = "a guard of the lab's own"
	var no *kernel.NotSupportedError
	var busy *actuate.BusyError
	switch {
	case errors.As(err, &no):
		return no
	case errors.As(err, &busy):
		return &kernel.NotSupportedError{Feature: feature, Reason: busy.Error(), Remedy: "end it for the time of the run"}
	case errors.Is(err, fs.ErrPermission):
		return &kernel.NotSupportedError{Feature: feature, Reason: err.Error(), Remedy: "run as root"}
	}
	return nil
}
