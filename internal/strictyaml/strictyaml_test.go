package strictyaml

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/cpuset"
)

type doc struct {
	Name  string                `json:"name"`
	Count int                   `json:"count"`
	On    bool                  `json:"on"`
	Set   cpuset.Set            `json:"set,omitzero"`
	Maybe *bool                 `json:"maybe,omitempty"`
	List  []part                `json:"list,omitempty"`
	Sets  map[string]cpuset.Set `json:"sets,omitempty"`
	Any   map[string]any        `json:"any,omitempty"`
}

type part struct {
	Words []string `json:"words"`
	Skip  int      `json:"-"`
	Size
}

// Size is exported so that cmp can look into it.
type Size struct {
	Width float64 `json:"width"`
}

func TestDecode(t *testing.T) {
	t.Parallel()
	got := doc{Name: "stays", Count: 1}
	lines, err := Decode([]byte("count: 2\non: true\nset: 3\nmaybe: false\nlist:\n- {words: [a, 1, no], width: 2.5}\n-\n  words: []\n  width: 3\nsets: {x: 0-3}\nany: {b: [1, {c: d}], e: 1.5}\nname:\n"), "f", &got)
	if err != nil {
		t.Fatal(err)
	}
	no := false
	want := doc{
		Name: "stays", Count: 2, On: true, Set: cpuset.MustOf(3), Maybe: &no, List: []part{{Words: []string{"a", "1", "no"}, Size: Size{2.5}}, {Words: []string{}, Size: Size{3}}},
		Sets: map[string]cpuset.Set{"x": cpuset.MustOf(0, 1, 2, 3)}, Any: map[string]any{"b": []any{1, map[string]any{"c": "d"}}, "e": 1.5},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for field, line := range map[string]int{"count": 1, "list[0].words[1]": 6, "list[1].absent": 8, "any.b[1].c": 11, "absent": 0, "": 0} {
		if got := lines.At(field); got != line {
			t.Errorf("line of %q = %d, want %d", field, got, line)
		}
	}
}

// A merged field gives way to one that is there, whichever comes first.
func TestMerge(t *testing.T) {
	t.Parallel()
	var got doc
	text := "any: {a: &a {x: 1, y: 1, z: 1}, b: &b {y: 2}, c: {z: 3, <<: [*b, *a]}, d: {<<: *b, y: 4}, e: *b}\n# the end\n"
	if _, err := Decode([]byte(text), "f", &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"a": map[string]any{"x": 1, "y": 1, "z": 1}, "b": map[string]any{"y": 2}, "c": map[string]any{"x": 1, "y": 2, "z": 3},
		"d": map[string]any{"y": 4}, "e": map[string]any{"y": 2},
	}
	if diff := cmp.Diff(want, got.Any); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// bomb is a small document that its aliases make a large one.
func bomb(levels int) string {
	text := "any:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := range levels {
		text += fmt.Sprintf("  a%d: &a%d [%s*a%d]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 8), i)
	}
	return text
}

func TestDecodeNamesAllThatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"unknown, near":      {"on: true\nnmae: x", `f:2: nmae: unknown field; did you mean "name"?`},
		"unknown, far":       {"zzzzzzzzz: x", `f:1: zzzzzzzzz: unknown field; there are: name, count, on, set, maybe, list, sets, any`},
		"unknown, case":      {"Name: x", `f:1: Name: unknown field; did you mean "name"?`},
		"unknown, with part": {"\nanother:\n  a: 1\n", `f:2: another: unknown field; there are: name, count, on, set, maybe, list, sets, any`},
		"left out":           {"list: [{Skip: 1}]", `f:1: list[0].Skip: unknown field; there are: words, width`},
		"name with a bell":   {"\"na\\ame\": 1", `f:1: "na\ame": unknown field; did you mean "name"?`},
		"empty name":         {"'': 1", `f:1: unknown field; there are: name, count, on, set, maybe, list, sets, any`},
		"twice":              {"name: a\non: true\nname: b", `f:3: name: is there twice, first in line 1`},
		"twice in a line":    {"any: {x: {a: 1, a: 2}}", `f:1: any.x.a: is there twice, first in line 1`},
		"text is a list":     {"name: [a]", "f:1: name: a list stands where a text belongs"},
		"number":             {"count: 1.5", `f:1: count: "1.5" is no whole number`},
		"huge number":        {"count: 99999999999999999999", `f:1: count: "99999999999999999999" is no whole number`},
		"real number":        {"list: [{width: .inf}]", `f:1: list[0].width: ".inf" is no number`},
		"word for a number":  {"list: [{width: wide}]", `f:1: list[0].width: "wide" is no number`},
		"boolean":            {"on: 1", `f:1: on: "1" is no true or false`},
		"set":                {"set: x", `f:1: set: `},
		"set is a mapping":   {"set: {a: 1}", "f:1: set: a mapping stands where a text belongs"},
		"list":               {"list: x", `f:1: list: "x" is no list`},
		"empty item":         {"list:\n- \n- words: []", `f:2: list[0]: is empty`},
		"mapping":            {"any: [x]", `f:1: any: a list stands where a mapping belongs`},
		"document":           {"- x", `f:1: a list stands where a mapping belongs`},
		"two documents":      {"name: a\n---\nname: b", `f: there is more than one document`},
		"no yaml":            {"name: [", `f:1: did not find expected node content`},
		"key":                {"[a]: b", `f:1: a field's name is no text`},
		"no number":          {"any: {a: .nan}", `f:1: any.a: ".nan" is no number`},
		"infinity":           {"any: {a: .inf}", `f:1: any.a: ".inf" is no number`},
		"two, by line":       {"list:\n-\n  x: 1\n-\n", "f:3: list[0].x: unknown field; there are: words, width\nf:4: list[1]: is empty"},
		"alias of itself":    {"any: &a {b: *a}", `f: anchor 'a' value contains itself`},
		"too many aliases":   {bomb(8), `f:5: aliases stand for more values than the text has room for: write them out, or use fewer`},
		"aliases, few bytes": {bomb(4), `f:4: aliases stand for more values than the text has room for: write them out, or use fewer`},
		"merge of a text":    {"any: {<<: x}", `f: map merge requires map or sequence of maps as the value`},
		"two":                {"on: 3\nlist: [{wrods: []}]", "f:1: on: \"3\" is no true or false\nf:2: list[0].wrods: unknown field; did you mean \"words\"?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Decode([]byte(tt.text), "f", &doc{})
			if err == nil {
				t.Fatalf("no error, want %q", tt.want)
			}
			if got := err.Error(); got != tt.want && !(strings.HasSuffix(tt.want, ": ") && strings.HasPrefix(got, tt.want)) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			if n := strings.Count(err.Error(), "\n") + 1; len(Errors(err)) != n {
				t.Errorf("Errors finds %d, want %d", len(Errors(err)), n)
			}
		})
	}
}

