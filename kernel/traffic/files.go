package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/kernel"
)

// Over returns a root that has, beside the kernel's own files:
//
//	sys/net/:all                      what the files below tell, of all devices, in one reading
//	sys/net/DEVICE/root               "pfifo_fast 0:", the root discipline; only to read
//	sys/net/DEVICE/htb                the directory that stands for Berth's: making it adds HTB
//	                                  at the root, removing it brings back the kernel's default
//	sys/net/DEVICE/edt                the same of Berth's program before a device's fq
//	sys/net/DEVICE/htb/4f21           "rate 1250000 ceil 12500000 prio 7", a class, or none
//	CGROUP/berth.net_class            "6be7:4f21", of which class packets are, or none
//	CGROUP/berth.net_limit            "send 1250000 receive 1250000", in bytes per second, or none;
//	                                  "receive 1250000 from eth0/eth1" is through some devices
//	CGROUP/berth.net_together         "4f21 1250000", what its class receives together, or none
//	CGROUP/berth.net_dropped          "17 4", packets that those two have dropped; only to read
//	sys/net/:dropped                  "eth0 4f21 17", packets that each class has lost at a device
//
// Only the live host has any. A root that has them already stays as it is.
func Over(root *kernel.Root) *kernel.Root {
	if _, err := fs.Stat(root.FS(), dir); err == nil || !root.IsLive() {
		return root
	}
	return Lay(root, systemCalls{})
}

// Lay is Over with given calls, for a test that plays the network.
func Lay(root *kernel.Root, calls Calls) *kernel.Root {
	return root.Lay(&files{root.FS(), calls})
}

// files are the kernel.Overlay.
type files struct {
	fsys  fs.FS // of the root below
	calls Calls
}

// Has implements kernel.Overlay.
func (*files) Has(of string) bool {
	_, ok := parse(of)
	return ok || ofGroup(of)
}

// index is that of a name's device.
func (f *files) index(n name) (int, error) {
	devices, err := f.calls.Devices()
	index, ok := devices[n.device]
	if err == nil && !ok {
		err = fs.ErrNotExist
	}
	return index, err
}

// root is the discipline of a device.
func (f *files) root(index int) (Qdisc, error) {
	roots, err := f.calls.Roots()
	return roots[index], err
}

// own is the index of a device that a mechanism divides.
func (f *files) own(n name, by Mechanism) (int, error) {
	index, err := f.index(n)
	if err != nil {
		return 0, err
	}
	is := false
	if by == EDT {
		is, err = f.calls.Paced(index)
	} else {
		var q Qdisc
		q, err = f.root(index)
		is = q.ours()
	}
	if err == nil && !is {
		err = fs.ErrNotExist
	}
	return index, err
}

// Stat implements kernel.Overlay. The index of a device is its inode: one that is made anew
// under the same name has another.
func (f *files) Stat(of string) (inode uint64, isDir bool, err error) {
	if ofGroup(of) {
		info, err := fs.Stat(f.fsys, path.Dir(of))
		if err != nil {
			return 0, false, err
		}
		stat, _ := info.Sys().(*syscall.Stat_t)
		if stat != nil {
			inode = stat.Ino
		}
		return inode, false, nil
	}
	n, _ := parse(of)
	if n.device == "" || n.device == allFile || n.device == allDropped {
		return 0, n.device == "", nil
	}
	var index int
	by, _, isClass := n.class()
	switch {
	case isClass || n.mechanism() != "":
		index, err = f.own(n, by)
	case n.file == "" || n.file == rootFile:
		index, err = f.index(n)
	default:
		err = fs.ErrNotExist
	}
	return uint64(index), n.file == "" || n.mechanism() != "", err
}

// Renamed implements kernel.OverlayRenames: a device keeps its index under another name.
func (f *files) Renamed(of string, inode uint64) string {
	n, _ := parse(of)
	devices, err := f.calls.Devices()
	if err != nil || n.mechanism() == "" {
		return ""
	}
	for device, index := range devices {
		if uint64(index) != inode {
			continue
		}
		if _, err := f.own(name{device, n.file}, n.mechanism()); err == nil {
			return path.Join(dir, device, n.file)
		}
	}
	return ""
}

// Read implements kernel.Overlay.
func (f *files) Read(of string) (string, error) {
	if IsMark(of) {
		minor, err := f.calls.Mark(path.Dir(of))
		if err != nil || minor == 0 {
			return none, err
		}
		return mark(minor), nil
	}
	if isTogether(of) {
		s, err := f.calls.Together(path.Dir(of))
		return s.text(), err
	}
	if IsLimit(of) {
		l, err := f.calls.Limit(path.Dir(of))
		return l.text(), err
	}
	if path.Base(of) == droppedFile {
		own, together, err := f.calls.DroppedOf(path.Dir(of))
		return fmt.Sprintf("%d %d", own, together), err
	}
	n, _ := parse(of)
	by, minor, isClass := n.class()
	switch {
	case n.device == allFile:
		return f.all()
	case n.device == allDropped:
		return f.dropped()
	case n.file == rootFile:
		index, err := f.index(n)
		if err != nil {
			return "", err
		}
		q, err := f.root(index)
		return q.String(), err
	case isClass:
		index, err := f.own(n, by)
		if err != nil {
			return "", err
		}
		classes, err := f.calls.Classes(by, index)
		if c, ok := classes[minor]; ok {
			return c.String(), err
		}
		return none, err
	}
	return "", fs.ErrNotExist
}

