package actuate

import (
	"errors"
	"io/fs"
	"path"

	"berth.dev/berth/guard/control"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/kernel/traffic"
)

// What a group sends is limited by a class of a network device, on devices that the operator has
// divided into network classes: on those, and no others, is a discipline or a program of Berth's.

const lowerRate = "a lower rate of what a group sends"

// network reads the devices, where this host can limit what groups send.
func (h *Host) network() (*traffic.Host, error) {
	if cgroup.Unified(h.root.FS()) == "" {
		return nil, &kernel.NotSupportedError{Feature: lowerRate, Reason: "cgroup v2 is not mounted", Remedy: "mount it, beside v1 at least"}
	}
	return traffic.Read(h.root.FS(), nil)
}

// senderDir is the directory of a group by which its packets are told.
func (h *Host) senderDir(group string) string { return path.Join(cgroup.Unified(h.root.FS()), group) }

// sender is a group whose rate is to be lowered: its directory, and the number of its class without
// that, which may be that of a group around it; 0 if it has none.
func (h *Host) sender(group string) (dir string, of uint16, err error) {
	if err := valid(group); err != nil {
		return "", 0, err
	}
	dir = h.senderDir(group)
	if _, err := fs.Stat(h.root.FS(), dir); errors.Is(err, fs.ErrNotExist) && h.has(group) {
		return dir, 0, &kernel.NotSupportedError{Feature: lowerRate, Reason: "the group is not in the tree of cgroup v2", Remedy: "boot with cgroup v2 alone"}
	} else if err != nil {
		return dir, 0, err
	}
	top := cgroup.Unified(h.root.FS())
	for at := dir; of == 0 && at != top; at = path.Dir(at) {
		text, ok := h.original(traffic.MarkFile(at))
		if !ok {
			if text, err = h.read(traffic.MarkFile(at)); err != nil {
				return dir, 0, err
			}
		}
		if of, err = traffic.ParseMark(text); err != nil {
			return dir, 0, err
		}
	}
	return dir, of, nil
}

// Sending returns what a group may send over a link, by its number, without the active actions.
func (h *Host) Sending(group string, link int) control.Sending {
	defer h.enter()()
	s := control.Sending{Link: link}
	fail := func(err error) control.Sending {
		s.Why = err.Error()
		return s
	}
	_, of, err := h.sender(group)
	if err != nil {
		return fail(err)
	}
	net, err := h.network()
	if err != nil {
		return fail(err)
	}
	d := net.Of(h.root.FS(), link)
	if d == nil {
		return fail(notDivided("the link"))
	}
	c := d.Class(of)
	s.Device, s.Floor, s.Ceiling = d.Name, int64(c.Rate), int64(c.Ceil)
	return s
}

// notDivided is of a device that Berth does not divide.
func notDivided(what string) error {
	return &kernel.NotSupportedError{
		Feature: lowerRate, Reason: what + " is not divided into network classes, and the guard limits nothing that nobody named",
		Remedy: "name the device in classes.net.devices, and give a workload a network class",
	}
}

func (h *Host) planSend(a control.Action) (kernel.Plan, error) {
	dir, of, err := h.sender(a.Group)
	if err != nil {
		return nil, err
	}
	net, err := h.network()
	if err != nil {
		return nil, err
	}
	if d := net.Devices[a.Share.Device]; d == nil || d.By == "" {
		return nil, notDivided(a.Share.Device)
	}
	minor, ok := h.lowered[a.Group]
	if !ok {
		taken := map[uint16]bool{}
		for _, minor := range h.lowered {
			taken[minor] = true
		}
		if minor, err = net.FreeMinor(taken); err != nil {
			return nil, err
		}
	}
	return net.Lower(dir, of, minor, a.Share.Device, a.Share.Send), nil
}

// lowers matches the steps that lower the rate of a group.
func (h *Host) lowers(group string) func(kernel.Step) bool {
	minor, ok := h.lowered[group]
	mark := traffic.MarkFile(h.senderDir(group))
	return func(s kernel.Step) bool { return ok && (s.Path == mark || traffic.IsClass(s.Path, minor)) }
}
