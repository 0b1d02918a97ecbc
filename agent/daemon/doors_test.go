package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/agent"
	"berth.dev/berth/agent/api"
)

// pageOf is a fake page that says where the node places.
func pageOf(_ context.Context, s api.Server) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, err := s.View.About(r.Context())
		fmt.Fprintf(w, "%s %v", a.Backend, err)
	}), nil
}

// address is that of the page, without http://, as the agent says it.
func address(t *testing.T, text string) string {
	t.Helper()
	m := regexp.MustCompile(`http://(\S+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no address in %q", text)
	}
	return m[1]
}

// through is a client of one address, whatever it asks for.
func through(t *testing.T, network, address string) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial(network, address) }}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

// Each door of a running agent answers what it is for, and refuses other hosts' names
// and requests that another site's page may have sent.
func TestDoors(t *testing.T) {
	t.Parallel()
	h := newHost(t, "agent: {metrics: \"127.0.0.1:0\", hosts: [Node7.example.org]}\n")
	h.opt.Web = pageOf
	r := h.run()
	socket := through(t, "unix", h.opt.Socket)
	page := through(t, "unix", api.PagePath(h.opt.Socket))
	tcp := through(t, "tcp", address(t, r.started))
	const json, says, none = "application/json", "cgroup v1 <nil>", `"type":"urn:berth:request"`
	place := `{"request":{"id":"x"}}`
	for _, tc := range []struct {
		client            *http.Client
		method, url, body string
		header            []string
		status            int
		want              string
	}{
		{socket, "GET", "http://agent/v1/workloads", "", nil, 200, `{"workloads":[]}`},
		{socket, "GET", "http://agent/", "", nil, 404, none}, // nothing for a browser here
		{socket, "GET", "http://agent/status.json", "", nil, 404, none},
		{socket, "GET", "http://agent/metrics", "", nil, 404, none},
		{page, "GET", "http://localhost:9750/", "", nil, 200, says},
		{page, "GET", "http://localhost:9750/v1/workloads", "", nil, 200, says}, // no API
		{tcp, "GET", "http://localhost:9750/metrics", "", nil, 200, says},
		{tcp, "GET", "http://127.0.0.1/v1/workloads", "", nil, 200, says},
		{tcp, "GET", "http://node7.example.org:9750/", "", nil, 200, says},

		{socket, "GET", "http://localhost:9750/v1/workloads", "", nil, 421, none}, // as through ssh -L
		{socket, "GET", "http://evil.example/v1/workloads", "", nil, 421, none},
		{page, "GET", "http://evil.example:9750/", "", nil, 421, none},
		{page, "GET", "http://node7.example.org:9750/", "", nil, 421, none},
		{tcp, "GET", "http://evil.example:9750/status.json", "", nil, 421, none},
		{tcp, "GET", "http://10.0.0.1:9750/status.json", "", nil, 421, none},

		{socket, "POST", "http://agent/v1/workloads", place, []string{"Content-Type", "text/plain", "Origin", "https://evil.example"}, 403, none},
		{socket, "POST", "http://agent/v1/workloads", place, []string{"Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site"}, 403, none},
		{socket, "POST", "http://agent/v1/workloads", place, []string{"Content-Type", "text/plain"}, 415, none},
		{page, "GET", "http://localhost:9750/", "", []string{"Origin", "https://evil.example"}, 403, none},
		{tcp, "GET", "http://localhost:9750/", "", []string{"Origin", "https://evil.example"}, 403, none},
		{tcp, "GET", "http://localhost:9750/", "", []string{"Sec-Fetch-Site", "cross-site"}, 403, none},
		{tcp, "POST", "http://localhost:9750/v1/workloads", place, []string{"Content-Type", "text/plain"}, 415, none},

		{socket, "POST", "http://agent/v1/workloads", place, []string{"Content-Type", json}, 201, `"id":"x"`},
	} {
		ask, err := http.NewRequest(tc.method, tc.url, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(tc.header); i += 2 {
			ask.Header.Set(tc.header[i], tc.header[i+1])
		}
		answer, err := tc.client.Do(ask)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != tc.status || !strings.Contains(string(text), tc.want) {
			t.Errorf("%s %s with %q: %d %.100s, %v; want %d %s", tc.method, tc.url, tc.header, answer.StatusCode, text, err, tc.status, tc.want)
		}
		if strings.Contains(answer.Header.Get("Content-Type"), "html") {
			t.Errorf("%s %s is HTML", tc.method, tc.url)
		}
	}
	if all, err := r.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("placed are %v, %v; want only what a program asked for", all, err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{h.opt.Socket, api.PagePath(h.opt.Socket)} {
		if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s stays behind: %v", name, err)
		}
	}
}

// Other hosts may ask for an address that the configuration opens to them by address,
// and by the names that it lists.
func TestNetworkDoor(t *testing.T) {
	t.Parallel()
	h := newHost(t, "agent: {metrics: \"0.0.0.0:0\", network: true, hosts: [node7]}\n")
	h.opt.Web = pageOf
	r := h.run()
	_, port, _ := net.SplitHostPort(address(t, r.started))
	client := through(t, "tcp", "127.0.0.1:"+port)
	for host, want := range map[string]int{"10.0.0.1:9750": 200, "[fe80::1]": 200, "node7": 200, "localhost": 200, "evil.example": 421, "node7.evil.example": 421} {
		answer, err := client.Get("http://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("asked for %s: %d, want %d", host, answer.StatusCode, want)
		}
	}
}

// A port or a name that somebody else has keeps the page away until it is free, and
// nothing else.
func TestPageWhereSomebodyElseListens(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	port := strconv.Itoa(other.Addr().(*net.TCPAddr).Port)
	h := newHost(t, "agent: {metrics: \"127.0.0.1:"+port+"\"}\n")
	h.opt.Web, h.opt.firstRetry = pageOf, 10*time.Millisecond
	inTheWay := api.PagePath(h.opt.Socket)
	if err := os.WriteFile(inTheWay, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := h.run()
	if strings.Contains(r.started, "http") {
		t.Errorf("it started with %q", r.started)
	}
	if _, err := r.Place(t.Context(), agent.Spec{Request: request("mine")}); err != nil {
		t.Error(err)
	}
	time.Sleep(100 * time.Millisecond) // some attempts
	about, err := r.About(t.Context())
	if err != nil || len(about.Unserved) != 2 || !strings.Contains(about.Unserved[0], inTheWay) || !strings.Contains(about.Unserved[1], port+": bind: address already in use") {
		t.Errorf("unserved are %q, %v", about.Unserved, err)
	}
	r.last = 0
	failures := 0
	for e, err := range r.Events(t.Context(), 0, false) {
		if err == nil && e.Kind == agent.Failed {
			failures++
		}
	}
	if failures != 2 {
		t.Errorf("two doors that cannot be opened are told %d times", failures)
	}
	if text, err := os.ReadFile(inTheWay); err != nil || string(text) != "precious" {
		t.Errorf("the file in the way holds %q, %v", text, err)
	}
	other.Close()
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.await(api.Opened, "")
	}
	for network, at := range map[string]string{"tcp": "127.0.0.1:" + port, "unix": inTheWay} {
		answer, err := through(t, network, at).Get("http://localhost/")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != 200 {
			t.Errorf("%s: %d", at, answer.StatusCode)
		}
	}
	if about, err = r.About(t.Context()); err != nil || len(about.Unserved) != 0 {
		t.Errorf("unserved are still %q, %v", about.Unserved, err)
	}
}

// Idle connections of a stranger, many more than the page has room for, take a bounded
// number of descriptors, and neither the page nor the API waits for them.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	h := newHost(t, "agent: {metrics: \"127.0.0.1:0\"}\n")
	h.opt.Web = pageOf
	r := h.run()
	at := address(t, r.started)
	const many = 10 * pageConns
	for range many {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	answer, err := through(t, "tcp", at).Get("http://localhost/")
	if err != nil {
		t.Fatalf("beside %d connections: %v", many, err)
	}
	answer.Body.Close()
	if _, err := r.Place(t.Context(), agent.Spec{Request: request("mine")}); err != nil {
		t.Error(err)
	}
	open := 0
	_, port, _ := net.SplitHostPort(at)
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	sockets := established(t, port)
	for _, fd := range fds {
		if link, err := os.Readlink(fd); err == nil && sockets[link] {
			open++
		}
	}
	if open > pageConns {
		t.Errorf("the agent has %d connections open, want at most %d", open, pageConns)
	}
}

// established are the links of descriptors of connections that came to a port of
// 127.0.0.1, from /proc/net/tcp (proc_pid_net(5)).
func established(t *testing.T, port string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Skip(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", n)) && f[3] != "0A" {
			all["socket:["+f[9]+"]"] = true
		}
	}
	if len(all) == 0 {
		t.Fatal("no connection is in /proc/net/tcp")
	}
	return all
}
