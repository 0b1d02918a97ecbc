// Package systemd writes the values of control groups that systemd owns through
// systemd, as runtime properties of their units: org.freedesktop.systemd1(5),
// systemd.resource-control(5). What is written to the file of such a group
// directly lasts only until systemd writes it again, at the latest at the next
// daemon-reload.
//
// Files stand between a kernel.Root and the kernel's files. So there is one
// place that decides who writes a group, and plans, undo logs and undoing
// need not know: undoing writes the original value, and the one that a group
// has by default unsets the property. The runtime drop-in, then without effect,
// stays below /run/systemd until reboot. Limits of one device (io.max) are written to the
// file of a unit that is accounted for meanwhile (IOAccounting): systemd leaves those alone. The
// process that began that ends it with the last limit, by a drop-in that says no; after its own end nobody does.
//
// Only cgroup v2 at /sys/fs/cgroup is looked at, and only units of the manager
// that Files are connected to: a user's units belong to the user's own.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
)

// mount is where cgroup v2 is.
const mount = "sys/fs/cgroup"

// answer is how long systemd may take to answer, ample on a starved host.
const answer = time.Minute

// Bus is what Files ask of systemd's manager. A Conn of go-systemd is one.
type Bus interface {
	// GetUnitPropertyContext returns a property that all kinds of units have.
	GetUnitPropertyContext(ctx context.Context, unit, property string) (*sd.Property, error)
	// GetUnitTypePropertyContext returns one of a kind ("Service") of unit.
	GetUnitTypePropertyContext(ctx context.Context, unit, kind, property string) (*sd.Property, error)
	// SetUnitPropertiesContext sets properties, until the next boot if runtime.
	SetUnitPropertiesContext(ctx context.Context, unit string, runtime bool, properties ...sd.Property) error
}

// Files are kernel.Files that write values of units through systemd.
type Files struct {
	kernel.Files
	dial func(context.Context) (Bus, error)
	// patience is how long the kernel's file may take to follow.
	patience time.Duration

	mu  sync.Mutex
	bus Bus // nil until it is needed
	// lines is held while a unit's accounting is looked at, the line of a device written, and what is
	// left looked at: one that goes must not take the controller of another that comes.
	lines sync.Mutex
	// set are the properties that were set, by group. systemd disables, in its own time, each controller
	// of such a group that no property needs, those that Berth enabled for its next step included. Several
	// files may share a property: without a value they have their default, as the unit's own was
	// overridden.
	set   map[string]map[string]bool
	setMu sync.Mutex
}

// New returns files whose writes to units' groups go to the bus that dial
// connects to when it is first needed.
func New(files kernel.Files, dial func(context.Context) (Bus, error)) *Files {
	return &Files{Files: files, dial: dial, patience: 5 * time.Second, set: map[string]map[string]bool{}}
}

// Open is kernel.Open, but where dir is the live host, or in a container the folder that it
// is mounted to, and systemd runs there, values of its units' groups are written through it.
func Open(dir string) (*kernel.Root, error) {
	root, err := kernel.Open(dir)
	if err != nil || !running(root.FS()) {
		return root, err
	}
	dial := manager(dir, os.Geteuid())
	if dial == nil {
		return root, nil
	}
	root.Files = New(root.Files, func(ctx context.Context) (Bus, error) {
		conn, err := dial(ctx)
		if err != nil {
			return nil, fmt.Errorf("connect to systemd: %w", err)
		}
		return conn, nil
	})
	return root, nil
}

// private is where a manager listens, below the folder of what is only for this boot.
const private = "systemd/private"

// manager returns what connects a user to the manager of a tree; nil if there is none: the
// tree is of a system that does not run.
func manager(dir string, uid int) func(context.Context) (*sd.Conn, error) {
	switch live := path.Clean(dir) == "/"; {
	case live && uid == 0:
		return sd.NewSystemdConnectionContext
	case live:
		// Without a manager of her own, none of a user's groups can be a unit's.
		if _, err := os.Stat(os.Getenv("XDG_RUNTIME_DIR") + "/" + private); err == nil {
			return sd.NewUserConnectionContext
		}
	case uid == 0:
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil
		}
		socket, err := openSocket(root, uid)
		if err != nil {
			_ = root.Close()
			return nil
		}
		_ = socket.Close() // systemd may make it anew
		return func(ctx context.Context) (*sd.Conn, error) { return connectTo(ctx, root, uid) }
	}
	return nil
}

