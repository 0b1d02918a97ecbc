package kubelet

import (
	"cmp"
	"slices"
	"strings"

	"berth.dev/berth/place"
)

// device is a device as the device manager sees it.
type device struct {
	name     string
	nodes    uint64 // by position; 0 is no locality
	free     bool
	reusable bool // held by an init workload of the group; free too
}

// wanted returns how many devices are asked for.
func wanted(r *place.DeviceRequest) int { return max(r.Count, len(r.Names)) }

// devicesFor returns the devices that a request is about: those of the kind and
// those named; of named ones alone, where no more are asked for.
func (k *task) devicesFor(r *place.DeviceRequest) []device {
	var devices []device
	for _, d := range k.s.Devices() {
		named := slices.Contains(r.Names, d.Name)
		if !named && (d.Kind != r.Kind || wanted(r) == len(r.Names)) {
			continue
		}
		_, holder, _ := k.s.Device(d.Name)
		reusable := k.turns(holder)
		devices = append(devices, device{d.Name, k.nodes(d.Nodes), holder == "" || reusable, reusable})
	}
	return devices
}

// turns reports whether the holder is an init workload of the same group.
func (k *task) turns(holder string) bool {
	g, ok := k.s.Grant(holder)
	return ok && k.r.Group != "" && g.Request.Group == k.r.Group && g.Request.Role == place.Init
}

// deviceHints returns the node sets with n free devices: no opinion if no
// device has a locality. Preferred are those as narrow as all devices, were they
// free, would allow.
func deviceHints(devices []device, n int) []place.Hint {
	var local uint64
	free := 0
	for _, d := range devices {
		local |= d.nodes
		if d.free {
			free++
		}
	}
	if local == 0 {
		return nil
	}
	if free < n {
		return []place.Hint{}
	}
	hints, _ := hintsOf(local, func(m uint64) (ever, now bool) {
		near, usable, all := 0, 0, true
		for _, d := range devices {
			if d.nodes&m == 0 {
				all = all && (d.nodes == 0 || !d.reusable)
				continue
			}
			near++
			if d.free {
				usable++
			}
		}
		return near >= n, usable >= n && all
	})
	return hints
}

// devices takes devices for all requests.
func (k *task) devices(mask place.Hint) ([]string, error) {
	var names []string
	prefers := strings.Split(k.r.Hints[PreferredDevices], ",")
	for i := range k.r.Devices {
		r := &k.r.Devices[i]
		devices := k.devicesFor(r)
		for _, name := range r.Names {
			at := slices.IndexFunc(devices, func(d device) bool { return d.name == name })
			switch {
			case at < 0:
				return nil, &place.DeviceError{Device: name, Reason: "no such device"}
			case !devices[at].free || slices.Contains(names, name):
				_, holder, _ := k.s.Device(name)
				return nil, &place.DeviceError{Device: name, Reason: "held by " + cmp.Or(holder, k.r.ID)}
			}
			names = append(names, name)
		}
		open := slices.DeleteFunc(devices, func(d device) bool { return !d.free || slices.Contains(names, d.name) })
		more := wanted(r) - len(r.Names)
		if len(open) < more {
			return nil, k.s.TooFewDevices(r.Kind, wanted(r))
		}
		names = append(names, takeDevices(open, more, mask, prefers)...)
	}
	return names, nil
}

// takeDevices takes n of the devices: those to be used again, then those near the
// mask, far from it, without locality; in each part those preferred, then by name.
func takeDevices(devices []device, n int, mask place.Hint, prefers []string) []string {
	rank := func(d *device) place.Rank {
		r := place.Rank{flag(!d.reusable), 0, flag(!slices.Contains(prefers, d.name))}
		switch {
		case mask.Any || d.nodes&mask.Nodes != 0:
		case d.nodes != 0:
			r[1] = 1
		default:
			r[1] = 2
		}
		return r
	}
	order := slices.Clone(devices)
	slices.SortFunc(order, func(a, b device) int {
		x, y := rank(&a), rank(&b)
		return cmp.Or(x.Compare(&y), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, d := range order[:n] {
		names = append(names, d.name)
	}
	return names
}
