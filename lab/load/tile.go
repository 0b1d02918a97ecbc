package load

import (
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"strconv"
)

// The image whose tiles are rendered: the Mandelbrot set between -2.25-1.35i and
// 0.75+1.35i, 34,000 × 30,600 pixels, in tiles of 200 × 200. A tile near the border of the
// image is 2 or 3 ms of work, and one inside of the set 500 ms, on a processor of 2024.
const (
	ImageWidth, ImageHeight = 34_000, 30_600
	TileSize                = 200
	tilesAcross             = ImageWidth / TileSize
	Tiles                   = tilesAcross * (ImageHeight / TileSize)

	left, top, width = -2.25, -1.35, 3.0
	// fine is in how many points each side of a pixel is divided, which makes edges smooth.
	fine = 3
	// steps is after how many a point counts as inside.
	steps = 320
)

// MaxTileSteps is the work of a tile that is inside of the set.
const MaxTileSteps = TileSize * TileSize * fine * fine * steps

// Tile is a part of the image.
type Tile struct {
	Number int // 0 to Tiles-1, row by row from the top left
}

// Render computes the tile's pixels and returns their checksum (CRC-32, IEEE) and how many
// steps of z² + c that took: both are the same on every machine.
func (t Tile) Render() (sum uint32, took int) {
	var row [TileSize]byte
	for y := range TileSize {
		for x := range TileSize {
			n := t.pixel(x, y, fine)
			row[x] = byte(n * 255 / (fine * fine * steps))
			took += n
		}
		sum = crc32.Update(sum, crc32.IEEETable, row[:])
	}
	return sum, took
}

// Estimate is about how many steps Render takes, from one point of every 64 pixels.
func (t Tile) Estimate() (took int) {
	const every = 8
	for y := every / 2; y < TileSize; y += every {
		for x := every / 2; x < TileSize; x += every {
			took += t.pixel(x, y, 1)
		}
	}
	return took * every * every * fine * fine
}

// pixel is the steps of all points of a pixel, of which each side has so many.
func (t Tile) pixel(x, y, points int) (took int) {
	const scale = width / ImageWidth
	x += t.Number % tilesAcross * TileSize
	y += t.Number / tilesAcross * TileSize
	for j := range points {
		for i := range points {
			re := float64(x) + (float64(i)+0.5)/float64(points)
			im := float64(y) + (float64(j)+0.5)/float64(points)
			took += escape(left+float64(re*scale), top+float64(im*scale))
		}
	}
	return took
}

// escape is after how many steps z² + c leaves the circle of radius 2. Every product is
// rounded by itself, so that a machine that multiplies and adds in one step comes to the same.
func escape(re, im float64) int {
	x, y := 0.0, 0.0
	for n := range steps {
		xx, yy := float64(x*x), float64(y*y)
		if xx+yy > 4 {
			return n
		}
		y = float64(float64(2*x)*y) + im
		x = xx - yy + re
	}
	return steps
}

const tilePath = "/tile"

// Path is where a tenant renders the tile; it answers with an error if that does not come
// to the checksum.
func (t Tile) Path(sum uint32) string {
	return fmt.Sprintf("%s?n=%d&sum=%08x", tilePath, t.Number, sum)
}

// tileOf reads the query of a request for a tile.
func tileOf(query string) (t Tile, sum uint32, err error) {
	values, err := url.ParseQuery(query)
	if err == nil {
		t.Number, err = strconv.Atoi(values.Get("n"))
	}
	if err != nil || t.Number < 0 || t.Number >= Tiles {
		return t, 0, fmt.Errorf("query %q: want n=0 to n=%d", query, Tiles-1)
	}
	want, err := strconv.ParseUint(values.Get("sum"), 16, 32)
	if err != nil {
		return t, 0, fmt.Errorf("query %q: want sum=CHECKSUM, of 8 hexadecimal digits", query)
	}
	return t, uint32(want), nil
}

// serveTile renders a tile as soon as one of the tenant's workers has nothing to do. Those
// who wait take turns in the order in which they came.
func (s *Tenant) serveTile(w http.ResponseWriter, r *http.Request) {
	t, want, err := tileOf(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.workers <- struct{}{}
	sum, took := t.Render()
	<-s.workers
	if sum != want {
		http.Error(w, fmt.Sprintf("tile %d: checksum %08x, want %08x", t.Number, sum, want), http.StatusInternalServerError)
		return
	}
	body := fmt.Sprintf("{\"tile\":%d,\"sum\":\"%08x\",\"steps\":%d}\n", t.Number, sum, took)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write([]byte(body))
}
