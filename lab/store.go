package lab

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"berth.dev/berth/kernel"
)

// ResultFile is the name of a result inside the folder of its run.
const ResultFile = "result.json"

// RequestsFile is the name of the raw requests inside the folder of their run:
// gzip-compressed CSV, one line per request of every round.
const RequestsFile = "requests.csv.gz"

// WriteFile stores a result at path, as kernel.ReplaceFile does.
func WriteFile(path string, r any) error {
	err := kernel.ReplaceFile(path, func(w io.Writer) error { return json.NewEncoder(w).Encode(r) })
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// ReadFile reads a stored result. A folder stands for the result file in it.
func ReadFile(path string) (*Result, error) {
	var r Result
	return &r, Load(path, Schema, &r)
}

// Load reads a stored result of a schema into r. A folder stands for the result file
// in it.
func Load(path, schema string, r any) error {
	text, err := ReadStored(path)
	if err != nil {
		return err
	}
	if err := Decode(text, schema, r); err != nil {
		return fmt.Errorf("read result %s: %w", path, err)
	}
	return nil
}

// ReadStored reads the JSON text of a stored result, which may be compressed by gzip. A
// folder stands for the result file in it.
func ReadStored(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, ResultFile)
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // a pipe would be waited for
			return nil, fmt.Errorf("read result: %s: not a regular file", path)
		}
	}
	text, err := os.ReadFile(path)
	if err == nil && bytes.HasPrefix(text, []byte{0x1f, 0x8b}) { // RFC 1952
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(text)); err == nil {
			text, err = io.ReadAll(io.LimitReader(r, maxStored))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	return text, nil
}

// maxStored bounds what a compressed result may come to: a month of rounds is less.
const maxStored = 4 << 30

// SchemaOf is the schema that a stored result names.
func SchemaOf(text []byte) (string, error) {
	var h struct {
		Schema string `json:"schema"`
	}
	err := json.Unmarshal(text, &h)
	return h.Schema, err
}

// Decode reads a result of a schema from its JSON text into r.
func Decode(text []byte, schema string, r any) error {
	has, err := SchemaOf(text)
	if err != nil {
		return err
	}
	if has != schema {
		return fmt.Errorf("schema %q: this program reads %q", has, schema)
	}
	return json.Unmarshal(text, r)
}
