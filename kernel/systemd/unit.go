package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"berth.dev/berth/kernel"
)

type unit struct {
	name, kind string
	active     bool // its group exists
}

// noSuchUnit is fs.ErrNotExist in plain words.
type noSuchUnit struct{}

func (noSuchUnit) Error() string { return "there is no such unit" }
func (noSuchUnit) Unwrap() error { return fs.ErrNotExist }

// ControlGroup returns the group of an active unit, as a path below the top of the tree
// without a slash before it. The root is one of Open: without systemd the error is a
// kernel.NotSupportedError. A unit that is not active has none: fs.ErrNotExist.
func ControlGroup(ctx context.Context, root *kernel.Root, name string) (group string, err error) {
	f, ok := root.Files.(*Files)
	if !ok {
		return "", &kernel.NotSupportedError{Feature: "finding the group of a unit", Reason: "systemd does not run here, or not with cgroup v2", Remedy: "name its control group or a process"}
	}
	u, ok := named(mount + "/" + name)
	if !ok || strings.Contains(name, "/") {
		return "", fmt.Errorf("unit %q: no unit with a group has such a name: it ends in .service, .scope or .slice, has letters, digits and :-_.\\@ before that, and an instance after the first @ (systemd.unit(5))", name)
	}
	bus, err := f.connect(ctx)
	if err != nil {
		return "", err
	}
	is, err := text(bus.GetUnitTypePropertyContext(ctx, u.name, u.kind, "ControlGroup"))
	if err != nil && ignoreUnknown(u.name, err) != nil {
		return "", fmt.Errorf("unit %s: %w", name, err)
	}
	if is == "" {
		if state, err := text(bus.GetUnitPropertyContext(ctx, u.name, "LoadState")); err == nil && state == "not-found" {
			return "", fmt.Errorf("unit %s: %w ('systemctl list-units' lists them)", name, noSuchUnit{})
		}
		return "", fmt.Errorf("unit %s: it is not active, and has no group: %w", name, fs.ErrNotExist)
	}
	return strings.TrimPrefix(is, "/"), nil
}

// owner returns the unit that owns a group, a directory like
// "sys/fs/cgroup/system.slice/web.service", or whose group that will be once it
// is started; ok is false if nobody does.
func (f *Files) owner(ctx context.Context, group string) (u unit, ok bool, err error) {
	if u, ok = named(group); !ok {
		return u, false, nil
	}
	bus, err := f.connect(ctx)
	if err != nil {
		return u, false, err
	}
	is, err := text(bus.GetUnitTypePropertyContext(ctx, u.name, u.kind, "ControlGroup"))
	if err != nil || is != "" {
		u.active = true
		return u, mount+is == group, ignoreUnknown(u.name, err)
	}
	state, err := text(bus.GetUnitPropertyContext(ctx, u.name, "LoadState"))
	if err != nil || state != "loaded" {
		return u, false, ignoreUnknown(u.name, err)
	}
	slice, err := text(bus.GetUnitTypePropertyContext(ctx, u.name, u.kind, "Slice"))
	return u, err == nil && path.Join(mount, sliceDir(slice), path.Base(group)) == group, ignoreUnknown(u.name, err)
}

// kinds are those of units that have groups, by how their names end.
var kinds = map[string]string{
	".service": "Service", ".scope": "Scope", ".slice": "Slice", ".socket": "Socket", ".mount": "Mount", ".swap": "Swap",
}

// named returns the unit that a group is called after. systemd puts "_" before
// the name of a group that would be that of a file.
func named(group string) (unit, bool) {
	if !strings.HasPrefix(group, mount+"/") {
		return unit{}, false
	}
	name := strings.TrimPrefix(path.Base(group), "_")
	kind, ok := kinds[path.Ext(name)]
	return unit{name: name, kind: kind}, ok && isUnitName(name)
}

// isUnitName reports whether a unit that is no template can have a name (systemd.unit(5)). Users call groups
// in their own as they like; of a name that no unit can have systemd would say that it is invalid.
func isUnitName(name string) bool {
	const characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@"
	prefix := strings.TrimSuffix(name, path.Ext(name))
	at := strings.IndexByte(prefix, '@')
	return prefix != "" && at != 0 && at != len(prefix)-1 && strings.Trim(prefix, characters) == ""
}

// sliceDir returns the group of a slice: "a.slice/a-b.slice" of "a-b.slice".
func sliceDir(slice string) string {
	name := strings.TrimSuffix(slice, ".slice")
	if name == "-" || name == "" {
		return ""
	}
	var dir, prefix string
	for part := range strings.SplitSeq(name, "-") {
		prefix += part
		dir = path.Join(dir, prefix+".slice")
		prefix += "-"
	}
	return dir
}

func text(p *sd.Property, err error) (string, error) {
	if err != nil {
		return "", err
	}
	s, ok := p.Value.Value().(string)
	if !ok {
		return "", fmt.Errorf("property %s: %s is no text", p.Name, p.Value)
	}
	return s, nil
}

// ignoreUnknown is unitError but for the error that there is no such unit, property or kind.
func ignoreUnknown(name string, err error) error {
	if e, ok := errors.AsType[dbus.Error](err); ok && (e.Name == "org.freedesktop.systemd1.NoSuchUnit" ||
		strings.HasPrefix(e.Name, "org.freedesktop.DBus.Error.Unknown")) {
		return nil
	}
	return unitError(name, err)
}

func unitError(name string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[dbus.Error](err); ok && strings.HasSuffix(e.Name, "AccessDenied") {
		err = fmt.Errorf("%w: %w", err, syscall.EACCES)
	}
	return fmt.Errorf("unit %s: %w", name, err)
}
