package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// fileName returns a name for an id that is safe as a file's and a control
// group's: no path, nothing hidden, and nothing that the kernel has as a file.
func fileName(id string) string {
	name := url.PathEscape(id)
	first, _, dotted := strings.Cut(name, ".")
	if dotted && (first == "" || first == "cgroup" || first == "blkio" || first == cgroup.HugeTLB || slices.Contains(cgroup.Controllers(), first)) {
		name = first + "%2E" + name[len(first)+1:]
	}
	if name == "tasks" || name == "notify_on_release" {
		name = "%" + strings.ToUpper(hex.EncodeToString([]byte(name[:1]))) + name[1:]
	}
	return name
}

type record struct {
	Boot     string    `json:"boot"`
	Workload *Workload `json:"workload,omitempty"`
	// Before is, with affinity, what the process had.
	Before *Before      `json:"before,omitempty"`
	Pools  []place.Pool `json:"pools,omitempty"`
	// format is that of a newer version, if one wrote the record: then it is not changed.
	format int
	// unknown are fields that this version does not know, to be written again.
	unknown map[string]any
}

// head is the first line of a file: its format and the checksum (SHA-256, hex) of
// the second line, the body.
type head struct {
	Record int    `json:"berthRecord"`
	Sum    string `json:"sum"`
}

func seal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	data = append(data, '\n')
	sum := sha256.Sum256(data)
	text, err := json.Marshal(head{version, hex.EncodeToString(sum[:])})
	return append(append(text, '\n'), data...), err
}

// newerError is a file that a newer version of Berth wrote. What this version knows of it
// was read.
type newerError struct{ format int }

func (e *newerError) Error() string {
	return fmt.Sprintf("format %d, of a newer berth; this one knows %d", e.format, version)
}

// unseal reads what seal wrote; fields that v does not have are left out. It is a
// *newerError if a newer version wrote it.
func unseal(text []byte, v any) error {
	data, err := unsealed(text)
	if data == nil {
		return err
	}
	if e := json.Unmarshal(data, v); e != nil {
		return e
	}
	return err
}

// unsealed returns the body of a file; with a *newerError if a newer version wrote it.
func unsealed(text []byte) ([]byte, error) {
	first, data, _ := bytes.Cut(text, []byte("\n"))
	var h head
	if err := json.Unmarshal(first, &h); err != nil {
		return nil, err
	}
	if h.Record < version {
		return nil, fmt.Errorf("format %d, not %d", h.Record, version)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != h.Sum {
		return nil, errors.New("checksum does not match")
	}
	if h.Record > version {
		return data, &newerError{h.Record}
	}
	return data, nil
}

// readRecord reads a record, with the fields that this version does not know. One of a
// newer version is an error if it does not say which CPUs are its own.
func readRecord(text []byte) (*record, error) {
	data, err := unsealed(text)
	newer := (*newerError)(nil)
	if err != nil && !errors.As(err, &newer) {
		return nil, err
	}
	b := new(record)
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if d.Decode(b) == nil && newer == nil {
		return b, nil // as nearly always
	}
	b = new(record)
	if err := json.Unmarshal(data, b); err != nil {
		return nil, err
	}
	there, err := plain(data)
	if err != nil {
		return nil, err
	}
	mine, err := b.fields()
	if err != nil {
		return nil, err
	}
	b.unknown, _ = fieldsBeside(there, mine).(map[string]any)
	if newer == nil {
		return b, nil
	}
	b.format = newer.format
	unknown, _ := b.unknown["workload"].(map[string]any)
	if b.Workload == nil || b.Workload.Grant == nil || b.Workload.Grant.Own.IsEmpty() && unknown["grant"] != nil {
		return nil, newer
	}
	return b, nil
}

func (r *record) text() ([]byte, error) {
	r.Before = r.Workload.Before
	if r.unknown == nil {
		return seal(r)
	}
	mine, err := r.fields()
	if err != nil {
		return nil, err
	}
	return seal(withFields(mine, r.unknown))
}

// fields are those of the record that this version knows.
func (r *record) fields() (any, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return plain(data)
}

// plain is a JSON text as maps, slices and numbers.
func plain(data []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return v, d.Decode(&v)
}

// fieldsBeside returns the fields of an object that another one lacks, and those of the
// objects in it, or nil.
func fieldsBeside(object, known any) any {
	all, ok := object.(map[string]any)
	of, ok2 := known.(map[string]any)
	if !ok || !ok2 {
		return nil
	}
	beside := map[string]any{}
	for name, v := range all {
		in, there := of[name]
		if there {
			v = fieldsBeside(v, in)
		}
		if v != nil {
			beside[name] = v
		}
	}
	if len(beside) == 0 {
		return nil
	}
	return beside
}

// withFields adds to an object the fields that it lacks.
func withFields(object, beside any) any {
	all, ok := object.(map[string]any)
	more, ok2 := beside.(map[string]any)
	if !ok || !ok2 {
		return object
	}
	for name, v := range more {
		if in, there := all[name]; there {
			v = withFields(in, v)
		}
		all[name] = v
	}
	return all
}

// CorruptError is a record that cannot be read, or not by this version. It stays in its
// place. Which CPUs its workload has is not known, so no other is placed or changed; those
// that can be read stay where they are, and can be released.
type CorruptError struct {
	File  string
	Cause error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("record %s: %v: nothing new is placed, as it is not known which CPUs its workload has; use the berth that wrote it, or give everything back with 'berth restore --all'", e.File, e.Cause)
}

// Unwrap returns what is wrong with it.
func (e *CorruptError) Unwrap() error { return e.Cause }
