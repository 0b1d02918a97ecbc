package lab

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

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
// folder stands for the result file in it. That it cannot be opened or read is a *fs.PathError;
// what is no regular file is refused, not waited for.
func ReadStored(path string) ([]byte, error) {
	text, err := readStored(path)
	if errors.Is(err, syscall.EISDIR) {
		text, err = readStored(filepath.Join(path, ResultFile))
	}
	if err == nil && bytes.HasPrefix(text, []byte{0x1f, 0x8b}) { // RFC 1952
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(text)); err == nil {
			text, err = io.ReadAll(io.LimitReader(r, maxStored))
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("%s is cut off: %w (copy it again)", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	return text, nil
}

// readStored reads a file, which whoever has its folder may have put there at any time.
func readStored(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would be waited for
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EISDIR}
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file; store the result in one", name)
	}
	return io.ReadAll(f)
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
