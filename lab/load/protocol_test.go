package load

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// pgMessages writes messages of PostgreSQL: "R\x00\x00\x00\x00" is kind and body.
func pgMessages(messages ...string) string {
	var b []byte
	for _, m := range messages {
		b = append(b, postgresMessage(m[0], []byte(m[1:]))...)
	}
	return string(b)
}

// A response is complete where it ends, in whatever pieces it comes, and a failure is told.
func TestReaders(t *testing.T) {
	t.Parallel()
	pgError := "ESERROR\x00C42P01\x00Mrelation \"x\" does not exist\x00\x00"
	type want struct {
		done    bool
		failure string
		err     error
	}
	good := want{done: true}
	for _, test := range []struct {
		protocol, text string
		want           want
	}{
		{"redis", "+PONG\r\n", good},
		{"redis", ":1000\r\n", good},
		{"redis", "$5\r\nhello\r\n", good},
		{"redis", "$0\r\n\r\n", good},
		{"redis", "$-1\r\n", good},
		{"redis", "*-1\r\n", good},
		{"redis", "*0\r\n", good},
		{"redis", "*2\r\n$1\r\na\r\n*2\r\n:1\r\n-ERR inner\r\n", good},
		{"redis", "%1\r\n+a\r\n#t\r\n", good},
		{"redis", "_\r\n", good},
		{"redis", "$12\r\n-not \r\nerror\r\n", good},
		{"redis", "$13\r\n-not \r\nerror\r\n", want{}}, // one byte is missing
		{"redis", "-ERR unknown command 'X'\r\n", want{done: true, failure: "ERR unknown command 'X'"}},
		{"redis", "-" + strings.Repeat("x", 2*keepOfLine) + "\r\n", want{done: true, failure: strings.Repeat("x", keepOfLine-1)}},
		{"redis", "*2\r\n+a\r\n", want{}},
		{"redis", "$5\r\nhel", want{}},
		{"redis", "+PO", want{}},
		{"redis", "+PONG\r\n+PONG\r\n", want{err: errExcessReply}},
		{"redis", "$x\r\n", want{err: errNotRedis}},
		{"redis", "$-2\r\n", want{err: errNotRedis}},
		{"redis", "HTTP/1.1 400 Bad Request\r\n", want{err: errNotRedis}},
		{"redis", "\r\n", want{err: errNotRedis}},

		{"memcached", "VALUE k 0 5\r\nhello\r\nEND\r\n", good},
		{"memcached", "VALUE k 0 5\r\nEND\r\n\r\nEND\r\n", good},
		{"memcached", "VALUE k 0 0 77\r\n\r\nVALUE l 0 1\r\nx\r\nEND\r\n", good},
		{"memcached", "END\r\n", good},
		{"memcached", "STORED\r\n", good},
		{"memcached", "17\r\n", good},
		{"memcached", "STAT pid 1\r\nSTAT uptime 2\r\nEND\r\n", good},
		{"memcached", "SERVER_ERROR out of memory storing object\r\n", want{done: true, failure: "SERVER_ERROR out of memory storing object"}},
		{"memcached", "ERROR\r\n", want{done: true, failure: "ERROR"}},
		{"memcached", "VALUE k 0 5\r\nhello\r\n", want{}},
		{"memcached", "STORED\r\nSTORED\r\n", want{err: errExcessReply}},
		{"memcached", "VALUE k 0 -5\r\n", want{err: errNotMemcached}},
		{"memcached", "VALUE k\r\n", want{err: errNotMemcached}},
		{"memcached", "-ERR unknown\r\n", want{err: errNotMemcached}},
		{"memcached", "\r\n", want{err: errNotMemcached}},

		{"postgres", pgMessages("T\x00\x00", "D\x00\x01\x00\x00\x00\x011", "CSELECT 1\x00", "ZI"), good},
		{"postgres", pgMessages("I", "ZI"), good},
		{"postgres", pgMessages(pgError, "ZI"), want{done: true, failure: `postgres: relation "x" does not exist`}},
		{"postgres", pgMessages("NSNOTICE\x00Mx\x00\x00", "CSELECT 1\x00", "ZT"), good},
		{"postgres", pgMessages("D" + strings.Repeat("x", 3*postgresKeeps)), want{}},
		{"postgres", pgMessages("ZI", "ZI"), want{err: errExcessReply}},
		{"postgres", pgMessages("H\x00\x00\x00"), want{err: errCopy}},
		{"postgres", "HTTP/1.1 400 Bad Request\r\n", want{err: errNotPostgres}},
		{"postgres", "Z\x00\x00\x00\x01I", want{err: errNotPostgres}},
		{"postgres", "-ERR what\r\n", want{err: errNotPostgres}},

		{"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", good},
		{"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\nA;x=y\r\n0123456789\r\n1 \r\nx\r\n0\r\nX-Trailer: y\r\n\r\n", good},
		{"http", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", good},
		{"http", "HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", want{done: true, failure: "status 503"}},
		{"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", want{}},
		{"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n", want{err: errChunk}},
		{"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", want{err: errChunk}},
		{"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nx", want{err: errExcess}},
		{"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", want{err: errEncoding}},
		{"http", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", want{err: errLength}},
	} {
		for _, size := range []int{1, 2, 3, 7, len(test.text)} {
			p, err := Target{Protocol: test.protocol}.speak()
			if err != nil {
				t.Fatal(err)
			}
			r := p.reader()
			for range 2 { // the second time after reset
				r.reset()
				var got want
				for rest := []byte(test.text); len(rest) > 0 && got.err == nil; {
					n := min(size, len(rest))
					got.done, got.err = r.read(rest[:n])
					rest = rest[n:]
					if got.done && len(rest) > 0 {
						got = want{err: test.want.err} // what follows belongs to no response
						rest = nil
					}
				}
				if got.done {
					failure, _ := r.outcome()
					got.failure = string(failure)
				}
				if got != test.want {
					t.Errorf("%s %.80q in pieces of %d: %+v, want %+v", test.protocol, test.text, size, got, test.want)
				}
			}
		}
	}
}

func TestEncode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ protocol, ask, want, err string }{
		{"redis", "GET key", "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", ""},
		{"redis", `set k "a b"`, "*3\r\n$3\r\nset\r\n$1\r\nk\r\n$3\r\na b\r\n", ""},
		{"redis", "set k ''", "*3\r\n$3\r\nset\r\n$1\r\nk\r\n$0\r\n\r\n", ""},
		{"redis", " ", "", "want one such as GET key"},
		{"redis", "get 'k", "", "a ' without its end"},
		{"memcached", "get a b", "get a b\r\n", ""},
		{"memcached", "set k 'v w'", "set k 0 0 3\r\nv w\r\n", ""},
		{"memcached", "set k 0 0 3", "", "want set KEY VALUE"},
		{"memcached", "flush_all", "", "want get, set"},
		{"postgres", "SELECT 1", "Q\x00\x00\x00\x0dSELECT 1\x00", ""},
		{"postgres", " ", "", "want one such as SELECT 1"},
		{"http", "/a", "GET /a HTTP/1.1\r\nHost: h:1\r\nUser-Agent: berth-lab\r\n\r\n", ""},
		{"http", "a", "", "want a path like /article"},
		{"http", "/a b", "", "want a path like /article"},
		{"gopher", "x", "", `protocol "gopher": want one of http, redis, memcached, postgres`},
		{"redis", "get {5-3}", "", "want the lower number first"},
		{"redis", "get {1-3}{1-4}", "", "want one and the same"},
	} {
		target := Target{Protocol: test.protocol, Addr: "h:1", Path: test.ask}
		if err := target.Validate(); (test.err == "") != (err == nil) {
			t.Errorf("%s %q: Validate: %v", test.protocol, test.ask, err)
		}
		all, err := target.requests(1)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s %q: %v, want %q", test.protocol, test.ask, err, test.err)
			}
			continue
		}
		if err != nil || len(all) != 1 || string(all[0]) != test.want {
			t.Errorf("%s %q: %q, %v", test.protocol, test.ask, all, err)
		}
	}
}

