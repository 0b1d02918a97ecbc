package config

import (
	"fmt"

	"berth.dev/berth/place"
)

// Warning is something in a valid NodeConfig that does not do what one may expect.
type Warning struct {
	Field string `json:"field"`
	Text  string `json:"text"`
}

// String is the warning in one line.
func (w Warning) String() string { return w.Field + ": " + w.Text }

// Warnings returns what of the workloads' wishes the policy of a valid NodeConfig ignores,
// and those of a class with CPUs of its own that ask for none.
func (c *NodeConfig) Warnings() (all []Warning) {
	p, err := c.NewPolicy()
	if err != nil {
		return nil
	}
	for i := range c.Workloads {
		if w := &c.Workloads[i]; w.Class.Traits().Own && w.CPUs == 0 && w.Mode != place.Shared && len(w.Hints) == 0 {
			all = append(all, Warning{fmt.Sprintf("workloads[%d].cpus", i), fmt.Sprintf("%s: class %s has CPUs of its own, and it asks for none: it shares a pool; say how many", w.Name, w.Class)})
		}
		r := c.Workloads[i].Request(c.Workloads[i].Name)
		if text := place.IgnoredText(p, &r); text != "" {
			all = append(all, Warning{fmt.Sprintf("workloads[%d]", i), c.Workloads[i].Name + ": " + text})
		}
	}
	return all
}
