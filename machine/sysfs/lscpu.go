package sysfs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
)

// Lscpu reads the table that lscpu -p=CPU,CORE,SOCKET,NODE,CACHE prints: one
// row a CPU, columns between commas. The columns are named by the last comment
// line that begins with "# CPU,"; without one they are CPU, core, socket, node
// and L3, or no L3, or L1d, L1i, L2 and L3 as lscpu prints them. Only CPU, Core,
// Socket, Node, L2, L3 and Online are used.
//
// Numbers in lscpu's table are unique machine-wide: CPUs with the same number
// share the domain. An empty field or "-" is unknown, and a row that has
// nothing but the CPU's number is an offline CPU. A core split between sockets
// or the like is left for Machine.Validate.
func Lscpu(table string) (*machine.Machine, error) {
	t := lscpuTable{members: map[lscpuKey]cpuset.Set{}}
	for i, line := range strings.Split(table, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case line[0] == '#':
			if names := strings.TrimSpace(line[1:]); strings.HasPrefix(strings.ToUpper(names), "CPU,") {
				t.columns = splitRow(names)
			}
		default:
			if err := t.row(splitRow(line)); err != nil {
				return nil, fmt.Errorf("lscpu line %d %.40q: %w", i+1, line, err)
			}
		}
	}
	if t.m.Online.IsEmpty() {
		return nil, errors.New("lscpu table: no online CPU")
	}
	return t.machine(), nil
}

// splitRow splits at commas, and at the colons that newer versions put between
// caches.
func splitRow(row string) []string {
	return strings.Split(strings.ReplaceAll(row, ":", ","), ",")
}

type lscpuTable struct {
	columns []string
	m       machine.Machine
	members map[lscpuKey]cpuset.Set
	keys    []lscpuKey // in order of appearance
}

type lscpuKey struct {
	kind machine.Kind
	id   int
}

// defaultColumns names the columns of a table without a header; nil if their
// number is ambiguous.
func defaultColumns(row []string) []string {
	switch {
	case len(row) == 4:
		return []string{"CPU", "Core", "Socket", "Node"}
	case len(row) == 5:
		return []string{"CPU", "Core", "Socket", "Node", "L3"}
	case len(row) == 8:
		return []string{"CPU", "Core", "Socket", "Node", "L1d", "L1i", "L2", "L3"}
	case len(row) == 9 && row[4] == "":
		return []string{"CPU", "Core", "Socket", "Node", "", "L1d", "L1i", "L2", "L3"}
	}
	return nil
}

func (t *lscpuTable) row(fields []string) error {
	if t.columns == nil {
		if t.columns = defaultColumns(fields); t.columns == nil {
			return fmt.Errorf("%d columns and no header that names them", len(fields))
		}
	}
	cpu, err := lscpuNumber(fields[0])
	if err != nil {
		return fmt.Errorf("cpu: %w", err)
	}
	if t.m.Online.Has(cpu) || t.m.Offline.Has(cpu) {
		return fmt.Errorf("cpu %d is there twice", cpu)
	}
	offline, err := t.isOffline(fields)
	switch {
	case err != nil:
		return err
	case offline:
		t.m.Offline, err = t.m.Offline.With(cpu)
		return err
	case len(fields) != len(t.columns):
		return fmt.Errorf("%d fields for %d columns", len(fields), len(t.columns))
	}
	if t.m.Online, err = t.m.Online.With(cpu); err != nil {
		return err
	}
	for i, name := range t.columns {
		if err := t.field(cpu, name, fields[i]); err != nil {
			return fmt.Errorf("%s: %w", strings.ToLower(name), err)
		}
	}
	return nil
}

// isOffline reports whether the row says so, or says nothing of the CPU.
func (t *lscpuTable) isOffline(fields []string) (bool, error) {
	empty := true
	for i, field := range fields[1:] {
		if i+1 < len(t.columns) && strings.EqualFold(t.columns[i+1], "online") {
			switch strings.ToLower(field) {
			case "n", "no":
				return true, nil
			case "y", "yes":
				return false, nil
			}
			return false, fmt.Errorf("online: %q is neither Y nor N", field)
		}
		empty = empty && (field == "" || field == "-")
	}
	return empty, nil
}

func (t *lscpuTable) field(cpu int, column, field string) error {
	kind, ok := lscpuColumns[strings.ToLower(column)]
	if !ok || field == "" || field == "-" {
		return nil
	}
	id, err := lscpuNumber(field)
	if err != nil {
		return err
	}
	key := lscpuKey{kind, id}
	if _, known := t.members[key]; !known {
		t.keys = append(t.keys, key)
	}
	t.members[key], err = t.members[key].With(cpu)
	return err
}

var lscpuColumns = map[string]machine.Kind{
	"core": machine.Core, "socket": machine.Socket, "node": machine.Node, "l2": machine.L2, "l3": machine.L3,
}

// lscpuNumber reads a number; node numbers must fit a set, and the others are
// as small.
func lscpuNumber(field string) (int, error) {
	n, err := strconv.ParseUint(field, 10, 31)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a number", field)
	case n >= cpuset.Limit:
		return 0, fmt.Errorf("%s: %w", field, cpuset.ErrRange)
	}
	return int(n), nil
}

func (t *lscpuTable) machine() *machine.Machine {
	m := &t.m
	for cpu := range m.Online.All() {
		m.CPUs = append(m.CPUs, machine.CPU{ID: cpu})
	}
	for _, kind := range machine.Kinds() {
		var domains []machine.Domain
		for _, key := range t.keys {
			if key.kind == kind {
				domains = append(domains, machine.Domain{Kind: kind, ID: key.id, CPUs: t.members[key], KernelID: key.id})
			}
		}
		number(domains)
		m.Domains = append(m.Domains, domains...)
	}
	return m
}
