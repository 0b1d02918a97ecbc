package podwords

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
)

// maxWeight is the largest weight of an affinity, as nri-plugins has it.
const maxWeight = 1000

// expression selects containers of the node.
type expression struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

type affinityTerm struct {
	Scope  expression `json:"scope"`
	Match  expression `json:"match"`
	Weight *int       `json:"weight"`
}

// affinity reads expressions by container: a list of {scope, match, weight} or, for
// containers of the same pod, a list of names. What place.Affinity cannot say (negations,
// several scopes) is not followed.
func affinity(sign int) func(*reading, string) (Wish, error) {
	return func(r *reading, text string) (w Wish, err error) {
		var names map[string][]string
		if _, err := strictyaml.Decode([]byte(text), "", &names); err == nil {
			for _, name := range names[r.container] {
				w.Affinity = append(w.Affinity, Affinity{ID: r.opt.ID(r.pod, name), Weight: sign})
			}
			return w, w.Words.check("affinity")
		}
		var terms map[string][]affinityTerm
		if _, err := strictyaml.Decode([]byte(text), "", &terms); err != nil {
			return w, errors.New(plain.Line(err.Error()))
		}
		for _, t := range terms[r.container] {
			weight := sign
			if t.Weight != nil {
				weight = sign * min(max(*t.Weight, -maxWeight), maxWeight)
			}
			some, err := r.matching(&t, weight)
			if err != nil {
				return Wish{}, err
			}
			w.Affinity = append(w.Affinity, some...)
		}
		return w, w.Words.check("affinity")
	}
}

func (r *reading) matching(t *affinityTerm, weight int) (all []Affinity, err error) {
	base := Affinity{Weight: weight, Glob: t.Match.glob()}
	switch s := t.Scope; {
	case s.Operator == "AlwaysTrue":
	case s.Key == "" && s.Operator == "", s.Key == "pod/name" && s.is(r.pod.Name):
		if k := t.Match.Key; k != "name" {
			return nil, notFollowed("the containers of one pod by %q", k)
		}
		base.Namespace = r.pod.Namespace
		for _, name := range t.Match.Values {
			a := base
			a.ID = r.opt.ID(r.pod, name)
			all = append(all, a)
		}
		return all, t.Match.equality()
	case s.Key == "namespace" || s.Key == "pod/namespace":
		if err := s.equality(); err != nil || len(s.Values) != 1 {
			return nil, errors.Join(err, notFollowed("several namespaces in a scope"))
		}
		if s.glob() && !base.Glob && strings.ContainsAny(strings.Join(t.Match.Values, ""), `*?[\`) {
			return nil, notFollowed("a glob beside a value with the characters of one")
		}
		base.Namespace, base.Glob = s.Values[0], base.Glob || s.glob()
	default:
		return nil, notFollowed("a scope by %q", s.Key)
	}
	if err := t.Match.equality(); err != nil {
		return nil, err
	}
	for _, value := range t.Match.Values {
		a, key := base, strings.TrimPrefix(t.Match.Key, "pod/")
		label, labelled := strings.CutPrefix(key, "labels/")
		switch {
		case labelled && strings.HasPrefix(t.Match.Key, "pod/"):
			a.Labels = map[string]string{label: value}
		case key == "namespace":
			a.Namespace = value
		default:
			return nil, notFollowed("a match by %q", t.Match.Key)
		}
		all = append(all, a)
	}
	return all, nil
}

func (e *expression) is(value string) bool {
	return e.equality() == nil && slices.Equal(e.Values, []string{value})
}

// glob reports whether the values are globs.
func (e *expression) glob() bool { return e.Operator == "Matches" || e.Operator == "MatchesAny" }

func (a *Affinity) checkGlobs() error {
	if !a.Glob {
		return nil
	}
	for _, glob := range slices.AppendSeq([]string{a.ID, a.Group, a.Namespace}, maps.Values(a.Labels)) {
		if _, err := path.Match(glob, ""); err != nil {
			return fmt.Errorf("%q is no glob", plain.Line(glob))
		}
	}
	return nil
}

// equality reports an operator that is not one over values to be equal to, or to match.
func (e *expression) equality() error {
	switch e.Operator {
	case "Equals", "In", "Matches", "MatchesAny":
	default:
		return notFollowed("operator %q", e.Operator)
	}
	if len(e.Values) == 0 || len(e.Values) > 1 && (e.Operator == "Equals" || e.Operator == "Matches") {
		return fmt.Errorf("operator %s with %s", e.Operator, plain.Count(len(e.Values), "value"))
	}
	return nil
}

func notFollowed(format string, args ...any) error {
	return &Problem{Kind: NotFollowed, Err: fmt.Errorf(format, args...)}
}
