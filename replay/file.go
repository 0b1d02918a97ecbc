package replay

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
)

// The forms of a scenario file. Words and amounts stay text here, so that an
// error can name the field.
type (
	scenarioFile struct {
		About    string                    `json:"about"`
		Machine  string                    `json:"machine"`
		Isolated *string                   `json:"isolated"`
		Config   configFile                `json:"config"`
		Policy   string                    `json:"policy"`
		Options  map[string]map[string]any `json:"options"`
		Steps    []stepFile                `json:"steps"`
		Generate *generateFile             `json:"generate"`
	}
	generateFile struct {
		Settle   int        `json:"settle"`
		Arrivals int        `json:"arrivals"`
		Seeds    int        `json:"seeds"`
		Load     float64    `json:"load"`
		Lifetime string     `json:"lifetime"`
		Mix      []kindFile `json:"mix"`
	}
	kindFile struct {
		Weight int            `json:"weight"`
		Stay   *float64       `json:"stay"`
		Sizes  map[string]int `json:"sizes"`
		workloadFile
	}
	configFile struct {
		Allowed  string                       `json:"allowed"`
		Reserved string                       `json:"reserved"`
		Floor    string                       `json:"floor"`
		NoFloor  bool                         `json:"noFloor"`
		MaxRefs  int                          `json:"maxRefs"`
		Memory   map[number]map[string]string `json:"memory"`
		Devices  []nodeDeviceFile             `json:"devices"`
	}
	nodeDeviceFile struct {
		Name  string `json:"name"`
		Kind  string `json:"kind"`
		Nodes string `json:"nodes"`
	}
	stepFile struct {
		Place      string          `json:"place"`
		Release    string          `json:"release"`
		Resize     string          `json:"resize"`
		Restart    bool            `json:"restart"`
		PlacePod   string          `json:"placePod"`
		ReleasePod string          `json:"releasePod"`
		Containers []containerFile `json:"containers"`
		workloadFile
		Expect *expectFile `json:"expect"`
	}
	containerFile struct {
		Name string `json:"name"`
		workloadFile
		Expect *expectFile `json:"expect"`
	}
	workloadFile struct {
		Pod           string            `json:"pod"`
		Namespace     string            `json:"namespace"`
		Labels        map[string]string `json:"labels"`
		Role          string            `json:"role"`
		Class         string            `json:"class"`
		CPUs          string            `json:"cpus"`
		Limit         string            `json:"limit"`
		Mode          string            `json:"mode"`
		Shared        string            `json:"shared"`
		Bind          string            `json:"bind"`
		BindRequired  *bool             `json:"bindRequired"`
		Exclusive     string            `json:"exclusive"`
		Strategy      string            `json:"strategy"`
		Isolated      string            `json:"isolated"`
		CoreKind      string            `json:"coreKind"`
		Nodes         string            `json:"nodes"`
		NodesRequired *bool             `json:"nodesRequired"`
		MaxNodes      *int              `json:"maxNodes"`
		Memory        string            `json:"memory"`
		Resources     map[string]string `json:"resources"`
		Devices       []deviceFile      `json:"devices"`
		Affinity      []affinityFile    `json:"affinity"`
		Hints         map[string]string `json:"hints"`
	}
	deviceFile struct {
		Kind  string   `json:"kind"`
		Count int      `json:"count"`
		Names []string `json:"names"`
	}
	affinityFile struct {
		ID        string            `json:"id"`
		Pod       string            `json:"pod"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
		Weight    int               `json:"weight"`
	}
	expectFile struct {
		Error string  `json:"error"`
		CPUs  *string `json:"cpus"`
		Own   *string `json:"own"`
		Mems  *string `json:"mems"`
		Count *int    `json:"count"`
		Cores *int    `json:"cores"`
		L3s   *int    `json:"l3s"`
		Nodes *int    `json:"nodes"`
		Moved *int    `json:"moved"`
	}
)

// number is the number of a node.
type number int

// UnmarshalText reads a number in decimal.
func (n *number) UnmarshalText(text []byte) error {
	i, err := strconv.ParseUint(string(text), 10, 31)
	if err != nil {
		return fmt.Errorf("%q is no number of a node", text)
	}
	*n = number(i)
	return nil
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

// action returns the action of a step and the id of its workload or pod.
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
