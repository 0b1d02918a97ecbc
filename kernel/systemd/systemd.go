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
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

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
		case kernel.Absent(err) && k.isDefault(value), err == nil && k.same(string(shown), value):
			return nil
		case kernel.Absent(err) && f.isThere(path.Dir(name)) && time.Now().Before(deadline):
		case err != nil:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("%s was set to %q, but /%s shows %q", k.properties[0], value, name, strings.TrimSpace(string(shown)))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (f *Files) isThere(dir string) bool {
	_, err := fs.Stat(f.Files.FS(), dir)
	return err == nil
}
