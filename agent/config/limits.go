package config

import (
	"fmt"
	"reflect"
	"time"

	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/place"
)

// Duration is a length of time, written as in "20ms" or "1m30s".
type Duration time.Duration

// String returns the time as text that UnmarshalText reads.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes what String returns.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a length of time that is not negative.
func (d *Duration) UnmarshalText(text []byte) error {
	t, err := time.ParseDuration(string(text))
	if err != nil || t < 0 {
		return fmt.Errorf("%q is no length of time, such as 20ms or 1m30s", text)
	}
	*d = Duration(t)
	return nil
}

// over returns l with what base has where l has nothing.
func (l Limits) over(base Limits) Limits {
	all := l
	to, from := reflect.ValueOf(&all).Elem(), reflect.ValueOf(base)
	for i := range to.NumField() {
		if to.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	if l.Idle != nil || l.Weight != 0 {
		// An idle group has no weight, so who sets one of the two has decided both.
		all.Idle, all.Weight = l.Idle, l.Weight
	}
	return all
}

// Cgroup returns the limits in the kernel's terms: each field as the one of the same name.
func (l Limits) Cgroup() cgroup.Limits {
	var c cgroup.Limits
	from := reflect.ValueOf(l)
	for i := range from.NumField() {
		to := reflect.ValueOf(&c).Elem().FieldByName(from.Type().Field(i).Name)
		switch v := from.Field(i).Interface().(type) {
		case place.Milli:
			to.SetInt(int64(quota(v)))
		case *bool:
			if v != nil {
				to.Set(reflect.ValueOf(map[bool]cgroup.Switch{true: cgroup.On, false: cgroup.Off}[*v]))
			}
		default:
			to.Set(from.Field(i).Convert(to.Type()))
		}
	}
	return c
}

// quota is CPU time per the kernel's default period of 100 ms.
func quota(m place.Milli) time.Duration {
	if m == place.Unlimited {
		return cgroup.Unlimited
	}
	return time.Duration(m) * 100 * time.Microsecond
}

// LimitsOf returns the limits of a workload of c: its own over those of its class.
func (c *NodeConfig) LimitsOf(w *Workload) Limits { return w.Limits.over(c.Classes.Of(w.Class)) }
