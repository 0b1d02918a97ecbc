package layers

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every room has its row in docs/arch.md, and every row is a room.
func TestArchNamesEveryRoom(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/arch.md")
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
			t.Errorf("room %s has %d rows in docs/arch.md, want 1", room.Path, n)
		}
		delete(rows, room.Path)
	}
	for name := range rows {
		if !strings.HasSuffix(name, "/...") {
			t.Errorf("docs/arch.md has a row for %s, which is no room", name)
		}
	}
}
