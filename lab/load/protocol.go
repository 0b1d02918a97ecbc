package load

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
)

// Target is a service, and what it is asked. It is also the one line that the tenant
// prints when it listens.
type Target struct {
	// Protocol is one of Protocols; "" is http.
	Protocol string `json:"protocol,omitempty"`
	// Addr is host:port, or a socket of this host without a name in the file system, after "@"
	// (unix(7)).
	Addr string `json:"addr"`
	// Path is what is asked: the path of a GET request, a Redis or memcached command, a
	// query of PostgreSQL, a number. {LOW-HIGH} in it stands for a number of that range, drawn anew
	// for each request.
	Path string `json:"path"`
	// User, Password and Database open a session, where the protocol has one.
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
	Database string `json:"database,omitempty"`
}

// protocol is how the generator speaks with a service: it knows neither time nor
// sockets. Requests of one connection are answered one by one.
type protocol interface {
	// encode makes a request of its text.
	encode(t Target, ask string) ([]byte, error)
	// greet is what is said on a new connection before its first request; nil for nothing.
	greet(t Target) greeting
	reader() reader
}

// greeting is a session being opened.
type greeting interface {
	// next takes what arrived, nothing at first, and returns what to send, until it is done.
	next(arrived []byte) (send []byte, done bool, err error)
}

// reader reads the responses of one connection, in whatever pieces they arrive. None of
// its methods allocates.
type reader interface {
	// reset makes it ready for the next response.
	reset()
	// read takes the bytes that arrived and reports whether the response is complete.
	// After an error or after completion, only reset may follow.
	read(p []byte) (done bool, err error)
	// outcome is of a complete response: why it is a failure, empty for a good one, and
	// whether the service closes the connection. The bytes are valid until reset.
	outcome() (failure []byte, closes bool)
}

// Protocols are the names of those that the generator speaks.
func Protocols() []string { return []string{"http", "redis", "memcached", "postgres", Exec} }

// speak returns the protocol of a target.
func (t Target) speak() (protocol, error) {
	switch t.Protocol {
	case "", "http":
		return httpProtocol{}, nil
	case "redis":
		return redisProtocol{}, nil
	case "memcached":
		return memcachedProtocol{}, nil
	case "postgres":
		return &postgresProtocol{}, nil
	case Exec:
		return execProtocol{}, nil
	}
	return nil, fmt.Errorf("protocol %q: want one of %s", t.Protocol, strings.Join(Protocols(), ", "))
}

// Validate says what is wrong with a target.
func (t Target) Validate() error {
	p, err := t.speak()
	if err == nil {
		_, err = p.encode(t, numbers.ReplaceAllString(t.Path, "0"))
	}
	if err == nil {
		_, _, err = rangeOf(t.Path)
	}
	switch {
	case t.Addr == "" && err != nil:
		return fmt.Errorf("addr: missing; %w", err)
	case t.Addr == "":
		return errors.New("addr: missing")
	}
	return err
}

// numbers is a range of them within what is asked.
var numbers = regexp.MustCompile(`\{(\d{1,9})-(\d{1,9})\}`)

// maxVariants bounds the different requests of a run, which are made before it: one of a
// larger range is a sample.
const maxVariants = 10_000

func rangeOf(ask string) (low, high int, err error) {
	all := numbers.FindAllStringSubmatch(ask, -1)
	if len(all) == 0 {
		return 0, 0, nil
	}
	low, _ = strconv.Atoi(all[0][1]) // at most nine digits
	high, _ = strconv.Atoi(all[0][2])
	if high < low {
		return 0, 0, fmt.Errorf("range %s: want the lower number first", all[0][0])
	}
	for _, more := range all {
		if more[0] != all[0][0] {
			return 0, 0, fmt.Errorf("ranges %s and %s: want one and the same", all[0][0], more[0])
		}
	}
	return low, high, nil
}

// requests are the different requests of a run in random order: one where nothing varies.
func (t Target) requests(seed uint64) ([][]byte, error) {
	p, err := t.speak()
	if err != nil {
		return nil, err
	}
	low, high, err := rangeOf(t.Path)
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(seed, 1))
	n := min(high-low+1, maxVariants)
	all := make([][]byte, n)
	for i := range all {
		number := low + i
		if n < high-low+1 {
			number = low + random.IntN(high-low+1)
		}
		if all[i], err = p.encode(t, numbers.ReplaceAllString(t.Path, strconv.Itoa(number))); err != nil {
			return nil, err
		}
	}
	random.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, nil
}

// words splits a command as a shell would: at spaces, but not within quotes.
func words(text string) ([]string, error) {
	var all []string
	word, quote, inWord := strings.Builder{}, rune(0), false
	for _, c := range text {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, inWord = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if inWord {
				all = append(all, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("command %q: a %c without its end", text, quote)
	}
	if inWord {
		all = append(all, word.String())
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("command %q: want one such as GET key", text)
	}
	return all, nil
}

// line gathers the bytes of a line that arrives in pieces, of which it keeps the first
// bytes, and takes them off p.
type line struct {
	kept []byte // its capacity is how many
}

func newLine(keep int) line { return line{kept: make([]byte, 0, keep)} }

func (l *line) reset() { l.kept = l.kept[:0] }

// take returns the rest of p, and whether the line has ended, without "\r\n".
func (l *line) take(p []byte) (rest []byte, done bool) {
	end := bytes.IndexByte(p, '\n')
	part := p
	if end >= 0 {
		part, rest = p[:end], p[end+1:]
	}
	l.kept = append(l.kept, part[:min(len(part), cap(l.kept)-len(l.kept))]...)
	if end >= 0 && len(l.kept) > 0 && l.kept[len(l.kept)-1] == '\r' {
		l.kept = l.kept[:len(l.kept)-1]
	}
	return rest, end >= 0
}

// keepOfLine is how much of a line of a response is kept: that of an error is shown.
const keepOfLine = 200

// said makes a text of what a service said that no reader stumbles over.
func said(text []byte) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r < ' ' || r == 0x7f || r == 0xfffd:
			return '?'
		}
		return r
	}, string(text[:min(len(text), keepOfLine)]))
}
