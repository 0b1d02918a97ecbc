package podwords

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/internal/plain"
	"berth.dev/berth/internal/strictyaml"
)

// Near says what a container is to be near to, of what it is given. Whoever reads a wish looks
// where that is: only what Concerns the container counts.
type Near struct {
	// Sources are the kinds of things; nil is unsaid.
	Sources *NearSources `json:"near"`
	// Allow and Deny name some by path: what Deny names counts only if Allow names it too.
	Allow *Paths `json:"nearAllow"`
	Deny  *Paths `json:"nearDeny"`
	// Strict makes it a condition.
	Strict *bool `json:"nearStrict"`
	// Pick asks for own CPUs of each of them.
	Pick *bool `json:"nearPick"`
}

// NearSources are kinds of things that a container is given.
type NearSources struct{ Devices, Mounts bool }

// String lists them.
func (s NearSources) String() string {
	var all []string
	if s.Devices {
		all = append(all, "devices")
	}
	if s.Mounts {
		all = append(all, "mounts")
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ",")
}

// Paths are paths by prefix or by glob. They are compared with those of a container and never
// opened.
type Paths struct {
	Glob  bool
	Paths []string
}

// String is for people.
func (p Paths) String() string { return plain.Line(strings.Join(p.Paths, " ")) }

// match reports whether the paths name one; without paths none is named.
func (p *Paths) match(name string) bool {
	return p != nil && slices.ContainsFunc(p.Paths, func(of string) bool {
		if !p.Glob {
			return strings.HasPrefix(name, of)
		}
		ok, _ := path.Match(of, name)
		return ok
	})
}

// Asked reports whether the pod wants the container near to something. What it says about which
// is such a wish, too: nri-plugins look at everything where nothing is said.
func (n *Near) Asked() bool {
	if n.Sources != nil {
		return *n.Sources != NearSources{}
	}
	return n.Allow != nil || n.Deny != nil || n.Required() || n.Pick != nil && *n.Pick
}

// Required reports whether that is a condition.
func (n *Near) Required() bool { return n.Strict != nil && *n.Strict }

// Concerns reports whether a device or a mount counts, which has these paths: in the container, on
// the host, and that of its hardware below /sys/devices.
func (n *Near) Concerns(device bool, paths ...string) bool {
	if s := n.Sources; s != nil && !(device && s.Devices || !device && s.Mounts) {
		return false
	}
	return n.Asked() && (!slices.ContainsFunc(paths, n.Deny.match) || slices.ContainsFunc(paths, n.Allow.match))
}

// near reads a word about what a container is near to.
func near(read func(text string, n *Near) error) func(*reading, string) (Wish, error) {
	return func(r *reading, text string) (w Wish, err error) {
		if !r.opt.Node {
			return w, notFollowed("the devices of a container are not known here")
		}
		err = read(text, &w.Near)
		return w, err
	}
}

// nearYes reads a word that is true or false.
func nearYes(field func(*Near) **bool) func(string, *Near) error {
	return func(text string, n *Near) (err error) {
		*field(n), err = yes(text)
		return err
	}
}

// nearSources reads true, false or a list.
func nearSources(text string, n *Near) error {
	var s NearSources
	var problem error
	words := strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(", \t\n[]", c) })
	for _, word := range words {
		switch word {
		case "true", "all":
			s = NearSources{true, true}
		case "false", "none":
		case "devices":
			s.Devices = true
		case "mounts":
			s.Mounts = true
		case "pod-resources":
			problem = notFollowed("what the kubelet's device manager lists is not read, only the devices that a container has")
		default:
			return fmt.Errorf("%q is none of true, false, mounts, devices, pod-resources, all, none", plain.Line(word))
		}
	}
	if len(words) == 0 {
		return errors.New("is empty")
	}
	n.Sources = &s
	return problem
}

// nearPaths reads {type: prefix or glob, paths: [...]}.
func nearPaths(field func(*Near) **Paths) func(string, *Near) error {
	return func(text string, n *Near) error {
		var list struct {
			Type  string   `json:"type"`
			Paths []string `json:"paths"`
		}
		if _, err := strictyaml.Decode([]byte(text), "", &list); err != nil {
			return errors.New(plain.Line(err.Error()))
		}
		p := Paths{list.Type == "glob", list.Paths}
		switch {
		case list.Type != "" && list.Type != "prefix" && !p.Glob:
			return fmt.Errorf("type %q is neither prefix nor glob", plain.Line(list.Type))
		case len(p.Paths) == 0 || len(p.Paths) > maxList:
			return fmt.Errorf("%s, and it takes 1 to %d", plain.Count(len(p.Paths), "path"), maxList)
		}
		for _, of := range p.Paths {
			if _, err := path.Match(of, ""); p.Glob && err != nil {
				return fmt.Errorf("%q is no glob", plain.Line(of))
			}
		}
		*field(n) = &p
		return nil
	}
}
