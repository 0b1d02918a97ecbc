package api

import (
	"context"
	"fmt"
	"mime"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
)

// Door says which requests a listener answers, and how many connections it has at once.
// The zero value answers no request.
type Door struct {
	// Host reports whether a request may name this host in its Host header; the name
	// comes in lower case, without port and brackets.
	Host func(name string) bool
	// Links lets a browser come by a link on a page of another site: for a document
	// that changes nothing and of which that page sees nothing.
	Links bool
	// Conns is the most connections at once, and PerUser the most of one user; 0 of
	// PerUser is Conns. Root and the agent's own user have Conns each, beside the
	// others'. The user at the other end of a TCP connection is not known: all are one.
	Conns, PerUser int
}

// Server returns the server of a handler behind the door, and the listener that it is
// to serve: l with the bounds of the door. PeerOf names the user who asks.
func (d Door) Server(l net.Listener, h http.Handler) (*http.Server, net.Listener) {
	s := &http.Server{
		Handler:           d.guard(h),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       readTime,
		WriteTimeout:      answerTime,
		IdleTimeout:       idleTime,
		ConnContext:       withConn,
	}
	return s, &bounded{Listener: l, share: newShares(d.Conns, d.PerUser), open: map[*conn]bool{}}
}

// guard refuses what another site's page may have sent (cross-site requests, and DNS
// rebinding, where the browser takes another name for this server's) and bodies that
// are not JSON, which a browser sends to other sites without asking them first.
func (d Door) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			defer c.busy()()
		}
		if err := d.check(r); err != nil {
			fail(w, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (d Door) check(r *http.Request) error {
	if d.Host == nil || !d.Host(hostName(r.Host)) {
		return &RequestError{
			http.StatusMisdirectedRequest, fmt.Sprintf("host %q: this server does not have that name", r.Host),
			"ask for http://agent on the API's socket, for localhost where the status page is, or add the name to agent.hosts",
		}
	}
	head := r.Header
	if origin := head.Get("Origin"); origin != "" {
		return &RequestError{http.StatusForbidden, fmt.Sprintf("origin %q: requests of web pages are refused", origin), "ask without an Origin header, from a program that is no browser"}
	}
	link := d.Links && r.Method == http.MethodGet && head.Get("Sec-Fetch-Mode") == "navigate" && head.Get("Sec-Fetch-Dest") == "document"
	if site := head.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" && !link {
		return &RequestError{http.StatusForbidden, fmt.Sprintf("Sec-Fetch-Site %q: requests of other sites' pages are refused", site), "type the address into the browser"}
	}
	if r.ContentLength == 0 {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(head.Get("Content-Type")); err != nil || kind != "application/json" {
		return &RequestError{
			http.StatusUnsupportedMediaType, fmt.Sprintf("the body's Content-Type %q is not application/json", head.Get("Content-Type")),
			"send 'Content-Type: application/json' with the body",
		}
	}
	return nil
}

// hostName is the name in a Host header, in lower case.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// Named returns a Door.Host for exactly these names.
func Named(names ...string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
	}
}

// Loopback is a Door.Host for this host's own name for itself: localhost, and loopback
// addresses. DNS cannot give these names to other hosts.
func Loopback(name string) bool { return name == "localhost" || net.ParseIP(name).IsLoopback() }

// Address is a Door.Host for IP addresses, which DNS cannot rebind.
func Address(name string) bool { return net.ParseIP(name) != nil }

// shares divide a number of slots among users. Root and this process's own user have
// all of them each, beside the others. They are not safe for concurrent use.
type shares struct {
	total, each int
	taken       map[int]int // by user
	others      int         // of all users but root and this process's own
}

func newShares(total, each int) *shares {
	if each == 0 {
		each = total
	}
	return &shares{total: total, each: each, taken: map[int]int{}}
}

func privileged(uid int) bool { return uid == 0 || uid == os.Geteuid() }

// full reports whether a user has no slot left, and whether that is since others have
// them.
func (s *shares) full(uid int) (full, byOthers bool) {
	if privileged(uid) {
		return s.taken[uid] >= s.total, false
	}
	if s.taken[uid] >= s.each {
		return true, false
	}
	return s.others >= s.total, true
}

func (s *shares) add(uid, n int) {
	if s.taken[uid] += n; s.taken[uid] == 0 {
		delete(s.taken, uid)
	}
	if !privileged(uid) {
		s.others += n
	}
}

// bounded is a listener with bounded connections. For one too many, another one that
// waits for no answer is closed, that of the longest standing.
type bounded struct {
	net.Listener

	mu    sync.Mutex
	share *shares
	open  map[*conn]bool
	clock uint64 // rises with each use of a connection
}

// conn is a connection, and the process that made it.
type conn struct {
	net.Conn
	peer   Peer
	known  bool // the kernel tells peer
	of     *bounded
	used   uint64 // when it was used last, by of.clock
	asking bool   // a request is being answered
}

// Accept waits for a connection and looks at once who made it.
func (b *bounded) Accept() (net.Conn, error) {
	raw, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, of: b}
	if c.peer, err = peer(raw); err != nil {
		c.peer.UID = -1
	}
	c.known = err == nil
	b.mu.Lock()
	defer b.mu.Unlock()
	for full, byOthers := b.share.full(c.peer.UID); full; full, byOthers = b.share.full(c.peer.UID) {
		b.drop(b.victim(c.peer.UID, byOthers))
	}
	b.share.add(c.peer.UID, 1)
	b.open[c] = true
	c.touch()
	return c, nil
}

// victim is the connection to close for one of a user: the user's own or, if others
// have all, one of theirs. The caller holds mu.
func (b *bounded) victim(uid int, ofOthers bool) (v *conn) {
	for c := range b.open {
		if c.peer.UID != uid && (!ofOthers || privileged(c.peer.UID)) {
			continue
		}
		if v == nil || v.asking && !c.asking || v.asking == c.asking && c.used < v.used {
			v = c
		}
	}
	return v
}

// drop closes a connection. The caller holds mu.
func (b *bounded) drop(c *conn) {
	if b.open[c] {
		delete(b.open, c)
		b.share.add(c.peer.UID, -1)
	}
	_ = c.Conn.Close()
}

func (c *conn) touch() {
	c.of.clock++
	c.used = c.of.clock
}

// busy notes that a request is being answered, until the function is called.
func (c *conn) busy() (done func()) {
	set := func(asking bool) {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.asking = asking
		c.touch()
	}
	set(true)
	return func() { set(false) }
}

// Close frees the connection's slot.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.drop(c)
	return err
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	own, ok := c.(*conn)
	if !ok {
		return ctx
	}
	if own.known {
		ctx = context.WithValue(ctx, peerKey{}, own.peer)
	}
	return context.WithValue(ctx, connKey{}, own)
}
