package noise

import (
	"errors"
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"
)

// readBytes is what one read takes of a disk.
const readBytes = 128 * kib

// reader reads a device here and there, past the page cache, and waits for each read.
type reader struct {
	fd     int
	blocks uint64
	buf    []byte
	state  uint64
}

func newReader(c Config, _ int64, seed uint64) (worker, error) {
	name := c.File
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("read: open %s: %w", name, err)
	}
	size, err := unix.Seek(fd, 0, unix.SEEK_END)
	if err == nil && size < readBytes {
		err = fmt.Errorf("%d bytes, want at least %d", size, readBytes)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read: %s: %w", name, err), unix.Close(fd))
	}
	buf, err := unix.Mmap(-1, 0, readBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read: map %d bytes: %w", readBytes, err), unix.Close(fd))
	}
	return &reader{fd: fd, blocks: uint64(size / readBytes), buf: buf, state: seed}, nil
}

func (r *reader) step() (uint64, error) {
	r.state = lcg(r.state)
	block, _ := bits.Mul64(r.state, r.blocks) // state/2^64 of the way through
	n, err := unix.Pread(r.fd, r.buf, int64(block)*readBytes)
	if err == unix.EINTR {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read: %w", err)
	}
	return uint64(n), nil
}

func (r *reader) close() error { return errors.Join(unix.Munmap(r.buf), unix.Close(r.fd)) }
