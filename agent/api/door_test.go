package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testbox"
)

const stranger = 65534

// What a page of another site may send is refused before any handler sees it.
func TestDoorRefusesOtherSites(t *testing.T) {
	t.Parallel()
	socket := Door{Host: Named("agent")}
	page := Door{Host: Loopback, Links: true}
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	const json = "application/json"
	for _, tc := range []struct {
		door         Door
		method, host string
		header       []string
		body         string
		want         int
	}{
		{socket, "GET", "agent", nil, "", 200},
		{socket, "GET", "Agent", nil, "", 200},
		{socket, "POST", "agent", []string{"Content-Type", json}, "{}", 200},
		{socket, "POST", "agent", []string{"Content-Type", json + "; charset=utf-8"}, "{}", 200},
		{socket, "DELETE", "agent", nil, "", 200},
		{socket, "GET", "evil.example", nil, "", 421},
		{socket, "GET", "localhost:9750", nil, "", 421},
		{socket, "GET", "127.0.0.1:9750", nil, "", 421},
		{socket, "GET", "", nil, "", 421},
		{socket, "GET", "agent.evil.example", nil, "", 421},
		{socket, "POST", "agent", []string{"Content-Type", "text/plain"}, "{}", 415},
		{socket, "POST", "agent", []string{"Content-Type", "application/x-www-form-urlencoded"}, "{}", 415},
		{socket, "POST", "agent", []string{"Content-Type", "text/plain; application/json"}, "{}", 415},
		{socket, "POST", "agent", nil, "{}", 415},
		{socket, "GET", "agent", []string{"Origin", "https://evil.example"}, "", 403},
		{socket, "GET", "agent", []string{"Origin", "null"}, "", 403},
		{socket, "GET", "agent", []string{"Origin", "http://agent"}, "", 403},
		{socket, "POST", "agent", []string{"Content-Type", json, "Origin", "https://evil.example"}, "{}", 403},
		{socket, "GET", "agent", []string{"Sec-Fetch-Site", "cross-site"}, "", 403},
		{socket, "GET", "agent", []string{"Sec-Fetch-Site", "same-site"}, "", 403},
		{socket, "GET", "agent", []string{"Sec-Fetch-Site", "none"}, "", 200},
		{socket, "GET", "agent", []string{"Sec-Fetch-Site", "same-origin"}, "", 200},
		{socket, "GET", "agent", link, "", 403},
		{page, "GET", "localhost", nil, "", 200},
		{page, "GET", "localhost:9750", []string{"Sec-Fetch-Site", "same-origin"}, "", 200},
		{page, "GET", "127.0.0.1:80", nil, "", 200},
		{page, "GET", "[::1]:9750", nil, "", 200},
		{page, "GET", "[::1]", nil, "", 200},
		{page, "GET", "localhost:9750", link, "", 200},
		{page, "POST", "localhost:9750", link, "", 403},
		{page, "GET", "localhost:9750", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, "", 403},
		{page, "GET", "localhost:9750", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}, "", 403},
		{page, "GET", "localhost.evil.example:9750", nil, "", 421},
		{page, "GET", "127.0.0.1.evil.example", nil, "", 421},
		{page, "GET", "10.0.0.1", nil, "", 421},
		{Door{Host: Address}, "GET", "10.0.0.1:9750", nil, "", 200},
		{Door{Host: Address}, "GET", "evil.example:9750", nil, "", 421},
		{Door{}, "GET", "agent", nil, "", 421},
	} {
		r := httptest.NewRequest(tc.method, "/", strings.NewReader(tc.body))
		r.Host = tc.host
		for i := 0; i < len(tc.header); i += 2 {
			r.Header.Set(tc.header[i], tc.header[i+1])
		}
		asked := false
		w := httptest.NewRecorder()
		tc.door.guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true })).ServeHTTP(w, r)
		if w.Code != tc.want || asked != (tc.want == 200) {
			t.Errorf("%s for host %q with %q: %d, handled: %v; want %d: %s", tc.method, tc.host, tc.header, w.Code, asked, tc.want, w.Body)
		}
	}
}

// Without a user there is nothing to be had of the API, however the request came.
func TestAPIWantsToKnowWho(t *testing.T) {
	t.Parallel()
	b := newFake(t)
	h := (&Server{Node: b, View: b, Guardian: b, History: NewHistory(8, 0)}).Handler()
	for _, target := range []string{"/v1/agent", "/v1/workloads", "/v1/events?follow=false", "/"} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest("GET", "http://agent"+target, nil)); w.Code != http.StatusForbidden {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
}

