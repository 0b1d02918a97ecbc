package replay

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/place"
)

// Annotations and labels of a pod that say where its containers should be.
const (
	berthPrefix      = "berth.dev/"             // FIELD or FIELD.CONTAINER: a field of a workload in a scenario
	nriDomain        = "resource-policy.nri.io" // HINT.DOMAIN, HINT.DOMAIN/pod or HINT.DOMAIN/container.NAME
	koordinatorClass = "koordinator.sh/qosClass"
	koordinatorSpec  = "scheduling.koordinator.sh/resource-spec"
)

// annotations reads the wishes of a pod for one of its containers, those for this
// container alone last.
func (p *objectReader) annotations(meta *metaFile, container string, w *workloadFile) {
	if class, ok := meta.Labels[koordinatorClass]; ok {
		var c place.Class
		p.at("labels."+koordinatorClass, c.UnmarshalText([]byte(class)))
		w.Class = &c
	}
	for _, own := range []bool{false, true} {
		for _, key := range slices.Sorted(maps.Keys(meta.Annotations)) {
			text := meta.Annotations[key]
			hint, scope, scoped := strings.Cut(key, "."+nriDomain)
			field, ours := strings.CutPrefix(key, berthPrefix)
			field, of, named := strings.Cut(field, ".")
			var err error
			switch {
			case ours && named == own && (!own || of == container):
				err = w.wish(field, text)
			case scoped && own == strings.HasPrefix(scope, "/container.") && (!own || scope == "/container."+container):
				err = w.hint(strings.TrimSuffix(hint, ".balloons"), text)
			case key == koordinatorSpec && !own:
				err = w.koordinator(text)
			case strings.HasPrefix(key, nriDomain):
				p.unread = append(p.unread, key)
			}
			p.at("annotations."+key, err)
		}
	}
}

// wish sets one field.
func (w *workloadFile) wish(field, text string) error {
	wishes := []string{
		"class", "mode", "shared", "bind", "bindRequired", "exclusive", "strategy", "isolated", "coreKind",
		"nodes", "nodesRequired", "maxNodes", "affinity", "hints",
	}
	if !slices.Contains(wishes, field) {
		return fmt.Errorf("no field of a workload that an annotation may set%s", strictyaml.Nearest(field, wishes))
	}
	_, err := strictyaml.Decode([]byte(field+":\n  "+strings.ReplaceAll(text, "\n", "\n  ")), "", w)
	for _, e := range strictyaml.Errors(err) {
		return e.Err
	}
	return err
}

func (w *workloadFile) hint(name, text string) error {
	switch wants := map[string]place.Want{"prefer-isolated-cpus": place.Prefer, "require-isolated-cpus": place.Require}; {
	case text != "true" && text != "false" && wants[name] != place.Unasked:
		return fmt.Errorf("%q is neither true nor false", plain.Line(text))
	case wants[name] != place.Unasked:
		if text == "true" {
			w.Isolated = new(wants[name])
		}
	default:
		w.Hints = maps.Clone(w.Hints)
		if w.Hints == nil {
			w.Hints = map[string]string{}
		}
		w.Hints[name] = text
	}
	return nil
}

// koordinator reads the binding that Koordinator's annotation asks for.
func (w *workloadFile) koordinator(text string) error {
	var spec struct {
		strictyaml.Open
		Required  string            `json:"requiredCPUBindPolicy"`
		Preferred string            `json:"preferredCPUBindPolicy"`
		Exclusive place.Exclusivity `json:"preferredCPUExclusivePolicy"`
	}
	if _, err := strictyaml.Decode([]byte(text), "", &spec); err != nil {
		return errors.New(plain.Line(err.Error()))
	}
	for _, bind := range []string{spec.Preferred, spec.Required} {
		if bind != "" && bind != "Default" {
			w.Bind = new(place.Bind)
			if err := w.Bind.UnmarshalText([]byte(bind)); err != nil {
				return err
			}
		}
	}
	if spec.Required != "" {
		w.BindRequired = new(true)
	}
	w.Exclusive = &spec.Exclusive
	return nil
}
