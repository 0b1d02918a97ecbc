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
// containers of the same pod, a list of names. What place.Affinity cannot say (scopes by
// labels, joint keys) is not followed.
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
			some, err := r.matching(t, weight)
			if err != nil {
				return Wish{}, err
			}
			w.Affinity = append(w.Affinity, some...)
		}
		return w, w.Words.check("affinity")
	}
}

// contrary are the operators that deny another.
var contrary = map[string]string{
	"NotEqual": "Equals", "NotIn": "In", "MatchesNot": "Matches", "MatchesNone": "MatchesAny", "NotExist": "Exists", "NotExists": "Exists",
}

// matching returns what a term comes to. A negation is everything, less what it denies: the
// weights of all affinities that concern a workload add up.
func (r *reading) matching(t affinityTerm, weight int) (all []Affinity, err error) {
	for _, e := range []*expression{&t.Scope, &t.Match} {
		operator, negated := contrary[e.Operator]
		if !negated {
			continue
		}
		if len(e.Values) > 1 && operator == "MatchesAny" {
			return nil, notFollowed("operator %q with several patterns, of which a value may match two", e.Operator)
		}
		denied := expression{e.Key, operator, e.Values}
		*e = expression{Operator: "AlwaysTrue"}
		if all, err = r.matching(t, weight); err != nil {
			return nil, err
		}
		*e = denied
		less, err := r.matching(t, -weight)
		return append(all, less...), err
	}
	inPod := t.Scope.Key == "" && t.Scope.Operator == "" // where nothing is said
	if !inPod {
		err = t.Scope.check()
	}
	if err = errors.Join(err, t.Match.check()); err != nil {
		return nil, err
	}
	base := Affinity{Weight: weight, Glob: t.Match.glob()}
	scopes := []Affinity{base}
	switch s := t.Scope; {
	case s.Operator == "AlwaysTrue":
	case inPod, s.Key == "pod/name" && s.is(r.pod.Name):
		return r.inPod(&t.Match, base)
	case s.Key != "namespace" && s.Key != "pod/namespace":
		return nil, notFollowed("a scope by %q", s.Key)
	case s.Operator == "Exists": // as every namespace does
	case s.glob() && !base.Glob && strings.ContainsAny(strings.Join(t.Match.Values, ""), `*?[\`):
		return nil, notFollowed("a glob beside a value with the characters of one")
	default:
		scopes = nil
		for _, value := range s.Values {
			a := base
			a.Namespace, a.Glob = value, base.Glob || s.glob()
			scopes = append(scopes, a)
		}
	}
	for _, scope := range scopes {
		some, err := inScope(&t.Match, scope)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// inPod are containers of the pod itself, by their names.
func (r *reading) inPod(match *expression, base Affinity) (all []Affinity, err error) {
	base.Namespace = r.pod.Namespace
	names := match.Values
	switch {
	case match.Operator == "AlwaysTrue", match.Operator == "Exists" && match.Key == "name":
		names, base.Glob = []string{"*"}, true
	case match.Key != "name":
		return nil, notFollowed("the containers of one pod by %q", match.Key)
	}
	for _, name := range names {
		a := base
		a.ID = r.opt.ID(r.pod, name)
		all = append(all, a)
	}
	return all, nil
}

// inScope are the containers of a scope that an expression selects.
func inScope(match *expression, scope Affinity) (all []Affinity, err error) {
	key := strings.TrimPrefix(match.Key, "pod/")
	label, labelled := strings.CutPrefix(key, "labels/")
	labelled = labelled && strings.HasPrefix(match.Key, "pod/")
	switch {
	case match.Operator == "AlwaysTrue", match.Operator == "Exists" && key == "namespace":
		return []Affinity{scope}, nil
	case !labelled && key != "namespace":
		return nil, notFollowed("a match by %q", match.Key)
	case match.Operator == "Exists":
		scope.Labels, scope.Glob = map[string]string{label: "*"}, true
		return []Affinity{scope}, nil
	}
	for _, value := range match.Values {
		a := scope
		if labelled {
			a.Labels = map[string]string{label: value}
		} else if a.Namespace != "" && a.Namespace != value {
			return nil, notFollowed("a match by namespace within a scope of one")
		} else {
			a.Namespace = value
		}
		all = append(all, a)
	}
	return all, nil
}

func (e *expression) is(value string) bool {
	return !e.glob() && slices.Equal(e.Values, []string{value})
}

// glob reports whether the values are globs. "*" is any value with every operator.
func (e *expression) glob() bool {
	return e.Operator == "Matches" || e.Operator == "MatchesAny" || slices.Contains(e.Values, "*")
}

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

// check reports an operator that there is not, or one with values that it does not take.
func (e *expression) check() error {
	least, most := 0, 0
	switch e.Operator {
	case "AlwaysTrue", "Exists":
	case "Equals", "Matches":
		least, most = 1, 1
	case "In", "MatchesAny":
		least, most = 1, maxList
	default:
		return fmt.Errorf("there is no operator %q", plain.Line(e.Operator))
	}
	if n := len(e.Values); n < least || n > most {
		return fmt.Errorf("operator %s with %s", plain.Line(e.Operator), plain.Count(n, "value"))
	}
	return nil
}

func notFollowed(format string, args ...any) error {
	return &Problem{Kind: NotFollowed, Err: fmt.Errorf(format, args...)}
}
