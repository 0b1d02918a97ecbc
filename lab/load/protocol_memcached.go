package load

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// memcachedProtocol is the text protocol (memcached, doc/protocol.txt).
type memcachedProtocol struct{}

// encode takes commands as they are sent, but "set KEY VALUE" without flags, expiry and
// length.
func (memcachedProtocol) encode(_ Target, ask string) ([]byte, error) {
	all, err := words(ask)
	if err != nil {
		return nil, err
	}
	switch verb := all[0]; verb {
	case "set", "add", "replace", "append", "prepend":
		if len(all) != 3 {
			return nil, fmt.Errorf("command %q: want %s KEY VALUE", ask, verb)
		}
		return fmt.Appendf(nil, "%s %s 0 0 %d\r\n%s\r\n", verb, all[1], len(all[2]), all[2]), nil
	case "get", "gets", "gat", "delete", "incr", "decr", "touch", "version", "stats":
		return []byte(strings.Join(all, " ") + "\r\n"), nil
	}
	return nil, fmt.Errorf("command %q: want get, set, add, replace, append, prepend, delete, incr, decr, touch, version or stats", ask)
}

func (memcachedProtocol) greet(Target) greeting { return nil }

func (memcachedProtocol) reader() reader { return &memcachedReader{line: newLine(keepOfLine)} }

// memcachedReader reads one response: lines up to one that is an end.
type memcachedReader struct {
	line   line
	skip   int64 // bytes of a value still to come, its end of line included
	ended  bool
	failed bool
}

func (r *memcachedReader) reset() {
	r.line.reset()
	*r = memcachedReader{line: r.line}
}

func (r *memcachedReader) outcome() (failure []byte, closes bool) {
	if r.failed {
		return r.line.kept, false
	}
	return nil, false
}

func (r *memcachedReader) read(p []byte) (bool, error) {
	for {
		n := min(int64(len(p)), r.skip)
		p, r.skip = p[n:], r.skip-n
		switch {
		case r.ended && len(p) > 0:
			return false, errExcessReply
		case r.ended:
			return true, nil
		case r.skip > 0 || len(p) == 0:
			return false, nil
		}
		rest, done := r.line.take(p)
		if p = rest; !done {
			return false, nil
		}
		if err := r.take(); err != nil {
			return false, err
		}
	}
}

// take takes a whole line.
func (r *memcachedReader) take() error {
	verb, rest, _ := bytes.Cut(r.line.kept, []byte(" "))
	switch string(verb) {
	case "VALUE": // KEY FLAGS LENGTH [CAS]
		for range 2 {
			_, rest, _ = bytes.Cut(rest, []byte(" "))
		}
		length, _, _ := bytes.Cut(rest, []byte(" "))
		n, err := strconv.ParseInt(string(length), 10, 40)
		if err != nil || n < 0 {
			return errNotMemcached
		}
		r.skip = n + 2
	case "STAT":
	case "ERROR", "CLIENT_ERROR", "SERVER_ERROR":
		r.ended, r.failed = true, true
		return nil
	case "END", "STORED", "NOT_STORED", "EXISTS", "NOT_FOUND", "DELETED", "TOUCHED", "OK", "VERSION", "RESET":
		r.ended = true
	default:
		if !isNumber(verb) { // of incr and decr
			return errNotMemcached
		}
		r.ended = true
	}
	r.line.reset()
	return nil
}

func isNumber(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(b) > 0
}
