package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
)

// decode reads one JSON value, strictly: no unknown keys, none twice and none in
// another case.
func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more than one value")
	}
	return checkKeys(json.NewDecoder(bytes.NewReader(text)), reflect.TypeOf(into))
}

// checkKeys reads a value that could be decoded as t and refuses keys that are there
// twice and, as encoding/json takes any case, those that are not spelled as in t. Nil
// is a type that is not looked into.
func checkKeys(d *json.Decoder, t reflect.Type) error {
	start, err := d.Token()
	if err != nil {
		return err
	}
	delim, _ := start.(json.Delim)
	if delim == 0 {
		return nil
	}
	t = plainType(t)
	seen := map[string]bool{}
	for d.More() {
		of := t
		if delim == '{' {
			token, err := d.Token()
			if err != nil {
				return err
			}
			key := token.(string)
			if seen[key] {
				return fmt.Errorf("key %q is there twice", key)
			}
			seen[key] = true
			if of, err = fieldType(t, key); err != nil {
				return err
			}
		} else if t != nil {
			of = t.Elem()
		}
		if err := checkKeys(d, of); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// plainType is what t points to, nil if it reads its JSON itself.
func plainType(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() == reflect.Interface || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return nil
	}
	return t
}

// fieldType is the type of the value of a key of t.
func fieldType(t reflect.Type, key string) (reflect.Type, error) {
	switch {
	case t == nil:
		return nil, nil
	case t.Kind() != reflect.Struct:
		return t.Elem(), nil
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		if f.IsExported() && name == key {
			return f.Type, nil
		}
	}
	return nil, fmt.Errorf("unknown field %q", key)
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
