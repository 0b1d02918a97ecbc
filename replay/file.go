package replay

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	yaml "sigs.k8s.io/yaml/goyaml.v2"
)

// The forms of a scenario file. Words and amounts stay text here, so that what
// is wrong with one can be told with its field's name.
type (
	scenarioFile struct {
		About    string                `yaml:"about"`
		Machine  string                `yaml:"machine"`
		Isolated *string               `yaml:"isolated"`
		Config   configFile            `yaml:"config"`
		Policy   string                `yaml:"policy"`
		Options  map[string]optionFile `yaml:"options"`
		Steps    []stepFile            `yaml:"steps"`
		Generate *generateFile         `yaml:"generate"`
	}
	generateFile struct {
		Settle   int        `yaml:"settle"`
		Arrivals int        `yaml:"arrivals"`
		Seeds    int        `yaml:"seeds"`
		Load     float64    `yaml:"load"`
		Lifetime string     `yaml:"lifetime"`
		Mix      []kindFile `yaml:"mix"`
	}
	kindFile struct {
		kindFields `yaml:",inline"`
		line       int
	}
	kindFields struct {
		Weight   int            `yaml:"weight"`
		Stay     *float64       `yaml:"stay"`
		Sizes    map[string]int `yaml:"sizes"`
		Workload workloadFile   `yaml:",inline"`
	}
	configFile struct {
		Allowed  string                               `yaml:"allowed"`
		Reserved string                               `yaml:"reserved"`
		Floor    string                               `yaml:"floor"`
		NoFloor  bool                                 `yaml:"noFloor"`
		MaxRefs  int                                  `yaml:"maxRefs"`
		Memory   map[int]map[string]string            `yaml:"memory"`
		Devices  []struct{ Name, Kind, Nodes string } `yaml:"devices"`
	}
	stepFile struct {
		stepFields `yaml:",inline"`
		line       int
	}
	stepFields struct {
		Place      string          `yaml:"place"`
		Release    string          `yaml:"release"`
		Resize     string          `yaml:"resize"`
		Restart    bool            `yaml:"restart"`
		PlacePod   string          `yaml:"placePod"`
		ReleasePod string          `yaml:"releasePod"`
		Containers []containerFile `yaml:"containers"`
		Workload   workloadFile    `yaml:",inline"`
		Expect     *expectFile     `yaml:"expect"`
	}
	containerFile struct {
		Name     string       `yaml:"name"`
		Workload workloadFile `yaml:",inline"`
		Expect   *expectFile  `yaml:"expect"`
	}
	workloadFile struct {
		Pod           string            `yaml:"pod"`
		Namespace     string            `yaml:"namespace"`
		Labels        map[string]string `yaml:"labels"`
		Role          string            `yaml:"role"`
		Class         string            `yaml:"class"`
		CPUs          string            `yaml:"cpus"`
		Limit         string            `yaml:"limit"`
		Mode          string            `yaml:"mode"`
		Shared        string            `yaml:"shared"`
		Bind          string            `yaml:"bind"`
		BindRequired  *bool             `yaml:"bindRequired"`
		Exclusive     string            `yaml:"exclusive"`
		Strategy      string            `yaml:"strategy"`
		Isolated      string            `yaml:"isolated"`
		CoreKind      string            `yaml:"coreKind"`
		Nodes         string            `yaml:"nodes"`
		NodesRequired *bool             `yaml:"nodesRequired"`
		MaxNodes      *int              `yaml:"maxNodes"`
		Memory        string            `yaml:"memory"`
		Resources     map[string]string `yaml:"resources"`
		Devices       []deviceFile      `yaml:"devices"`
		Affinity      []affinityFile    `yaml:"affinity"`
		Hints         map[string]string `yaml:"hints"`
	}
	deviceFile struct {
		Kind  string   `yaml:"kind"`
		Count int      `yaml:"count"`
		Names []string `yaml:"names"`
	}
	affinityFile struct {
		ID        string            `yaml:"id"`
		Pod       string            `yaml:"pod"`
		Namespace string            `yaml:"namespace"`
		Labels    map[string]string `yaml:"labels"`
		Weight    int               `yaml:"weight"`
	}
	expectFile struct {
		Error string  `yaml:"error"`
		CPUs  *string `yaml:"cpus"`
		Own   *string `yaml:"own"`
		Mems  *string `yaml:"mems"`
		Count *int    `yaml:"count"`
		Cores *int    `yaml:"cores"`
		L3s   *int    `yaml:"l3s"`
		Nodes *int    `yaml:"nodes"`
		Moved *int    `yaml:"moved"`
	}
	// optionFile is what a policy's options say, as text again.
	optionFile struct {
		text []byte
		line int
	}
)

