package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/lab"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
)

// Difference is a condition that was not the same in A and B.
type Difference struct {
	What string `json:"what"`
	A    string `json:"a"`
	B    string `json:"b"`
}

// differences lists what was not the same: the machine and what the run settled on, then the
// settings. Figures that are measured or calibrated count as the same within a few percent.
func differences(a, b Side) ([]Difference, error) {
	var out []Difference
	add := func(what, x, y string) {
		if x != y {
			out = append(out, Difference{what, orUnknown(x), orUnknown(y)})
		}
	}
	near := func(what string, x, y, tolerance float64, format func(float64) string) {
		if math.Abs(x-y) > tolerance*max(math.Abs(x), math.Abs(y)) {
			add(what, format(x), format(y))
		}
	}
	add("experiment", a.Kind, b.Kind)
	ma, mb, ua, ub := a.Head.Host, b.Head.Host, a.Head.Setup, b.Head.Setup
	add("machine", machineIdentity(ma), machineIdentity(mb))
	add("kernel", ma.Kernel, mb.Kernel)
	add("frequency governor", ma.Governor, mb.Governor)
	add("backend", ua.Backend, ub.Backend)
	add("shared CPUs", ua.CPUs, ub.CPUs)
	add("generator", dotted(ua.GeneratorPolicy, ua.GeneratorCPUs), dotted(ub.GeneratorPolicy, ub.GeneratorCPUs))
	near("rate, requests/s", ua.Rate, ub.Rate, 0.01, digits3)
	add("server", ua.Server, ub.Server)
	near("tenant's CPU time per request", float64(ua.CPUPerRequest), float64(ub.CPUPerRequest), 0.05, func(v float64) string { return span(time.Duration(v)) })
	near("tenant's demand, CPUs", ua.TenantCPUs, ub.TenantCPUs, 0.05, digits3)
	na, nb := ua.Neighbour, ub.Neighbour
	add("neighbour", kernelOrCommand(na), kernelOrCommand(nb))
	add("neighbour's threads", strconv.Itoa(na.Threads), strconv.Itoa(nb.Threads))
	add("neighbour's intensity, %", strconv.Itoa(na.Intensity), strconv.Itoa(nb.Intensity))
	add("neighbour's bytes per thread", plain.Bytes(na.Bytes), plain.Bytes(nb.Bytes))
	sa, err := settings(a.Settings)
	if err != nil {
		return nil, err
	}
	sb, err := settings(b.Settings)
	if err != nil {
		return nil, err
	}
	both := maps.Clone(sa)
	maps.Copy(both, sb)
	for _, field := range slices.Sorted(maps.Keys(both)) {
		x, inA := sa[field]
		y, inB := sb[field]
		if !inA {
			x = "not set"
		}
		if !inB {
			y = "not set"
		}
		add("setting "+field, x, y)
	}
	return out, nil
}

func kernelOrCommand(n noise.Config) string {
	if len(n.Command) > 0 {
		return program.Text(n.Command)
	}
	return n.Kernel
}

// machineIdentity is what makes two hosts the same for a comparison; a host
// that was renamed or has new memory is the same.
func machineIdentity(h lab.Host) string {
	if h.Machine == nil {
		return ""
	}
	return dotted(h.Machine.Model, shape(h.Machine), h.Hypervisor)
}

// settings are those of a data file, by field: "tenant.demand", "scenarios.idle.means". What
// says how long a run is, or is drawn by chance, does not count, nor what is settled on in its
// setup, nor words.
func settings(of any) (map[string]string, error) {
	text, err := json.Marshal(of)
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	flat := map[string]string{}
	flatten(flat, "", tree)
	maps.DeleteFunc(flat, func(field, _ string) bool {
		switch field {
		case "preset", "blocks", "for", "until", "look", "seed", "cpus", "rate", "slo", "name", "nodePrice":
			return true
		}
		last := field[strings.LastIndexByte(field, '.')+1:]
		return last == "means" || strings.HasPrefix(field, "neighbour.")
	})
	return flat, nil
}

func flatten(to map[string]string, field string, v any) {
	under := func(name string) string {
		if field == "" {
			return name
		}
		return field + "." + name
	}
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			flatten(to, under(name), value)
		}
	case []any:
		var words []string
		for i, value := range v {
			object, ok := value.(map[string]any)
			if !ok {
				words = append(words, fmt.Sprint(value))
				continue
			}
			name, named := object["name"].(string)
			if !named {
				name = strconv.Itoa(i + 1)
			}
			rest := maps.Clone(object)
			delete(rest, "name")
			flatten(to, under(name), rest)
		}
		if words != nil {
			to[field] = strings.Join(words, ", ")
		}
	default:
		to[field] = fmt.Sprint(v)
	}
}
