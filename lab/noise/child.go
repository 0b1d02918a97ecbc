package noise

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"berth.dev/berth/kernel"
)

// Ready is the one line of JSON that a neighbour prints once its memory is
// there and its threads are about to work.
type Ready struct {
	Ready bool `json:"ready"` // always true
	// Bytes is the working set of one thread.
	Bytes int64 `json:"bytes,omitempty"`
	// Note says why the working set is smaller than the kernel wants.
	Note string `json:"note,omitempty"`
}

// heapLimit is where the garbage collector wakes up after all. Only fork
// allocates while it works, a few hundred bytes per process.
const heapLimit = 64 * mib

// Child is a neighbour, in a process of its own: it reads one line of JSON, a
// Config, from stdin, allocates and touches its memory, prints Ready to stdout
// and works until stdin ends or ctx is done. Work goes to counters, a file made
// by NewCounters in the parent, which Child closes.
//
// It sets the garbage collector and GOMAXPROCS for the whole process, one
// processor more than it has threads, so that the end of stdin is noticed
// without a thread of the kernel giving way. All the same a neighbour that is
// starved or frozen cannot act on it. A parent should set PR_SET_PDEATHSIG to
// SIGKILL, which takes effect without the neighbour's help; if it is killed, the
// end of stdin then merely comes second.
func Child(ctx context.Context, stdin io.Reader, stdout io.Writer, counters *os.File) error {
	in := bufio.NewReaderSize(stdin, maxConfigLine)
	cfg, err := readConfig(in)
	if err != nil {
		return errors.Join(err, counters.Close())
	}
	mem, err := mapCounters(counters, cfg.Threads)
	if err != nil {
		return err
	}
	// Where the available memory is unknown, the working set has no limit.
	memory, _ := kernel.ReadMemory(os.DirFS("/"))
	size := Plan(cfg, memory.Available)

	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(heapLimit)
	threads := cfg.Threads
	if cfg.Kernel == "switch" {
		threads *= 2 // a partner each
	}
	runtime.GOMAXPROCS(threads + 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in) // its end is all that matters
		cancel()
	}()
	return run(ctx, cfg, size.Bytes, counterLines(mem), func() error {
		return json.NewEncoder(stdout).Encode(Ready{Ready: true, Bytes: size.Bytes, Note: size.Note})
	})
}

// maxConfigLine bounds what a parent may send.
const maxConfigLine = 64 * kib

func readConfig(in *bufio.Reader) (Config, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return Config{}, fmt.Errorf("read neighbour's configuration: no whole line: %w", err)
	}
	cfg, err := parseConfig(line)
	if err != nil {
		return Config{}, fmt.Errorf("read neighbour's configuration: %w", err)
	}
	return cfg, nil
}

func parseConfig(line []byte) (Config, error) {
	var cfg Config
	if err := json.Unmarshal(line, &cfg); err != nil {
		return Config{}, err
	}
	if err := cfg.Validate(); err != nil {
		return Config{}, err
	}
	if cfg.Kernel == Program {
		return Config{}, fmt.Errorf("kernel %s: it is no kernel of this process", Program)
	}
	return cfg, nil
}

// worker is one thread's kernel.
type worker interface {
	// step does one chunk of work, at most 100 µs of it where the kernel can be
	// cut so fine, and returns how much it was in the kernel's unit.
	step() (work uint64, err error)
	close() error
}

func newWorker(c Config, bytes int64, seed uint64) (worker, error) {
	k, _ := lookup(c.Kernel)
	return k.start(c, bytes, seed)
}

// workers are the threads of a neighbour.
type workers struct {
	cfg      Config
	bytes    int64
	clock    clock
	counters []counter
	begin    chan struct{} // closed when all may start
	stop     atomic.Bool
	built    chan error // one per thread
	ended    chan error // one per thread
}

// run builds all threads, calls ready, and lets them work until ctx is done or
// one fails. When it returns, none runs any more.
func run(ctx context.Context, cfg Config, bytes int64, counters []counter, ready func() error) error {
	clock, err := newClock()
	if err != nil {
		return err
	}
	c := &workers{
		cfg: cfg, bytes: bytes, clock: clock, counters: counters,
		begin: make(chan struct{}),
		built: make(chan error, cfg.Threads),
		ended: make(chan error, cfg.Threads),
	}
	for i := range cfg.Threads {
		go c.thread(i)
	}
	for range cfg.Threads {
		err = errors.Join(err, <-c.built)
	}
	if err == nil {
		err = ready()
	}
	c.stop.Store(err != nil)
	close(c.begin)
	left := cfg.Threads
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-c.ended: // only a failure ends a thread by itself
			left--
		}
	}
	c.stop.Store(true)
	for range left {
		err = errors.Join(err, <-c.ended)
	}
	return err
}

// thread is the life of one thread. It keeps its OS thread, which ends with it.
func (c *workers) thread(i int) {
	runtime.LockOSThread()
	err := sharpenTimer()
	var w worker
	if err == nil {
		w, err = newWorker(c.cfg, c.bytes, threadSeed(c.cfg.Seed, i))
	}
	c.built <- err
	<-c.begin
	if err != nil {
		c.ended <- nil // said already
		return
	}
	err = c.work(w, newPacer(c.cfg.Intensity, i, c.cfg.Threads), &c.counters[i])
	c.ended <- errors.Join(err, w.close())
}

// threadSeed sets the threads' random numbers far apart.
func threadSeed(seed uint64, thread int) uint64 { return seed + uint64(thread)*0x9e3779b97f4a7c15 }

// work steps w until told to stop.
func (c *workers) work(w worker, p pacer, done *counter) error {
	var total uint64
	var until time.Duration // the end of the current slice
	for !c.stop.Load() {
		if p.period > 0 {
			if now := c.clock.now(); now >= until {
				working, next := p.at(now)
				if !working {
					if err := c.clock.sleep(next); err != nil {
						return err
					}
					continue
				}
				until = next
			}
		}
		n, err := w.step()
		if err != nil {
			return err
		}
		total += n
		done.work.Store(total)
	}
	return nil
}
