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

// reader reads single files. It keeps the first error, which names the file, and reads
// nothing more after it. A file that is not there is not an error: ok is false.
type reader struct {
	fsys fs.FS
	err  error
}

// fail keeps an error of a file, if it is the first.
func (r *reader) fail(file string, err error) {
	if r.err == nil {
		r.err = in(file, err)
	}
}

// blank surrounds values; archives of /sys pad files with zero bytes because
// sysfs claims every file to be a page long.
const blank = " \t\r\n\x00"

func (r *reader) data(name string) (data string, ok bool) {
	if r.err != nil {
		return "", false
	}
	b, err := fs.ReadFile(r.fsys, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.fail(name, err)
	}
	return string(b), err == nil
}

// text reads a file of one line.
func (r *reader) text(name string) (text string, ok bool) {
	data, ok := r.data(name)
	return r.oneLine(name, data), ok
}

func (r *reader) oneLine(name, data string) string {
	text := strings.Trim(data, blank)
	if !utf8.ValidString(text) || strings.ContainsAny(text, "\r\n\x00") || strings.TrimSpace(text) != text {
		r.fail(name, fmt.Errorf("%.40q is not one line of text", data))
	}
	return text
}

func (r *reader) list(name string) (set cpuset.Set, ok bool) {
	text, ok := r.text(name)
	set, err := cpuset.Parse(text)
	r.fail(name, err)
	return set, ok
}

// mustList reads a list that has to be there.
func (r *reader) mustList(name string) cpuset.Set {
	set, ok := r.list(name)
	if !ok {
		r.fail(name, fs.ErrNotExist)
	}
	return set
}

func (r *reader) number(name string) (n int64, ok bool) {
	text, ok := r.text(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.fail(name, fmt.Errorf("%q is not a number", text))
	}
	return n, true
}

// told is number for a file whose reading fails where the kernel does not know the value: ok
// is false then.
func (r *reader) told(name string) (n int64, ok bool) {
	one := reader{fsys: r.fsys, err: r.err}
	if n, ok = one.number(name); ok {
		r.err = one.err
	}
	return n, ok
}

// numbered lists the numbers of dir's entries "<prefix><number>", rising.
func (r *reader) numbered(dir, prefix string) []int {
	if r.err != nil {
		return nil
	}
	entries, err := fs.ReadDir(r.fsys, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.fail(dir, err)
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
	return ids
}

// memTotal reads a node's MemTotal in bytes; 0 without the file.
func (r *reader) memTotal(name string, node int) int64 {
	data, ok := r.data(name)
	if !ok {
		return 0
	}
	for line := range strings.Lines(data) {
		f := strings.Fields(line)
		if len(f) == 5 && f[0] == "Node" && f[1] == strconv.Itoa(node) && f[2] == "MemTotal:" && f[4] == "kB" {
			return r.kib(name, f[3])
		}
	}
	r.fail(name, fmt.Errorf("no line \"Node %d MemTotal: N kB\"", node))
	return 0
}

// kib turns a number of KiB into bytes.
func (r *reader) kib(name, digits string) int64 {
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxInt64/1024 {
		r.fail(name, fmt.Errorf("%q is not a size in KiB", digits))
	}
	return int64(n) * 1024
}

// distances reads one node's row, which must have one number a node; nil without the
// file.
func (r *reader) distances(name string, nodes int) []int {
	text, ok := r.text(name)
	if !ok {
		return nil
	}
	fields := strings.Fields(text)
	if len(fields) != nodes {
		r.fail(name, fmt.Errorf("%d distances for %d nodes", len(fields), nodes))
	}
	row := make([]int, len(fields))
	for i, f := range fields {
		n, err := strconv.ParseUint(f, 10, 8)
		if err != nil {
			r.fail(name, fmt.Errorf("%q is not a distance (0-255)", f))
		}
		row[i] = int(n)
	}
	return row
}
