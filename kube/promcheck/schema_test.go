package promcheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// schemaModule has Grafana's schema of dashboards, panels and queries as Go types.
const schemaModule = "github.com/grafana/grafana-foundation-sdk/go"

// schemaConstants are the values of the schema's enumerations, by the name of their type, and by
// "units." the names of units: a Go type holds any text or number.
var schemaConstants = sync.OnceValues(func() (map[string][]string, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", schemaModule).Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m %s: %w", schemaModule, err)
	}
	all := map[string][]string{}
	for _, pkg := range []string{"common", "dashboard", "prometheus", "stat", "table", "timeseries", "units"} {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), pkg, "types_gen.go"), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.CONST {
				continue
			}
			for _, s := range decl.Specs {
				spec := s.(*ast.ValueSpec)
				value := types.ExprString(spec.Values[0])
				if text, err := strconv.Unquote(value); err == nil {
					value = text
				}
				name := pkg + "."
				if of, ok := spec.Type.(*ast.Ident); ok {
					name += of.Name
				}
				all[name] = append(all[name], value)
			}
		}
	}
	return all, nil
})

// strange returns the values of enumerations that the schema does not have, and units likewise.
func strange(known map[string][]string, at string, v reflect.Value) (wrong []string) {
	of := v.Type()
	name := strings.TrimPrefix(of.PkgPath(), schemaModule+"/") + "." + of.Name()
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			wrong = strange(known, at, v.Elem())
		}
	case reflect.Struct:
		for i := range of.NumField() {
			field := of.Field(i)
			wrong = append(wrong, strange(known, at+"."+field.Name, v.Field(i))...)
			if unit, ok := v.Field(i).Interface().(*string); ok && unit != nil && field.Name == "Unit" && !slices.Contains(known["units."], *unit) {
				wrong = append(wrong, fmt.Sprintf("%s: there is no unit %q", at, *unit))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			wrong = append(wrong, strange(known, fmt.Sprintf("%s[%d]", at, i), v.Index(i))...)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			wrong = append(wrong, strange(known, fmt.Sprintf("%s[%v]", at, key), v.MapIndex(key))...)
		}
	default:
		if word := fmt.Sprint(v); known[name] != nil && !slices.Contains(known[name], word) {
			wrong = append(wrong, fmt.Sprintf("%s: %q is none of %q", at, word, known[name]))
		}
	}
	return wrong
}

// text is what a field says, "" if it is missing.
func text(field *string) string {
	if field == nil {
		return ""
	}
	return *field
}

// said are the errors in one of the schema's, which may be an error of none.
func said(at string, err error) (wrong []string) {
	all, ok := errors.AsType[cog.BuildErrors](err)
	if err != nil && !ok {
		return []string{at + ": " + err.Error()}
	}
	for _, e := range all {
		wrong = append(wrong, at+": "+e.Error())
	}
	return wrong
}

// wrongWith returns what Grafana's own schema refuses of a dashboard (fields that it does not have or
// that are missing, values out of bounds, words that are none of an enumeration, each panel and
// query by the schema of its plugin), and what the schema cannot say: numbers of panels that are
// not unique, panels that lie on each other or beside the grid, variables that are not defined or
// not used, and data sources that are not the one that the reader chooses.
func wrongWith(file []byte) (wrong []string, _ error) {
	known, err := schemaConstants()
	if err != nil {
		return nil, err
	}
	plugins.RegisterDefaultPlugins()
	// Reading strictly keeps nothing of panels: it takes the empty errors of their parts for some
	// (v0.0.22). So the values are those of a second reading.
	var d, strict dashboard.Dashboard
	var raw struct {
		Panels []json.RawMessage
	}
	wrong = said("dashboard", strict.UnmarshalJSONStrict(file))
	if err := errors.Join(json.Unmarshal(file, &d), json.Unmarshal(file, &raw)); err != nil {
		return append(wrong, err.Error()), nil
	}
	wrong = append(wrong, said("dashboard", d.Validate())...)
	wrong = append(wrong, strange(known, "dashboard", reflect.ValueOf(d))...)
	if text(d.Uid) == "" || text(d.Title) == "" || d.SchemaVersion < 39 {
		wrong = append(wrong, fmt.Sprintf("uid %q, title %q, version %d of the schema", text(d.Uid), text(d.Title), d.SchemaVersion))
	}
	ids, taken := map[uint32]bool{}, map[[2]uint32]bool{}
	for i, p := range d.Panels {
		at := fmt.Sprintf("panels[%d]", i)
		var id uint32
		var grid *dashboard.GridPos
		var title string
		if row := p.RowPanel; row != nil {
			id, grid, title = row.Id, row.GridPos, text(row.Title)
			if row.Collapsed || len(row.Panels) > 0 {
				wrong = append(wrong, at+": its panels are within the row, where nothing looks at them")
			}
		} else if p.Panel != nil && p.Panel.Id != nil {
			id, grid, title = *p.Panel.Id, p.Panel.GridPos, text(p.Panel.Title)
			wrong = append(wrong, wrongPanel(at, p.Panel, raw.Panels[i])...)
		}
		if id == 0 || ids[id] {
			wrong = append(wrong, fmt.Sprintf("%s: number %d is taken, or none", at, id))
		}
		ids[id] = true
		if grid == nil || title == "" {
			wrong = append(wrong, at+": it has no place, or no title")
			continue
		}
		if grid.X+grid.W > 24 {
			wrong = append(wrong, fmt.Sprintf("%s: its columns %d to %d are not within 24", at, grid.X, grid.X+grid.W))
		}
		on := false
		for x := grid.X; x < grid.X+grid.W; x++ {
			for y := grid.Y; y < grid.Y+grid.H; y++ {
				on = on || taken[[2]uint32{x, y}]
				taken[[2]uint32{x, y}] = true
			}
		}
		if on {
			wrong = append(wrong, at+": it lies on another one")
		}
	}
	return append(wrong, wrongVariables(d.Templating.List, raw.Panels)...), nil
}

