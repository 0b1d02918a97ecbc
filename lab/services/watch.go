package services

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"time"

	"berth.dev/berth/lab"
	"berth.dev/berth/lab/load"
	"berth.dev/berth/watch/proc"
)

// watching is a round whose services are looked at.
type watching struct {
	run   *lab.Running
	graph *graph
	nodes map[int]int // of each CPU
	numa  bool

	ran  []map[int]time.Duration // of each server by node
	last []map[int]time.Duration // of each server by thread
}

// samples is how often it is looked at in a window where threads run.
const samples = 10

// window looks at the services over the window of the round: what their requests took, where
// they ran, and where their memory is when it is over.
func (w *watching) window(ctx context.Context, settle, window time.Duration) ([]ServiceServed, error) {
	servers := w.run.Servers()
	if err := w.run.Until(ctx, settle); err != nil {
		return nil, err
	}
	for _, s := range servers { // begins anew
		if _, err := load.TakeTimes(ctx, s.Addr); err != nil {
			return nil, err
		}
	}
	for n := range samples {
		if w.numa {
			if err := w.sample(servers); err != nil {
				return nil, err
			}
		}
		if err := w.run.Until(ctx, settle+window*time.Duration(n+1)/samples); err != nil {
			return nil, err
		}
	}
	if w.numa {
		if err := w.sample(servers); err != nil {
			return nil, err
		}
	}
	all := make([]ServiceServed, len(servers))
	for n, i := range w.graph.order {
		s := &all[n]
		s.Name = w.graph.services[i].Name
		var err error
		if s.ServiceTimes, err = load.TakeTimes(ctx, servers[n].Addr); err != nil {
			return nil, err
		}
	}
	for n := range all {
		if err := w.memory(&all[n], servers[n], n); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// sample adds the CPU time that each thread has used since the last time to the node that it
// is on now.
func (w *watching) sample(servers []lab.RunningServer) error {
	first := w.last == nil
	if first {
		w.last, w.ran = make([]map[int]time.Duration, len(servers)), make([]map[int]time.Duration, len(servers))
	}
	for n, s := range servers {
		threads, err := proc.Threads(os.DirFS("/"), s.PID)
		if err != nil {
			return err
		}
		if first {
			w.last[n], w.ran[n] = map[int]time.Duration{}, map[int]time.Duration{}
		}
		for _, t := range threads {
			if node, ok := w.nodes[t.CPU]; ok && !first {
				w.ran[n][node] += t.Ran - w.last[n][t.ID]
			}
			w.last[n][t.ID] = t.Ran
		}
	}
	return nil
}

// memory fills in where a service ran, and where its memory is.
func (w *watching) memory(to *ServiceServed, s lab.RunningServer, n int) (err error) {
	if !w.numa {
		return nil
	}
	all := time.Duration(0)
	for t := range maps.Values(w.ran[n]) {
		all += t
	}
	if all > 0 {
		to.Ran = map[int]float64{}
		for node, t := range w.ran[n] {
			to.Ran[node] = t.Seconds() / all.Seconds()
		}
	}
	if to.Bytes, err = proc.ProcessMemory(os.DirFS("/"), s.PID); errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without NUMA
	}
	return err
}

// local is the share (0-1) of a service's memory on the node that it ran on: what a read of any
// of its memory finds near. ok is false where that is not known.
func (s ServiceServed) local() (share float64, ok bool) {
	all := int64(0)
	for _, n := range s.Bytes {
		all += n
	}
	if all == 0 || len(s.Ran) == 0 {
		return 0, false
	}
	for node, ran := range s.Ran {
		share += ran * float64(s.Bytes[node]) / float64(all)
	}
	return share, true
}
