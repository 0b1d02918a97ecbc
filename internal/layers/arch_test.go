package layers

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every room has its row in docs/design/rooms.md, and every row is a room.
func TestDocsNameEveryRoom(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/design/rooms.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		first, _, _ := strings.Cut(line[1:], "|")
		for _, name := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(first, -1) {
			rows[name[1]]++
		}
	}
	for _, room := range Rooms() {
		family := room.Path[:strings.LastIndexByte(room.Path, '/')+1] + "..." // place/... is a row for all below
		if n := rows[room.Path] + rows[family]; n != 1 {
			t.Errorf("room %s has %d rows in docs/design/rooms.md, want 1", room.Path, n)
		}
		delete(rows, room.Path)
	}
	for name := range rows {
		if !strings.HasSuffix(name, "/...") {
			t.Errorf("docs/design/rooms.md has a row for %s, which is no room", name)
		}
	}
}

// Every module that go.mod requires directly has its reason in docs/decisions.md.
func TestDecisionsNameEveryDependency(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := os.ReadFile("../../docs/decisions.md")
	if err != nil {
		t.Fatal(err)
	}
	direct := regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllSubmatch(mod, -1)
	if len(direct) == 0 {
		t.Fatal("go.mod requires nothing")
	}
	for _, m := range direct {
		name := strings.TrimPrefix(string(m[1]), "github.com/") // a row may name a second module without its host
		if !strings.Contains(string(reasons), name) {
			t.Errorf("%s has no reason in docs/decisions.md", m[1])
		}
	}
}
