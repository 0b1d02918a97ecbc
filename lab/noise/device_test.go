package noise

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

func openDisk(t *testing.T, bytes int64, speed DiskSpeed) *Disk {
	t.Helper()
	d, err := OpenDisk(bytes, speed)
	if no, ok := errors.AsType[*kernel.NotSupportedError](err); ok {
		t.Skipf("no disk here: %v; %s", err, no.Remedy)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// readAt reads past the page cache.
func readAt(t *testing.T, name string, bytes int, offset int64) (int, error) {
	t.Helper()
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	buf, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(buf)
	for i := range buf {
		buf[i] = 1
	}
	n, err := unix.Pread(fd, buf, offset)
	for i, b := range buf[:max(n, 0)] {
		if b != 0 {
			t.Fatalf("byte %d is %d, want zeros", i, b)
		}
	}
	return n, err
}

// Reads take their time one after the other: those of several readers together as
// long as the disk takes for all.
func TestReadsTakeTheirTime(t *testing.T) {
	t.Parallel()
	const readers, bytes = 4, 64 << 10
	speed := DiskSpeed{Seek: 10 * time.Millisecond, BytesPerSecond: 16 << 20}
	d := openDisk(t, 1<<20, speed)
	began := time.Now()
	var all sync.WaitGroup
	for i := range readers {
		all.Go(func() {
			if n, err := readAt(t, d.Path(), bytes, int64(i)*bytes); n != bytes || err != nil {
				t.Errorf("read %d bytes: %v", n, err)
			}
		})
	}
	all.Wait()
	// A busy host makes it longer, never shorter.
	if took, least := time.Since(began), readers*speed.of(bytes); took < least {
		t.Errorf("%d reads took %v, want at least %v", readers, took, least)
	}
}

// The device is of the size asked for, can be read only, and is gone after Close.
func TestDevice(t *testing.T) {
	t.Parallel()
	const bytes = 256 << 10
	d := openDisk(t, bytes, DiskSpeed{BytesPerSecond: 1 << 30})
	f, err := os.Open(d.Path())
	if err != nil {
		t.Fatal(err)
	}
	if end, err := f.Seek(0, io.SeekEnd); end != bytes || err != nil {
		t.Errorf("size %d (%v), want %d", end, err, bytes)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if n, err := readAt(t, d.Path(), blockBytes, bytes-blockBytes); n != blockBytes || err != nil {
		t.Errorf("the last block: %d bytes, %v", n, err)
	}
	if fd, err := unix.Open(d.Path(), unix.O_WRONLY, 0); err == nil {
		if _, err := unix.Write(fd, make([]byte, blockBytes)); err == nil {
			t.Error("it can be written")
		}
		unix.Close(fd)
	}
	if !strings.HasPrefix(d.Number(), "7:") {
		t.Errorf("number %q, want that of a loop device", d.Number())
	}
	if d.loop < d.server.fd {
		t.Errorf("the device's descriptor %d is closed before the server's, %d", d.loop, d.server.fd)
	}
}

// Close fails those that wait, and does not wait for them.
func TestCloseWhileSomebodyWaits(t *testing.T) {
	t.Parallel()
	d, err := OpenDisk(1<<20, DiskSpeed{Seek: time.Hour, BytesPerSecond: 1 << 30})
	if no, ok := errors.AsType[*kernel.NotSupportedError](err); ok {
		t.Skipf("no disk here: %v; %s", err, no.Remedy)
	}
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		_, err := readAt(t, d.Path(), blockBytes, 0)
		failed <- err
	}()
	for !waits(t, d) {
		time.Sleep(time.Millisecond)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; err == nil {
		t.Error("a read of a disk that is gone went well")
	}
}

// waits reports whether the device has a read to answer.
func waits(t *testing.T, d *Disk) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(d.Path()), "inflight"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))[0] != "0"
}

func TestOpenDiskRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bytes int64
		speed DiskSpeed
	}{{0, DiskSpeed{BytesPerSecond: 1}}, {1000, DiskSpeed{BytesPerSecond: 1}}, {4096, DiskSpeed{}}, {4096, DiskSpeed{Seek: -1, BytesPerSecond: 1}}} {
		if d, err := OpenDisk(c.bytes, c.speed); err == nil {
			t.Errorf("%+v: no error", c)
			d.Close()
		}
	}
}
