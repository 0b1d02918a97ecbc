package load

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxHead bounds the status line and header of a response.
const maxHead = 8 << 10

// What the reader refuses. The texts appear in Report.Errors.
var (
	errHeadTooLong = errors.New("response: header longer than 8 KiB")
	errStatusLine  = errors.New("response: malformed status line")
	errHeaderLine  = errors.New("response: malformed header line")
	errLength      = errors.New("response: malformed or repeated Content-Length")
	errNoLength    = errors.New("response: no Content-Length")
	errEncoding    = errors.New("response: Transfer-Encoding: want chunked or none")
	errChunk       = errors.New("response: malformed chunk")
	errSwitch      = errors.New("response: unexpected 101 Switching Protocols")
	errExcess      = errors.New("response: more bytes than its Content-Length")
)

// httpProtocol is HTTP/1.1: GET requests (RFC 9112).
type httpProtocol struct{}

func (httpProtocol) encode(t Target, ask string) ([]byte, error) {
	if !strings.HasPrefix(ask, "/") || strings.ContainsFunc(ask, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, fmt.Errorf("path %q: want a path like /article, without spaces", ask)
	}
	return []byte("GET " + ask + " HTTP/1.1\r\nHost: " + t.Addr + "\r\nUser-Agent: berth-lab\r\n\r\n"), nil
}

func (httpProtocol) greet(Target) greeting { return nil }

func (httpProtocol) reader() reader { return newResponse() }

// response reads one HTTP/1.1 response to a GET request. The body is counted, not kept.
type response struct {
	head    []byte // status line and header so far, capacity maxHead
	inBody  bool
	chunked bool
	chunk   chunk
	left    int64 // bytes of the body, or of a chunk, still to come
	status  int
	close   bool // the server closes the connection after this response
	failed  [len("status 000")]byte
}

func newResponse() *response { return &response{head: make([]byte, 0, maxHead)} }

func (r *response) reset() { *r = response{head: r.head[:0]} }

func (r *response) outcome() (failure []byte, closes bool) {
	if r.status < 200 || r.status > 299 {
		failure = strconv.AppendInt(append(r.failed[:0], "status "...), int64(r.status), 10)
	}
	return failure, r.close
}

func (r *response) read(p []byte) (done bool, err error) {
	for !r.inBody {
		// The end of the header may straddle what was there and what came.
		from := max(0, len(r.head)-3)
		had := len(r.head)
		n := min(len(p), maxHead-had)
		r.head = append(r.head, p[:n]...)
		end := bytes.Index(r.head[from:], []byte("\r\n\r\n"))
		if end < 0 {
			if len(r.head) >= 5 && string(r.head[:5]) != "HTTP/" {
				return false, errStatusLine // no need to wait for more
			}
			if n < len(p) {
				return false, errHeadTooLong
			}
			return false, nil
		}
		end += from
		p = p[end+4-had:]
		if err := r.parseHead(r.head[:end]); err != nil {
			return false, err
		}
		r.inBody = r.status >= 200 // else it is an interim response; the real one follows
		r.head = r.head[:0]
	}
	if r.chunked {
		return r.readChunks(p)
	}
	if int64(len(p)) > r.left {
		return false, errExcess
	}
	r.left -= int64(len(p))
	return r.left == 0, nil
}

// parseHead reads a status line and header without the empty line at the end.
func (r *response) parseHead(head []byte) error {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	minor, status, ok := parseStatusLine(line)
	if !ok {
		return errStatusLine
	}
	if status == 101 {
		return errSwitch
	}
	r.status = status
	length, keep, closes := int64(-1), false, false
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok || !isToken(name) || !isText(value) {
			return errHeaderLine
		}
		value = bytes.Trim(value, " \t")
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			n, err := strconv.ParseUint(string(value), 10, 50)
			if err != nil || length >= 0 {
				return errLength
			}
			length = int64(n)
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			if !bytes.EqualFold(value, []byte("chunked")) || r.chunked {
				return errEncoding
			}
			r.chunked = true
		case bytes.EqualFold(name, []byte("connection")):
			keep = keep || hasToken(value, "keep-alive")
			closes = closes || hasToken(value, "close")
		}
	}
	r.close = closes || minor == 0 && !keep
	switch {
	case status < 200 || status == 204 || status == 304: // never has a body
		length, r.chunked = 0, false
	case r.chunked && length >= 0:
		return errLength
	case r.chunked:
		length = 0
	case length < 0:
		return errNoLength
	}
	r.left = length
	return nil
}

// chunk is what of a chunked body is read next.
type chunk int

const (
	chunkSize chunk = iota
	chunkData
	chunkEnd
	chunkTrailer
	chunkLast
)

// readChunks reads a chunked body (RFC 9112 section 7.1). Lines gather in head, which is
// not needed any more.
func (r *response) readChunks(p []byte) (done bool, err error) {
	for len(p) > 0 {
		if r.chunk == chunkLast {
			return false, errExcess
		}
		if r.chunk == chunkData {
			n := min(int64(len(p)), r.left)
			p, r.left = p[n:], r.left-n
			if r.left == 0 {
				r.chunk = chunkEnd
			}
			continue
		}
		l := line{kept: r.head}
		rest, ended := l.take(p)
		p, r.head = rest, l.kept
		if !ended {
			break
		}
		if err := r.chunkLine(r.head); err != nil {
			return false, err
		}
		r.head = r.head[:0]
	}
	return r.chunk == chunkLast, nil
}

// chunkLine takes a line of a chunked body.
func (r *response) chunkLine(text []byte) error {
	switch r.chunk {
	case chunkSize:
		size, _, _ := bytes.Cut(text, []byte(";"))
		n, err := strconv.ParseUint(string(bytes.TrimRight(size, " \t")), 16, 50)
		if err != nil {
			return errChunk
		}
		if r.left, r.chunk = int64(n), chunkData; n == 0 {
			r.chunk = chunkTrailer
		}
	case chunkEnd:
		if len(text) > 0 {
			return errChunk
		}
		r.chunk = chunkSize
	case chunkTrailer:
		if len(text) == 0 {
			r.chunk = chunkLast
		}
	}
	return nil
}

// hasToken tells whether a comma-separated list has an element.
func hasToken(list []byte, lower string) bool {
	for len(list) > 0 {
		var token []byte
		token, list, _ = bytes.Cut(list, []byte(","))
		if bytes.EqualFold(bytes.Trim(token, " \t"), []byte(lower)) {
			return true
		}
	}
	return false
}

// parseStatusLine reads "HTTP/1.1 200 OK".
func parseStatusLine(line []byte) (minor, status int, ok bool) {
	const want = len("HTTP/1.1 200")
	if len(line) < want || string(line[:7]) != "HTTP/1." || line[8] != ' ' {
		return 0, 0, false
	}
	if len(line) > want && line[want] != ' ' {
		return 0, 0, false
	}
	if line[7] != '0' && line[7] != '1' {
		return 0, 0, false
	}
	code, err := strconv.ParseUint(string(line[9:want]), 10, 16)
	if err != nil || !isText(line[want:]) || code < 100 || code > 599 {
		return 0, 0, false
	}
	return int(line[7] - '0'), int(code), true
}

// isToken tells whether b is a header name (RFC 9110 section 5.6.2).
func isToken(b []byte) bool {
	for _, c := range b {
		alphanumeric := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alphanumeric && bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) < 0 {
			return false
		}
	}
	return len(b) > 0
}

// isText tells whether b is free of control characters other than tabs.
func isText(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