// wrongPanel is wrongWith for a panel that shows something.
func wrongPanel(at string, p *dashboard.Panel, raw json.RawMessage) (wrong []string) {
	if _, ok := cog.ConfigForPanelcfgVariant(p.Type); !ok {
		wrong = append(wrong, fmt.Sprintf("%s: the schema has no panels of type %q", at, p.Type))
	}
	// The schema reads this part of a panel without being strict.
	var parts struct{ FieldConfig json.RawMessage }
	err := json.Unmarshal(raw, &parts)
	if err == nil {
		err = new(dashboard.FieldConfigSource).UnmarshalJSONStrict(parts.FieldConfig)
	}
	wrong = append(wrong, said(at+".fieldConfig", err)...)
	of := []any{p.Options}
	if p.FieldConfig != nil {
		of = append(of, p.FieldConfig.Defaults.Custom)
	}
	for _, part := range of {
		if v, ok := part.(interface{ Validate() error }); ok {
			wrong = append(wrong, said(at, v.Validate())...)
		}
	}
	if p.Options == nil || len(p.Targets) == 0 {
		wrong = append(wrong, at+": it has no options, or no queries")
	}
	wrong = append(wrong, wrongSource(at, p.Datasource)...)
	names := map[string]bool{}
	for i, target := range p.Targets {
		at := fmt.Sprintf("%s.targets[%d]", at, i)
		q, ok := target.(*prometheus.Dataquery)
		if !ok {
			wrong = append(wrong, fmt.Sprintf("%s: a %T is no query of Prometheus", at, target))
			continue
		}
		wrong = append(wrong, wrongSource(at, q.Datasource)...)
		if q.Expr == "" || q.RefId == nil || names[*q.RefId] {
			wrong = append(wrong, at+": it has no expression, or no name of its own")
			continue
		}
		names[*q.RefId] = true
	}
	return wrong
}

// sourceVariable is the variable by which the reader chooses a data source.
const sourceVariable = "datasource"

// wrongSource says that a data source is not the one that the reader chooses.
func wrongSource(at string, s *common.DataSourceRef) []string {
	if s != nil && text(s.Type) == "prometheus" && text(s.Uid) == "${"+sourceVariable+"}" {
		return nil
	}
	return []string{fmt.Sprintf("%s: its data source is not the variable %s, of type prometheus", at, sourceVariable)}
}

var variableUse = regexp.MustCompile(`\$\{?(\w+)`)

// wrongVariables is wrongWith for variables, and where panels use them.
func wrongVariables(all []dashboard.VariableModel, panels []json.RawMessage) (wrong []string) {
	var defined, used []string
	uses := func(at, in string, and ...string) {
		for _, use := range variableUse.FindAllStringSubmatch(in, -1) {
			name := use[1]
			if used = append(used, name); !slices.Contains(and, name) && !slices.Contains(defined, name) {
				wrong = append(wrong, fmt.Sprintf("%s: there is no variable %s, or it is defined later", at, name))
			}
		}
	}
	for _, v := range all {
		switch query := v.Query; {
		case query != nil && v.Type == dashboard.VariableTypeDatasource && v.Name == sourceVariable && text(query.String) == "prometheus":
		case query != nil && v.Type == dashboard.VariableTypeQuery && query.Map["query"] == text(v.Definition):
			wrong = append(wrong, wrongSource("variable "+v.Name, v.Datasource)...)
			uses("variable "+v.Name, text(v.Definition))
		default:
			wrong = append(wrong, fmt.Sprintf("variable %s: it is no query of Prometheus and no choice of one", v.Name))
		}
		if slices.Contains(defined, v.Name) {
			wrong = append(wrong, fmt.Sprintf("variable %s is defined twice", v.Name))
		}
		defined = append(defined, v.Name)
	}
	used = nil // a variable that only other ones use shows nothing
	for i, p := range panels {
		uses(fmt.Sprintf("panels[%d]", i), string(p), "__rate_interval")
	}
	for _, name := range defined {
		if !slices.Contains(used, name) {
			wrong = append(wrong, fmt.Sprintf("variable %s is used by no panel", name))
		}
	}
	return wrong
}

