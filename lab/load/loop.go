package load

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel/sched"
)

// retryAfter is how long a connection that could not be opened again, or that
// was closed before it had answered anything, waits for the next try.
const retryAfter = int64(10 * time.Millisecond)

// spinFor is how long before an instant the loop stops sleeping and polls: it
// takes the place of most of the time that waking up costs.
const spinFor = int64(20 * time.Microsecond)

// Run sends the requests. The settle time begins at origin, in CLOCK_MONOTONIC
// nanoseconds; an origin in the past means that requests are sent late. Run
// occupies its thread until the window is over and every request has ended, or
// the grace is over. It runs once for each Prepare; New prepares the first run.
func (g *Generator) Run(origin int64) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range g.dispatcher.results {
		if due := &g.dispatcher.results[i].Due; *due != never {
			*due += origin
		}
	}
	g.span.start = origin + int64(g.config.Settle)
	g.span.end = g.span.start + int64(g.config.Window)
	g.dispatcher.until = g.span.end
	policy, err := sched.Get(0)
	if err != nil {
		return err
	}
	g.policy = policy
	spin := spinBudget(policy.Policy == sched.FIFO || policy.Policy == sched.RR, g.config.Rate)

	limit := g.span.end + int64(g.config.Grace)
	marks := [...]int64{g.span.start, g.span.end, limit}
	for mark := 0; ; {
		now := g.clock.now()
		for mark < len(g.cpu) && now >= marks[mark] {
			g.cpu[mark] = processTime()
			mark++
		}
		if now >= limit || now >= g.span.end && g.dispatcher.complete() {
			g.pump() // what became due before the limit has at least been seen
			g.span.closed = g.clock.now()
			g.cut = g.dispatcher.close(g.span.start)
			return nil
		}
		if g.retryAt != 0 && now >= g.retryAt {
			g.retry()
		}
		g.pump()
		events, err := g.poll.wait(g.wake(marks[mark]) - g.clock.now() - spin)
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		for _, event := range events {
			if event.Fd != timerToken {
				g.handle(int(event.Fd), event.Events)
				g.pump() // an overdue request does not wait for the other events
			}
		}
	}
}

// Drain waits for the answers to requests that a run has left under way, at most limit,
// and says how many are still under way then. Those that were never sent are not sent.
func (g *Generator) Drain(limit time.Duration) (left int, err error) {
	for until := g.clock.now() + int64(limit); ; {
		left = g.underWay()
		rest := until - g.clock.now()
		if left == 0 || rest <= 0 {
			return left, nil
		}
		events, err := g.poll.wait(rest)
		if err != nil {
			return left, fmt.Errorf("wait for events: %w", err)
		}
		for _, event := range events {
			if event.Fd != timerToken {
				g.handle(int(event.Fd), event.Events)
			}
		}
	}
}

// spinBudget is spinFor where polling does more good than harm. A thread that
// competes under SCHED_OTHER is made to wait for the time it spent polling, and
// one that polls more than half of the time comes near the limit that the
// kernel sets to real-time threads (sched_rt_runtime_us).
func spinBudget(realtime bool, rate float64) int64 {
	if !realtime || float64(spinFor)/1e9*rate >= 0.5 {
		return 0
	}
	return spinFor
}

// wake is the next instant at which there is something to do.
func (g *Generator) wake(mark int64) int64 {
	due, ok := g.dispatcher.nextDue()
	if !ok {
		due = math.MaxInt64
	}
	if g.retryAt != 0 {
		due = min(due, g.retryAt)
	}
	return min(due, mark)
}

// pump sends all that is due and finds a free connection, each request with a
// reading of the clock of its own: what sending the one delays the next is lag.
func (g *Generator) pump() {
	for {
		i, ok := g.dispatcher.dispatch(g.clock.now())
		if !ok {
			return
		}
		c := &g.conns[i]
		c.request = g.requests[int(g.dispatcher.carries[i])%len(g.requests)]
		c.unsent = len(c.request)
		c.response.reset()
		g.write(i)
	}
}

// write sends what is left of the request, or of the greeting, on connection i.
func (g *Generator) write(i int) {
	c := &g.conns[i]
	n, errno := send(c.fd, c.request[len(c.request)-c.unsent:])
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR:
	default:
		g.lose(i, g.text("write", int(errno)))
		return
	}
	was := c.unsent
	c.unsent -= n
	// Only a request that did not go out at once asks for EPOLLOUT, and only
	// one that had asked takes it back.
	switch {
	case c.unsent > 0 && was == len(c.request):
		g.watch(i, unix.EPOLLIN|unix.EPOLLOUT)
	case c.unsent == 0 && was < len(c.request):
		g.watch(i, unix.EPOLLIN)
	}
}

// handle deals with an event on connection i.
func (g *Generator) handle(i int, events uint32) {
	c := &g.conns[i]
	switch {
	case c.fd == none: // closed while an earlier event of the batch was handled
	case c.opening:
		g.opened(i)
	case events&(unix.EPOLLIN|unix.EPOLLERR|unix.EPOLLHUP) != 0:
		g.read(i)
	case events&unix.EPOLLOUT != 0 && c.unsent > 0:
		g.write(i)
	}
}