// all is the text of allFile.
func (f *files) all() (string, error) {
	devices, err := f.calls.Devices()
	if err != nil {
		return "", err
	}
	roots, err := f.calls.Roots()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		index := devices[name]
		d := Device{Name: name, Root: roots[index].String(), Paces: roots[index].Paces}
		if roots[index].ours() {
			d.By = HTB
		} else if paced, err := f.calls.Paced(index); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		} else if paced {
			d.By = EDT
		}
		if d.By != "" {
			switch d.Has, err = f.calls.Classes(d.By, index); {
			case errors.Is(err, syscall.ENODEV):
				continue // it was just removed
			case errors.Is(err, fs.ErrNotExist):
				d.By, d.Has = "", nil // what divided it was
			case err != nil:
				return "", fmt.Errorf("%s: %w", name, err)
			}
		}
		b.WriteString(d.text())
	}
	return b.String(), nil
}

// Write implements kernel.Overlay.
func (f *files) Write(of, text string) error {
	if IsMark(of) {
		minor, err := ParseMark(text)
		if err != nil {
			return fmt.Errorf("%w: %w", err, syscall.EINVAL)
		}
		return f.calls.SetMark(path.Dir(of), minor)
	}
	if isTogether(of) {
		s, err := parseTogether(text)
		if err != nil {
			return fmt.Errorf("%w: %w", err, syscall.EINVAL)
		}
		return f.calls.SetTogether(path.Dir(of), s)
	}
	if IsLimit(of) {
		l, err := parseLimit(text)
		if err != nil {
			return fmt.Errorf("%w: %w", err, syscall.EINVAL)
		}
		return f.calls.SetLimit(path.Dir(of), l)
	}
	n, _ := parse(of)
	by, minor, isClass := n.class()
	if !isClass {
		return syscall.EACCES
	}
	c, err := parseClass(text)
	if err = cmp.Or(err, c.check()); err != nil {
		return fmt.Errorf("%w: %w", err, syscall.EINVAL)
	}
	index, err := f.own(n, by)
	switch {
	case err != nil:
		return err
	case c == Class{}:
		return f.calls.RemoveClass(by, index, minor)
	}
	return f.calls.SetClass(by, index, minor, c)
}

// List implements kernel.OverlayDirs.
func (f *files) List(of string) (names []string, err error) {
	n, _ := parse(of)
	switch by := n.mechanism(); {
	case by != "":
		index, err := f.own(n, by)
		if err != nil {
			return nil, err
		}
		classes, err := f.calls.Classes(by, index)
		for minor := range classes {
			names = append(names, fmt.Sprintf("%04x", minor))
		}
		slices.Sort(names)
		return names, err
	case n.file == "":
		devices, err := f.calls.Devices()
		if n.device == "" {
			return slices.Sorted(maps.Keys(devices)), err
		}
		if _, err := f.index(n); err != nil {
			return nil, err
		}
		return []string{string(EDT), string(HTB), rootFile}, nil // Stat tells which are there
	}
	return nil, fs.ErrNotExist
}

// Mkdir implements kernel.OverlayDirs: it adds Berth's discipline, unless somebody else's is
// there, or its program before fq.
func (f *files) Mkdir(of string) error {
	n, _ := parse(of)
	by := n.mechanism()
	if by == "" {
		return syscall.EPERM
	}
	if _, err := f.own(n, by); err == nil {
		return syscall.EEXIST
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	index, err := f.index(n)
	if err != nil {
		return err
	}
	switch q, err := f.root(index); {
	case err != nil:
		return err
	case by == HTB && q.Handle != 0:
		return fmt.Errorf("%s has a root queueing discipline of somebody else's, %q: %w", n.device, q, syscall.EBUSY)
	case by == EDT && !q.Paces:
		return fmt.Errorf("%s has %q, which does not keep packets until they are due: %w", n.device, q, syscall.EOPNOTSUPP)
	}
	return f.calls.Divide(by, index)
}

// Rmdir implements kernel.OverlayDirs: the kernel puts its default in the place of Berth's
// discipline.
func (f *files) Rmdir(of string) error {
	n, _ := parse(of)
	by := n.mechanism()
	if by == "" {
		return syscall.EPERM
	}
	index, err := f.own(n, by)
	if err != nil {
		return err
	}
	if err := f.calls.Join(by, index); err != nil || by == EDT {
		return err
	}
	q, err := f.root(index)
	if err == nil && q.Handle != 0 {
		err = errors.New("its root is not the kernel's default, but " + q.String())
	}
	return err
}
