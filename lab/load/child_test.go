package load

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fork"
)

// childVariable makes the test binary one of the children below.
const childVariable = "BERTH_LOAD_TEST_CHILD"

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(childVariable) {
	case "":
		os.Exit(m.Run())
	case "generator":
		err = Serve(os.Stdin, os.Stdout, func() { os.Exit(3) })
	case "pacer":
		err = servePacer(os.Stdin, os.Stdout)
	case "server":
		err = serveNothing(os.Stdout)
	case "spin":
		//lint:ignore SA5002 that is what it is for
		for {
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a process of this binary with both ends of the protocol.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startChild runs this binary as the named child; it ends with the test.
func startChild(tb testing.TB, name string) *child {
	tb.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"="+name)
	return start(tb, cmd)
}

func start(tb testing.TB, cmd *exec.Cmd) *child {
	tb.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := fork.Start(cmd); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		// The group: stress-ng has children of its own. It may have ended already.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return &child{cmd, in, bufio.NewReader(out)}
}

// say sends a line of JSON.
func (c *child) say(tb testing.TB, v any) {
	tb.Helper()
	if err := json.NewEncoder(c.in).Encode(v); err != nil {
		tb.Fatal(err)
	}
}

// hear reads a line of JSON.
func (c *child) hear(tb testing.TB, v any) {
	tb.Helper()
	line, err := c.out.ReadBytes('\n')
	if err != nil {
		tb.Fatalf("read from child: %v", err)
	}
	if err := json.Unmarshal(line, v); err != nil {
		tb.Fatalf("child said %q: %v", line, err)
	}
}

// run drives a generator or pacer through one run.
func (c *child) run(tb testing.TB, config Config) Report {
	tb.Helper()
	c.say(tb, config)
	var ready struct{ Ready bool }
	c.hear(tb, &ready)
	if !ready.Ready {
		tb.Fatal("child is not ready")
	}
	c.say(tb, map[string]int64{"start": newClock().now() + int64(10*time.Millisecond)})
	var report Report
	c.hear(tb, &report)
	return report
}

// schedFIFO gives every thread of a process SCHED_FIFO, as the lab does: again
// until no new thread was found, as a young process starts some.
func schedFIFO(pid, priority int) error {
	for known := 0; ; {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil || len(tasks) == known {
			return err
		}
		known = len(tasks)
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err != nil {
				return err
			}
			attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(priority)}
			if err := unix.SchedSetAttr(tid, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("sched_setattr %d: %w", tid, err)
			}
		}
	}
}

// serveNothing is a service without work: what remains is the kernel and HTTP.
func serveNothing(out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "%q\n", listener.Addr()); err != nil {
		return err
	}
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "{}\n")
	}))
}
