package config

import (
	"errors"

	"berth.dev/berth/internal/strictyaml"
)

// Parse reads a NodeConfig, a YAML document, over Default. All that is wrong with
// it is returned, joined, each as strictyaml.Error with the file's name, the
// line and the field; some are kernel.NotSupportedErrors. What the document
// holds is checked once its form is right.
func Parse(data []byte, name string) (*NodeConfig, error) {
	c := Default()
	// What a document must say for itself has no default.
	c.APIVersion, c.Kind = "", ""
	lines, err := strictyaml.Decode(data, name, c)
	if err != nil {
		return nil, err
	}
	wrong := strictyaml.Errors(c.Validate())
	if len(wrong) == 0 {
		return c, nil
	}
	all := make([]error, len(wrong))
	for i, e := range wrong {
		e.File, e.Line = name, lines.At(e.Field)
		all[i] = e
	}
	return nil, errors.Join(all...)
}
