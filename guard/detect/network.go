package detect

import (
	"math"

	"berth.dev/berth/watch"
)

const (
	leastSegments = 20       // sent per second, for the part of them that were sent again
	leastQueue    = 16 << 10 // bytes that wait, for a queue to say that a link is full
	leastLost     = 1        // packets per second that are worth telling
	// tooMuch is how many times what a link sends others may send that may not use it, so that
	// it is not known who does.
	tooMuch = 1.2
)

func (d *Detector) measureNetwork(w *workload) {
	from, to := w.from, w.to
	w.value[RoundTrip] = w.level(watch.RoundTrip, from, to)
	if sent := w.level(watch.Segments, from, to); sent >= leastSegments {
		w.value[Resent] = min(w.level(watch.Retransmits, from, to)/sent, 1)
	}
	w.link = watch.Part{}
	most, fullest := 0.0, -1.0
	for i := range d.host.all {
		at := &d.host.all[i]
		if at.quantity != watch.NetSent || at.part.Kind != watch.Link {
			continue
		}
		use, wait := d.link(at, from, to)
		own := 0.0
		if m := w.find(watch.NetSent, at.part, ""); m != nil {
			if v := m.level(from, to); v > 0 {
				own = v
			}
		}
		full := 0.0
		for _, v := range []float64{use / signalInfos[LinkUse].floor, wait / signalInfos[LinkWait].floor} {
			if v > full { // max would make all NaN that is not known
				full = v
			}
		}
		if own > most || own == most && full > fullest {
			most, fullest, w.link = own, full, at.part
			w.value[LinkUse], w.value[LinkWait] = use, wait
		}
	}
	if w.link == (watch.Part{}) {
		return
	}
	if lost := d.host.find(watch.LinkDropped, w.link, ""); lost != nil {
		w.value[LinkLost] = lost.level(from, to)
	}
	own, _ := w.sent(w.link, from, to)
	anywhere, _ := w.sent(watch.Part{}, from, to)
	w.value[OwnSent] = ratio(own+anywhere, d.host.find(watch.NetSent, w.link, "").level(from, to))
}

// link is how full a link is, given what it sends: by its rate, and by its queue; NaN for
// what is not known.
func (d *Detector) link(sent *meter, from, to watch.Time) (use, wait float64) {
	use, wait = math.NaN(), math.NaN()
	pace := sent.level(from, to)
	if rate := d.host.find(watch.LinkRate, sent.part, ""); rate != nil {
		if r := rate.level(from, to); r > 0 {
			use, pace = min(pace/r, 1), r
		}
	}
	if queue := d.host.find(watch.LinkQueued, sent.part, ""); queue != nil {
		switch waiting := queue.level(from, to); {
		case waiting < leastQueue:
			wait = 0
		case pace > 0:
			wait = waiting / pace
		}
	}
	return use, wait
}

// Link returns the number of the link that a workload waits for, by the last window; 0 of one
// that uses none.
func (d *Detector) Link(group string) int {
	if w := d.byGroup[group]; w != nil {
		return w.link.ID
	}
	return 0
}

// Sent returns how many bytes per second a group sends by a link, by the last window; 0 where
// that is not known.
func (d *Detector) Sent(group string, link int) float64 {
	w := d.byGroup[group]
	if w == nil {
		return 0
	}
	sent, _ := w.sent(watch.Part{Kind: watch.Link, ID: link}, w.from, w.to)
	return sent
}

// linkFull says that the workload's link is full.
func (w *workload) linkFull() bool { return w.stands(LinkUse) || w.stands(LinkWait) }

// rises says that a signal stands out from what is usual, which is known.
func (w *workload) rises(s Signal) bool {
	_, usual, stands, _ := w.compare(s)
	return stands && usual != nil
}

func (d *Detector) diagnoseNetwork(w *workload) {
	if !w.linkFull() {
		return
	}
	var symptoms []Evidence
	for _, s := range []Signal{RoundTrip, Resent} {
		if w.rises(s) {
			symptoms = append(symptoms, w.evidence(s)...)
		}
	}
	if len(symptoms) == 0 {
		return
	}
	symptoms = append(append(symptoms, w.evidence(LinkUse, LinkWait)...), w.above(LinkLost, leastLost)...)
	if w.value[OwnSent] >= mostly {
		w.own(Network, append(symptoms, w.fact(OwnSent, mostly)))
		return
	}
	w.accuse(Network, d.sentMost(w), SentShare, symptoms)
}

// sentMost says whose most of the bytes are that the workload's link sends.
func (d *Detector) sentMost(w *workload) claim {
	senders := make([]sender, 0, len(d.workloads))
	for _, s := range d.workloads {
		of := sender{name: s.Group}
		if s == w {
			of.name = ""
		}
		var fresh bool
		of.here, of.fresh = s.sent(w.link, w.from, w.to)
		of.anywhere, fresh = s.sent(watch.Part{}, w.from, w.to)
		of.fresh = of.fresh && fresh
		senders = append(senders, of)
	}
	return mostOf(d.host.find(watch.NetSent, w.link, "").level(w.from, w.to), senders)
}

// sender is what one sends: by a link, and by links that are not known.
type sender struct {
	name           string // "" for one that is not to be named
	here, anywhere float64
	fresh          bool
}

// mostOf names who has most of what a link sends. Where those whose links are not known send
// more than the link has left, it is not known which of them use it, if any does: then they are
// not named, and clear nobody else.
func mostOf(link float64, senders []sender) claim {
	known, elsewhere := 0.0, 0.0
	for _, s := range senders {
		known += s.here
		elsewhere += s.anywhere
	}
	link = max(link, known) // the link may drop some of it
	fits := known+elsewhere <= tooMuch*link
	var c claims
	for _, s := range senders {
		if !fits {
			s.anywhere = 0
		}
		c.add(s.name, s.here+s.anywhere, s.fresh)
	}
	of := c.claim(link, 0)
	if !fits && of.name == "" {
		return claim{}
	}
	return of
}

// sent is the bytes per second that the workload sends by a link; by the zero Part, by links
// that are not known.
func (w *workload) sent(by watch.Part, from, to watch.Time) (v float64, fresh bool) {
	if at := w.find(watch.NetSent, by, ""); at != nil {
		if v, now := at.lately(from, to); v > 0 {
			return v, now
		}
	}
	return 0, true
}
