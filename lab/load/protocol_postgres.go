package load

import (
	"bytes"
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// What the reader of PostgreSQL refuses. The texts appear in Report.Errors.
var (
	errNotPostgres  = errors.New("response: not the protocol of PostgreSQL: is another service at this address?")
	errCopy         = errors.New("response: COPY is not supported")
	errPostgresTime = errors.New("postgres: the server does not finish the start of a session")
)

// postgresProtocol is version 3.0, simple query (PostgreSQL, "Frontend/Backend Protocol").
type postgresProtocol struct{ salted salted }

func (*postgresProtocol) encode(_ Target, ask string) ([]byte, error) {
	if strings.TrimSpace(ask) == "" || strings.ContainsRune(ask, 0) {
		return nil, fmt.Errorf("query %q: want one such as SELECT 1", ask)
	}
	return postgresMessage('Q', append([]byte(ask), 0)), nil
}

// postgresMessage is one of a kind; 0 for that which begins a session and has none.
func postgresMessage(kind byte, body []byte) []byte {
	var b []byte
	if kind != 0 {
		b = append(b, kind)
	}
	return append(binary.BigEndian.AppendUint32(b, uint32(len(body)+4)), body...)
}

func (p *postgresProtocol) greet(t Target) greeting {
	return &postgresGreeting{target: t, scram: scram{password: t.Password, salted: &p.salted}}
}

func (*postgresProtocol) reader() reader {
	return &postgresReader{body: make([]byte, 0, postgresKeeps), failure: make([]byte, 0, keepOfLine)}
}

// postgresKeeps is how much is kept of an error: severity, code and message stand at its
// beginning.
const postgresKeeps = 1024

// postgresReader reads messages up to "ready for query".
type postgresReader struct {
	head    [5]byte
	have    int // bytes of head
	left    int // bytes of the body still to come
	body    []byte
	failure []byte
	ended   bool
}

func (r *postgresReader) reset() {
	*r = postgresReader{body: r.body[:0], failure: r.failure[:0]}
}

func (r *postgresReader) outcome() (failure []byte, closes bool) { return r.failure, false }

func (r *postgresReader) read(p []byte) (bool, error) {
	for len(p) > 0 {
		if r.ended {
			return false, errExcessReply
		}
		if r.have < len(r.head) {
			n := copy(r.head[r.have:], p)
			r.have += n
			p = p[n:]
			if r.have < len(r.head) {
				return false, nil
			}
			size := binary.BigEndian.Uint32(r.head[1:])
			switch kind := r.head[0]; {
			case strings.IndexByte("RSKTDCENZIAVv123nstGHW", kind) < 0, size < 4, size > 1<<30:
				return false, errNotPostgres
			case kind == 'G' || kind == 'H' || kind == 'W':
				return false, errCopy
			}
			r.left, r.body = int(size)-4, r.body[:0]
		}
		n := min(len(p), r.left)
		r.body = append(r.body, p[:min(n, cap(r.body)-len(r.body))]...)
		p, r.left = p[n:], r.left-n
		if r.left == 0 {
			r.message(r.head[0])
			r.have = 0
		}
	}
	return r.ended, nil
}

// message takes a whole one.
func (r *postgresReader) message(kind byte) {
	switch kind {
	case 'Z':
		r.ended = true
	case 'E':
		r.failure = append(r.failure[:0], "postgres: "...)
		text := postgresField(r.body, 'M')
		r.failure = append(r.failure, text[:min(len(text), cap(r.failure)-len(r.failure))]...)
	}
}

// postgresField is a field of an error or a notice: 'M' is its message.
func postgresField(body []byte, field byte) []byte {
	for len(body) > 1 {
		value, rest, _ := bytes.Cut(body[1:], []byte{0})
		if body[0] == field {
			return value
		}
		body = rest
	}
	return nil
}

// maxGreeting bounds what a server may say before a session is open.
const maxGreeting = 256 << 10

// postgresGreeting opens a session without TLS: password in the clear, MD5 or
// SCRAM-SHA-256, as the server asks for.
type postgresGreeting struct {
	target  Target
	begun   bool
	arrived []byte
	seen    int
	scram   scram
}

func (g *postgresGreeting) next(arrived []byte) (send []byte, done bool, err error) {
	if !g.begun {
		g.begun = true
		body := binary.BigEndian.AppendUint32(nil, 3<<16)
		for _, pair := range [][2]string{{"user", g.target.User}, {"database", g.target.Database}, {"application_name", "berth lab"}} {
			if pair[1] != "" {
				body = append(body, pair[0]+"\x00"+pair[1]+"\x00"...)
			}
		}
		return postgresMessage(0, append(body, 0)), false, nil
	}
	if g.seen += len(arrived); g.seen > maxGreeting {
		return nil, false, errPostgresTime
	}
	g.arrived = append(g.arrived, arrived...)
	for len(g.arrived) >= 5 {
		kind, size := g.arrived[0], int(binary.BigEndian.Uint32(g.arrived[1:]))
		if strings.IndexByte("REKNSZv", kind) < 0 || size < 4 || size > maxGreeting {
			return nil, false, errNotPostgres
		}
		if len(g.arrived) < 1+size {
			break
		}
		body := g.arrived[5 : 1+size]
		g.arrived = g.arrived[1+size:]
		switch kind {
		case 'Z':
			return send, true, nil
		case 'E':
			return nil, false, fmt.Errorf("postgres: %s", said(postgresField(body, 'M')))
		case 'R':
			more, err := g.authenticate(body)
			if err != nil {
				return nil, false, err
			}
			send = append(send, more...)
		}
	}
	return send, false, nil
}

// authenticate answers a demand for a proof of who one is.
func (g *postgresGreeting) authenticate(body []byte) (send []byte, err error) {
	if len(body) < 4 {
		return nil, errNotPostgres
	}
	how := binary.BigEndian.Uint32(body)
	if how != 0 && g.target.Password == "" {
		return nil, errors.New("postgres: the server wants a password: set PGPASSWORD")
	}
	password := func(text string) []byte { return postgresMessage('p', append([]byte(text), 0)) }
	switch body = body[4:]; how {
	case 0:
		return nil, nil
	case 3:
		return password(g.target.Password), nil
	case 5:
		inner := md5.Sum([]byte(g.target.Password + g.target.User))
		outer := md5.Sum(append([]byte(hex.EncodeToString(inner[:])), body...))
		return password("md5" + hex.EncodeToString(outer[:])), nil
	case 10:
		if !bytes.Contains(append([]byte{0}, body...), []byte("\x00SCRAM-SHA-256\x00")) {
			return nil, errors.New("postgres: the server offers no way to prove who one is but SCRAM with TLS, which is not supported")
		}
		first := g.scram.first()
		return postgresMessage('p', append(binary.BigEndian.AppendUint32([]byte("SCRAM-SHA-256\x00"), uint32(len(first))), first...)), nil
	case 11, 12:
		if how == 12 {
			return nil, g.scram.verify(string(body))
		}
		proof, err := g.scram.proof(string(body))
		return postgresMessage('p', []byte(proof)), err
	}
	return nil, fmt.Errorf("postgres: the server wants authentication of kind %d; supported are trust, password, md5 and scram-sha-256 (pg_hba.conf)", how)
}