// One user cannot take all streams of events, and all others together leave root's.
func TestListenersAreBounded(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == stranger {
		t.Skip("this user is to be another one than the stranger")
	}
	b := newFake(t)
	h := (&Server{Node: b, View: b, Guardian: b, History: NewHistory(8, 0)}).Handler()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	started := 0
	listen := func(uid int) int {
		r, err := http.NewRequestWithContext(ctx, "GET", "http://agent/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		w := &stream{recorder: recorder{header: http.Header{}}, flushed: make(chan struct{}, 1)}
		done := make(chan struct{})
		go func() { h.ServeHTTP(w, asked(r, uid)); close(done) }()
		select {
		case <-done:
			return w.status
		case <-w.flushed:
			started++
			go func() { <-done; ended <- struct{}{} }()
			return http.StatusOK
		}
	}
	several := func(uid int) (n int) {
		for listen(uid) == http.StatusOK {
			if n++; n > 2*maxListeners {
				t.Fatalf("user %d has %d streams", uid, n)
			}
		}
		return n
	}
	if n := several(stranger); n != userStreams {
		t.Errorf("one user gets %d streams, want %d", n, userStreams)
	}
	all := userStreams
	for uid := stranger + 1; uid < stranger+10; uid++ {
		all += several(uid)
	}
	if all != maxListeners {
		t.Errorf("all users get %d streams, want %d", all, maxListeners)
	}
	if n := several(0); n != maxListeners {
		t.Errorf("root gets %d streams beside them, want %d", n, maxListeners)
	}
	cancel()
	for range started {
		<-ended
	}
	ctx = t.Context()
	if status := listen(stranger); status != http.StatusOK {
		t.Errorf("once the others have ended: %d", status)
	}
}

// stream is a recorder that tells of its first flush.
type stream struct {
	recorder
	flushed chan struct{}
}

func (s *stream) Flush() {
	select {
	case s.flushed <- struct{}{}:
	default:
	}
}

// behind serves a handler behind a door on a socket that everybody may use.
func behind(t *testing.T, d Door, h http.Handler) (socket string, b *bounded) {
	t.Helper()
	socket = filepath.Join(openDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	s, limited := d.Server(l, h)
	go s.Serve(limited)
	t.Cleanup(func() { s.Close() })
	return socket, limited.(*bounded)
}

func (b *bounded) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open)
}

// get asks on a connection of its own, which stays open.
func get(t *testing.T, c net.Conn) error {
	t.Helper()
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: agent\r\n\r\n"); err != nil {
		return err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	if _, err = io.Copy(io.Discard, r.Body); err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return err
}

// Connections that nobody uses make room for new ones: they never hold up anybody.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 8
	entered, leave := make(chan struct{}), make(chan struct{})
	first := true
	socket, b := behind(t, Door{Host: Named("agent"), Conns: most}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if first { // and long at work
			first = false
			close(entered)
			<-leave
		}
		io.WriteString(w, "well")
	}))
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	slow := dial()
	answered := make(chan error, 1)
	go func() { answered <- get(t, slow) }()
	<-entered
	for i := range 100 {
		dial()
		if i%10 == 0 {
			if err := get(t, dial()); err != nil {
				t.Errorf("after %d idle connections: %v", i, err)
			}
		}
		if n := b.count(); n > most {
			t.Fatalf("%d connections are open, want at most %d", n, most)
		}
	}
	close(leave)
	if err := <-answered; err != nil {
		t.Errorf("idle connections ended one that was being answered: %v", err)
	}
}

// A user who opens many connections gets in nobody else's way, whatever is asked on them.
func TestConnectionsOfOneUser(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	defer close(leave)
	socket, b := behind(t, Door{Host: Named("agent"), Conns: 8, PerUser: 3}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := PeerOf(r.Context())
		if !ok {
			t.Error("the user is not known")
		}
		if p.UID == stranger {
			<-leave
		}
		fmt.Fprint(w, p.UID)
	}))
	mine, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	if err := get(t, mine); err != nil {
		t.Fatal(err)
	}
	var theirs []net.Conn
	for range 20 {
		c, err := testbox.DialAs(stranger, socket)
		if errors.Is(err, unix.EPERM) {
			t.Skipf("cannot become user %d: %v", stranger, err)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: agent\r\n\r\n")
		theirs = append(theirs, c)
	}
	defer func() {
		for _, c := range theirs {
			c.Close()
		}
	}()
	// Once all have been accepted three are left: the newest, or older ones that are being answered.
	ended := make(chan error, len(theirs))
	for _, c := range theirs {
		c.SetReadDeadline(time.Now().Add(time.Minute))
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
	}
	for range theirs[3:] {
		if err := <-ended; err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("more than three connections of the user stay open: %v", err)
		}
	}
	b.mu.Lock()
	n := b.share.taken[stranger]
	b.mu.Unlock()
	if n > 3 {
		t.Errorf("%d connections of one user are open, want at most 3", n)
	}
	if err := get(t, mine); err != nil {
		t.Errorf("this user's own, idle connection: %v", err)
	}
}

// When others have all connections, what they leave idle makes room, root's excepted.
func TestVictim(t *testing.T) {
	t.Parallel()
	b := &bounded{share: newShares(4, 2), open: map[*conn]bool{}}
	add := func(name string, uid int, asking bool) *conn {
		c := &conn{Conn: label{name: name}, peer: Peer{UID: uid}, of: b, asking: asking}
		c.touch()
		b.open[c] = true
		b.share.add(uid, 1)
		return c
	}
	root := add("root", 0, false)
	add("a working", 70001, true)
	add("a idle", 70001, false)
	add("b working", 70002, true)
	add("b working too", 70002, true)
	for _, tc := range []struct {
		uid            int
		full, byOthers bool
		want           string
	}{
		{70001, true, false, "a idle"},
		{70002, true, false, "b working"},
		{70003, true, true, "a idle"},
		{0, false, false, ""},
	} {
		full, byOthers := b.share.full(tc.uid)
		if full != tc.full || byOthers != tc.byOthers {
			t.Errorf("user %d: full %v, by others %v", tc.uid, full, byOthers)
		}
		if !full {
			continue
		}
		if v := b.victim(tc.uid, byOthers); v.Conn.(label).name != tc.want {
			t.Errorf("user %d takes the place of %v, want %s", tc.uid, v.Conn, tc.want)
		}
	}
	b.drop(root)
	b.drop(root) // twice, as by the server and for a newcomer
	if b.share.taken[0] != 0 || b.share.others != 4 || len(b.open) != 4 {
		t.Errorf("after root's has ended: %+v, %d open", b.share, len(b.open))
	}
}

type label struct {
	net.Conn
	name string
}

func (label) Close() error { return nil }
