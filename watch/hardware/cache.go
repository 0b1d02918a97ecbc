package hardware

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// cacheState says what the kernel told instead of a number.
type cacheState uint8

// The states. unavailable is what the hardware does not tell now: it counts
// something else, or has not counted for long enough. unassigned is an event
// that has no counter.
const (
	known cacheState = iota
	unavailable
	unassigned
	failed
)

// String returns the kernel's word; "" for known.
func (s cacheState) String() string { return [...]string{"", "Unavailable", "Unassigned", "Error"}[s] }

// parseValue reads a number or one of the kernel's words.
func parseValue(text []byte) (uint64, cacheState, error) {
	text = bytes.TrimSpace(text)
	for _, s := range []cacheState{unavailable, unassigned, failed} {
		if string(text) == s.String() {
			return 0, s, nil
		}
	}
	n, err := kernel.Uint(text)
	return n, known, err
}

// CacheConfig says what to read.
type CacheConfig struct {
	Tree  Resctrl
	Group ResctrlGroup
	// Subject is what the samples are about: a control group with the same threads.
	Subject watch.Subject
}

// CacheReader reads the events of a group. It is for one goroutine at a time.
type CacheReader struct {
	config CacheConfig
	dir    kernel.Dir
	events []cacheEvent
	buf    []byte
}

// cacheEvent is one file: an event of one cache or node.
type cacheEvent struct {
	file     kernel.File
	name     string
	quantity watch.Quantity
	part     watch.Part
	state    cacheState
	raw      uint64
	// base is what the file said when counting began anew: it never goes back and
	// never bridges a gap, in which the hardware may have counted for others.
	base uint64
}

// cacheFiles are the files of a cache or node, as the kernel lists them.
var cacheFiles = []struct {
	name     string
	quantity watch.Quantity
}{
	{"llc_occupancy", watch.LLCOccupancy}, {"mbm_total_bytes", watch.Bandwidth}, {"mbm_local_bytes", watch.BandwidthLocal},
}

// OpenCache opens the events of a group. Caches that come online later are not among
// them. A group that does not exist is watch.ErrGone; a tree that does not monitor
// is a kernel.NotSupportedError.
func OpenCache(c CacheConfig) (*CacheReader, error) {
	if err := c.Tree.Monitors(); err != nil {
		return nil, err
	}
	r := &CacheReader{config: c, buf: make([]byte, 64)}
	dir, err := kernel.OpenDir(filepath.Join(string(c.Tree), string(c.Group)))
	if errors.Is(err, fs.ErrNotExist) {
		err = watch.ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("open resctrl group %s: %w", c.Group, err)
	}
	r.dir = dir
	if err := r.open(); err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("open resctrl group %s: %w", c.Group, err)
	}
	return r, nil
}

func (r *CacheReader) open() error {
	caches, err := os.ReadDir(filepath.Join(string(r.config.Tree), string(r.config.Group), "mon_data"))
	if err != nil {
		return err
	}
	for _, cache := range caches {
		id, ok := numberOf(cache.Name(), "mon_L3_")
		if !ok {
			continue // another resource
		}
		for _, f := range cacheFiles {
			file, err := r.dir.Open(filepath.Join("mon_data", cache.Name(), f.name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			part := watch.Part{Kind: watch.Cache, ID: id}
			r.events = append(r.events, cacheEvent{file: file, name: f.name, quantity: f.quantity, part: part, state: unavailable})
		}
	}
	return nil
}

// numberOf takes the number from a name: "mon_L3_00".
func numberOf(name, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), ok && err == nil
}

// Read appends LLCOccupancy, Bandwidth and BandwidthLocal by cache or node,
// stamped with now. Traffic is counted from the first reading on. What the kernel
// does not tell now has no sample; after that, and after the kernel reset a
// counter, it starts anew at 0. For a group that
// vanished the error is watch.ErrGone.
func (r *CacheReader) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	start := len(to)
	for i := range r.events {
		e := &r.events[i]
		err := e.read(r.buf)
		if errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENOENT) {
			if !r.dir.Has("tasks") {
				return to[:start], fmt.Errorf("read resctrl group %s: %w", r.config.Group, watch.ErrGone)
			}
			e.state = unavailable // its cache went offline
			continue
		}
		if err != nil {
			return to[:start], fmt.Errorf("read resctrl group %s: %w", r.config.Group, err)
		}
		if e.state == known {
			to = append(to, e.sample(now, r.config.Subject))
		}
	}
	return to, nil
}

func (e *cacheEvent) sample(now watch.Time, subject watch.Subject) watch.Sample {
	subject.Part = e.part
	return watch.Sample{Time: now, Subject: subject, Quantity: e.quantity, Value: float64(e.raw - e.base)}
}

func (e *cacheEvent) read(buf []byte) error {
	text, _, err := e.file.Read(buf)
	if err != nil {
		return err
	}
	raw, state, err := parseValue(text)
	if err != nil {
		return fmt.Errorf("parse %s: %w", e.file.Path(), err)
	}
	if e.quantity.Counter() && state == known && (e.state != known || raw < e.raw) {
		e.base = raw
	}
	e.state = state
	if state == known {
		e.raw = raw
	}
	return nil
}