// openSocket opens (O_PATH) where the manager of a tree listens: a socket of a user, to which no link
// leads out of the tree.
func openSocket(root *os.Root, uid int) (*os.File, error) {
	f, err := root.OpenFile("run/"+private, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode().Type() != fs.ModeSocket || int(stat.Uid) != uid {
			err = fmt.Errorf("%s is not a socket of user %d", f.Name(), uid)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// connectTo connects a user to the manager of a tree. Who listens must be the user's, too.
func connectTo(ctx context.Context, root *os.Root, uid int) (*sd.Conn, error) {
	return sd.NewConnection(func() (*dbus.Conn, error) {
		socket, err := openSocket(root, uid)
		if err != nil {
			return nil, err
		}
		defer socket.Close()
		// By its name it might be another one by now.
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", socket.Name(), err)
		}
		if err := listens(conn, uid); err != nil {
			return nil, fmt.Errorf("%s: %w", socket.Name(), errors.Join(err, conn.Close()))
		}
		bus, err := dbus.NewConn(conn, dbus.WithContext(ctx))
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if err := bus.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(uid))}); err != nil {
			return nil, errors.Join(err, bus.Close())
		}
		return bus, nil
	})
}

// listens returns an error unless a process of a user listens at the other end.
func listens(conn net.Conn, uid int) error {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	if controlErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); controlErr != nil {
		return controlErr
	}
	if err == nil && int(peer.Uid) != uid {
		err = fmt.Errorf("a process of user %d listens, not one of %d", peer.Uid, uid)
	}
	return err
}

// running reports whether systemd runs (sd_booted(3)) and has control groups in v2. A copy of a
// host's files has no groups.
func running(fsys fs.FS) bool {
	if _, err := fs.Stat(fsys, "run/systemd/system"); err != nil {
		return false
	}
	dir, err := fsys.Open(mount)
	if err != nil {
		return false
	}
	defer dir.Close()
	f, ok := dir.(*os.File)
	var is unix.Statfs_t
	return ok && unix.Fstatfs(int(f.Fd()), &is) == nil && is.Type == unix.CGROUP2_SUPER_MAGIC
}

