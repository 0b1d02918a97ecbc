package noise

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// spinIterations is one chunk of spin: about 10 µs.
const spinIterations = 8192

// spin computes in registers.
type spin struct{ x uint64 }

func newSpin(_ Config, _ int64, seed uint64) (worker, error) { return &spin{x: seed}, nil }

func (s *spin) step() (uint64, error) {
	x := s.x
	for range spinIterations {
		x = lcg(x)
	}
	s.x = x
	return spinIterations, nil
}

func (*spin) close() error { return nil }

// ForkProgram is what kernel fork runs, as found in $PATH.
const ForkProgram = "true"

// fork creates, runs and waits for one process of true(1) after another: vfork
// and exec of a small dynamic program, as shells and build systems do it by the
// thousand. One process at a time per thread, so a thread of fork wants one CPU;
// threads take turns at the fork itself (a lock of the Go runtime).
//
// A process it started dies with it (PR_SET_PDEATHSIG), is waited for by it, and
// ends within a millisecond anyway: killing the neighbour at any instant leaves
// at most one process per thread that is ending, for its new parent to reap.
type fork struct {
	path string
	args []string
	attr syscall.ProcAttr
}

func newFork(Config, int64, uint64) (worker, error) {
	path, err := exec.LookPath(ForkProgram)
	if err != nil {
		return nil, fmt.Errorf("fork: program to run: %w", err)
	}
	return &fork{
		path: path,
		args: []string{ForkProgram},
		// No environment, no open files.
		attr: syscall.ProcAttr{Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}},
	}, nil
}

// forkRetry is how long fork waits after the kernel refused a process.
const forkRetry = time.Millisecond

func (f *fork) step() (uint64, error) {
	pid, err := syscall.ForkExec(f.path, f.args, &f.attr)
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
		// A limit on processes or memory: denied, not broken.
		time.Sleep(forkRetry)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("fork %s: %w", f.path, err)
	}
	for {
		_, err := syscall.Wait4(pid, nil, 0, nil)
		if err == nil {
			return 1, nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return 0, fmt.Errorf("wait for %s: %w", f.path, err)
		}
	}
}

func (*fork) close() error { return nil }

// pingPong sends a byte to a partner thread and waits for it to come back, so
// each round trip is two wake-ups and two waits. The pair runs in strict
// alternation and wants one CPU at most; the scheduler decides whether it
// shares one or is spread over two.
type pingPong struct {
	send, receive int // descriptors
	buf           [1]byte
	partner       chan error
}

func newPingPong(Config, int64, uint64) (worker, error) {
	var there, back [2]int
	if err := unix.Pipe2(there[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("switch: pipe: %w", err)
	}
	if err := unix.Pipe2(back[:], unix.O_CLOEXEC); err != nil {
		return nil, errors.Join(fmt.Errorf("switch: pipe: %w", err), unix.Close(there[0]), unix.Close(there[1]))
	}
	p := &pingPong{send: there[1], receive: back[0], partner: make(chan error, 1)}
	go func() {
		runtime.LockOSThread()
		err := echo(there[0], back[1])
		p.partner <- errors.Join(err, unix.Close(there[0]), unix.Close(back[1]))
	}()
	return p, nil
}

// echo sends back each byte that arrives, until the sender closes.
func echo(from, to int) error {
	var buf [1]byte
	for {
		n, err := transfer(unix.Read, from, buf[:])
		if n == 0 || err != nil {
			return err
		}
		if _, err := transfer(unix.Write, to, buf[:]); err != nil {
			return err
		}
	}
}

// transfer reads or writes, again after a signal.
func transfer(call func(int, []byte) (int, error), fd int, buf []byte) (int, error) {
	for {
		n, err := call(fd, buf)
		if err != unix.EINTR {
			return n, err
		}
	}
}

func (p *pingPong) step() (uint64, error) {
	if _, err := transfer(unix.Write, p.send, p.buf[:]); err != nil {
		return 0, fmt.Errorf("switch: %w", err)
	}
	n, err := transfer(unix.Read, p.receive, p.buf[:])
	if err != nil {
		return 0, fmt.Errorf("switch: %w", err)
	}
	if n == 0 {
		return 0, errors.New("switch: the partner thread has ended")
	}
	return 1, nil
}

func (p *pingPong) close() error {
	err := unix.Close(p.send)
	return errors.Join(err, <-p.partner, unix.Close(p.receive))
}