// Why says why the last reading had no sample of a quantity; nil if it had one.
func (r *CacheReader) Why(q watch.Quantity) error {
	var lacks *cacheEvent
	for i := range r.events {
		if e := &r.events[i]; e.quantity == q {
			if e.state == known {
				return nil
			}
			lacks = e
		}
	}
	no := &kernel.NotSupportedError{Feature: q.String()}
	switch {
	case lacks == nil:
		no.Reason = "the CPU does not monitor it"
	case lacks.state == unassigned:
		no.Reason = "no counter of the CPU is assigned to the group"
		no.Remedy = "assign one by its mbm_L3_assignments: " + lacks.name + ":*=e"
	case lacks.state == failed:
		no.Reason = "the hardware reports an error"
	default:
		no.Reason = "the hardware counts other groups now"
		no.Remedy = "use fewer groups, or mbm_assign_mode mbm_event where the CPU has it"
	}
	return no
}

// Close closes what is open.
func (r *CacheReader) Close() error {
	errs := []error{r.dir.Close()}
	for i := range r.events {
		errs = append(errs, r.events[i].file.Close())
	}
	return errors.Join(errs...)
}

// Monitored reads the groups of resctrl that monitor a control group each.
type Monitored struct {
	tree Resctrl
	of   func(ResctrlGroup) (subject watch.Subject, ok bool)
	readers
}

// OpenMonitored opens those that of names the subject of. They may come and go.
func OpenMonitored(t Resctrl, of func(ResctrlGroup) (subject watch.Subject, ok bool)) (*Monitored, error) {
	if err := t.Monitors(); err != nil {
		return nil, err
	}
	return &Monitored{t, of, readers{}}, nil
}

// Read appends what each group tells, stamped with now. Traffic is counted from when a group
// was made.
func (m *Monitored) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	groups, err := m.tree.groups()
	if err != nil {
		return to, err
	}
	m.keep(groups)
	for _, g := range groups {
		subject, ok := m.of(g)
		if !ok {
			continue
		}
		r := m.readers[g]
		if r == nil {
			if r, err = OpenCache(CacheConfig{Tree: m.tree, Group: g, Subject: subject}); err == nil {
				m.readers[g] = r
			}
		}
		if err == nil {
			to, err = r.Read(now, to)
		}
		if errors.Is(err, watch.ErrGone) {
			err = nil
			if r != nil {
				delete(m.readers, g)
				_ = r.Close()
			}
		}
		if err != nil {
			return to, err
		}
	}
	return to, nil
}

// readers are those of groups.
type readers map[ResctrlGroup]*CacheReader

// keep lets those go whose groups are not among some.
func (all readers) keep(groups []ResctrlGroup) {
	for g, r := range all {
		if !slices.Contains(groups, g) {
			delete(all, g)
			_ = r.Close()
		}
	}
}

// Close closes what is open.
func (all readers) Close() error {
	var errs []error
	for _, r := range all {
		errs = append(errs, r.Close())
	}
	clear(all)
	return errors.Join(errs...)
}

// Caches reads what all groups that allocate have together: the whole host.
type Caches struct {
	tree Resctrl
	readers
	buf []watch.Sample
}

// OpenCaches opens a host. Without monitoring it is a kernel.NotSupportedError.
func OpenCaches(t Resctrl) (*Caches, error) {
	if err := t.Monitors(); err != nil {
		return nil, err
	}
	h := &Caches{tree: t, readers: readers{}}
	if err := h.scan(); err != nil {
		_ = h.Close()
		return nil, err
	}
	return h, nil
}

// scan takes in groups that are new, and lets those go that are not there.
func (h *Caches) scan() error {
	groups, err := h.tree.controls()
	if err != nil {
		return err
	}
	h.keep(groups)
	for _, g := range groups {
		if h.readers[g] != nil {
			continue
		}
		r, err := OpenCache(CacheConfig{Tree: h.tree, Group: g})
		if errors.Is(err, watch.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		h.readers[g] = r
	}
	return nil
}

// Read appends the host's LLCOccupancy, Bandwidth and BandwidthLocal by cache,
// stamped with now. Where the kernel does not tell one of a group, the sum is not
// known and has no sample.
func (h *Caches) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	if err := h.scan(); err != nil {
		return to, err
	}
	start := len(to)
	for g, r := range h.readers {
		var err error
		h.buf, err = r.Read(now, h.buf[:0])
		if errors.Is(err, watch.ErrGone) {
			delete(h.readers, g)
			_ = r.Close()
			continue
		}
		if err != nil {
			return to[:start], err
		}
		for _, s := range h.buf {
			to = addUp(to, start, s)
		}
	}
	kept := slices.DeleteFunc(to[start:], h.incomplete)
	slices.SortFunc(kept, func(a, b watch.Sample) int {
		return cmp.Or(cmp.Compare(a.Subject.Part.ID, b.Subject.Part.ID), cmp.Compare(a.Quantity, b.Quantity))
	})
	return to[:start+len(kept)], nil
}

// addUp adds a sample to the one of the same part and quantity from start on.
func addUp(to []watch.Sample, start int, s watch.Sample) []watch.Sample {
	for i := start; i < len(to); i++ {
		if to[i].Subject == s.Subject && to[i].Quantity == s.Quantity {
			to[i].Value += s.Value
			return to
		}
	}
	return append(to, s)
}

// incomplete says whether a group did not tell its part of a sum.
func (h *Caches) incomplete(s watch.Sample) bool {
	for _, r := range h.readers {
		for i := range r.events {
			if e := &r.events[i]; e.part == s.Subject.Part && e.quantity == s.Quantity && e.state != known {
				return true
			}
		}
	}
	return false
}

// Why says why the last reading had no sample of a quantity; nil if no group was
// without.
func (h *Caches) Why(q watch.Quantity) error {
	for _, r := range h.readers {
		if err := r.Why(q); err != nil {
			return err
		}
	}
	return nil
}
