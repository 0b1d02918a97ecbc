package placetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/cpuset"
)

const machines = `machines:
  M: {about: two cores, cpus: "0,0,0,0,0\n1,1,0,1,0\n", distances: [[10, 20], [20, 10]]}
`

func TestReadFolder(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		files map[string]string
		err   string // a part of the error; "" for none
	}{
		{"machines and two files of one suite", map[string]string{"machines.yaml": machines, "a.yaml": "suite: s\ncases: [{id: A}]", "b.yaml": "suite: s\ncases: [{id: B}]"}, ""},
		{"empty folder", nil, "no *.yaml"},
		{"not YAML", map[string]string{"a.yaml": "suite: ["}, "a.yaml"},
		{"unknown field", map[string]string{"a.yaml": "suite: s\nextra: 1"}, "extra"},
		{"nothing told", map[string]string{"a.yaml": "about: nothing"}, "neither suite nor machines"},
		{"no id", map[string]string{"a.yaml": "suite: s\ncases: [{cpus: 1}]"}, "missing"},
		{"id twice", map[string]string{"a.yaml": "suite: s\ncases: [{id: A}]", "b.yaml": "suite: s\ncases: [{id: A}]"}, "twice"},
		{"machine twice", map[string]string{"a.yaml": machines, "b.yaml": machines}, "machine M"},
		{"bad table", map[string]string{"a.yaml": "machines: {M: {cpus: x}}"}, "machine M"},
		{"distances of another size", map[string]string{"a.yaml": `machines: {M: {cpus: "0,0,0,0,0", distances: [[10, 20]]}}`}, "machine M"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range test.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f, err := readAll(dir)
			switch {
			case test.err == "" && err != nil:
				t.Fatal(err)
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Fatalf("error %v, want one with %q", err, test.err)
			case err == nil && len(f.Cases("s")) != 2:
				t.Errorf("%d cases, want 2", len(f.Cases("s")))
			}
		})
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := machines + "suite: s\ncases:\n- {id: A, machine: M, cpus: \"0-1\"}\n- {id: B, other: 1}\n"
	if err := os.WriteFile(filepath.Join(dir, "s.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := readAll(dir)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		ID, Machine string
		CPUs        cpuset.Set
	}
	var got row
	if err := f.Cases("s")[0].Decode(&got); err != nil {
		t.Fatal(err)
	}
	if want := (row{"A", "M", cpuset.MustParse("0-1")}); got != want {
		t.Errorf("case = %v, want %v", got, want)
	}
	if err := f.Cases("s")[1].Decode(&got); err == nil {
		t.Error("a field that the type lacks is no error")
	}
	if m, err := f.Machine("M"); err != nil || m.Name != "M" || m.Distances == nil {
		t.Errorf("machine = %v, %v", m, err)
	}
	if _, err := f.Machine("N"); err == nil {
		t.Error("an unknown machine is no error")
	}
	if f.Cases("none") != nil {
		t.Error("a suite without file has cases")
	}
}

func TestCasesVariable(t *testing.T) {
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "s.yaml"), []byte("suite: other\ncases: [{id: A}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(CasesVariable, other)
	f, err := ReadFolder("../../place/testdata/cases")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(f.Suites()); got != "[other]" {
		t.Errorf("suites = %s, want [other]", got)
	}
}

// TestRepository reads the repository's own cases.
func TestRepository(t *testing.T) {
	t.Parallel()
	f, err := readAll("../../place/testdata/cases")
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Suites()) == 0 {
		t.Error("no suites")
	}
}
