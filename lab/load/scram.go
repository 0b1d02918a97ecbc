package load

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// scram is the client of SCRAM-SHA-256 (RFC 5802, RFC 7677) without channel binding.
// PostgreSQL knows the user by other means, so the name is left empty.
type scram struct {
	password, nonce string
	signed          string // what both sides sign
	salted          *salted
}

func (s *scram) bare() string { return "n=,r=" + s.nonce }

// first begins the exchange.
func (s *scram) first() string {
	s.nonce = rand.Text()
	return "n,," + s.bare()
}

// maxIterations bounds the work that a server may ask for.
const maxIterations = 10_000_000

// proof answers the server's challenge: r=nonce,s=salt,i=iterations.
func (s *scram) proof(challenge string) (string, error) {
	nonce, salt, iterations := "", []byte(nil), 0
	for part := range strings.SplitSeq(challenge, ",") {
		name, value, _ := strings.Cut(part, "=")
		var err error
		switch name {
		case "r":
			nonce = value
		case "s":
			salt, err = base64.StdEncoding.DecodeString(value)
		case "i":
			iterations, err = strconv.Atoi(value)
		}
		if err != nil {
			return "", fmt.Errorf("postgres: SCRAM challenge: %w", err)
		}
	}
	if s.nonce == "" || !strings.HasPrefix(nonce, s.nonce) || len(nonce) == len(s.nonce) || len(salt) == 0 || iterations < 1 || iterations > maxIterations {
		return "", errors.New("postgres: malformed SCRAM challenge")
	}
	salted, err := s.salted.of(s.password, string(salt), iterations)
	if err != nil {
		return "", err
	}
	final := "c=biws,r=" + nonce
	s.signed = s.bare() + "," + challenge + "," + final
	key := mac(salted, "Client Key")
	stored := sha256.Sum256(key)
	signature := mac(stored[:], s.signed)
	for i := range key {
		key[i] ^= signature[i]
	}
	return final + ",p=" + base64.StdEncoding.EncodeToString(key), nil
}

// verify checks that the server knows the password, too.
func (s *scram) verify(final string) error {
	value, ok := strings.CutPrefix(final, "v=")
	got, err := base64.StdEncoding.DecodeString(value)
	if !ok || err != nil || s.signed == "" || !hmac.Equal(got, mac(mac(s.salted.key, "Server Key"), s.signed)) {
		return errors.New("postgres: the server does not know the password either")
	}
	return nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// salted is a password with its salt: costly, and the same for all sessions of a user.
type salted struct {
	password, salt string
	iterations     int
	key            []byte
}

func (s *salted) of(password, salt string, iterations int) ([]byte, error) {
	if s.key != nil && s.password == password && s.salt == salt && s.iterations == iterations {
		return s.key, nil
	}
	key, err := pbkdf2.Key(sha256.New, password, []byte(salt), iterations, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("postgres: SCRAM: %w", err)
	}
	*s = salted{password, salt, iterations, key}
	return key, nil
}
