package systemd

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
)

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
			if _, err := fs.Stat(f.Files.FS(), name); !kernel.Absent(err) {
				break
			}
		}
	}
	err := f.Files.WriteFile(name, data)
	if kernel.Absent(err) && unsets {
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
// Berth's. An administrator who sets it as well, meanwhile, loses it: systemd does not say who set it. What
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
		if err != nil && !kernel.Absent(err) {
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