// read takes what arrived on connection i.
func (g *Generator) read(i int) {
	c := &g.conns[i]
	n, errno := receive(c.fd, g.buffer)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return
	case errno != 0 || n == 0:
		g.lose(i, g.text("read", int(errno)))
		return
	case c.greeting != nil:
		g.greet(i, g.buffer[:n])
		return
	case !g.dispatcher.busy(i):
		g.lose(i, "") // bytes without a request: this connection is unusable
		return
	}
	done, err := c.response.read(g.buffer[:n])
	if err != nil {
		g.lose(i, err.Error())
		return
	}
	if !done {
		if c.unsent > 0 {
			g.write(i)
		}
		return
	}
	g.answered(i)
}

// answered ends the request on connection i: its response is complete.
func (g *Generator) answered(i int) {
	c := &g.conns[i]
	failure, closes := c.response.outcome()
	text := ""
	if len(failure) > 0 {
		text = g.failure(failure)
	}
	g.dispatcher.end(i, g.clock.now(), text)
	c.answered = true
	if closes || c.unsent > 0 { // answered before it had read the request
		g.reopen(i)
		return
	}
	g.dispatcher.release(i)
}

// lose gives connection i up; the request on it, if there is one, has failed.
func (g *Generator) lose(i int, text string) {
	if g.dispatcher.busy(i) {
		g.dispatcher.end(i, g.clock.now(), text)
	} else {
		g.dispatcher.withdraw(i)
	}
	g.reopen(i)
}

// reopen closes connection i and opens it again: at once if it had proved
// useful, otherwise later, so that a broken service is not stormed.
func (g *Generator) reopen(i int) {
	c := &g.conns[i]
	unix.Close(c.fd) // closing a socket that failed; there is nothing to do about an error
	c.fd, c.unsent = none, 0
	if c.answered {
		c.answered = false
		g.dial(i)
		return
	}
	g.later(i)
}

// later leaves connection i to the next retry.
func (g *Generator) later(i int) {
	g.down = append(g.down, int32(i))
	if g.retryAt == 0 {
		g.retryAt = g.clock.now() + retryAfter
	}
}

// dial begins to open connection i.
func (g *Generator) dial(i int) {
	fd, err := dialLater(g.to[g.dispatcher.server(i)])
	if err != nil {
		g.lost = err.Error()
		g.later(i)
		return
	}
	if err := g.poll.control(unix.EPOLL_CTL_ADD, fd, i, unix.EPOLLOUT); err != nil {
		unix.Close(fd)
		g.lost = err.Error()
		g.later(i)
		return
	}
	g.conns[i].fd, g.conns[i].opening = fd, true
}

// opened learns what became of dial.
func (g *Generator) opened(i int) {
	c := &g.conns[i]
	c.opening = false
	code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	if err != nil {
		unix.Close(c.fd)
		c.fd = none
		g.lost = err.Error()
		g.later(i)
		return
	}
	g.watch(i, unix.EPOLLIN)
	if c.greeting = g.protocol.greet(g.config.Target); c.greeting != nil {
		g.greet(i, nil)
		return
	}
	g.reopened(i)
}

// greet goes on opening the session of connection i.
func (g *Generator) greet(i int, arrived []byte) {
	c := &g.conns[i]
	send, done, err := c.greeting.next(arrived)
	switch {
	case err != nil:
		g.lost = err.Error()
		g.lose(i, "")
	case done:
		c.greeting = nil
		g.reopened(i)
	case len(send) > 0:
		c.request, c.unsent = send, len(send)
		g.write(i)
	}
}

// reopened makes use of connection i again.
func (g *Generator) reopened(i int) {
	g.reconnects++
	g.dispatcher.release(i)
	g.retry() // one success and the others follow
}

// retry opens one of the connections that are down: one probe, not a storm.
func (g *Generator) retry() {
	g.retryAt = 0
	if len(g.down) == 0 {
		return
	}
	i := g.down[len(g.down)-1]
	g.down = g.down[:len(g.down)-1]
	g.dial(int(i))
}

// watch changes what connection i is waiting for. It cannot fail on a
// descriptor that is open and in the set.
func (g *Generator) watch(i int, events uint32) {
	if err := g.poll.control(unix.EPOLL_CTL_MOD, g.conns[i].fd, i, events); err != nil {
		g.lost = err.Error()
	}
}

// fault is why a request failed, in a form that makes its text only once.
type fault struct {
	op   string
	code int // errno, 0 for the end of the stream
}

// maxFailures bounds the different texts of a service that are told apart.
const maxFailures = 100

// failure is the text of what a service said, made only once.
func (g *Generator) failure(what []byte) string {
	text, ok := g.failures[string(what)]
	switch {
	case ok:
		return text
	case len(g.failures) >= maxFailures:
		return "other errors"
	}
	text = said(what)
	g.failures[string(what)] = text
	return text
}

func (g *Generator) text(op string, code int) string {
	f := fault{op, code}
	text, ok := g.texts[f]
	if ok {
		return text
	}
	switch {
	case code == 0:
		text = "connection closed before the response was complete"
	default:
		text = op + ": " + unix.Errno(code).Error()
	}
	g.texts[f] = text
	return text
}
