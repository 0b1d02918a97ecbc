package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"berth.dev/berth/cpuset"
)

// reader reads single files. A file that is not there is not an error: ok is
// false. Every other error names the file.
type reader struct{ fsys fs.FS }

// blank surrounds values; archives of /sys pad files with zero bytes because
// sysfs claims every file to be a page long.
const blank = " \t\r\n\x00"

func (r *reader) data(name string) (data string, ok bool, err error) {
	b, err := fs.ReadFile(r.fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, in(name, err)
	}
	return string(b), true, nil
}

// text reads a file of one line.
func (r *reader) text(name string) (string, bool, error) {
	data, ok, err := r.data(name)
	if err != nil || !ok {
		return "", false, err
	}
	text, err := oneLine(name, data)
	return text, true, err
}

func oneLine(name, data string) (string, error) {
	text := strings.Trim(data, blank)
	if !utf8.ValidString(text) || strings.ContainsAny(text, "\r\n\x00") || strings.TrimSpace(text) != text {
		return "", in(name, fmt.Errorf("%.40q is not one line of text", data))
	}
	return text, nil
}

func (r *reader) list(name string) (cpuset.Set, bool, error) {
	text, ok, err := r.text(name)
	if err != nil || !ok {
		return cpuset.Set{}, false, err
	}
	set, err := cpuset.Parse(text)
	return set, true, in(name, err)
}

func (r *reader) number(name string) (int64, bool, error) {
	text, ok, err := r.text(name)
	if err != nil || !ok {
		return 0, false, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false, in(name, fmt.Errorf("%q is not a number", text))
	}
	return n, true, nil
}

// numbered lists the numbers of dir's entries "<prefix><number>", rising.
func (r *reader) numbered(dir, prefix string) ([]int, error) {
	entries, err := fs.ReadDir(r.fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, in(dir, err)
	}
	var ids []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), prefix)
		if !ok {
			continue
		}
		if id, err := strconv.Atoi(digits); err == nil && strconv.Itoa(id) == digits && id >= 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// memTotal reads a node's MemTotal in bytes; 0 without the file.
func (r *reader) memTotal(name string, node int) (int64, error) {
	data, ok, err := r.data(name)
	if err != nil || !ok {
		return 0, err
	}
	for line := range strings.Lines(data) {
		f := strings.Fields(line)
		if len(f) == 5 && f[0] == "Node" && f[1] == strconv.Itoa(node) && f[2] == "MemTotal:" && f[4] == "kB" {
			return kib(name, f[3])
		}
	}
	return 0, in(name, fmt.Errorf("no line \"Node %d MemTotal: N kB\"", node))
}

// kib turns a number of KiB into bytes.
func kib(name, digits string) (int64, error) {
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxInt64/1024 {
		return 0, in(name, fmt.Errorf("%q is not a size in KiB", digits))
	}
	return int64(n) * 1024, nil
}

// distances reads one node's row, which must have one number a node.
func (r *reader) distances(name string, nodes int) ([]int, bool, error) {
	text, ok, err := r.text(name)
	if err != nil || !ok {
		return nil, false, err
	}
	fields := strings.Fields(text)
	if len(fields) != nodes {
		return nil, false, in(name, fmt.Errorf("%d distances for %d nodes", len(fields), nodes))
	}
	row := make([]int, nodes)
	for i, f := range fields {
		n, err := strconv.ParseUint(f, 10, 8)
		if err != nil {
			return nil, false, in(name, fmt.Errorf("%q is not a distance (0-255)", f))
		}
		row[i] = int(n)
	}
	return row, true, nil
}
