package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

const (
	apiSocket  = "/run/berth/agent.sock"
	pageSocket = "/run/berth/page.sock"
	pageTCP    = "127.0.0.1:9750"
)

// browse asks at a socket or an address, for any host, and returns status, kind and body.
func browse(at, method, url, body string, header ...string) (status int, kind, text string, err error) {
	network := "tcp"
	if strings.HasPrefix(at, "/") {
		network = "unix"
	}
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial(network, at) }}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", "", err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	return answer.StatusCode, answer.Header.Get("Content-Type"), string(all), err
}

// TestOtherSites has web pages that an administrator visits ask the agent, through each
// of its doors as the administrator's browser reaches them: directly, and by a forward of
// ssh, which connects as root.
func TestOtherSites(t *testing.T) {
	boxed(t, func(b *box) {
		p := b.agent("")
		const (
			jsonType = "application/json"
			place    = `{"request":{"id":"evil","class":"LSE","milli":1000}}`
		)
		for _, tc := range []struct {
			at, method, url, body string
			header                []string
			want                  int
		}{
			// Cross-site: what a browser sends without asking first.
			{apiSocket, "POST", "http://agent/v1/workloads", place, []string{"Content-Type", "text/plain", "Origin", "https://evil.example"}, 403},
			{apiSocket, "POST", "http://localhost:9750/v1/workloads", place, []string{"Content-Type", "text/plain", "Origin", "https://evil.example"}, 421},
			{apiSocket, "POST", "http://agent/v1/workloads", place, []string{"Content-Type", "text/plain"}, 415},
			{apiSocket, "PUT", "http://agent/v1/guard", `{"mode":"enforce"}`, []string{"Content-Type", jsonType, "Sec-Fetch-Site", "cross-site"}, 403},
			// DNS rebinding: the page's own name leads here.
			{apiSocket, "GET", "http://evil.example:9750/v1/config", "", nil, 421},
			{apiSocket, "PUT", "http://evil.example:9750/v1/guard", `{"mode":"off"}`, []string{"Content-Type", jsonType}, 421},
			{apiSocket, "DELETE", "http://evil.example:9750/v1/workloads/x?kill=true", "", nil, 421},
			{pageSocket, "GET", "http://evil.example:9750/status.json", "", nil, 421},
			{pageTCP, "GET", "http://evil.example:9750/status.json", "", nil, 421},
			{pageTCP, "GET", "http://localhost:9750/status.json", "", []string{"Sec-Fetch-Site", "cross-site"}, 403},
			{pageTCP, "GET", "http://localhost:9750/metrics", "", []string{"Origin", "https://evil.example"}, 403},
			// What reads only has no way to the API.
			{pageSocket, "GET", "http://localhost:9750/v1/workloads", "", nil, 404},
			{pageSocket, "POST", "http://localhost:9750/v1/workloads", place, []string{"Content-Type", jsonType}, 404},
			{pageTCP, "PUT", "http://localhost:9750/v1/guard", `{"mode":"off"}`, []string{"Content-Type", jsonType}, 404},
			{apiSocket, "GET", "http://agent/", "", nil, 404},
			{apiSocket, "GET", "http://agent/page.js", "", nil, 404},
		} {
			status, kind, text, err := browse(tc.at, tc.method, tc.url, tc.body, tc.header...)
			if err != nil || status != tc.want || strings.Contains(kind, "html") {
				b.Errorf("%s %s %s with %q: %d %s %.100s, %v; want %d", tc.at, tc.method, tc.url, tc.header, status, kind, text, err, tc.want)
			}
		}
		if out := b.ps("-o", "json"); strings.Contains(out, "evil") {
			b.Errorf("a web page has placed something:\n%s", out)
		}
		// The page itself works, at the address and through a forward of its socket.
		for at, host := range map[string]string{pageTCP: "http://localhost:9750", pageSocket: "http://localhost:8888"} {
			for path, want := range map[string]string{"/": "<script", "/page.js": "fetch(", "/page.css": "{", "/status.json?after=0": `"workloads":`, "/metrics": "berth_agent_info"} {
				status, _, text, err := browse(at, "GET", host+path, "", "Sec-Fetch-Site", "same-origin")
				if err != nil || status != 200 || !strings.Contains(text, want) {
					b.Errorf("%s%s at %s: %d %.200s, %v", host, path, at, status, text, err)
				}
			}
		}
		for _, name := range []string{apiSocket, pageSocket} {
			if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
				b.Errorf("%s: %v, %v", name, info, err)
			}
		}
		if p.ProcessState != nil {
			b.Errorf("the agent has ended:\n%s", p.out)
		}
	})
}

// ask plays a program of the user's that asks the agent.
var ask = newTrick("ask", func(args []string) error {
	if len(args) < 4 {
		return errors.New("ask AT METHOD URL BODY [HEADER VALUE]...")
	}
	status, _, text, err := browse(args[0], args[1], args[2], args[3], args[4:]...)
	fmt.Println(status, text)
	return err
})
