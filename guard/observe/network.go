package observe

import (
	"berth.dev/berth/watch"
	"berth.dev/berth/watch/network"
)

const (
	// busy is the part of a link's rate from which its packets are counted by group,
	// linger for how long they are after that.
	busy   = 0.5
	linger = 30 * watch.Second
)

// traffic is what groups send and receive. As counting costs something at every packet, it
// is counted only while a link is busy, unless it always is to be.
type traffic struct {
	tree, proc string
	always     bool
	counting   *network.Traffic // nil while it is not
	until      watch.Time       // from when on it is not, without a busy link
	sent, lost map[watch.Subject]float64
	queued     map[watch.Subject]bool
	at         watch.Time
}

// openTraffic says why groups' packets cannot be counted before there is a need to.
func (s *Site) openTraffic() (Reader, error) {
	tree, err := s.v2("network traffic of groups")
	if err != nil {
		return nil, err
	}
	counting, err := network.OpenTraffic(tree, s.proc())
	if err != nil {
		return nil, err
	}
	t := &traffic{tree: tree, proc: s.proc(), always: s.Packets, counting: counting}
	if !t.always {
		err = t.disarm()
	}
	return t, err
}

// openTCP opens the connections of a group.
func (s *Site) openTCP(group string) (Reader, error) {
	tree, err := s.v2("round trips of TCP")
	if err != nil {
		return nil, err
	}
	return network.OpenTCP(network.TCPConfig{Tree: tree, Group: group, Proc: s.proc()})
}

// Quiet says that it may have nothing to tell.
func (t *traffic) Quiet() bool { return true }

func (t *traffic) Close() error { return t.disarm() }

func (t *traffic) disarm() error {
	if t.counting == nil {
		return nil
	}
	err := t.counting.Close()
	t.counting = nil
	return err
}

// Read appends what is counted, from the time on at which counting began. Whether a link is
// busy is in the samples to which it appends.
func (t *traffic) Read(now watch.Time, to []watch.Sample) ([]watch.Sample, error) {
	if !t.always && t.busy(now, to) {
		t.until = now + linger
	}
	switch armed := t.always || now < t.until; {
	case !armed:
		return to, t.disarm()
	case t.counting == nil:
		var err error
		if t.counting, err = network.OpenTraffic(t.tree, t.proc); err != nil {
			return to, err
		}
	}
	return t.counting.Read(now, to)
}

// busy says, by the samples of links of now, whether one has sent half of what it can since
// the last reading, has something waiting, as it had then, or has dropped something. At one
// instant something waits on an idle link, too.
func (t *traffic) busy(now watch.Time, samples []watch.Sample) (yes bool) {
	sent, lost, rate := map[watch.Subject]float64{}, map[watch.Subject]float64{}, map[watch.Subject]float64{}
	queued := map[watch.Subject]bool{}
	for _, s := range samples {
		if s.Time != now || s.Subject != (watch.Subject{Part: s.Subject.Part}) || s.Subject.Part.Kind != watch.Link {
			continue
		}
		switch s.Quantity {
		case watch.NetSent:
			sent[s.Subject] = s.Value
		case watch.LinkDropped:
			lost[s.Subject] = s.Value
		case watch.LinkRate:
			rate[s.Subject] = s.Value
		case watch.LinkQueued:
			queued[s.Subject] = s.Value > 0
			yes = yes || s.Value > 0 && t.queued[s.Subject]
		}
	}
	since := (now - t.at).Seconds()
	for link, before := range t.sent {
		yes = yes || rate[link] > 0 && sent[link]-before >= busy*rate[link]*since
	}
	for link, before := range t.lost {
		yes = yes || lost[link] > before
	}
	t.sent, t.lost, t.queued, t.at = sent, lost, queued, now
	return yes
}
