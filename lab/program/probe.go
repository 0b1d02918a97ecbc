package program

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strings"

	"berth.dev/berth/lab/load"
)

// scheme is a kind of probe: its protocol, the port that is usual, what is asked by default,
// and where a password comes from.
type scheme struct{ protocol, port, ask, secret string }

func schemeOf(name string) (scheme, bool) {
	switch name {
	case "http":
		return scheme{"http", "80", "/", ""}, true
	case "redis":
		return scheme{"redis", "6379", "PING", "REDISCLI_AUTH"}, true
	case "memcached":
		return scheme{"memcached", "11211", "version", ""}, true
	case "postgres", "postgresql":
		return scheme{"postgres", "5432", "SELECT 1", "PGPASSWORD"}, true
	}
	return scheme{}, false
}

// Probe reads the URL of a service, as in redis://127.0.0.1:6379/0, and what it is to be
// asked; "" is the path of the URL, PING, version or SELECT 1. A password is no part of
// it, as it is stored with the result: Secret adds it.
func Probe(text, ask string) (load.Target, error) {
	wrong := func(why string) (load.Target, error) {
		return load.Target{}, fmt.Errorf("probe %q: %s", text, why)
	}
	u, err := url.Parse(text)
	if err != nil {
		return load.Target{}, fmt.Errorf("probe: %w", err)
	}
	s, ok := schemeOf(u.Scheme)
	switch {
	case u.Scheme == "https" || u.Scheme == "rediss":
		return wrong("TLS is not supported: name the port that speaks without")
	case !ok:
		return wrong("want http://, redis://, memcached:// or postgres://")
	case u.Hostname() == "":
		return wrong("no host: want one such as " + u.Scheme + "://127.0.0.1:" + s.port)
	}
	if _, given := u.User.Password(); given {
		if s.secret == "" {
			return load.Target{}, fmt.Errorf("probe %s: a password is not supported by this protocol", u.Redacted())
		}
		return load.Target{}, fmt.Errorf("probe %s: the result would show the password: set it by the environment, as %s", u.Redacted(), s.secret)
	}
	t := load.Target{Protocol: s.protocol, Addr: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), s.port)), Path: cmp.Or(ask, s.ask), User: u.User.Username()}
	path := strings.TrimPrefix(u.Path, "/")
	switch s.protocol {
	case "http":
		t.Path = cmp.Or(u.RequestURI(), "/")
		// A range of numbers is written as it is.
		t.Path = strings.NewReplacer("%7B", "{", "%7D", "}").Replace(t.Path)
		if ask != "" {
			t.Path = ask
		}
	case "redis", "postgres":
		t.Database = path
	default:
		if path != "" {
			return wrong("it has a path: what is asked is said by --ask")
		}
	}
	if s.protocol == "postgres" && t.User == "" {
		if t.User = os.Getenv("PGUSER"); t.User == "" {
			if own, err := user.Current(); err == nil {
				t.User = own.Username
			}
		}
	}
	if err := t.Validate(); err != nil {
		return load.Target{}, fmt.Errorf("probe %q: %w", text, err)
	}
	return t, nil
}

// Secret is the target with its password, which comes from the environment.
func Secret(t load.Target) load.Target {
	if s, ok := schemeOf(t.Protocol); ok && s.secret != "" && t.Password == "" {
		t.Password = os.Getenv(s.secret)
	}
	return t
}

// errElsewhere is of a service on another host.
var errElsewhere = errors.New("it is not of this host, so that a neighbour here cannot disturb it: name an address of this host")

// Local says whether a service is on this host.
func Local(t load.Target) error {
	tcp, err := net.ResolveTCPAddr("tcp", t.Addr)
	if err != nil {
		return err
	}
	if tcp.IP.IsLoopback() || tcp.IP.IsUnspecified() {
		return nil
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("addresses of this host: %w", err)
	}
	if slices.ContainsFunc(own, func(a net.Addr) bool { n, ok := a.(*net.IPNet); return ok && n.IP.Equal(tcp.IP) }) {
		return nil
	}
	return errElsewhere
}