func TestDashboardSchema(t *testing.T) {
	t.Parallel()
	wrong, err := wrongWith(read(t, dashboardFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range wrong {
		t.Error(text)
	}
}

// object is one of JSON.
type object = map[string]any

// What Grafana would refuse, or leave out without a word, is found.
func TestDashboardSchemaFinds(t *testing.T) {
	t.Parallel()
	panels := func(d object) []any { return d["panels"].([]any) }
	of := func(d object, kind string) object {
		for _, p := range panels(d) {
			if p := p.(object); p["type"] == kind {
				return p
			}
		}
		panic("there is no panel of type " + kind)
	}
	target := func(p object) object { return p["targets"].([]any)[0].(object) }
	custom := func(p object) object {
		return p["fieldConfig"].(object)["defaults"].(object)["custom"].(object)
	}
	variables := func(d object) []any { return d["templating"].(object)["list"].([]any) }
	for want, change := range map[string]func(object){
		"unexpected field 'sytle'":      func(d object) { d["sytle"] = "dark" },
		"unexpected field 'titel'":      func(d object) { of(d, "stat")["titel"] = "x" },
		"unexpected field 'colourMode'": func(d object) { of(d, "stat")["options"].(object)["colourMode"] = "none" },
		"unexpected field 'fill'":       func(d object) { custom(of(d, "timeseries"))["fill"] = 1 },
		"unexpected field 'units'":      func(d object) { of(d, "timeseries")["fieldConfig"].(object)["defaults"].(object)["units"] = "s" },
		"unexpected field 'expression'": func(d object) { target(of(d, "stat"))["expression"] = "up" },
		"required field is missing":     func(d object) { delete(of(d, "timeseries")["options"].(object), "tooltip") },
		`"dense" is none of`:            func(d object) { of(d, "timeseries")["options"].(object)["legend"].(object)["displayMode"] = "dense" },
		`"stacked" is none of`:          func(d object) { custom(of(d, "timeseries"))["stacking"].(object)["mode"] = "stacked" },
		`"7" is none of`:                func(d object) { variables(d)[1].(object)["refresh"] = 7 },
		`there is no unit "byte"`:       func(d object) { of(d, "stat")["fieldConfig"].(object)["defaults"].(object)["unit"] = "byte" },
		`no panels of type "graf"`:      func(d object) { of(d, "stat")["type"] = "graf" },
		"no query of Prometheus": func(d object) {
			for _, part := range []object{of(d, "table"), target(of(d, "table"))} {
				part["datasource"].(object)["type"] = "loki"
			}
		},
		"its data source is not the variable":   func(d object) { of(d, "table")["datasource"].(object)["uid"] = "PBFA97CFB590B2093" },
		"no expression, or no name of its own":  func(d object) { target(of(d, "table"))["expr"] = "" },
		"number 3 is taken":                     func(d object) { panels(d)[1].(object)["id"] = 3 },
		"it lies on another one":                func(d object) { panels(d)[1].(object)["gridPos"].(object)["w"] = 5 },
		"columns 20 to 25 are not within 24":    func(d object) { panels(d)[6].(object)["gridPos"].(object)["w"] = 5 },
		"h: must be > 0":                        func(d object) { panels(d)[6].(object)["gridPos"].(object)["h"] = 0 },
		"there is no variable host":             func(d object) { target(of(d, "stat"))["expr"] = `sum(up{instance=~"$host"})` },
		"there is no variable __rate_intervall": func(d object) { target(of(d, "stat"))["expr"] = `sum(rate(up[$__rate_intervall]))` },
		"variable zone is used by no panel": func(d object) {
			v := maps.Clone(variables(d)[1].(object))
			v["name"] = "zone"
			d["templating"].(object)["list"] = append(variables(d), v)
		},
		"variable instance is defined twice":   func(d object) { d["templating"].(object)["list"] = append(variables(d), variables(d)[1]) },
		"variable instance: it is no query of": func(d object) { variables(d)[1].(object)["definition"] = "label_values(up, instance)" },
		"variable class: there is no variable": func(d object) { list := variables(d); list[1], list[2] = list[2], list[1] },
		"within the row, where nothing looks":  func(d object) { of(d, "row")["collapsed"] = true },
		"it has no options, or no queries":     func(d object) { of(d, "stat")["targets"] = []any{} },
		"it has no place, or no title":         func(d object) { of(d, "stat")["title"] = "" },
		"version 12 of the schema":             func(d object) { d["schemaVersion"] = 12 },
		"cannot unmarshal string into Go":      func(d object) { of(d, "stat")["gridPos"].(object)["w"] = "4" },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			var d object
			if err := json.Unmarshal(read(t, dashboardFile), &d); err != nil {
				t.Fatal(err)
			}
			change(d)
			text, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			wrong, err := wrongWith(text)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(wrong, func(text string) bool { return strings.Contains(text, want) }) {
				t.Errorf("found %q, want %s", wrong, want)
			}
		})
	}
}
