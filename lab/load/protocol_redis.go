package load

import (
	"errors"
	"fmt"
	"strconv"
)

// What the readers of Redis and memcached refuse. The texts appear in Report.Errors.
var (
	errNotRedis     = errors.New("response: not the protocol of Redis (RESP): is another service at this address?")
	errNotMemcached = errors.New("response: not the text protocol of memcached: is another service at this address?")
	errExcessReply  = errors.New("response: more bytes than one reply")
)

// redisProtocol is RESP, versions 2 and 3 (redis.io, "Redis serialization protocol
// specification").
type redisProtocol struct{}

func (redisProtocol) encode(_ Target, ask string) ([]byte, error) {
	all, err := words(ask)
	if err != nil {
		return nil, err
	}
	return redisCommand(all...), nil
}

func redisCommand(words ...string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b
}

func (redisProtocol) greet(t Target) greeting {
	var first [][]byte
	switch {
	case t.Password != "" && t.User != "":
		first = append(first, redisCommand("AUTH", t.User, t.Password))
	case t.Password != "":
		first = append(first, redisCommand("AUTH", t.Password))
	}
	if t.Database != "" && t.Database != "0" {
		first = append(first, redisCommand("SELECT", t.Database))
	}
	if len(first) == 0 {
		return nil
	}
	return &redisGreeting{first, redisProtocol{}.reader()}
}

// redisGreeting is commands, each of which has to succeed.
type redisGreeting struct {
	commands [][]byte
	reply    reader
}

func (g *redisGreeting) next(arrived []byte) (send []byte, done bool, err error) {
	if len(arrived) > 0 {
		ready, err := g.reply.read(arrived)
		if err != nil || !ready {
			return nil, false, err
		}
		if failure, _ := g.reply.outcome(); len(failure) > 0 {
			return nil, false, fmt.Errorf("redis: %s", said(failure))
		}
		g.reply.reset()
		if len(g.commands) == 0 {
			return nil, true, nil
		}
	}
	send, g.commands = g.commands[0], g.commands[1:]
	return send, false, nil
}

func (redisProtocol) reader() reader { return &redisReader{line: newLine(keepOfLine), values: 1} }

// redisReader reads one reply, which may hold others. Of an error it keeps the text.
type redisReader struct {
	line   line
	values int64 // still to come
	skip   int64 // bytes of a value still to come, its end of line included
	first  bool  // the reply's own line has been read
	failed bool
}

func (r *redisReader) reset() {
	r.line.reset()
	*r = redisReader{line: r.line, values: 1}
}

func (r *redisReader) outcome() (failure []byte, closes bool) {
	if r.failed {
		return r.line.kept[1:], false
	}
	return nil, false
}

func (r *redisReader) read(p []byte) (bool, error) {
	for {
		n := min(int64(len(p)), r.skip)
		p, r.skip = p[n:], r.skip-n
		if r.skip > 0 {
			return false, nil
		}
		if r.values == 0 {
			if len(p) > 0 {
				return false, errExcessReply
			}
			return true, nil
		}
		if len(p) == 0 {
			return false, nil
		}
		if len(r.line.kept) == 0 && !isRedisType(p[0]) {
			return false, errNotRedis
		}
		rest, done := r.line.take(p)
		if p = rest; !done {
			return false, nil
		}
		if err := r.value(); err != nil {
			return false, err
		}
	}
}

func isRedisType(c byte) bool {
	switch c {
	case '+', '-', ':', '$', '*', '_', '#', ',', '(', '!', '=', '%', '~', '>':
		return true
	}
	return false
}

// value takes a line that begins a value.
func (r *redisReader) value() error {
	kind, size := r.line.kept[0], int64(0)
	switch kind {
	case '$', '!', '=', '*', '%', '~', '>':
		n, err := strconv.ParseInt(string(r.line.kept[1:]), 10, 40)
		if err != nil || n < -1 {
			return errNotRedis
		}
		size = n
	}
	r.values--
	switch kind {
	case '$', '!', '=': // -1 stands for nothing
		if size >= 0 {
			r.skip = size + 2
		}
	case '*', '~', '>':
		r.values += max(size, 0)
	case '%':
		r.values += 2 * max(size, 0)
	}
	if !r.first && (kind == '-' || kind == '!') {
		r.failed = true
	}
	r.first = true
	if !r.failed {
		r.line.reset()
	}
	return nil
}