// A range stands for each of its numbers, or a sample, in an order of the seed.
func TestRanges(t *testing.T) {
	t.Parallel()
	of := func(ask string, seed uint64) string {
		all, err := Target{Path: ask}.requests(seed)
		if err != nil {
			t.Fatal(err)
		}
		return string(bytes.Join(all, nil))
	}
	all := of("/{7-9}/{7-9}", 1)
	for _, path := range []string{"/7/7 ", "/8/8 ", "/9/9 "} {
		if strings.Count(all, "GET "+path) != 1 {
			t.Errorf("%q: %q is not there once", all, path)
		}
	}
	first, again, other := of("/{0-99}", 1), of("/{0-99}", 1), of("/{0-99}", 2)
	if first != again || first == other {
		t.Error("the order is not that of the seed")
	}
	if many, err := (Target{Path: "/{0-999999999}"}).requests(1); err != nil || len(many) != maxVariants {
		t.Errorf("%d requests of a large range, %v", len(many), err)
	}
}

// fakeSession is a server of which each connection is handled by f.
func fakeSession(t *testing.T, f func(r *bufio.Reader, w io.Writer) error) string {
	t.Helper()
	return raw(t, func(_ int, conn *net.TCPConn) {
		_ = f(bufio.NewReader(conn), conn)
	})
}

