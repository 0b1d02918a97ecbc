package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	kjson "sigs.k8s.io/json"
)

// decode reads one JSON value, strictly: no unknown keys, none twice and none in
// another case.
func decode(text []byte, into any) error {
	wrong, err := kjson.UnmarshalStrict(text, into)
	return cmp.Or(err, errors.Join(wrong...))
}

// encode writes a value as a line of JSON.
func encode(value any) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // nothing here is shown as HTML
	err := e.Encode(value)
	return text.Bytes(), err
}

func reply(w http.ResponseWriter, status int, body any) {
	if body == nil {
		w.WriteHeader(status)
		return
	}
	text, err := encode(body)
	if err != nil {
		fail(w, fmt.Errorf("answer: %w", err))
		return
	}
	write(w, status, "application/json", text)
}

func fail(w http.ResponseWriter, err error) {
	p := problemOf(err)
	text, err := encode(p)
	if err != nil {
		http.Error(w, p.Detail, http.StatusInternalServerError)
		return
	}
	write(w, p.Status, "application/problem+json", text)
}

func write(w http.ResponseWriter, status int, kind string, text []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that left misses nothing
}
