package noise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The part of the FUSE protocol (linux/fuse.h, 7.31) that a file system needs whose
// root is a regular file that can be read.
const (
	opGetAttr     = 3
	opOpen        = 14
	opRead        = 15
	opRelease     = 18
	opInit        = 26
	opForget      = 2
	opInterrupt   = 36
	opBatchForget = 42

	major, minor = 7, 31

	asyncDIO = 1 << 15 // reads past the page cache may wait side by side
	maxPages = 1 << 22 // maxPages in the answer counts

	openDirectIO = 1 << 0 // no page cache between the device and here
	openNoFlush  = 1 << 5 // closing the file does not wait for this server

	inHeader  = 40
	outHeader = 16
	// readPages are how many pages a read may have, waiting how many reads the kernel
	// passes on before they are answered.
	readPages = 256
	waiting   = 256
	// request is the longest that the kernel sends; it wants room for 8 KiB.
	request = 64 << 10
)

// server answers for a file of zeros, slowly.
type server struct {
	fd    int
	dev   *os.File
	bytes int64
	speed DiskSpeed
	reads chan read
	stop  chan struct{}
	write sync.Mutex // of answers
	ended sync.WaitGroup
}

// read is a read that waits.
type read struct {
	unique uint64
	bytes  int
}

// serve mounts the file system nowhere, and returns its file.
func serve(bytes int64, speed DiskSpeed) (_ *server, file int, err error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, noDisk("no FUSE", err, "load the module fuse, and run as root")
	}
	s := &server{fd: fd, bytes: bytes, speed: speed, reads: make(chan read, 2*waiting), stop: make(chan struct{})}
	root, err := s.mount()
	// Only a descriptor that belongs to a file system can be polled.
	s.dev = os.NewFile(uintptr(fd), "/dev/fuse")
	if err != nil {
		if missing(err) {
			err = noDisk("no FUSE file system", err, "run as root, on Linux 5.2 or newer")
		}
		return nil, 0, errors.Join(err, s.dev.Close())
	}
	s.ended.Go(s.answer)
	s.ended.Go(s.turn)
	file, err = unix.Open("/proc/self/fd/"+strconv.Itoa(root), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err = errors.Join(err, unix.Close(root)); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open fuse file: %w", err), s.close())
	}
	return s, file, nil
}

// mount returns the root of the file system, which is a file.
func (s *server) mount() (root int, err error) {
	config, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("fsopen fuse: %w", err)
	}
	defer unix.Close(config)
	for key, value := range map[string]string{
		"source": "berth lab", "fd": strconv.Itoa(s.fd), "rootmode": "100400", "user_id": strconv.Itoa(os.Geteuid()), "group_id": strconv.Itoa(os.Getegid()),
	} {
		if err := unix.FsconfigSetString(config, key, value); err != nil {
			return 0, fmt.Errorf("fuse %s=%s: %w", key, value, err)
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return 0, fmt.Errorf("create fuse file system: %w", err)
	}
	root, err = unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return 0, fmt.Errorf("fsmount fuse: %w", err)
	}
	return root, nil
}

// close ends the connection: what waits fails.
func (s *server) close() error {
	close(s.stop)
	err := s.dev.Close()
	s.ended.Wait()
	return err
}

// answer takes requests until the connection ends.
func (s *server) answer() {
	defer close(s.reads)
	buf := make([]byte, request)
	for {
		n, err := s.dev.Read(buf)
		switch {
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR): // it was given up before we had it
			continue
		case err != nil || n < inHeader:
			return // ENODEV: unmounted; or closed
		}
		s.one(buf[:n])
	}
}

// one answers a request, or has it wait.
func (s *server) one(in []byte) {
	ne := binary.NativeEndian
	op, unique, body := ne.Uint32(in[4:]), ne.Uint64(in[8:]), in[inHeader:]
	switch op {
	case opInit:
		s.reply(unique, 0, s.init(body))
	case opGetAttr:
		s.reply(unique, 0, s.attributes())
	case opOpen:
		out := make([]byte, 16)
		ne.PutUint32(out[8:], openDirectIO|openNoFlush)
		s.reply(unique, 0, out)
	case opRead:
		offset, size := int64(ne.Uint64(body[8:])), int64(ne.Uint32(body[16:]))
		select {
		case s.reads <- read{unique, int(max(min(size, s.bytes-offset), 0))}:
		case <-s.stop:
		}
	case opRelease:
		s.reply(unique, 0, nil)
	case opForget, opBatchForget, opInterrupt: // without an answer
	default:
		s.reply(unique, unix.ENOSYS, nil)
	}
}

func (s *server) init(in []byte) []byte {
	ne := binary.NativeEndian
	out := make([]byte, 64)
	ne.PutUint32(out[0:], major)
	ne.PutUint32(out[4:], min(minor, ne.Uint32(in[4:])))
	ne.PutUint32(out[12:], ne.Uint32(in[12:])&(asyncDIO|maxPages))
	ne.PutUint16(out[16:], waiting) // before the kernel holds back
	ne.PutUint16(out[18:], waiting)
	ne.PutUint32(out[20:], blockBytes) // written at once; nothing is
	ne.PutUint32(out[24:], 1)
	ne.PutUint16(out[28:], readPages)
	return out
}

func (s *server) attributes() []byte {
	ne := binary.NativeEndian
	out := make([]byte, 104)
	ne.PutUint64(out[0:], 1<<32) // valid for ever
	attr := out[16:]
	ne.PutUint64(attr[0:], 1) // the root's inode
	ne.PutUint64(attr[8:], uint64(s.bytes))
	ne.PutUint64(attr[16:], uint64(s.bytes/512))
	ne.PutUint32(attr[60:], unix.S_IFREG|0o400)
	ne.PutUint32(attr[64:], 1) // links
	ne.PutUint32(attr[68:], uint32(os.Geteuid()))
	ne.PutUint32(attr[72:], uint32(os.Getegid()))
	ne.PutUint32(attr[80:], blockBytes)
	return out
}

// turn is the disk at work: one read after the other, each as long as it takes.
func (s *server) turn() {
	zeros := make([]byte, readPages*blockBytes)
	free := time.Now()
	for r := range s.reads {
		if now := time.Now(); free.Before(now) {
			free = now
		}
		free = free.Add(s.speed.of(r.bytes))
		select {
		case <-time.After(time.Until(free)):
		case <-s.stop:
			return
		}
		s.reply(r.unique, 0, zeros[:min(r.bytes, len(zeros))])
	}
}

// reply answers. Whoever asked may have given up, or the connection have ended.
func (s *server) reply(unique uint64, errno unix.Errno, body []byte) {
	out := make([]byte, outHeader, outHeader+len(body))
	binary.NativeEndian.PutUint32(out, uint32(outHeader+len(body)))
	binary.NativeEndian.PutUint32(out[4:], uint32(-int32(errno)))
	binary.NativeEndian.PutUint64(out[8:], unique)
	s.write.Lock()
	defer s.write.Unlock()
	_, _ = s.dev.Write(append(out, body...))
}