// readPostgres reads a message; that which begins a session has no kind.
func readPostgres(r io.Reader, begins bool) (kind byte, body []byte, err error) {
	head := make([]byte, 5)
	if begins {
		head = head[1:]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	if !begins {
		kind, head = head[0], head[1:]
	}
	body = make([]byte, binary.BigEndian.Uint32(head)-4)
	_, err = io.ReadFull(r, body)
	return kind, body, err
}

// fakePostgres wants the password "pencil" by SCRAM, and answers queries.
func fakePostgres(serverKnows string) func(r *bufio.Reader, w io.Writer) error {
	return func(r *bufio.Reader, w io.Writer) error {
		if _, body, err := readPostgres(r, true); err != nil || !bytes.Contains(body, []byte("user\x00tester\x00")) {
			return errors.Join(err, errors.New("no user"))
		}
		io.WriteString(w, pgMessages("R\x00\x00\x00\x0aSCRAM-SHA-256-PLUS\x00SCRAM-SHA-256\x00\x00"))
		_, body, err := readPostgres(r, false)
		if err != nil {
			return err
		}
		_, bare, _ := strings.Cut(string(body[len("SCRAM-SHA-256\x00")+4:]), "n,,")
		nonce := strings.TrimPrefix(bare, "n=,r=") + "server"
		challenge := fmt.Sprintf("r=%s,s=%s,i=4096", nonce, base64.StdEncoding.EncodeToString([]byte("salt of it")))
		io.WriteString(w, pgMessages("R\x00\x00\x00\x0b"+challenge))
		_, body, err = readPostgres(r, false)
		if err != nil {
			return err
		}
		final, proof, _ := strings.Cut(string(body), ",p=")
		var cache salted
		key, err := cache.of(serverKnows, "salt of it", 4096)
		if err != nil {
			return err
		}
		signed := bare + "," + challenge + "," + final
		client := mac(key, "Client Key")
		stored := sha256.Sum256(client)
		for i, b := range mac(stored[:], signed) {
			client[i] ^= b
		}
		if base64.StdEncoding.EncodeToString(client) != proof && serverKnows == "pencil" {
			io.WriteString(w, pgMessages("ESFATAL\x00C28P01\x00Mpassword authentication failed for user \"tester\"\x00\x00"))
			return nil
		}
		io.WriteString(w, pgMessages("R\x00\x00\x00\x0cv="+base64.StdEncoding.EncodeToString(mac(mac(key, "Server Key"), signed)), "R\x00\x00\x00\x00", "Sserver_version\x0015\x00", "K\x00\x00\x00\x01\x00\x00\x00\x02", "ZI"))
		for {
			if kind, _, err := readPostgres(r, false); err != nil || kind != 'Q' {
				return err
			}
			io.WriteString(w, pgMessages("T\x00\x00", "D\x00\x00", "CSELECT 1\x00", "ZI"))
		}
	}
}

// A session of PostgreSQL is opened by SCRAM, and again when the server has closed it.
func TestPostgresSession(t *testing.T) {
	t.Parallel()
	target := Target{Protocol: "postgres", Addr: fakeSession(t, fakePostgres("pencil")), Path: "SELECT 1", User: "tester", Password: "pencil"}
	if err := target.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ password, knows, want string }{
		{"pen", "pencil", "password authentication failed for user 'tester'"},
		{"", "pencil", "set PGPASSWORD"},
		{"pencil", "another", "the server does not know the password either"},
	} {
		target := target
		target.Password, target.Addr = test.password, fakeSession(t, fakePostgres(test.knows))
		if err := target.Check(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("password %q: %v, want %q", test.password, err, test.want)
		}
	}
	config := testConfig(target.Addr)
	config.Target = target
	report := startChild(t, "generator").run(t, config)
	accounted(t, config, report)
	if report.Done != report.Offered || report.Done == 0 || report.Reconnects != 0 {
		t.Errorf("done %d of %d, reconnects %d, %v", report.Done, report.Offered, report.Reconnects, report.Errors)
	}
}

