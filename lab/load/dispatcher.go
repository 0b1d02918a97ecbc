package load

// none marks a connection that carries no request, or is not in the free list.
const none = -1

// dispatcher is the generator without clock and sockets: it knows every request's
// instants, which of them wait, and which connection carries which. Requests are seen and
// sent in the order they are due, so those that wait for a connection are
// always results[head:next]: a queue without storage. Each operation takes
// constant time (per request) and allocates nothing.
type dispatcher struct {
	results []Result // of the whole run, settle first, in order of Due
	first   int      // the first request of the window
	next    int      // the first request not yet seen
	head    int      // the first request not yet sent
	ended   int      // how many of the window are done or failed
	carries []int32  // connection -> index in results, or none
	free    []int32  // connections that are open and idle, used last in first out
	place   []int32  // connection -> index in free, or none
}

// newDispatcher expects the due instants (absolute or not: the caller's clock), of
// which those before windowStart are settle. No connection is open yet.
func newDispatcher(due []int64, windowStart int64, connections int) *dispatcher {
	l := &dispatcher{
		results: make([]Result, len(due)),
		carries: make([]int32, connections),
		free:    make([]int32, 0, connections),
		place:   make([]int32, connections),
	}
	for i, t := range due {
		l.results[i].Due = t
		if t < windowStart {
			l.first = i + 1
		}
	}
	for i := range l.results {
		l.results[i].Seq = i - l.first
	}
	for i := range l.carries {
		l.carries[i], l.place[i] = none, none
	}
	return l
}

// dispatch hands the oldest request that is due to a free connection. It
// returns false when nothing is due or no connection is free; then every due
// request has been seen.
func (l *dispatcher) dispatch(now int64) (conn int, ok bool) {
	if len(l.free) == 0 {
		for l.next < len(l.results) && l.results[l.next].Due <= now {
			l.results[l.next].Seen = now
			l.next++
		}
		return none, false
	}
	if l.head == l.next {
		if l.next == len(l.results) || l.results[l.next].Due > now {
			return none, false
		}
		l.results[l.next].Seen = now
		l.next++
	}
	conn = int(l.free[len(l.free)-1])
	l.free = l.free[:len(l.free)-1]
	l.place[conn] = none
	l.carries[conn] = int32(l.head)
	l.results[l.head].Sent = now
	l.head++
	return conn, true
}

// end records that conn's request is over; text is "" for a good response. The
// connection is neither free nor busy then: release or reconnect it.
func (l *dispatcher) end(conn int, now int64, text string) {
	i := int(l.carries[conn])
	l.carries[conn] = none
	l.results[i].Done = now
	l.results[i].Err = text
	if i >= l.first {
		l.ended++
	}
}

// busy tells whether conn carries a request.
func (l *dispatcher) busy(conn int) bool { return l.carries[conn] != none }

// release makes conn, which is open and carries nothing, available.
func (l *dispatcher) release(conn int) {
	l.place[conn] = int32(len(l.free))
	l.free = append(l.free, int32(conn))
}

// withdraw takes conn out of the free connections, if it is among them.
func (l *dispatcher) withdraw(conn int) {
	at := l.place[conn]
	if at == none {
		return
	}
	last := len(l.free) - 1
	moved := l.free[last]
	l.free[at], l.place[moved] = moved, at
	l.free, l.place[conn] = l.free[:last], none
}

// nextDue is when the next request not yet seen is due.
func (l *dispatcher) nextDue() (int64, bool) {
	if l.next == len(l.results) {
		return 0, false
	}
	return l.results[l.next].Due, true
}

// complete tells whether every request of the window is done or failed.
func (l *dispatcher) complete() bool { return l.ended == len(l.results)-l.first }
