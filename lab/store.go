package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// ResultFile is the name of a result inside the folder of its run.
const ResultFile = "result.json"

// RequestsFile is the name of the raw requests inside the folder of their run:
// gzip-compressed CSV, one line per request of every round.
const RequestsFile = "requests.csv.gz"

// WriteFile stores r at path, replacing what is there in one step: a crash
// leaves the old file or the new one.
func WriteFile(path string, r *Result) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write result %s: %w", path, err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	defer os.Remove(temp.Name()) // gone already when all went well
	_, err = temp.Write(append(text, '\n'))
	if err == nil {
		err = temp.Chmod(0o644)
	}
	if err == nil {
		err = temp.Sync()
	}
	if closed := temp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write result %s: %w", path, err)
	}
	return nil
}

// ReadFile reads a stored result. A folder stands for the result file in it.
func ReadFile(path string) (*Result, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, ResultFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	r, err := Decode(text)
	if err != nil {
		return nil, fmt.Errorf("read result %s: %w", path, err)
	}
	return r, nil
}

// Decode reads a result from its JSON text.
func Decode(text []byte) (*Result, error) {
	var r Result
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.Schema != Schema {
		return nil, fmt.Errorf("schema %q: this program reads %q", r.Schema, Schema)
	}
	return &r, nil
}
