package load

import (
	"bytes"
	"errors"
	"strconv"
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
	errEncoding    = errors.New("response: Transfer-Encoding (chunked) is not supported, send a Content-Length")
	errSwitch      = errors.New("response: unexpected 101 Switching Protocols")
	errExcess      = errors.New("response: more bytes than its Content-Length")
)

// response reads one HTTP/1.1 response to a GET request, in whatever pieces it
// arrives. The body is counted, not kept. reset makes it ready for the next.
type response struct {
	head   []byte // status line and header so far, capacity maxHead
	inBody bool
	left   int64 // bytes of the body still to come
	status int
	close  bool // the server closes the connection after this response
}

func newResponse() response { return response{head: make([]byte, 0, maxHead)} }

func (r *response) reset() { *r = response{head: r.head[:0]} }

// read takes the bytes that arrived and reports whether the response is
// complete. After an error or after completion, only reset may follow.
func (r *response) read(p []byte) (done bool, err error) {
	for !r.inBody {
		// The end of the header may straddle what was there and what came.
		from := max(0, len(r.head)-3)
		had := len(r.head)
		n := min(len(p), maxHead-had)
		r.head = append(r.head, p[:n]...)
		end := bytes.Index(r.head[from:], []byte("\r\n\r\n"))
		if end < 0 {
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
		if r.status >= 200 {
			r.inBody = true
		} else {
			r.head = r.head[:0] // an interim response; the real one follows
		}
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
			return errEncoding
		case bytes.EqualFold(name, []byte("connection")):
			keep = keep || hasToken(value, "keep-alive")
			closes = closes || hasToken(value, "close")
		}
	}
	r.close = closes || minor == 0 && !keep
	switch {
	case status < 200 || status == 204 || status == 304: // never has a body
		length = 0
	case length < 0:
		return errNoLength
	}
	r.left = length
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
