package load

import (
	"net/http"
	"strings"
	"testing"
)

// The tiles are those of a program of another language, pixel by pixel.
func TestTile(t *testing.T) {
	t.Parallel()
	for number, want := range map[int]struct {
		sum  uint32
		took int
	}{0: {0xe6a94479, 360_000}, 3485: {0xd6e6842b, 1_080_000}, 6900: {0x6bac844a, 9_099_554}, Tiles - 1: {0xfe8ea450, 720_000}} {
		tile := Tile{number}
		sum, took := tile.Render()
		if sum != want.sum || took != want.took {
			t.Errorf("tile %d: checksum %08x in %d steps, want %08x in %d", number, sum, took, want.sum, want.took)
		}
		if about := float64(tile.Estimate()) / float64(took); about < 0.7 || about > 1.4 {
			t.Errorf("tile %d: the estimate is %.2f of its work", number, about)
		}
	}
	if inside := (Tile{120 + 76*tilesAcross}).Estimate(); inside != MaxTileSteps {
		t.Errorf("a tile inside of the set is %d steps, want all %d", inside, MaxTileSteps)
	}
	if Tiles != 26_010 {
		t.Errorf("%d tiles", Tiles)
	}
}

func TestServeTile(t *testing.T) {
	t.Parallel()
	s := newService(t, TenantConfig{Units: 1, WorkingSetBytes: 4096, Procs: 1})
	for path, want := range map[string]int{
		Tile{0}.Path(0xe6a94479):              http.StatusOK,
		Tile{0}.Path(0xe6a94478):              http.StatusInternalServerError,
		Tile{Tiles}.Path(0):                   http.StatusBadRequest,
		tilePath:                              http.StatusBadRequest,
		tilePath + "?n=-1&sum=0":              http.StatusBadRequest,
		tilePath + "?n=0":                     http.StatusBadRequest,
		tilePath + "?n=0&sum=hello":           http.StatusBadRequest,
		tilePath + "?n=0&sum=123456789abcdef": http.StatusBadRequest,
	} {
		response, body := get(t, s, "GET", path)
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d: %s", path, response.StatusCode, want, body)
		}
		if want == http.StatusOK && !strings.Contains(body, `"steps":360000`) {
			t.Errorf("%s: %s", path, body)
		}
		if want == http.StatusInternalServerError && !strings.Contains(body, "checksum e6a94479, want e6a94478") {
			t.Errorf("%s: %s", path, body)
		}
	}
}

// BenchmarkTile shows what steps cost: divide by the steps of the tile.
func BenchmarkTile(b *testing.B) {
	for name, number := range map[string]int{"border": 0, "edge": 6900, "inside": 120 + 76*tilesAcross} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Tile{number}.Render()
			}
		})
	}
}
