package strictyaml

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parse reads the documents of a text.
func parse(data []byte) (docs []*yaml.Node, err error) {
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var doc yaml.Node
		if err := d.Decode(&doc); errors.Is(err, io.EOF) {
			return docs, nil
		} else if err != nil {
			return nil, err
		}
		if err := checkKeys(&doc); err != nil {
			return nil, err
		}
		room := 2*len(data) + 16
		if err := checkAliases(&doc, 0, &room, map[*yaml.Node]bool{}); err != nil {
			return nil, err
		}
		// The library finds aliases within what they stand for only when it decodes. Types are
		// checked here.
		var all any
		var mismatch *yaml.TypeError
		if err := doc.Decode(&all); err != nil && !errors.As(err, &mismatch) {
			return nil, err
		}
		docs = append(docs, doc.Content[0])
	}
}

// Document is a document of a text, or a part of one.
type Document struct {
	File string
	Line int
	node *yaml.Node
}

// Documents reads a text of any number of documents, empty ones left out. The error is
// an Error of file.
func Documents(data []byte, file string) ([]Document, error) {
	nodes, err := parse(data)
	if err != nil {
		line, what := lineOf(err)
		return nil, &Error{File: file, Line: line, Err: what}
	}
	return documents(nodes, file), nil
}

func documents(nodes []*yaml.Node, file string) (docs []Document) {
	for _, n := range nodes {
		if n = target(n); !isNull(n) {
			docs = append(docs, Document{file, n.Line, n})
		}
	}
	return docs
}

// field returns the value of a field of a mapping; nil if there is none.
func (d Document) field(name string) *yaml.Node {
	if d.node.Kind == yaml.MappingNode {
		for _, p := range pairsOf(d.node) {
			if p[0].Value == name {
				return target(p[1])
			}
		}
	}
	return nil
}

// Text returns a field of the document; "" if it has none of that name that is text.
func (d Document) Text(name string) string {
	if n := d.field(name); n != nil && n.Kind == yaml.ScalarNode && !isNull(n) {
		return n.Value
	}
	return ""
}

// Items returns the items of a field that is a list.
func (d Document) Items(name string) []Document {
	if n := d.field(name); n != nil && n.Kind == yaml.SequenceNode {
		return documents(n.Content, d.File)
	}
	return nil
}

// Decode reads the document as the function Decode does.
func (d Document) Decode(into any) (Lines, error) {
	reader := decoder{lines: Lines{}}
	reader.decode(d.node, "", reflect.ValueOf(into).Elem())
	return reader.result(d.File)
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

// checkAliases refuses aliases that stand for more values than a text of that length could have: each
// is decoded. The library allows some 400,000 in any text. Line is where the outermost alias is.
func checkAliases(n *yaml.Node, line int, room *int, in map[*yaml.Node]bool) error {
	if n.Kind == yaml.AliasNode {
		if in[n.Alias] {
			return nil // within what it stands for: the library tells
		}
		in[n.Alias] = true
		defer delete(in, n.Alias)
		line, n = cmp.Or(line, n.Line), n.Alias
	}
	if *room--; *room < 0 {
		return fmt.Errorf("line %d: aliases stand for more values than the text has room for: write them out, or use fewer", cmp.Or(line, n.Line))
	}
	for _, part := range n.Content {
		if err := checkAliases(part, line, room, in); err != nil {
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