// A connection that the server closes gets a session of its own again.
func TestGreetingAgain(t *testing.T) {
	t.Parallel()
	addr := fakeSession(t, func(r *bufio.Reader, w io.Writer) error {
		line := func() string { text, _ := r.ReadString('\n'); return strings.TrimSpace(text) }
		authenticated := false
		for answered := 0; answered < 3; {
			head, words := line(), []string(nil)
			if head == "" {
				return io.EOF
			}
			for n := head[1] - '0'; n > 0; n-- {
				line()
				words = append(words, line())
			}
			switch {
			case words[0] == "AUTH" && words[1] == "secret":
				authenticated = true
				io.WriteString(w, "+OK\r\n")
			case words[0] == "SELECT" && authenticated:
				io.WriteString(w, "+OK\r\n")
			case !authenticated:
				io.WriteString(w, "-NOAUTH Authentication required.\r\n")
			default:
				answered++
				io.WriteString(w, "$1\r\nx\r\n")
			}
		}
		return nil
	})
	config := testConfig(addr)
	config.Target = Target{Protocol: "redis", Addr: addr, Path: "GET k", Password: "secret", Database: "2"}
	report := startChild(t, "generator").run(t, config)
	accounted(t, config, report)
	if report.Reconnects < 3 || report.Done < report.Offered/2 || report.Errors["NOAUTH Authentication required."] > 0 {
		t.Errorf("done %d of %d, reconnects %d, %v", report.Done, report.Offered, report.Reconnects, report.Errors)
	}
	config.Password = ""
	config.Database = ""
	report = startChild(t, "generator").run(t, config)
	accounted(t, config, report)
	if report.Done != 0 || report.Errors["NOAUTH Authentication required."] == 0 {
		t.Errorf("without the password: done %d, %v", report.Done, report.Errors)
	}
}

