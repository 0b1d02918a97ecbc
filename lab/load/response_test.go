package load

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestResponse(t *testing.T) {
	t.Parallel()
	type want struct {
		done   bool
		err    error
		status int
		close  bool
	}
	ok := want{done: true, status: 200}
	tests := []struct {
		name, text string
		want       want
	}{
		{"plain", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", ok},
		{"no reason", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", ok},
		{"empty reason", "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", ok},
		{"names in any case", "HTTP/1.1 200 OK\r\ncONTENT-lENGTH:2\r\n\r\nok", ok},
		{"other headers", "HTTP/1.1 200 OK\r\nX: a:b\r\nDate:\r\nContent-Length: \t2 \r\n\r\nok", ok},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", want{done: true, status: 204}},
		{"not modified, length of what is not sent", "HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", want{done: true, status: 304}},
		{"error", "HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\nbad", want{done: true, status: 500}},
		{"continue first", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", ok},
		{"close", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", want{done: true, status: 200, close: true}},
		{"close in a list", "HTTP/1.1 200 OK\r\nConnection: x, CLOSE\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", want{done: true, status: 200, close: true}},
		{"1.0 closes", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", want{done: true, status: 200, close: true}},
		{"1.0 keeps", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", ok},
		{"header of 8 KiB", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead-43) + "\r\nContent-Length: 1\r\n\r\na", ok},

		{"nothing", "", want{}},
		{"header incomplete", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", want{}},
		{"body incomplete", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", want{status: 200}},
		{"only continue", "HTTP/1.1 100 Continue\r\n\r\n", want{status: 100}},
		{"header longer", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead-42) + "\r\nContent-Length: 1\r\n\r\na", want{err: errHeadTooLong}},
		{"endless header", "HTTP/1.1 200 OK" + strings.Repeat("x", 2*maxHead), want{err: errHeadTooLong}},
		{"another protocol", "SSH-2.0-OpenSSH_9.6\r\n\r\n", want{err: errStatusLine}},
		{"another protocol, cut off", "SSH-2.0-OpenSSH_9.6\r\n", want{err: errStatusLine}},
		{"HTTP/2", "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", want{err: errStatusLine}},
		{"HTTP/1.2", "HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n", want{err: errStatusLine}},
		{"status of two digits", "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n", want{err: errStatusLine}},
		{"status of four digits", "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", want{err: errStatusLine}},
		{"status out of range", "HTTP/1.1 600 OK\r\nContent-Length: 0\r\n\r\n", want{err: errStatusLine}},
		{"empty status line", "\r\n\r\n", want{err: errStatusLine}},
		{"bare LF in the status line", "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n", want{err: errStatusLine}},
		{"switching", "HTTP/1.1 101 Switching Protocols\r\n\r\n", want{err: errSwitch}},
		{"no colon", "HTTP/1.1 200 OK\r\nContent-Length 2\r\n\r\nok", want{err: errHeaderLine, status: 200}},
		{"no name", "HTTP/1.1 200 OK\r\n: 2\r\n\r\nok", want{err: errHeaderLine, status: 200}},
		{"space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok", want{err: errHeaderLine, status: 200}},
		{"folded", "HTTP/1.1 200 OK\r\nX: a\r\n b: c\r\nContent-Length: 2\r\n\r\nok", want{err: errHeaderLine, status: 200}},
		{"bare LF in a header", "HTTP/1.1 200 OK\r\nX: a\nContent-Length: 2\r\n\r\nok", want{err: errHeaderLine, status: 200}},
		{"control character", "HTTP/1.1 200 OK\r\nX: a\x13\r\nContent-Length: 2\r\n\r\nok", want{err: errHeaderLine, status: 200}},
		{"no length", "HTTP/1.1 200 OK\r\n\r\n", want{err: errNoLength, status: 200}},
		{"negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", want{err: errLength, status: 200}},
		{"signed length", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", want{err: errLength, status: 200}},
		{"empty length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", want{err: errLength, status: 200}},
		{"huge length", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551618\r\n\r\nok", want{err: errLength, status: 200}},
		{"same length twice", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", want{err: errLength, status: 200}},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", want{err: errLength, status: 200}},
		{"list of lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", want{err: errLength, status: 200}},
		{"encoded otherwise", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", want{err: errEncoding, status: 200}},
		{"more than the length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok!", want{err: errExcess, status: 200}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, size := range []int{len(test.text) + 1, 1, 3, 4, 7} {
				r := newResponse()
				done, err := readPieces(r, []byte(test.text), size)
				if done != test.want.done || !errors.Is(err, test.want.err) || r.status != test.want.status || r.close != test.want.close {
					t.Errorf("in pieces of %d: done %v, error %v, status %d, close %v, want %+v", size, done, err, r.status, r.close, test.want)
				}
			}
		})
	}
}

// readPieces feeds text in pieces; a byte after a complete response is excess.
func readPieces(r *response, text []byte, size int) (done bool, err error) {
	for len(text) > 0 && err == nil {
		if done {
			return false, errExcess
		}
		n := min(size, len(text))
		done, err = r.read(text[:n])
		text = text[n:]
	}
	return done, err
}

func TestResponseAgain(t *testing.T) {
	t.Parallel()
	r := newResponse()
	for range 3 {
		r.reset()
		if done, err := r.read([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")); !done || err != nil {
			t.Fatalf("done %v, error %v", done, err)
		}
	}
}

// What the reader accepts, net/http reads alike; and the pieces do not matter.
func FuzzResponse(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.0 404 No\r\nConnection: keep-alive, close\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nX: \t\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
	} {
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		whole, pieces := newResponse(), newResponse()
		done, err := readPieces(whole, text, len(text)+1)
		doneToo, errToo := readPieces(pieces, text, 1+max(size, 0)%16)
		if done != doneToo || err != errToo || whole.status != pieces.status || whole.close != pieces.close {
			t.Fatalf("%q: whole %v %v, in pieces %v %v", text, done, err, doneToo, errToo)
		}
		if !done {
			return
		}
		if whole.chunked {
			return // TestReaders has those
		}
		if whole.status == 204 || whole.status == 304 || bytes.HasPrefix(text[9:], []byte("1")) {
			return // net/http wants to know more about those
		}
		standard, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
		if err != nil {
			t.Fatalf("%q is complete, but net/http says %v", text, err)
		}
		body, err := io.ReadAll(standard.Body)
		if err != nil || standard.StatusCode != whole.status {
			t.Fatalf("%q: status %d, net/http says %d, %v", text, whole.status, standard.StatusCode, err)
		}
		if !bytes.HasSuffix(text, append([]byte("\r\n\r\n"), body...)) {
			t.Fatalf("%q: net/http reads another body: %q", text, body)
		}
	})
}

func BenchmarkResponse(b *testing.B) {
	text := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 400\r\nDate: Mon, 02 Jan 2006 15:04:05 GMT\r\n\r\n" + strings.Repeat("x", 400))
	r := newResponse()
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		r.reset()
		if done, err := r.read(text); !done || err != nil {
			b.Fatal(done, err)
		}
	}
}

// Reading a response allocates nothing: the generator collects no garbage while it runs.
func TestResponseAllocatesNothing(t *testing.T) {
	r := newResponse()
	text := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Mon, 23 Nov 2026 12:00:00 GMT\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello")
	if allocs := testing.AllocsPerRun(100, func() {
		r.reset()
		if done, err := r.read(text); !done || err != nil {
			t.Fatalf("done %v, %v", done, err)
		}
	}); allocs != 0 {
		t.Errorf("%g allocations", allocs)
	}
}
