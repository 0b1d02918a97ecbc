package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/place"
)

// Parse reads a NodeConfig, a YAML document, over Default. All that is wrong with
// it is returned, joined, each as strictyaml.Error with the file's name, the
// line and the field; some are kernel.NotSupportedErrors. What a field holds is checked
// unless its form, or that of a field around or in it, is wrong. Checks are further
// ones, such as what a host cannot do: their errors are strictyaml.Errors with a field.
func Parse(data []byte, name string, checks ...func(*NodeConfig) error) (*NodeConfig, error) {
	c := Default()
	// What a document must say for itself has no default.
	c.APIVersion, c.Kind = "", ""
	lines, err := strictyaml.Decode(data, name, c)
	wrong := strictyaml.Errors(err)
	if len(wrong) == 0 || len(lines) > 0 { // else it is no YAML
		c.slash()
		wrong = append(wrong, unrelated(zeros(c, lines), wrong)...)
		for _, check := range append([]func(*NodeConfig) error{(*NodeConfig).Validate}, checks...) {
			wrong = append(wrong, unrelated(strictyaml.Errors(check(c)), wrong)...)
		}
	}
	if len(wrong) == 0 {
		return c, nil
	}
	return nil, placed(wrong, name, lines)
}

// placed joins errors of a file, each with its line.
func placed(wrong []*strictyaml.Error, name string, lines strictyaml.Lines) error {
	all := make([]error, len(wrong))
	for i, e := range wrong {
		if e.File = name; e.Line == 0 {
			e.Line = lines.At(e.Field)
		}
		all[i] = e
	}
	return errors.Join(all...)
}

// zeros are limits of 0 that the document names: no kernel has them, and a field of 0 that it
// does not name is none.
func zeros(c *NodeConfig, lines strictyaml.Lines) (wrong []*strictyaml.Error) {
	check := func(field string, l Limits) {
		for _, f := range []struct {
			name string
			zero bool
			want string
		}{
			{"weight", l.Weight == 0, "1 to 10000"}, {"ioWeight", l.IOWeight == 0, "1 to 10000"},
			{"quota", l.Quota == 0, "an amount of CPUs, or max"}, {"memoryMax", l.MemoryMax == 0, "an amount of memory, or max"},
		} {
			at := field + "." + f.name
			if line, named := lines[at]; named && f.zero {
				wrong = append(wrong, &strictyaml.Error{Line: line, Field: at, Err: fmt.Errorf("0 is not %s", f.want)})
			}
		}
	}
	for _, class := range place.Classes() {
		check("classes."+class.String(), c.Classes.Of(class))
	}
	for i := range c.Workloads {
		check(fmt.Sprintf("workloads[%d].limits", i), c.Workloads[i].Limits)
	}
	return wrong
}

// slash writes the paths of groups in the one form that Berth keeps: globs with a slash
// before them, the path of a group without.
func (c *NodeConfig) slash() {
	globs := [][]string{c.Confine, c.Protected, c.Guard.Sensitive, c.Guard.BestEffort, c.Guard.Allowed}
	for _, list := range globs {
		for i := range list {
			list[i] = slashed(list[i])
		}
	}
	for i := range c.Workloads {
		m := &c.Workloads[i].Match
		m.Cgroup = slashed(m.Cgroup)
	}
	if s := c.Guard.Suppression; s != nil && len(s.Group) > 1 {
		s.Group = strings.TrimPrefix(s.Group, "/")
	}
}

func slashed(glob string) string {
	if glob == "" || strings.HasPrefix(glob, "/") {
		return glob
	}
	return "/" + glob
}

// unrelated returns the errors about fields that are neither around nor in a field of
// others.
func unrelated(errs, others []*strictyaml.Error) []*strictyaml.Error {
	within := func(field, of string) bool {
		rest, ok := strings.CutPrefix(field, of)
		return ok && (of == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	return slices.DeleteFunc(errs, func(e *strictyaml.Error) bool {
		return slices.ContainsFunc(others, func(o *strictyaml.Error) bool { return within(e.Field, o.Field) || within(o.Field, e.Field) })
	})
}
