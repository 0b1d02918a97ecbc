package load

import "math"

// none marks a connection that carries no request, or is not in the free list; a request
// after which none waits.
const none = -1

// never is when a request of a closed loop is due before it is known when.
const never = math.MaxInt64

// dispatcher is the generator without clock and sockets: it knows every request's
// instants, which of them wait for which server, and which connection carries which.
// Requests are seen in the order they are due, and sent in that order to each server.
// Each operation takes constant time (per request and server) and allocates nothing.
type dispatcher struct {
	results []Result // of the whole run, settle first, in order of Due
	first   int      // the first request of the window
	next    int      // the first request not yet seen
	ended   int      // how many of the window are done or failed
	carries []int32  // connection -> index in results, or none
	place   []int32  // connection -> index in the free list of its server, or none
	after   []int32  // request -> the next that waits for the same server, or none

	router      *router // nil: one server
	servers     []server
	outstanding []int   // requests at each server, and waiting for it
	ready       []int32 // servers that are marked as ready

	// Of a closed loop: a request is due when one before it ends, before until.
	closed bool
	until  int64
	issued int
}

// server is one that is loaded. Connection i leads to server i modulo their number.
type server struct {
	free       []int32 // connections that are open and idle, used last in first out
	head, tail int32   // requests that wait for a connection, or none
	ready      bool    // maybe one waits and a connection is free
}

// newDispatcher expects the due instants (absolute or not: the caller's clock), of
// which those before windowStart are settle. No connection is open yet.
func newDispatcher(due []int64, windowStart int64, connections int) *dispatcher {
	l := &dispatcher{
		results: make([]Result, len(due)),
		carries: make([]int32, connections),
		place:   make([]int32, connections),
		after:   make([]int32, len(due)),
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
	l.serve(1, nil)
	return l
}

// newClosed has so many clients, each of which asks again when it was answered, until an
// instant; of at most so many requests.
func newClosed(clients, most, connections int) *dispatcher {
	due := make([]int64, max(clients, most))
	for i := clients; i < len(due); i++ {
		due[i] = never
	}
	l := newDispatcher(due, 0, connections)
	l.closed, l.issued = true, clients
	return l
}

// serve says how many servers there are, and which of them gets which request.
func (l *dispatcher) serve(servers int, r *router) {
	l.router, l.outstanding, l.ready = r, make([]int, servers), make([]int32, 0, servers)
	l.servers = make([]server, servers)
	for i := range l.servers {
		l.servers[i] = server{make([]int32, 0, len(l.carries)/servers+1), none, none, false}
	}
}

func (l *dispatcher) server(conn int) int { return conn % len(l.servers) }

// dispatch hands the oldest request that is due to a free connection to its server. It
// returns false when nothing is due or no such connection is free; then every due
// request has been seen.
func (l *dispatcher) dispatch(now int64) (conn int, ok bool) {
	for len(l.ready) > 0 {
		s := &l.servers[l.ready[len(l.ready)-1]]
		if i := s.head; i != none && len(s.free) > 0 {
			s.head = l.after[i]
			return l.carry(s, i, now), true
		}
		s.ready, l.ready = false, l.ready[:len(l.ready)-1]
	}
	for l.next < len(l.results) && l.results[l.next].Due <= now {
		i, to := int32(l.next), 0
		l.next++
		if l.router != nil {
			to = l.router.pick(l.outstanding)
		}
		l.results[i].Seen, l.results[i].Server = now, int32(to)
		l.outstanding[to]++
		s := &l.servers[to]
		if len(s.free) > 0 { // nobody waits for it
			return l.carry(s, i, now), true
		}
		l.after[i] = none
		if s.head == none {
			s.head = i
		} else {
			l.after[s.tail] = i
		}
		s.tail = i
	}
	return none, false
}

// carry takes a free connection of a server for a request.
func (l *dispatcher) carry(s *server, i int32, now int64) (conn int) {
	last := len(s.free) - 1
	conn = int(s.free[last])
	s.free, l.place[conn] = s.free[:last], none
	l.carries[conn], l.results[i].Sent = i, now
	return conn
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
	at := l.server(conn)
	if l.outstanding[at]--; l.outstanding[at] == 0 && l.router != nil {
		l.router.idle(at)
	}
	if l.closed && now < l.until && l.issued < len(l.results) {
		l.results[l.issued].Due = now
		l.issued++
	}
}

// busy tells whether conn carries a request.
func (l *dispatcher) busy(conn int) bool { return l.carries[conn] != none }

// release makes conn, which is open and carries nothing, available.
func (l *dispatcher) release(conn int) {
	at := l.server(conn)
	s := &l.servers[at]
	l.place[conn] = int32(len(s.free))
	s.free = append(s.free, int32(conn))
	if s.head != none && !s.ready {
		s.ready, l.ready = true, append(l.ready, int32(at))
	}
}

// withdraw takes conn out of the free connections, if it is among them.
func (l *dispatcher) withdraw(conn int) {
	at := l.place[conn]
	if at == none {
		return
	}
	s := &l.servers[l.server(conn)]
	last := len(s.free) - 1
	moved := s.free[last]
	s.free[at], l.place[moved] = moved, at
	s.free, l.place[conn] = s.free[:last], none
}

// nextDue is when the next request not yet seen is due.
func (l *dispatcher) nextDue() (int64, bool) {
	if l.next == len(l.results) || l.results[l.next].Due == never {
		return 0, false
	}
	return l.results[l.next].Due, true
}

// complete tells whether every request of the window is done or failed.
func (l *dispatcher) complete() bool {
	if l.closed {
		return l.ended == l.issued
	}
	return l.ended == len(l.results)-l.first
}

// close is the end of a closed loop: only now is it known which requests there were, and
// which of them were due before the window. It says whether there could have been more.
func (l *dispatcher) close(windowStart int64) (cut bool) {
	if !l.closed {
		return false
	}
	cut = l.issued == len(l.results)
	l.results = l.results[:l.issued]
	for l.first = 0; l.first < l.issued && l.results[l.first].Due < windowStart; {
		l.first++
	}
	for i := range l.results {
		l.results[i].Seq = i - l.first
	}
	return cut
}
