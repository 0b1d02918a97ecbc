package config

import (
	"errors"
	"fmt"
	"slices"

	"berth.dev/berth/internal/strictyaml"
)

// Bundle is a file of berth run: commands that are placed as a whole.
type Bundle struct {
	// Group has the policy place them near each other, if it can: policies that cannot say
	// so. Default: none.
	Group string `json:"group,omitempty"`
	// Workloads are the commands and what each gets; required.
	Workloads []Command `json:"workloads"`
}

// Command is a workload that berth run starts. Its fields are those of a workload of a
// NodeConfig, without match and group.
type Command struct {
	// Command is the program and its arguments; required.
	Command []string `json:"command"`
	Workload
}

// ParseBundle reads a Bundle, a YAML document. Errors are as of Parse. Which devices there
// are is the node's to say. Checks are as of Parse.
func ParseBundle(data []byte, name string, checks ...func(*Bundle) error) (*Bundle, error) {
	b := &Bundle{}
	lines, err := strictyaml.Decode(data, name, b)
	wrong := strictyaml.Errors(err)
	if len(wrong) == 0 || len(lines) > 0 {
		v := &validator{}
		b.validate(v)
		wrong = append(wrong, unrelated(strictyaml.Errors(errors.Join(v.errs...)), wrong)...)
		for _, check := range checks {
			wrong = append(wrong, unrelated(strictyaml.Errors(check(b)), wrong)...)
		}
	}
	if len(wrong) == 0 {
		return b, nil
	}
	return nil, placed(wrong, name, lines)
}

func (b *Bundle) validate(v *validator) {
	v.want(len(b.Workloads) > 0, "workloads", "is missing: the commands to run, each with name and command")
	if b.Group != "" {
		v.fail("group", checkName(b.Group))
	}
	for i := range b.Workloads {
		w, field := &b.Workloads[i], fmt.Sprintf("workloads[%d]", i)
		v.fail(field+".name", checkName(w.Name))
		v.want(!slices.ContainsFunc(b.Workloads[:i], func(o Command) bool { return o.Name == w.Name }), field+".name", "there are two workloads %q", w.Name)
		v.want(len(w.Command) > 0 && w.Command[0] != "", field+".command", "is missing: the program and its arguments, as in [make, -j8]")
		v.want(w.Match == (Match{}), field+".match", "is for a NodeConfig: here command says what the workload is")
		v.want(w.Workload.Group == "", field+".group", "is one of the whole file: write it beside workloads")
		v.want(!w.Class.Traits().Reserved, field+".class", "%s: the host's own services are not run by hand", w.Class)
		v.want(!w.Class.Traits().Own || w.CPUs > 0, field+".cpus", "is missing: class %s has CPUs of its own", w.Class)
		v.asked(&w.Workload, field)
	}
}
