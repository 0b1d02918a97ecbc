package layers

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "berth.dev/berth"

// source is what one package's non-test files say about themselves.
type source struct {
	imports []string
	docs    int // files with a package comment
}

func TestRoomsAreOrdered(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range Rooms() {
		for _, may := range r.May {
			if may != "*" && !seen[may] {
				t.Errorf("room %s may import %s, which is not listed above it", r.Path, may)
			}
		}
		if seen[r.Path] {
			t.Errorf("room %s is listed twice", r.Path)
		}
		seen[r.Path] = true
	}
}

func TestHouse(t *testing.T) {
	t.Parallel()
	house := readHouse(t, "../..")
	for room, src := range house {
		for _, complaint := range check(room, src.imports) {
			t.Error(complaint)
		}
		if src.docs != 1 {
			t.Errorf("room %s has %d package comments, want exactly one", room, src.docs)
		}
	}
	for _, r := range Rooms() {
		if _, ok := house[r.Path]; !ok {
			t.Errorf("room %s is listed but does not exist", r.Path)
		}
	}
}

func TestCheckFindsEachKindOfBreach(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		room, imported, want string
	}{
		{"cpuset", module + "/machine", "may not import"},
		{"kernel/cgroup", module + "/kernel/sched", "may not import"},
		{"machine", "os", "pure"},
		{"doctor", "github.com/spf13/cobra", "only the door"},
		{"lab", "log/slog", "do not log"},
		{"machine/sysfs", "testing/fstest", "not shipped"},
		{"attic", "fmt", "not in the table"},
		{"doctor", module + "/internal/fakekernel", "may not import"},
	} {
		got := strings.Join(check(tc.room, []string{tc.imported}), "\n")
		if !strings.Contains(got, tc.want) {
			t.Errorf("check(%s imports %s) = %q, want %q in it", tc.room, tc.imported, got, tc.want)
		}
	}
	if got := check("machine", []string{"fmt", module + "/cpuset"}); len(got) != 0 {
		t.Errorf("check of a room that keeps the rules = %q", got)
	}
}

// check returns what is wrong with room's imports.
func check(name string, imports []string) []string {
	i := slices.IndexFunc(Rooms(), func(r Room) bool { return r.Path == name })
	if i < 0 {
		return []string{fmt.Sprintf("package %s is not in the table of rooms", name)}
	}
	room := Rooms()[i]
	var complaints []string
	for _, imported := range imports {
		if other, ok := strings.CutPrefix(imported, module+"/"); ok {
			if !slices.Contains(room.May, "*") && !slices.Contains(room.May, other) {
				complaints = append(complaints, fmt.Sprintf("room %s may not import %s", name, other))
			}
		}
		for _, owned := range OwnedImports() {
			if matches(owned.Import, imported) && !slices.Contains(owned.Rooms, name) {
				complaints = append(complaints, fmt.Sprintf("room %s imports %s: %s", name, imported, owned.Why))
			}
		}
		if room.Pure && slices.Contains(ForbiddenInPure(), imported) {
			complaints = append(complaints, fmt.Sprintf("pure room %s imports %s", name, imported))
		}
	}
	return complaints
}

// matches reports whether imported is the named path, lies below it, or starts
// with it where it ends in a slash.
func matches(named, imported string) bool {
	return imported == named || strings.HasPrefix(imported, strings.TrimSuffix(named, "/")+"/") && named != "log"
}

func readHouse(t *testing.T, root string) map[string]source {
	t.Helper()
	house := map[string]source{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == "testdata" || name == "results" || strings.HasPrefix(name, ".") && file != root {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		return addFile(house, path.Dir(filepath.ToSlash(rel)), file)
	})
	if err != nil {
		t.Fatal(err)
	}
	return house
}

func addFile(house map[string]source, room, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return err
	}
	src := house[room]
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		src.imports = append(src.imports, imported)
	}
	if parsed.Doc != nil {
		src.docs++
	}
	house[room] = src
	return nil
}
