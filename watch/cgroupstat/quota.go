package cgroupstat

import (
	"bytes"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
	"berth.dev/berth/watch"
)

// limit is what the counters of a CPU limit told last. Who tells them changes as the controller is
// turned on and off, and as quotas come and go: so each goes on from what it was.
type limit struct {
	by         string // the directory of the group that told; at first ""
	last, more [2]float64
}

// limitAbove tells how a group without the cpu controller is throttled: by the quota of the closest
// group above that has one; the kernel counts no periods of others. Without a quota up to the root
// of the host, which can have none, it is not throttled. The root of a cgroup namespace is another
// one, with groups above that cannot be seen: what they do is not known. So it is for all services
// of a host with systemd while nobody has set a weight or a quota. By is the directory of the group
// that has the quota.
func (f *file) limitAbove(s *sink, round int) (by string, err error) {
	if s.round != round {
		clear(s.quotas)
		s.round = round
	}
	q := s.quotaFrom(path.Dir(f.dir), f.root)
	for _, one := range q.told {
		s.add(one.quantity, one.value)
	}
	return q.by, q.err
}

// quota is what the quota of a group tells: by its directory, noLimit where there is none up to the
// root, or "" where that is not known.
type quota struct {
	by   string
	told []figure
	err  error
}

// quotaFrom returns the quota of a group or of the closest one above that has one.
func (s *sink) quotaFrom(dir, root string) quota {
	q, ok := s.quotas[dir]
	if ok {
		return q
	}
	switch q, ok = quotaOf(dir); {
	case ok:
	case len(dir) > len(root):
		q = s.quotaFrom(path.Dir(dir), root)
	default:
		q = quota{by: noLimit}
		if kernel.Absent(unix.Access(root+"/cgroup.events", unix.F_OK)) { // which all groups but the root have
			q.told = []figure{{quantity: watch.CPUPeriods}, {quantity: watch.CPUThrottledPeriods}}
		}
	}
	if s.quotas == nil {
		s.quotas = map[string]quota{}
	}
	s.quotas[dir] = q
	return q
}

// quotaOf reads the quota of a group; ok is false if it has none.
func quotaOf(dir string) (q quota, ok bool) {
	limit, err := os.ReadFile(dir + "/cpu.max")
	if err == nil && bytes.HasPrefix(limit, []byte("max")) {
		return quota{}, false
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(dir + "/cpu.stat")
	}
	if err != nil {
		return quota{}, !kernel.Absent(err) // not known, as in what may not be read
	}
	var s sink
	q = quota{by: dir, err: limitV2(text, &s)}
	for _, one := range s.to {
		q.told = append(q.told, figure{quantity: one.Quantity, value: one.Value})
	}
	return q, true
}

// noLimit stands for the group that tells of no limit.
const noLimit = "none"

// goOn has what is told of a limit by a group go on from what was told before.
func (l *limit) goOn(by string, told []watch.Sample) {
	for i, q := range [...]watch.Quantity{watch.CPUPeriods, watch.CPUThrottledPeriods} {
		at := slices.IndexFunc(told, func(one watch.Sample) bool { return one.Quantity == q })
		if at < 0 {
			return
		}
		value := &told[at].Value
		if l.by != "" && l.by != by {
			l.more[i] = l.last[i] - *value
		}
		*value += l.more[i]
		l.last[i] = *value
	}
	l.by = by
}
