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

// cache reads a file from end to end through the page cache, round and round. It reads each
// piece twice: the kernel takes pages that were used once only for a passing stream, and
// gives them up before those of others.
type cache struct {
	fd       int
	size, at int64
	buf      [chunkBytes]byte
}

func newCache(c Config, _ int64, seed uint64) (worker, error) {
	fd, err := unix.Open(c.File, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cache: open %s: %w", c.File, err)
	}
	size, err := unix.Seek(fd, 0, unix.SEEK_END)
	if err == nil && size < chunkBytes {
		err = fmt.Errorf("%d bytes, want at least %d", size, chunkBytes)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cache: %s: %w", c.File, err), unix.Close(fd))
	}
	size -= size % chunkBytes
	from, _ := bits.Mul64(lcg(seed), uint64(size/chunkBytes)) // threads begin here and there
	return &cache{fd: fd, size: size, at: int64(from) * chunkBytes}, nil
}

func (r *cache) step() (uint64, error) {
	for range 2 {
		if _, err := transfer(func(fd int, buf []byte) (int, error) { return unix.Pread(fd, buf, r.at) }, r.fd, r.buf[:]); err != nil {
			return 0, fmt.Errorf("cache: %w", err)
		}
	}
	r.at = (r.at + chunkBytes) % r.size
	return 2 * chunkBytes, nil
}

func (r *cache) close() error { return unix.Close(r.fd) }
