package program

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/kernel"
	"berth.dev/berth/lab/load"
)

// Each server that is installed starts, answers, is filled, and leaves nothing.
func TestServers(t *testing.T) {
	t.Parallel()
	for _, s := range Servers() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			version, err := s.Version()
			if errors.Is(err, kernel.ErrNotSupported) {
				t.Skip(err)
			}
			if err != nil || version == "" {
				t.Fatalf("version %q, %v", version, err)
			}
			c, target, err := s.Prepare(1)
			if err != nil {
				t.Fatal(err)
			}
			k := keep(t, c)
			hello := target
			hello.Path = s.Hello
			err = hello.Check(t.Context())
			for n := 0; err != nil && n < 600; n++ {
				time.Sleep(50 * time.Millisecond)
				err = hello.Check(t.Context())
			}
			if err != nil {
				t.Fatalf("%v; %s", err, &k.said)
			}
			if err := s.Fill(t.Context(), target); err != nil {
				t.Fatal(err)
			}
			if err := target.Check(t.Context()); err != nil {
				t.Error(err)
			}
			wrong := target
			wrong.Path = map[string]string{"nginx": "/absent", "redis": "GET", "memcached": "incr key:1 x", "postgres": "SELECT * FROM absent"}[s.Name]
			if err := wrong.Check(t.Context()); err == nil {
				t.Errorf("%s: no error", wrong.Path)
			}
			first := k.pid
			if err := k.end(); err != nil {
				t.Errorf("%v: %s", err, &k.said)
			}
			if lives(first) {
				t.Error("it lives on")
			}
			if _, err := os.Stat(c.Remove); err == nil {
				t.Errorf("%s is still there", c.Remove)
			}
			if err := target.Check(t.Context()); err == nil {
				t.Error("it still answers")
			}
		})
	}
}

func TestProbe(t *testing.T) {
	t.Setenv("PGUSER", "carol")
	for _, test := range []struct {
		url, ask string
		want     load.Target
	}{
		{"http://127.0.0.1", "", load.Target{Protocol: "http", Addr: "127.0.0.1:80", Path: "/"}},
		{"http://localhost:8080/a/{1-9}?b=c", "", load.Target{Protocol: "http", Addr: "localhost:8080", Path: "/a/{1-9}?b=c"}},
		{"http://[::1]:8080/a", "/b", load.Target{Protocol: "http", Addr: "[::1]:8080", Path: "/b"}},
		{"redis://h", "", load.Target{Protocol: "redis", Addr: "h:6379", Path: "PING"}},
		{"redis://bob@h:1/2", "GET k:{0-9}", load.Target{Protocol: "redis", Addr: "h:1", Path: "GET k:{0-9}", User: "bob", Database: "2"}},
		{"memcached://h", "get k", load.Target{Protocol: "memcached", Addr: "h:11211", Path: "get k"}},
		{"postgres://h/db", "", load.Target{Protocol: "postgres", Addr: "h:5432", Path: "SELECT 1", User: "carol", Database: "db"}},
		{"postgresql://bob@h:1", "SELECT 2", load.Target{Protocol: "postgres", Addr: "h:1", Path: "SELECT 2", User: "bob"}},
	} {
		if got, err := Probe(test.url, test.ask); err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", test.url, got, err, test.want)
		}
	}
	for url, want := range map[string]string{
		"":                         "want http://",
		"127.0.0.1:80":             "probe: parse",
		"ftp://h":                  "want http://",
		"https://h":                "TLS is not supported",
		"http://":                  "no host",
		"http:///path":             "no host",
		"redis://:secret@h":        "REDISCLI_AUTH",
		"postgres://a:secret@h/db": "PGPASSWORD",
		"http://a:secret@h":        "not supported by this protocol",
		"memcached://h/path":       "--ask",
		"http://h/{9-1}":           "want the lower number first",
	} {
		_, err := Probe(url, "")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %q", url, err, want)
		}
	}
	t.Setenv("PGPASSWORD", "pencil")
	if got := Secret(load.Target{Protocol: "postgres"}); got.Password != "pencil" {
		t.Errorf("password %q", got.Password)
	}
	if got := Secret(load.Target{Protocol: "http"}); got.Password != "" {
		t.Errorf("password %q for http", got.Password)
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	for addr, local := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "192.0.2.1:1": false} {
		if err := Local(load.Target{Addr: addr}); (err == nil) != local {
			t.Errorf("%s: %v", addr, err)
		}
	}
}