// UnmarshalYAML reads a step and notes its line.
func (s *stepFile) UnmarshalYAML(unmarshal func(any) error) error {
	s.line = lineOf(unmarshal)
	return unmarshal(&s.stepFields)
}

// UnmarshalYAML reads a kind of workload and notes its line.
func (k *kindFile) UnmarshalYAML(unmarshal func(any) error) error {
	k.line = lineOf(unmarshal)
	return unmarshal(&k.kindFields)
}

// UnmarshalYAML keeps the options for the policy that they are for.
func (o *optionFile) UnmarshalYAML(unmarshal func(any) error) error {
	var fields yaml.MapSlice
	if err := unmarshal(&fields); err != nil {
		return err
	}
	o.line = lineOf(unmarshal)
	text, err := yaml.Marshal(fields)
	o.text = text
	return err
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

// decode reads a YAML document strictly and returns what is wrong with it, by
// line.
func decode(text string, into any) []*Error {
	err := decodeOne(text, into)
	if err == nil {
		return nil
	}
	complaints := []string{strings.TrimPrefix(err.Error(), "yaml: ")}
	var types *yaml.TypeError
	if errors.As(err, &types) {
		complaints = types.Errors
	}
	var errs []*Error
	for _, c := range complaints {
		line, what := splitLine(c)
		errs = append(errs, &Error{Line: line, Err: errors.New(plainComplaint(what))})
	}
	slices.SortStableFunc(errs, func(a, b *Error) int { return a.Line - b.Line })
	return errs
}

// join returns all as one error, nil if there are none.
func join(errs []*Error) error {
	all := make([]error, len(errs))
	for i, err := range errs {
		all[i] = err
	}
	return errors.Join(all...)
}

// decodeOne reads the one document of a text, which may be empty.
func decodeOne(text string, into any) error {
	d := yaml.NewDecoder(strings.NewReader(text))
	d.SetStrict(true)
	if err := d.Decode(into); err != nil {
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	var more any
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one document")
	}
	return nil
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

// plainComplaint says without names of Go types what the parser says with them.
func plainComplaint(what string) string {
	for _, c := range []struct{ form, plain string }{
		{`^field (.*) not found in type .*$`, `unknown field "$1"`},
		{`^field (.*) already set in type .*$`, `field "$1" is there twice`},
		{`^key "?(.*?)"? already set in map$`, `key "$1" is there twice`},
		{`^cannot unmarshal \S+ (.*) into (u?int|bool|float)\d*$`, `$1 is no $2`},
		{`^cannot unmarshal !!(seq|map) into .*$`, `a $1 does not belong here`},
		{`^cannot unmarshal \S+ (.*) into .*$`, `$1 does not belong here`},
	} {
		if re := regexp.MustCompile(c.form); re.MatchString(what) {
			return re.ReplaceAllString(what, c.plain)
		}
	}
	return what
}

// overlay returns w with every field that over has.
func (w workloadFile) overlay(over *workloadFile) workloadFile {
	into, from := reflect.ValueOf(&w).Elem(), reflect.ValueOf(over).Elem()
	for i := range from.NumField() {
		if !from.Field(i).IsZero() {
			into.Field(i).Set(from.Field(i))
		}
	}
	return w
}

// action returns what a step does and to whom.
func (s *stepFile) action() (do Action, id string, err error) {
	found := 0
	for _, a := range []struct {
		do Action
		id string
	}{{Place, s.Place}, {Release, s.Release}, {Resize, s.Resize}, {PlacePod, s.PlacePod}, {ReleasePod, s.ReleasePod}} {
		if a.id != "" {
			do, id = a.do, a.id
			found++
		}
	}
	if s.Restart {
		do = Restart
		found++
	}
	if found != 1 {
		return "", "", fmt.Errorf("a step is one of place, release, resize, restart, placePod, releasePod; here are %d of them", found)
	}
	return do, id, checkID(id)
}

// checkID refuses an id that does not print as one word.
func checkID(id string) error {
	if strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }) {
		return fmt.Errorf("id %q has a character that is no letter, digit or sign", id)
	}
	return nil
}

// isEmpty reports whether no field is set.
func (w *workloadFile) isEmpty() bool { return reflect.ValueOf(*w).IsZero() }
