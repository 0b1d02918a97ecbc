package main

import (
	"encoding/binary"
	"errors"
	"testing"
)

// bzImage returns an image of two sectors of setup, with data at an offset after them.
func bzImage(offset int, data string) []byte {
	image := make([]byte, 3*512+offset)
	image[0x1f1] = 2
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(image[0x248:], uint32(offset))
	binary.LittleEndian.PutUint32(image[0x24c:], uint32(len(data)))
	return append(image, data...)
}

func TestPayload(t *testing.T) {
	t.Parallel()
	const zstd = "\x28\xb5\x2f\xfdkernel"
	for _, tc := range []struct {
		name          string
		image         []byte
		program, data string
	}{
		{"zstd", append(bzImage(7, zstd+"size"), "more"...), "zstd", zstd},
		{"lz4", bzImage(0, "\x02\x21\x4c\x18size"), "lz4", "\x02\x21\x4c\x18"},
		{"unknown", bzImage(0, "kernelsize"), "", ""},
		{"cut off", bzImage(7, zstd+"size")[:3*512+10], "", ""},
		{"empty", bzImage(0, "siz"), "", ""},
		{"no header", make([]byte, 4096), "", ""},
		{"short", []byte("HdrS"), "", ""},
	} {
		program, data, err := payload(tc.image)
		if program != tc.program || string(data) != tc.data || (err == nil) != (tc.program != "") {
			t.Errorf("%s: payload = %q, %q, %v; want %q, %q", tc.name, program, data, err, tc.program, tc.data)
		}
	}
	if _, _, err := payload([]byte(magicELF)); !errors.Is(err, errIsELF) {
		t.Errorf("of an uncompressed kernel: %v", err)
	}
}