// A service that speaks something else is named as such.
func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	ssh := fakeSession(t, func(r *bufio.Reader, w io.Writer) error {
		io.WriteString(w, "SSH-2.0-OpenSSH_9.6\r\n")
		_, err := io.Copy(io.Discard, r)
		return err
	})
	closing := fakeSession(t, func(r *bufio.Reader, _ io.Writer) error { _, err := r.ReadByte(); return err })
	nobody := listen(t)
	refused := nobody.Addr().String()
	nobody.Close()
	asks := map[string]string{"http": "/", "redis": "PING", "memcached": "version", "postgres": "SELECT 1", Exec: "0"}
	for protocol, ask := range asks {
		for addr, want := range map[string]string{ssh: "another service", closing: "closed the connection", refused: "connection refused"} {
			if protocol == "http" && addr == ssh {
				want = "status line"
			}
			if protocol == Exec && addr == ssh {
				want = "SSH-2.0" // a line is why a run failed
			}
			began := time.Now()
			err := Target{Protocol: protocol, Addr: addr, Path: ask}.Check(t.Context())
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s at a server that is not: %v, want %q", protocol, err, want)
			}
			if time.Since(began) > clientLimit {
				t.Errorf("%s: it took %s to say so", protocol, time.Since(began))
			}
		}
	}
}

// FuzzReaders: no bytes make a reader panic, or complete in pieces what is not complete at once.
func FuzzReaders(f *testing.F) {
	for _, seed := range []string{"*2\r\n$1\r\na\r\n:1\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n", pgMessages("EMx\x00\x00", "ZI"), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", "ok\n", "exit status 3: no\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) == 0 {
			return
		}
		for _, name := range Protocols() {
			p, err := Target{Protocol: name}.speak()
			if err != nil {
				t.Fatal(err)
			}
			whole, pieces := p.reader(), p.reader()
			wholeDone, wholeErr := whole.read(text)
			done, err := false, error(nil)
			for i := 0; i < len(text) && err == nil; i++ {
				if done {
					return // at once, it is an excess
				}
				done, err = pieces.read(text[i : i+1])
			}
			if wholeErr == nil && (err != nil || done != wholeDone) {
				t.Errorf("%s %q: %v, %v at once; %v, %v in pieces", name, text, wholeDone, wholeErr, done, err)
			}
			whole.outcome()
		}
	})
}

// BenchmarkReaders is what a response costs the generator, per protocol. The ratio is
// that of the reader behind the interface to the same one called directly.
func BenchmarkReaders(b *testing.B) {
	for _, test := range []struct{ protocol, text string }{
		{"http", "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nDate: Mon, 01 Jan 2026 00:00:00 GMT\r\n\r\nok"},
		{"redis", "$2\r\nok\r\n"},
		{"memcached", "VALUE k 0 2\r\nok\r\nEND\r\n"},
		{"postgres", pgMessages("T\x00\x00", "D\x00\x01\x00\x00\x00\x011", "CSELECT 1\x00", "ZI")},
	} {
		b.Run(test.protocol, func(b *testing.B) {
			p, err := Target{Protocol: test.protocol}.speak()
			if err != nil {
				b.Fatal(err)
			}
			through, text := p.reader(), []byte(test.text)
			direct, isHTTP := p.reader().(*response)
			var with, without time.Duration
			b.ReportAllocs()
			const batch = 1000
			for b.Loop() {
				began := time.Now()
				for range batch {
					through.reset()
					if done, err := through.read(text); !done || err != nil {
						b.Fatal(done, err)
					}
					through.outcome()
				}
				with += time.Since(began)
				if !isHTTP {
					continue
				}
				began = time.Now()
				for range batch {
					direct.reset()
					if done, err := direct.read(text); !done || err != nil {
						b.Fatal(done, err)
					}
					direct.outcome()
				}
				without += time.Since(began)
			}
			b.ReportMetric(float64(with.Nanoseconds())/float64(b.N)/batch, "ns/response")
			if isHTTP {
				b.ReportMetric(float64(with)/float64(without), "×direct")
			}
		})
	}
}
