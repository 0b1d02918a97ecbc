package jsonschema

import (
	"encoding/json"
	"reflect"
	"testing"

	"berth.dev/berth/place"
)

// Sample has a field of each kind.
type Sample struct {
	Name  string         `json:"name"`
	Class place.Class    `json:"class"`
	Next  *Sample        `json:"next"`
	Maybe *float64       `json:"maybe,omitempty"`
	List  []int          `json:"list"`
	Map   map[string]any `json:"map"`
	On    bool
	Skip  string `json:"-"`
	lower int
}

func TestGenerator(t *testing.T) {
	t.Parallel()
	g := Generator{Ref: "#/$defs/", Comments: map[string]string{"jsonschema.Sample.Name": "Name is one."}}
	root := g.Of(reflect.TypeFor[Sample]())
	got, err := json.Marshal(Object{"$ref": root["$ref"], "$defs": g.Defs()})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"$defs":{"jsonschema.Sample":{"additionalProperties":false,"properties":{` +
		`"On":{"type":"boolean"},` +
		`"class":{"enum":["LS","LSE","LSR","BE","SYSTEM"],"type":"string"},` +
		`"list":{"items":{"type":"integer"},"type":["array","null"]},` +
		`"map":{"additionalProperties":{},"type":["object","null"]},` +
		`"maybe":{"type":"number"},` +
		`"name":{"description":"Name is one.","type":"string"},` +
		`"next":{"anyOf":[{"$ref":"#/$defs/jsonschema.Sample"},{"type":"null"}]}},` +
		`"required":["name","class","next","list","map","On"],"type":"object"}},"$ref":"#/$defs/jsonschema.Sample"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	_ = Sample{}.lower
}

func TestComments(t *testing.T) {
	t.Parallel()
	comments, err := Comments(".")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := comments["jsonschema.Generator.Special"], "Special returns the schema of a type that has a schema of its own, else nil. It may be nil itself."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if comments["jsonschema.Object"] == "" || comments["jsonschema.Sample.Name"] != "" {
		t.Error("the comment of Object is missing, or tests are read")
	}
	if _, err := Comments("none"); err == nil {
		t.Error("no error without a directory")
	}
}
