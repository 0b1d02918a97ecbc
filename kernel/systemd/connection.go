package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"berth.dev/berth/kernel"
)

// ConnectionError is about systemd's manager as a whole, which could not be asked: there is no
// connection, it was lost, or no answer came in time. Nothing is known of the unit then, and a later
// try may well succeed. What systemd itself says against a change of a unit is none.
type ConnectionError struct{ Err error }

func (e *ConnectionError) Error() string { return e.Err.Error() }

// Unwrap returns Err, but nil where that is that a file is not there: systemd's socket is not, of the
// file that was asked for nothing is known.
func (e *ConnectionError) Unwrap() error {
	if kernel.Absent(e.Err) {
		return nil
	}
	return e.Err
}

// Asks reports whether systemd is asked before a file, below the top of the tree, is written: one that a
// property is for, or limits of disks, in a group with the name of a unit.
func Asks(file string) bool {
	_, isUnit := named(path.Dir(file))
	_, isProperty := knobOf(path.Base(file))
	return isUnit && (isProperty || lineKnob(path.Base(file)) != nil)
}

// calls are those of a manager, whose errors tell by their type whether it was systemd that answered.
type calls struct{ bus Bus }

func (c calls) GetUnitPropertyContext(ctx context.Context, unit, property string) (*sd.Property, error) {
	p, err := c.bus.GetUnitPropertyContext(ctx, unit, property)
	return p, c.failed(err)
}

func (c calls) GetUnitTypePropertyContext(ctx context.Context, unit, kind, property string) (*sd.Property, error) {
	p, err := c.bus.GetUnitTypePropertyContext(ctx, unit, kind, property)
	return p, c.failed(err)
}

func (c calls) SetUnitPropertiesContext(ctx context.Context, unit string, runtime bool, properties ...sd.Property) error {
	return c.failed(c.bus.SetUnitPropertiesContext(ctx, unit, runtime, properties...))
}

// failed makes the error of a call a *ConnectionError if it is one.
func (c calls) failed(err error) error {
	if err == nil {
		return nil
	}
	lost := false
	if reply, ok := errors.AsType[dbus.Error](err); ok {
		lost = isOfBus(reply.Name)
	} else {
		conn, ok := c.bus.(interface{ Connected() bool })
		_, ofSocket := errors.AsType[net.Error](err)
		lost = ok && !conn.Connected() || ofSocket
		for _, is := range []error{context.DeadlineExceeded, context.Canceled, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, dbus.ErrClosed} {
			lost = lost || errors.Is(err, is)
		}
	}
	if lost {
		return &ConnectionError{fmt.Errorf("systemd did not answer: %w", err)}
	}
	return err
}

// isOfBus reports whether an error is one by which a bus says that a message did not arrive, or that
// no answer came: "Well-known error names" of the D-Bus specification, and sd-bus-errors(3).
func isOfBus(name string) bool {
	switch name {
	case "org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.Timeout", "org.freedesktop.DBus.Error.TimedOut",
		"org.freedesktop.DBus.Error.Disconnected", "org.freedesktop.DBus.Error.NoServer", "org.freedesktop.DBus.Error.NoNetwork",
		"org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner":
		return true
	}
	return false
}
