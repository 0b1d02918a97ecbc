package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parse reads the one document of a text; nil is an empty one.
func parse(data []byte) (*yaml.Node, error) {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document")
	}
	if err := checkKeys(&doc); err != nil {
		return nil, err
	}
	// The library finds aliases within what they stand for, and too many of them, only
	// when it decodes. Types are checked here.
	var all any
	var mismatch *yaml.TypeError
	if err := doc.Decode(&all); err != nil && !errors.As(err, &mismatch) {
		return nil, err
	}
	return doc.Content[0], nil
}

// checkKeys refuses keys that are no text.
func checkKeys(n *yaml.Node) error {
	for i, part := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && part.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: a field's name is no text", part.Line)
		}
		if err := checkKeys(part); err != nil {
			return err
		}
	}
	return nil
}

// lineOf splits an error of the parser, "yaml: line 3: ...".
func lineOf(err error) (line int, what error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		number, rest, _ := strings.Cut(rest, ": ")
		if line, err := strconv.Atoi(number); err == nil {
			return line, errors.New(rest)
		}
	}
	return 0, errors.New(text)
}

// target is what an alias stands for.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.ShortTag() == "!!null" }

// pairsOf returns the keys and values of a mapping, and those that it merges (<<).
func pairsOf(n *yaml.Node) (pairs [][2]*yaml.Node) {
	var merged [][2]*yaml.Node
	for pair := range slices.Chunk(n.Content, 2) {
		value := target(pair[1])
		switch {
		case pair[0].ShortTag() != "!!merge":
			pairs = append(pairs, [2]*yaml.Node(pair))
		case value.Kind == yaml.MappingNode:
			merged = append(merged, pairsOf(value)...)
		default:
			for _, item := range value.Content {
				merged = append(merged, pairsOf(target(item))...)
			}
		}
	}
	for _, m := range merged {
		if !slices.ContainsFunc(pairs, func(p [2]*yaml.Node) bool { return p[0].Value == m[0].Value }) {
			pairs = append(pairs, m)
		}
	}
	return pairs
}

// scalarOf is the value of a scalar.
func scalarOf(n *yaml.Node) (value any) {
	if n.Kind == yaml.ScalarNode {
		_ = n.Decode(&value) // parse has decoded it once
	}
	return value
}
