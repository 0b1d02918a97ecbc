package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"berth.dev/berth/internal/debian"
	"berth.dev/berth/internal/vmtest"
)

// uncompress has a kit's kernels uncompressed once, which guests would else do at
// each boot, and slowly. One that the host has no program for stays as it is.
func uncompress(ctx context.Context, out io.Writer, dir string) error {
	name := filepath.Join(dir, vmtest.KitFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var kit vmtest.Kit
	if err := json.Unmarshal(text, &kit); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	changed := false
	for i := range kit.Kernels {
		k := &kit.Kernels[i]
		to := filepath.Join("kernel-"+k.Name, "vmlinux")
		switch err := vmlinux(ctx, filepath.Join(dir, to), filepath.Join(dir, k.Image)); {
		case errors.Is(err, errIsELF):
		case err != nil:
			fmt.Fprintf(out, "kernel %s stays compressed, and its guests boot later: %v\n", k.Name, err)
		default:
			k.Image, changed = to, true
		}
	}
	if !changed {
		return nil
	}
	return debian.WriteJSON(name, kit)
}

// vmlinux writes the kernel that a bzImage holds.
func vmlinux(ctx context.Context, to, from string) error {
	image, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	program, data, err := payload(image)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "-dc")
	cmd.Stdin = bytes.NewReader(data)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	kernel, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w %s", program, err, &stderr)
	}
	if !bytes.HasPrefix(kernel, []byte(magicELF)) {
		return fmt.Errorf("%s: what %s makes of it is not a kernel", from, program)
	}
	return os.WriteFile(to, kernel, 0o644)
}

const magicELF = "\x7fELF"

var errIsELF = errors.New("not compressed")

// payload returns the compressed kernel in a bzImage and the program that
// uncompresses it: Documentation/arch/x86/boot.rst, payload_offset.
func payload(image []byte) (program string, data []byte, err error) {
	if bytes.HasPrefix(image, []byte(magicELF)) {
		return "", nil, errIsELF
	}
	const (
		setupSectors, magic, offset, length, end = 0x1f1, 0x202, 0x248, 0x24c, 0x250
		sector                                   = 512
		sizeLen                                  = 4 // of the size that follows the data
	)
	if len(image) < end || string(image[magic:magic+4]) != "HdrS" {
		return "", nil, errors.New("not a bzImage")
	}
	from := (int(image[setupSectors])+1)*sector + int(binary.LittleEndian.Uint32(image[offset:]))
	to := from + int(binary.LittleEndian.Uint32(image[length:]))
	if to > len(image) || to-from < sizeLen {
		return "", nil, fmt.Errorf("bzImage with its kernel in bytes %d to %d of %d", from, to, len(image))
	}
	data = image[from : to-sizeLen]
	for program, magic := range map[string]string{"xz": "\xfd7zXZ\x00", "zstd": "\x28\xb5\x2f\xfd", "lz4": "\x02\x21\x4c\x18", "gzip": "\x1f\x8b"} {
		if bytes.HasPrefix(data, []byte(magic)) {
			return program, data, nil
		}
	}
	return "", nil, fmt.Errorf("kernel compressed in an unknown way: it begins with %x", data[:min(8, len(data))])
}
