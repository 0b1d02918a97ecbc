package traffic

import (
	"path"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
)

// The files under Over.
const (
	dir       = "sys/net"
	allFile   = ":all" // no device has such a name
	rootFile  = "root"
	markFile  = "berth.net_class"
	limitFile = "berth.net_limit"
	// of the class, not of the group
	togetherFile = "berth.net_together"
	// only to read
	droppedFile = "berth.net_dropped"
	allDropped  = ":dropped" // no device has such a name
)

// MarkFile is the file of a control group of cgroup v2 that says of which class its packets are.
func MarkFile(group string) string { return path.Join(group, markFile) }

// Unmark is the step after which the packets of a control group are of no class.
func Unmark(group string) kernel.Step {
	return kernel.Step{Path: MarkFile(group), Value: none, Why: "no network class"}
}

// IsMark reports whether a file is a MarkFile.
func IsMark(name string) bool { return path.Base(name) == markFile }

// name is what the name of a file says.
type name struct {
	device, file string // "", "root", "htb" or "htb/4f21", "edt" or "edt/4f21"
}

// parse splits a name below dir.
func parse(of string) (n name, ok bool) {
	rest, ok := strings.CutPrefix(of, dir)
	if !ok || rest != "" && rest[0] != '/' {
		return n, false
	}
	n.device, n.file, _ = strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	return n, true
}

// mechanism is that of a directory that stands for one, "" of any other file.
func (n name) mechanism() Mechanism {
	if by := Mechanism(n.file); by == HTB || by == EDT {
		return by
	}
	return ""
}

// class is that of a class's file.
func (n name) class() (by Mechanism, minor uint16, ok bool) {
	parent, hex, _ := strings.Cut(n.file, "/")
	by = name{file: parent}.mechanism()
	m, err := strconv.ParseUint(hex, 16, 16)
	return by, uint16(m), by != "" && err == nil && len(hex) == 4
}

// ofGroup reports whether a file is one of a control group.
func ofGroup(name string) bool {
	return IsMark(name) || IsLimit(name) || path.Base(name) == droppedFile
}

// Divides returns the device, and what divides it, of a directory or a file of that; "" of any
// other.
func Divides(of string) (device string, by Mechanism) {
	n, ok := parse(of)
	if !ok {
		return "", ""
	}
	if by, _, isClass := n.class(); isClass {
		return n.device, by
	}
	if by := n.mechanism(); by != "" {
		return n.device, by
	}
	return "", ""
}