func (f *Files) connect(ctx context.Context) (Bus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.bus.(interface{ Connected() bool })
	if f.bus != nil && (!ok || c.Connected()) {
		return f.bus, nil
	}
	if err := ctx.Err(); err != nil { // while others connected
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	// The context that one dials with ends the connection: that of a caller only until there is one.
	ctx, done := context.WithTimeout(ctx, answer)
	defer done()
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	bus, err := f.dial(lasting)
	switch {
	case !stop():
		return nil, fmt.Errorf("connect to systemd: no answer: %w", ctx.Err())
	case err != nil:
		end()
		return nil, err
	}
	f.bus = bus
	return bus, nil
}

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
		return "", fmt.Errorf("unit %q: its name does not end in .service, .scope or .slice, which have groups", name)
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

// named returns the unit that a group is called after. systemd puts "_" before
// the name of a group that would be that of a file.
func named(group string) (unit, bool) {
	kinds := map[string]string{
		".service": "Service", ".scope": "Scope", ".slice": "Slice", ".socket": "Socket", ".mount": "Mount", ".swap": "Swap",
	}
	if !strings.HasPrefix(group, mount+"/") {
		return unit{}, false
	}
	name := strings.TrimPrefix(path.Base(group), "_")
	kind, ok := kinds[path.Ext(name)]
	return unit{name: name, kind: kind}, ok
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

// WriteFile writes through systemd what is a property of a unit, and waits until
// the kernel's file has it.
func (f *Files) WriteFile(name, data string) error {
	k, ok := knobOf(path.Base(name))
	unsets, isLine := lineOf(path.Base(name), data)
	if !ok && !isLine {
		return f.Files.WriteFile(name, data)
	}
	ctx, cancel := context.WithTimeout(context.Background(), answer)
	defer cancel()
	u, ok, err := f.owner(ctx, path.Dir(name))
	if err != nil {
		return err
	}
	if !ok {
		return f.Files.WriteFile(name, data)
	}
	if isLine {
		return unitError(u.name, f.setLine(ctx, u, name, data, unsets))
	}
	return unitError(u.name, f.write(ctx, u, k, name, strings.TrimSuffix(data, "\n")))
}

// accounting is the property by which systemd leaves a unit the io controller.
const accounting = "IOAccounting"

// setLine writes the line of a device. systemd leaves lines alone that it was not told of, but takes
// the controller away where no property needs it: so the unit is accounted for as long as there are
// lines.
func (f *Files) setLine(ctx context.Context, u unit, name, data string, unsets bool) error {
	f.lines.Lock()
	defer f.lines.Unlock()
	switch {
	case unsets:
	case !u.active:
		return f.Files.WriteFile(name, data) // says that there is no group
	default:
		if on, err := f.isAccounted(ctx, u); err != nil {
			return err
		} else if !on {
			if err := f.account(ctx, u, true); err != nil {
				return err
			}
			f.note(ctx, path.Dir(name), accounting)
		}
		for deadline := time.Now().Add(f.patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
			if _, err := fs.Stat(f.Files.FS(), name); !gone(err) {
				break
			}
		}
	}
	err := f.Files.WriteFile(name, data)
	if gone(err) && unsets {
		err = nil // with its controller
	}
	if left := f.release(ctx, u, path.Dir(name)); left != nil {
		err = errors.Join(err, left)
	}
	return err
}

func (f *Files) isAccounted(ctx context.Context, u unit) (bool, error) {
	bus, err := f.connect(ctx)
	if err != nil {
		return false, err
	}
	is, err := bus.GetUnitTypePropertyContext(ctx, u.name, u.kind, accounting)
	if err != nil {
		return false, err
	}
	on, _ := is.Value.Value().(bool)
	return on, nil
}

func (f *Files) account(ctx context.Context, u unit, on bool) error {
	bus, err := f.connect(ctx)
	if err != nil {
		return err
	}
	return bus.SetUnitPropertiesContext(ctx, u.name, true, sd.Property{Name: accounting, Value: dbus.MakeVariant(on)})
}

// release ends the accounting that Berth began, once no line is left. What was on before is not
// Berth's. An administrator who sets it as well, meanwhile, loses it: systemd does not say who did. What
// another process began, which has ended, stays on until the next boot, as does that of a
// unit that stops with its lines.
func (f *Files) release(ctx context.Context, u unit, group string) error {
	if _, given := f.noted(group, accounting); !given {
		return nil
	}
	for _, k := range knob.All() {
		if k.Controller != "io" || k.Key == nil {
			continue
		}
		text, err := fs.ReadFile(f.Files.FS(), path.Join(group, k.V2[0].Name))
		if err != nil && !gone(err) {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if unsets, is := lineOf(k.V2[0].Name, line); is && !unsets {
				return nil // another one is left
			}
		}
	}
	on, err := f.isAccounted(ctx, u)
	if err == nil && on {
		err = f.account(ctx, u, false)
	}
	if err == nil {
		f.setMu.Lock()
		defer f.setMu.Unlock()
		delete(f.set[group], accounting)
	}
	return err
}

// note has a property of a group known as set. With a further group it forgets those that are gone: a unit
// that is only stopped has its properties still.
func (f *Files) note(ctx context.Context, group, property string) {
	f.setMu.Lock()
	known := slices.Collect(maps.Keys(f.set))
	if f.set[group] == nil {
		f.set[group] = map[string]bool{}
	} else {
		known = nil
	}
	f.set[group][property] = true
	f.setMu.Unlock()
	for _, other := range known {
		if f.isThere(other) {
			continue
		}
		if _, owned, err := f.owner(ctx, other); err == nil && !owned {
			f.setMu.Lock()
			if !f.isThere(other) {
				delete(f.set, other)
			}
			f.setMu.Unlock()
		}
	}
}

// noted reports whether a property of a group was set, and whether this one was.
func (f *Files) noted(group, property string) (some, this bool) {
	f.setMu.Lock()
	defer f.setMu.Unlock()
	properties, some := f.set[group]
	return some, properties[property]
}

// write sets the properties behind a file. A cpuset that is to be empty first gets
// its parent's: before Linux 7 the kernel keeps that of a group with processes.
func (f *Files) write(ctx context.Context, u unit, k property, name, value string) error {
	if k.Type == knob.Set && value == "" && u.active {
		dir, file := path.Split(name)
		all, err := fs.ReadFile(f.Files.FS(), path.Join(dir, "..", file+".effective"))
		if err != nil {
			return err
		}
		if err := f.setOnce(ctx, u, k, name, strings.TrimSpace(string(all))); err != nil {
			return err
		}
		return f.send(ctx, u, k, "")
	}
	return f.setOnce(ctx, u, k, name, value)
}

func (f *Files) setOnce(ctx context.Context, u unit, k property, name, value string) error {
	if err := f.send(ctx, u, k, value); err != nil {
		return err
	}
	f.note(ctx, path.Dir(name), k.properties[0])
	if !u.active {
		return nil
	}
	return f.await(k, name, value)
}

func (f *Files) send(ctx context.Context, u unit, k property, value string) error {
	values, err := k.encode(value)
	if err != nil {
		return fmt.Errorf("%s %q: %w", k.properties[0], value, err)
	}
	bus, err := f.connect(ctx)
	if err != nil {
		return err
	}
	var properties []sd.Property
	for i, v := range values {
		properties = append(properties, sd.Property{Name: k.properties[i], Value: dbus.MakeVariant(v)})
	}
	return bus.SetUnitPropertiesContext(ctx, u.name, true, properties...)
}

// await waits until a file shows a value: systemd answers before it writes, and before it
// enables the controller that the file needs. A file that is gone has its default: nobody
// uses its controller any more.
func (f *Files) await(k property, name, value string) error {
	deadline := time.Now().Add(f.patience)
	for {
		shown, err := fs.ReadFile(f.Files.FS(), name)
		switch {
		case gone(err) && k.isDefault(value), err == nil && k.same(string(shown), value):
			return nil
		case gone(err) && f.isThere(path.Dir(name)) && time.Now().Before(deadline):
		case err != nil:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("%s was set to %q, but /%s shows %q", k.properties[0], value, name, strings.TrimSpace(string(shown)))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// gone says whether a file is, or goes just now: with its controller.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

func (f *Files) isThere(dir string) bool {
	_, err := fs.Stat(f.Files.FS(), dir)
	return err == nil
}
