package replay

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
	"berth.dev/berth/podwords"
)

// The forms of a scenario file. Pointers tell an absent field from one that is zero.
type (
	scenarioFile struct {
		About    string                    `json:"about"`
		Machine  string                    `json:"machine"`
		Kubelet  string                    `json:"kubelet"`
		Isolated *cpuset.Set               `json:"isolated"`
		Config   configFile                `json:"config"`
		Policy   string                    `json:"policy"`
		Options  map[string]map[string]any `json:"options"`
		Steps    []stepFile                `json:"steps"`
		Generate *generateFile             `json:"generate"`
	}
	generateFile struct {
		Generator
		Mix []kindFile `json:"mix"`
	}
	kindFile struct {
		Weight int            `json:"weight"`
		Stay   *float64       `json:"stay"`
		Sizes  map[string]int `json:"sizes"`
		workloadFile
	}
	configFile struct {
		place.Config
		Memory map[int]map[string]place.Bytes `json:"memory"`
	}
	stepFile struct {
		Place      string          `json:"place"`
		Release    string          `json:"release"`
		Resize     string          `json:"resize"`
		Restart    bool            `json:"restart"`
		PlacePod   string          `json:"placePod"`
		ReleasePod string          `json:"releasePod"`
		Apply      string          `json:"apply"`
		Containers []containerFile `json:"containers"`
		workloadFile
		Expect *Expect `json:"expect"`
	}
	containerFile struct {
		Name string `json:"name"`
		workloadFile
		Expect *Expect `json:"expect"`
	}
	workloadFile struct {
		Pod       string            `json:"pod"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
		Role      *place.Role       `json:"role"`
		CPUs      *place.Milli      `json:"cpus"`
		Limit     *place.Milli      `json:"limit"`
		podwords.Words
		Memory    *place.Bytes           `json:"memory"`
		Resources map[string]place.Bytes `json:"resources"`
		Devices   []place.DeviceRequest  `json:"devices"`
	}
)

// overlay returns w with every field that over has.
func (w workloadFile) overlay(over *workloadFile) workloadFile {
	overlay(reflect.ValueOf(&w).Elem(), reflect.ValueOf(over).Elem())
	return w
}

func overlay(into, from reflect.Value) {
	for i := range from.NumField() {
		switch f := from.Field(i); {
		case from.Type().Field(i).Anonymous:
			overlay(into.Field(i), f)
		case !f.IsZero():
			into.Field(i).Set(f)
		}
	}
}

// action returns the action of a step and the id of its workload or pod.
func (s *stepFile) action() (do Action, id string, err error) {
	found := 0
	for _, a := range []struct {
		do Action
		id string
	}{{Place, s.Place}, {Release, s.Release}, {Resize, s.Resize}, {PlacePod, s.PlacePod}, {ReleasePod, s.ReleasePod}, {apply, s.Apply}} {
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
		return "", "", fmt.Errorf("a step is one of place, release, resize, restart, placePod, releasePod, apply; here are %d of them", found)
	}
	if do == apply {
		return do, id, nil
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
