package load

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockBytes is what is read of a disk at once.
const blockBytes = 4096

// disk is a device that is read past the page cache.
type disk struct {
	file   *os.File
	blocks int64
	rooms  sync.Pool // of *block, at an address that the device takes
}

type block [blockBytes]byte

func openDisk(name string) (*disk, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("disk: %w", err)
	}
	if size < blockBytes {
		return nil, fmt.Errorf("disk %s: %d bytes, want at least %d", name, size, blockBytes)
	}
	d := &disk{file: file, blocks: size / blockBytes}
	d.rooms.New = func() any {
		room := make([]byte, 2*blockBytes)
		at := blockBytes - uintptr(unsafe.Pointer(&room[0]))%blockBytes
		return (*block)(room[at:])
	}
	return d, nil
}

// readDisk reads a block if it is this request's turn.
func (s *Tenant) readDisk(request uint64) error {
	if s.disk == nil || request%uint64(s.config.DiskEvery) != 0 {
		return nil
	}
	room := s.disk.rooms.Get().(*block)
	defer s.disk.rooms.Put(room)
	random := rand.New(rand.NewPCG(s.config.Seed, request))
	if _, err := s.disk.file.ReadAt(room[:], random.Int64N(s.disk.blocks)*blockBytes); err != nil {
		return fmt.Errorf("read disk: %w", err)
	}
	return nil
}