// A document that is read is written as JSON, which is YAML, and read as the same.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{"name: x\nlist: [{words: [a]}]", "any: {a: [1, {b: c}]}", "a: &a [*a]", "<<: {name: x}", "? [a]\n: b", "sets: {a: 0-3}\n---\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var first, second doc
		if _, err := Decode(data, "f", &first); err != nil {
			return
		}
		text, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(text, "f", &second); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		again, err := json.Marshal(second)
		if err != nil || string(again) != string(text) {
			t.Fatalf("%s is read as %s, %v", text, again, err)
		}
	})
}

// One field says what the others are.
func TestDecodeBy(t *testing.T) {
	t.Parallel()
	type sized struct {
		Bytes int64  `json:"bytes"`
		Seed  uint64 `json:"seed"`
	}
	var got sized
	choose := func(text string) (any, error) {
		if text != "sized" {
			return nil, fmt.Errorf("%q is not known%s", text, Nearest(text, []string{"sized"}))
		}
		return &got, nil
	}
	lines, err := DecodeBy([]byte("bytes: -3\nkind: sized\nseed: 18446744073709551615\n"), "f", "kind", choose)
	if err != nil || got != (sized{-3, 1<<64 - 1}) || lines.At("kind") != 2 {
		t.Errorf("%+v, %v, %v", got, lines, err)
	}
	for text, want := range map[string]string{
		"":                         "f: kind: is missing",
		"bytes: 3":                 "f: kind: is missing",
		"[kind]":                   "f: kind: is missing",
		"a: 1\nkind: size":         `f:2: kind: "size" is not known; did you mean "sized"?`,
		"kind: sized\nbyte: 3":     `f:2: byte: unknown field; did you mean "bytes"?`,
		"kind: sized\nseed: -3":    `f:2: seed: "-3" is no whole number that is not negative`,
		"kind: sized\nbytes: 3.5":  `f:2: bytes: "3.5" is no whole number`,
		"kind: sized\nkind: sized": `f:2: kind: unknown field; there are: bytes, seed`,
	} {
		if _, err := DecodeBy([]byte(text), "f", "kind", choose); err == nil || err.Error() != want {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

// Of a document that is Open, fields that the type does not have are somebody else's;
// lines are those of the whole text.
func TestDocuments(t *testing.T) {
	t.Parallel()
	type open struct {
		Open
		Name  string `json:"name"`
		Parts []part `json:"parts"`
	}
	docs, err := Documents([]byte("name: a\nmore: {x: [1]}\n---\n---\nkind: List\nitems:\n- {name: b, parts: [{words: [w]}]}\n- name: c\n  parts:\n  - {words: [w], hight: 3}\n"), "f")
	if err != nil || len(docs) != 2 {
		t.Fatalf("documents %v, %v", docs, err)
	}
	var a, b, c open
	if _, err := docs[0].Decode(&a); err != nil || a.Name != "a" || docs[0].Text("name") != "a" || docs[0].Text("more") != "" || docs[0].Text("kind") != "" || docs[0].Items("more") != nil {
		t.Errorf("first %+v, %v", a, err)
	}
	items := docs[1].Items("items")
	if len(items) != 2 || items[1].Line != 8 {
		t.Fatalf("items %v", items)
	}
	lines, err := items[0].Decode(&b)
	if err != nil || b.Name != "b" || lines.At("parts[0].words") != 7 {
		t.Errorf("item %+v, %v", b, err)
	}
	if _, err := items[1].Decode(&c); err == nil || err.Error() != `f:10: parts[0].hight: unknown field; there are: words, width` {
		t.Errorf("error %v", err)
	}
	if _, err := Documents([]byte("a: b\n---\nc: [\n"), "f"); err == nil || !strings.HasPrefix(err.Error(), "f:3: ") {
		t.Errorf("error %v", err)
	}
}
