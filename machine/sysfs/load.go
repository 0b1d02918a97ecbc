package sysfs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"berth.dev/berth/machine"
)

// Schema names the form of a machine file.
const Schema = "berth.dev/machine/v1"

// File is a machine file: JSON that Load reads and other programs can.
type File struct {
	Schema  string           `json:"schema"` // Schema
	Machine *machine.Machine `json:"machine"`
	// Unusual is for the reader; Load does not use it.
	Unusual []machine.Note `json:"unusual,omitempty"`
}

// maxFile is the largest machine file, table or unpacked archive that Load
// reads.
const maxFile = 1 << 30

// Load reads a machine from source, which is one of
//
//   - a short form such as "2s4n16c2t" (see machine.Short),
//   - a directory that stands for "/", or a /sys directory, or one that holds
//     nothing but such a directory,
//   - an archive (tar, plain or compressed with gzip or bzip2) of one,
//   - a machine file (JSON, see File),
//   - the table of lscpu -p=CPU,CORE,SOCKET,NODE,CACHE (see Lscpu).
//
// Load recognises a file by its content. A short form wins over a file of
// that name, which is "./2s4c". A machine without a name is named after the
// file. Machines that only contradict themselves (machine.ErrInconsistent) are
// returned as they are.
func Load(source string) (*machine.Machine, error) {
	m, shortErr := machine.Short(source)
	if shortErr == nil {
		return m, nil
	}
	info, err := os.Stat(source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load machine: there is no file %q, and as a %w", source, shortErr)
	}
	if err == nil {
		if info.IsDir() {
			m, err = fromTree(os.DirFS(source))
		} else {
			m, err = fromFile(source)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load machine %s: %w", source, err)
	}
	if base := filepath.Base(source); m.Name == "" && utf8.ValidString(base) {
		m.Name = strings.TrimSpace(base)
	}
	return m, nil
}

func fromFile(name string) (*machine.Machine, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	return decode(data)
}

// decode recognises archive, JSON and table.
func decode(data []byte) (*machine.Machine, error) {
	if isArchive(data) {
		tree, err := unpack(data)
		if err != nil {
			return nil, err
		}
		return fromTree(tree)
	}
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' {
		return decodeJSON(trimmed)
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, errors.New("neither an archive of /sys, nor a machine file (JSON), nor a table of lscpu -p")
	}
	return Lscpu(string(data))
}

func decodeJSON(data []byte) (*machine.Machine, error) {
	var file File
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(&file)
	switch {
	case file.Schema != "" && file.Schema != Schema:
		return nil, fmt.Errorf("machine file: schema %q: this program reads %q", file.Schema, Schema)
	case err != nil:
		return nil, fmt.Errorf("machine file: %w", err)
	case file.Schema == "":
		return nil, fmt.Errorf("machine file: no schema: this program reads %q", Schema)
	case file.Machine == nil:
		return nil, errors.New("machine file: no machine")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("machine file: something follows the machine")
	}
	if err := file.Machine.Validate(); err != nil && !errors.Is(err, machine.ErrInconsistent) {
		return nil, fmt.Errorf("machine file: %w", err)
	}
	return file.Machine, nil
}

// fromTree reads a tree that is rooted at "/" or at /sys, or whose only
// directory leads there.
func fromTree(tree fs.FS) (*machine.Machine, error) {
	const depth = 4
	at := tree
	for range depth {
		if isDir(at, cpuDir) {
			return Read(at)
		}
		if isDir(at, strings.TrimPrefix(cpuDir, "sys/")) {
			return Read(sysOnly{at})
		}
		entries, err := fs.ReadDir(at, ".")
		if err != nil {
			return nil, err
		}
		if len(entries) != 1 || !entries[0].IsDir() {
			break
		}
		if at, err = fs.Sub(at, entries[0].Name()); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no %s in it", cpuDir)
}

func isDir(tree fs.FS, name string) bool {
	info, err := fs.Stat(tree, name)
	return err == nil && info.IsDir()
}

// sysOnly is a tree rooted at /sys, shown as if it were rooted at "/".
type sysOnly struct{ fs.FS }

// Open implements fs.FS.
func (s sysOnly) Open(name string) (fs.File, error) {
	inside, ok := strings.CutPrefix(name, "sys/")
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return s.FS.Open(inside)
}
