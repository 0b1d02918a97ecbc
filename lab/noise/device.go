package noise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/kernel"
)

// DiskSpeed is how long a disk takes.
type DiskSpeed struct {
	// Seek is what every read takes, besides its bytes.
	Seek time.Duration
	// BytesPerSecond is how fast bytes come; more than 0.
	BytesPerSecond int64
}

// of is how long a read of so many bytes takes.
func (s DiskSpeed) of(bytes int) time.Duration {
	return s.Seek + time.Duration(float64(bytes)/float64(s.BytesPerSecond)*float64(time.Second))
}

// noDisk says why this host can have no such disk.
func noDisk(lacks string, err error, remedy string) error {
	return &kernel.NotSupportedError{Feature: "a disk of the lab's own", Reason: fmt.Sprintf("%s: %v", lacks, err), Remedy: remedy}
}

// Disk is a slow disk of the lab's own: a block device that no other process uses, whose
// reads take their time one after the other, as on a real disk. So a neighbour can
// keep a tenant waiting for a disk without disturbing one that the host needs.
//
// The device is a loop device over a file of a FUSE file system that this process
// serves and that is mounted nowhere. It can be read only, and holds zeros. It is gone
// with the Disk or, however that ends, with this process.
type Disk struct {
	server *server
	loop   int // descriptor of the block device
	name   string
	number string
}

// OpenDisk makes a disk of so many bytes, a multiple of 4096. Where the kernel has no FUSE
// or loop devices, or this process may not make them, it is a *kernel.NotSupportedError.
func OpenDisk(bytes int64, speed DiskSpeed) (*Disk, error) {
	if bytes <= 0 || bytes%blockBytes != 0 || speed.BytesPerSecond <= 0 || speed.Seek < 0 {
		return nil, fmt.Errorf("open disk of %d bytes, %+v: want a multiple of %d, and a speed", bytes, speed, blockBytes)
	}
	s, file, err := serve(bytes, speed)
	if err != nil {
		return nil, fmt.Errorf("open disk: %w", err)
	}
	d := &Disk{server: s}
	if err := errors.Join(d.attach(file), unix.Close(file)); err != nil {
		return nil, errors.Join(fmt.Errorf("open disk: %w", err), s.close())
	}
	return d, nil
}

// blockBytes is what reads past the page cache have to be multiples of.
const blockBytes = 4096

// Path is the device's file.
func (d *Disk) Path() string { return d.name }

// Number is its number, "7:0".
func (d *Disk) Number() string { return d.number }

// Schedule has an I/O scheduler of the kernel order the reads, "bfq" or "none". Without it
// that is a *kernel.NotSupportedError.
func (d *Disk) Schedule(with string) error {
	name := filepath.Join("/sys/block", filepath.Base(d.name), "queue/scheduler")
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(with)
		err = errors.Join(err, file.Close())
	}
	if errors.Is(err, unix.EINVAL) || missing(err) {
		return &kernel.NotSupportedError{Feature: "I/O scheduler " + with, Reason: err.Error(), Remedy: "modprobe " + with}
	}
	return err
}

// Close takes the disk away. Whoever still reads it has errors from now on.
func (d *Disk) Close() error {
	// The loop device goes with its last reader; first, those that wait are to be told.
	return errors.Join(d.server.close(), unix.Close(d.loop))
}

// attach has the next free loop device stand for a file, until no process has it open.
func (d *Disk) attach(file int) error {
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return noDisk("no loop devices", err, "load the module loop, and run as root")
	}
	defer unix.Close(control)
	for range 10 { // another process may take the same
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return noDisk("no free loop device", err, "run as root")
		}
		d.name = fmt.Sprintf("/dev/loop%d", n)
		if d.loop, err = unix.Open(d.name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return noDisk("loop device", err, "run as root, on a host with devtmpfs")
		}
		if err = d.configure(file); err == nil {
			return nil
		}
		if err := errors.Join(err, unix.Close(d.loop)); !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return errors.New("attach loop device: other processes took each free one")
}

func (d *Disk) configure(file int) error {
	config := unix.LoopConfig{Fd: uint32(file)}
	config.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
	copy(config.Info.File_name[:], "berth lab")
	if err := unix.IoctlLoopConfigure(d.loop, &config); err != nil {
		return fmt.Errorf("configure %s: %w", d.name, err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(d.loop, &stat); err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	d.number = fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
	return d.above()
}

// above gives the device a descriptor above that of the server: when the process dies
// its descriptors are closed in order, and readers have to be told before the device,
// which waits for them.
func (d *Disk) above() error {
	if d.loop > d.server.fd {
		return nil
	}
	fd, err := unix.FcntlInt(uintptr(d.loop), unix.F_DUPFD_CLOEXEC, d.server.fd+1)
	if err != nil {
		return err
	}
	err = unix.Close(d.loop)
	d.loop = fd
	return err
}

// missing says of an error whether the kernel lacks something, or this process may not.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENXIO)
}
