package resctrl

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestCreate(t *testing.T) {
	t.Parallel()
	tree := plant(t, intel())
	o, err := Create(tree, "batch", "db")
	if err != nil {
		t.Fatal(err)
	}
	if o.String() != "/batch/mon_groups/berth-db" {
		t.Errorf("made %s", o)
	}
	if _, err := Create(tree, "batch", "db"); !errors.Is(err, os.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	own, err := Leftover(tree)
	if err != nil || len(own) != 2 || own[0].Monitor != "berth-db" || own[1].Monitor != "berth-web" {
		t.Errorf("left over: %v, %v", own, err)
	}
	for range 2 { // the second time it is gone
		if err := o.Remove(); err != nil {
			t.Error(err)
		}
	}
	if own, err = Leftover(tree); err != nil || len(own) != 1 {
		t.Errorf("left over: %v, %v", own, err)
	}
	for _, bad := range []string{"", "a/b", "a\nb"} {
		if _, err := Create(tree, "batch", bad); err == nil {
			t.Errorf("name %q: no error", bad)
		}
	}
	if _, err := Create(tree, "none", "db"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("below a group that does not exist: %v", err)
	}
}

// Threads are written one by one, and listed again until there are no new ones.
func TestAdd(t *testing.T) {
	t.Parallel()
	tree := plant(t, intel())
	o := &Own{Group{"batch", "berth-web"}, tree}
	tasks := filepath.Join(o.dir(), "tasks")
	if err := os.WriteFile(tasks, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	lists := [][]int{{7, 8}, {7, 8, 9}, {8, 9}}
	var wrote string
	n := 0
	err := o.Add(func() ([]int, error) {
		text, err := os.ReadFile(tasks)
		wrote += string(text) + "|"
		n++
		return lists[min(n, len(lists))-1], errors.Join(err, os.WriteFile(tasks, nil, 0o644))
	})
	if diff := cmp.Diff("|7\n8\n|9\n|", wrote); diff != "" || err != nil {
		t.Errorf("%s, %v", diff, err)
	}
	tid := 100
	if err := o.Add(func() ([]int, error) { tid++; return []int{tid}, nil }); err == nil || !strings.Contains(err.Error(), "8 rounds") {
		t.Errorf("always a new thread: %v", err)
	}
	broken := errors.New("broken")
	if err := o.Add(func() ([]int, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("no list: %v", err)
	}
	gone := &Own{Group{"batch", "berth-gone"}, tree}
	if err := gone.Add(func() ([]int, error) { return []int{1}, nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a group that is gone: %v", err)
	}
}
