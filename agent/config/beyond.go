package config

import (
	"fmt"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/place"
)

// Size is what a host has: online CPUs, and memory in bytes, 0 if that is not known.
type Size struct {
	CPUs   int
	Memory int64
}

// Beyond returns an error for each amount of a workload that is more than a host has, with
// its field.
func (w *Workload) Beyond(has Size) []*strictyaml.Error {
	wrong := w.Limits.Beyond(has)
	for _, e := range wrong {
		e.Field = "limits." + e.Field
	}
	if most := place.Milli(1000 * has.CPUs); w.CPUs > most {
		wrong = append(wrong, &strictyaml.Error{Field: "cpus", Err: fmt.Errorf("%s CPUs are asked for, and this host has %s", w.CPUs, most)})
	}
	if has.Memory > 0 && int64(w.Memory) > has.Memory {
		wrong = append(wrong, &strictyaml.Error{Field: "memory", Err: fmt.Errorf("%s are asked for, and this host has %s", w.Memory, plain.Bytes(has.Memory))})
	}
	return wrong
}

// Beyond is the same of limits: one that cannot be reached limits nothing.
func (l *Limits) Beyond(has Size) (wrong []*strictyaml.Error) {
	if most := place.Milli(1000 * has.CPUs); l.Quota > most && l.Quota != place.Unlimited {
		err := fmt.Errorf("it is the time of %s CPUs, and this host has %s; max removes a limit", l.Quota, most)
		wrong = append(wrong, &strictyaml.Error{Field: "quota", Err: err})
	}
	for _, f := range []struct {
		name  string
		bytes place.Bytes
	}{{"memoryMax", l.MemoryMax}, {"memoryHigh", l.MemoryHigh}, {"memoryLow", l.MemoryLow}} {
		if has.Memory > 0 && int64(f.bytes) > has.Memory && f.bytes != place.Unlimited {
			err := fmt.Errorf("it is %s, and this host has %s; max removes a limit", f.bytes, plain.Bytes(has.Memory))
			wrong = append(wrong, &strictyaml.Error{Field: f.name, Err: err})
		}
	}
	return wrong
}
