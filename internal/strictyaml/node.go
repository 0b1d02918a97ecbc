package strictyaml

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	yaml "sigs.k8s.io/yaml/goyaml.v2"
)

// node is a part of a document with its line. The zero node is null.
type node struct {
	line   int
	scalar any    // string, bool, int, float64, ...
	text   string // of a scalar, as it is written
	items  []node
	pairs  []pair // of a mapping, by line
	kind   kind
}

type kind int

const (
	null kind = iota
	scalar
	list
	mapping
)

// pair is a field of a mapping.
type pair struct {
	key   key
	value node
}

// key is no other key's equal, so that a mapping read into Go keeps those that
// are there twice.
type key struct {
	name string
	line int
	self *key
}

// UnmarshalYAML reads a key.
func (k *key) UnmarshalYAML(unmarshal func(any) error) error {
	k.line, k.self = lineOf(unmarshal), k
	if err := unmarshal(&k.name); err != nil {
		return fmt.Errorf("line %d: a field's name is no text", k.line)
	}
	return nil
}

// UnmarshalYAML reads a part of a document. The parser calls it for all but null.
func (n *node) UnmarshalYAML(unmarshal func(any) error) error {
	n.line = lineOf(unmarshal)
	var fields map[key]node
	if err := unmarshal(&fields); !isMismatch(err) {
		n.kind = mapping
		for k, v := range fields {
			n.pairs = append(n.pairs, pair{k, v})
		}
		slices.SortFunc(n.pairs, func(a, b pair) int {
			if a.key.line != b.key.line {
				return a.key.line - b.key.line
			}
			return strings.Compare(a.key.name, b.key.name)
		})
		return err
	}
	if err := unmarshal(&n.items); !isMismatch(err) {
		n.kind = list
		return err
	}
	n.kind = scalar
	if err := unmarshal(&n.text); err != nil {
		return err
	}
	return unmarshal(&n.scalar)
}

func isMismatch(err error) bool {
	var wrong *yaml.TypeError
	return errors.As(err, &wrong)
}

// lineOf returns the line of what is being read. The parser tells it only in the
// error about a wrong type, so it is asked for one that fits nothing.
func lineOf(unmarshal func(any) error) int {
	var wrong chan int
	var mismatch *yaml.TypeError
	if !errors.As(unmarshal(&wrong), &mismatch) || len(mismatch.Errors) == 0 {
		return 0
	}
	line, _ := splitLine(mismatch.Errors[0])
	return line
}

// splitLine takes "line 3: " off the start of a complaint of the parser.
func splitLine(complaint string) (line int, what string) {
	rest, ok := strings.CutPrefix(complaint, "line ")
	if !ok {
		return 0, complaint
	}
	number, what, ok := strings.Cut(rest, ": ")
	line, err := strconv.Atoi(number)
	if !ok || err != nil {
		return 0, complaint
	}
	return line, what
}

// parse reads the one document of a text, which may be empty.
func parse(text string) (node, error) {
	var n node
	d := yaml.NewDecoder(strings.NewReader(text))
	if err := d.Decode(&n); err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	var more any
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return n, errors.New("there is more than one document")
	}
	return n, nil
}
