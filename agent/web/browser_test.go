package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth.dev/berth/agent/api"
	"berth.dev/berth/agent/daemon"
	"berth.dev/berth/internal/browser"
	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
)

// runAgent runs an agent on a host of 2 sockets, 8 nodes and 64 CPUs with some
// groups, and returns the address of its page.
func runAgent(t *testing.T, conf string, groups ...string) string {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "root")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	l := fakekernel.V2()
	l.CPUs, l.Mems, l.Own = "0-63", "0-7", "/"
	k, err := fakekernel.New(tree, l)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if err := k.Mkdir("sys/fs/cgroup/" + g); err != nil {
			t.Fatal(err)
		}
	}
	m := fakekernel.Short(t, "2s4n4c2t")
	m.Name = "played"
	file := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: berth.dev/v1alpha1\nkind: NodeConfig\n"+conf), 0o600); err != nil {
		t.Fatal(err)
	}
	servers := make(chan api.Server, 1)
	opt := daemon.Options{
		Root: kernel.NewRoot(tree, k), Machine: m, File: file, Socket: filepath.Join(dir, "s"), Interval: 100 * time.Millisecond,
		Web: func(_ context.Context, s api.Server) (http.Handler, error) {
			servers <- s
			return Handler(s, nil), nil
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx, opt) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	select {
	case s := <-servers:
		await(t, s, len(groups))
		web := httptest.NewServer(Handler(s, nil))
		t.Cleanup(web.Close)
		return web.URL
	case err := <-done:
		done <- nil
		t.Fatalf("the agent ended: %v", err)
	}
	return ""
}

// await waits until a number of workloads have figures.
func await(t *testing.T, s api.Server, n int) {
	t.Helper()
	for range 1000 {
		stats, err := s.View.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list, err := s.Node.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !stats.Time.IsZero() && len(list) == n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%d workloads did not come", n)
}

func TestInBrowser(t *testing.T) {
	t.Parallel()
	browser.Path(t)
	const evil = `<img src=x onerror=document.title=1>`
	address := runAgent(t, `
reserved: "0"
agent: {metrics: "off"}
workloads:
- {name: web, match: {cgroup: "/web*"}, class: LSR, cpus: 4}
- {name: own, match: {cgroup: "/db"}, class: LSE, cpus: 8}
- {name: rest, match: {cgroup: "/?img*"}, class: BE}
`, "web1", "web2", "db", evil)
	document, console := browser.Open(t, address)
	if console != "" {
		t.Errorf("the console says:\n%s", console)
	}
	count := func(pattern string) int { return len(regexp.MustCompile(pattern).FindAllString(document, -1)) }
	for _, tc := range []struct {
		what, pattern string
		want          int
	}{
		{"CPUs in the map", `data-cpu="\d+"`, 64},
		{"CPUs that can be tabbed to", `tabindex="0" data-cpu|data-cpu="\d+" tabindex="0"`, 1},
		{"own CPUs", `aria-label="CPU \d+: owned by `, 16},
		{"sockets", `role="group" aria-label="socket \d+(, L3 \d+)?"`, 2},
		{"nodes", `role="group" aria-label="(socket \d+, )?node \d+[^"]*"`, 8},
		{"workloads", `<th class="" scope="row">|<th scope="row">`, 4},
		{"escaped names in the table", `</span>rest:&lt;img src=x`, 1},
		{"images", `<img`, 0},
		{"placements among the events", `<span class="kind">placed</span>`, 4},
		{"sorted columns", `aria-sort="ascending"`, 1},
		{"live links", `class="link on" role="status">Live<`, 1},
	} {
		if got := count(tc.pattern); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.what, got, tc.want)
		}
	}
	if t.Failed() {
		name := filepath.Join(os.TempDir(), fmt.Sprintf("berth-page-%d.html", os.Getpid()))
		t.Logf("the document is in %s: %v", name, os.WriteFile(name, []byte(document), 0o600))
	}
}

// acting is the page with a script that acts as a user, a line every second.
func acting(h http.Handler, acts ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/page.js" {
			h.ServeHTTP(w, r)
			return
		}
		script, err := assets.ReadFile("page.js")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = w.Write(script) // a browser that left misses nothing
		// Once the page shows CPUs, and all within the time that open gives it.
		fmt.Fprint(w, "const shown = setInterval(() => {\n if (!document.querySelector('.cpu')) return;\n clearInterval(shown);\n")
		for i, act := range acts {
			fmt.Fprintf(w, " setTimeout(() => { %s; }, %d);\n", act, i*700)
		}
		fmt.Fprint(w, "}, 100);\n")
	})
}

func TestInBrowserActs(t *testing.T) {
	t.Parallel()
	browser.Path(t)
	press := func(key string) string {
		return fmt.Sprintf("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))", key)
	}
	for _, tc := range []struct {
		name   string
		acts   []string
		status int // of the second status and later
		want   []string
	}{
		{"keys and clicks", []string{
			"$('map').querySelector('.cpu').focus()", press("End"), press("Home") + ";" + press("ArrowRight") + ";" + press("ArrowDown"),
			"document.querySelector('[data-key=cpu] button').click()", "cells.get(2).click()",
		}, http.StatusOK, []string{
			`<p id="detail" class="detail">CPU 5: shared; 1 workload may run here; socket 0, node 0, L3 0, core with CPU 1</p>`,
			`data-cpu="5"[^>]*tabindex="0"|tabindex="0" data-cpu="5"`,
			`data-key="cpu" aria-sort="descending"`,
			`<dialog id="why"[^>]* open`, `Why 000 &lt;/script&gt;&lt;img src=x`, `<h3>node</h3><ul><li class="chosen">node 0: chosen</li></ul>`,
		}},
		{"nobody answers", nil, http.StatusInternalServerError, []string{`<body class="lost">`, `The agent answers with an error: no; trying again. What is below was so at `}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := Handler(newFake(t, "1s1n4c2t", 2).server(), nil)
			var asked atomic.Int32
			web := httptest.NewServer(acting(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/status.json" {
					if asked.Add(1) > 1 && tc.status != http.StatusOK {
						http.Error(w, "no", tc.status)
						return
					}
				}
				h.ServeHTTP(w, r)
			}), tc.acts...))
			defer web.Close()
			document, console := browser.Open(t, web.URL)
			if console != "" && tc.status == http.StatusOK {
				t.Errorf("the console says:\n%s", console)
			}
			for _, want := range tc.want {
				if !regexp.MustCompile(want).MatchString(document) {
					t.Errorf("the document lacks %s", want)
				}
			}
			if strings.Contains(document, "<img") {
				t.Error("a name became an image")
			}
		})
	}
}

// Without workloads the page says how to get some.
func TestInBrowserEmpty(t *testing.T) {
	t.Parallel()
	browser.Path(t)
	document, console := browser.Open(t, runAgent(t, "agent: {metrics: \"off\"}\n"))
	if console != "" || !strings.Contains(document, `<div id="empty" class="callout">`) || !strings.Contains(document, `<div id="table" class="scroll" role="region" aria-labelledby="workloads-h" tabindex="0" hidden="">`) {
		t.Errorf("it does not say that nothing is there; the console: %s", console)
	}
}
