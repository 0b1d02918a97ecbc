package noise

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childVariable makes the test binary a neighbour.
const childVariable = "BERTH_NOISE_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := Child(ctx, os.Stdin, os.Stdout, os.NewFile(3, "descriptor 3")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// patience is how long a test waits for what should take milliseconds.
const patience = 30 * time.Second

// neighbour is a child process in a process group of its own.
type neighbour struct {
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	counters *Counters
	ready    Ready
	exited   chan error
}

// startNeighbour starts one and waits until it is ready.
func startNeighbour(t *testing.T, cfg Config) *neighbour {
	t.Helper()
	n := launch(t, cfg.Threads, cfg)
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	n.start(t)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	if err := json.Unmarshal(line, &n.ready); err != nil || !n.ready.Ready {
		t.Fatalf("answer %q: %v", line, err)
	}
	go func() { n.exited <- n.cmd.Wait() }()
	return n
}

// launch prepares a neighbour with cfg, any value, on its standard input.
func launch(t *testing.T, threads int, cfg any) *neighbour {
	t.Helper()
	counters, err := NewCounters(threads)
	if err != nil {
		t.Fatal(err)
	}
	line, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := &neighbour{cmd: exec.Command(os.Args[0]), counters: counters, exited: make(chan error, 1)}
	n.cmd.Env = append(os.Environ(), childVariable+"=1")
	n.cmd.ExtraFiles = []*os.File{counters.File()}
	n.cmd.Stderr = os.Stderr
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if n.stdin, err = n.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = counters.Close()
		if n.cmd.Process != nil {
			_ = n.cmd.Process.Kill()
		}
	})
	go func() { _, _ = n.stdin.Write(append(line, '\n')) }()
	return n
}

func (n *neighbour) start(t *testing.T) {
	t.Helper()
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// wait waits for its end.
func (n *neighbour) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-n.exited:
		return err
	case <-time.After(patience):
		t.Fatal("neighbour does not end")
		return nil
	}
}

// until polls.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// small is a configuration of a kernel that a test can afford.
func small(kernel string, threads int) Config {
	cfg := Config{Kernel: kernel, Threads: threads, Intensity: 100, Seed: 1}
	if k, _ := lookup(kernel); k.Memory {
		cfg.Bytes = mib
	}
	return cfg
}

// directFile is a file that stands for a device.
func directFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(name, make([]byte, 4*readBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECT, 0)
	if errors.Is(err, syscall.EINVAL) {
		t.Skipf("the file system of %s cannot be read past the page cache", t.TempDir())
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return name
}

// sink takes all that is sent to it.
func sink(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
		}
	}()
	return l.Addr().String()
}

func TestChildWorksUntilStdinEnds(t *testing.T) {
	t.Parallel()
	for _, k := range Kernels() {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			cfg := small(k.Name, 2)
			if k.File {
				cfg.File = directFile(t)
			}
			if k.Link {
				cfg.Address = sink(t)
			}
			n := startNeighbour(t, cfg)
			if n.ready.Bytes != cfg.Bytes {
				t.Errorf("working set %d, want %d", n.ready.Bytes, cfg.Bytes)
			}
			until(t, "each thread works", func() bool {
				lines := counterLines(n.counters.mem)
				return lines[0].work.Load() > 0 && lines[1].work.Load() > 0
			})
			before := n.counters.Total()
			until(t, "work goes on", func() bool { return n.counters.Total() > before })
			if err := n.stdin.Close(); err != nil {
				t.Fatal(err)
			}
			if err := n.wait(t); err != nil {
				t.Errorf("end of stdin: %v", err)
			}
			if left := groupMembers(t, n.cmd.Process.Pid); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestChildEndsOnSIGTERM(t *testing.T) {
	t.Parallel()
	for _, intensity := range []int{1, 100} {
		cfg := small("scan", 1)
		cfg.Intensity = intensity
		n := startNeighbour(t, cfg)
		until(t, "work", func() bool { return n.counters.Total() > 0 })
		if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := n.wait(t); err != nil {
			t.Errorf("intensity %d, SIGTERM: %v", intensity, err)
		}
	}
}

// A stopped neighbour's work is still there to read, and does not move.
func TestTotalNeedsNoCooperation(t *testing.T) {
	t.Parallel()
	n := startNeighbour(t, small("scan", 1))
	until(t, "work", func() bool { return n.counters.Total() > 0 })
	if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "all threads stopped", func() bool { return stopped(t, n.cmd.Process.Pid) })
	total := n.counters.Total()
	if total == 0 || n.counters.Total() != total {
		t.Errorf("work %g, then %g, of a stopped neighbour", total, n.counters.Total())
	}
	if err := n.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.wait(t); err == nil {
		t.Error("killed, yet exit status 0")
	}
	if n.counters.Total() != total {
		t.Errorf("work %g after the end, %g before", n.counters.Total(), total)
	}
}

// Whenever fork is killed, no process of its making goes on.
func TestForkLeavesNoProcess(t *testing.T) {
	t.Parallel()
	for kill := range 8 {
		n := startNeighbour(t, small("fork", 2))
		until(t, "work", func() bool { return n.counters.Total() > float64(kill) })
		time.Sleep(time.Duration(kill) * 131 * time.Microsecond) // another instant each time
		if err := n.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = n.wait(t)
		until(t, "process group empty", func() bool { return len(groupMembers(t, n.cmd.Process.Pid)) == 0 })
	}
}

func TestChildRefuses(t *testing.T) {
	t.Parallel()
	valid := `{"kernel":"spin","threads":2,"intensity":100,"seed":1}` + "\n"
	for _, tc := range []struct {
		name, stdin string
		counters    func(t *testing.T) *os.File
		want        string
	}{
		{"nothing", "", sharedFile(2), "no whole line: EOF"},
		{"half a line", `{"kernel":"spin"`, sharedFile(2), "no whole line: EOF"},
		{"an endless line", strings.Repeat(" ", 2*maxConfigLine), sharedFile(2), "no whole line"},
		{"an empty line", "\n", sharedFile(2), "unexpected end of JSON"},
		{"no JSON", "spin\n", sharedFile(2), "invalid character"},
		{"two values", "{} {}\n", sharedFile(2), "invalid character"},
		{"wrong type", `{"threads":"2"}` + "\n", sharedFile(2), "cannot unmarshal"},
		{"unknown kernel", `{"kernel":"x","threads":1,"intensity":1}` + "\n", sharedFile(2), `kernel "x"`},
		{"counters of fewer threads", valid, sharedFile(1), "128 bytes, want 256 for 2 threads"},
		{"a file instead of counters", valid, func(t *testing.T) *os.File {
			f, err := os.Create(filepath.Join(t.TempDir(), "empty"))
			if err != nil {
				t.Fatal(err)
			}
			return f
		}, "0 bytes, want 256"},
		{"no descriptor 3", valid, func(*testing.T) *os.File { return os.NewFile(1<<20, "descriptor 3") }, "bad file descriptor"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := Child(t.Context(), strings.NewReader(tc.stdin), &out, tc.counters(t))
			checkError(t, err, tc.want)
			if out.Len() > 0 {
				t.Errorf("answered %q", out.String())
			}
		})
	}
}

// sharedFile returns a file like the one the child gets.
func sharedFile(threads int) func(t *testing.T) *os.File {
	return func(t *testing.T) *os.File {
		t.Helper()
		file, err := memoryFile(threads * lineBytes)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
}

func TestRunStopsWhenReadyFails(t *testing.T) {
	t.Parallel()
	counters := make([]counter, 2)
	broken := errors.New("broken pipe")
	err := run(t.Context(), small("switch", 2), 0, counters, func() error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("run = %v, want %v", err, broken)
	}
}

func TestRunFailsWithItsKernel(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), Config{Kernel: "scan", Threads: 2, Intensity: 100}, 1<<60, make([]counter, 2), func() error {
		t.Error("ready without memory")
		return nil
	})
	checkError(t, err, "map 1152921504606846976 bytes")
}

// failing works once.
type failing struct{ steps int }

func (f *failing) step() (uint64, error) {
	if f.steps++; f.steps > 1 {
		return 0, errors.New("worn out")
	}
	return 3, nil
}

func (*failing) close() error { return nil }

func TestWorkEndsWithAnError(t *testing.T) {
	t.Parallel()
	clock, err := newClock()
	if err != nil {
		t.Fatal(err)
	}
	var done counter
	for _, intensity := range []int{50, 100} {
		err := (&workers{clock: clock}).work(&failing{}, newPacer(intensity, 0, 1), &done)
		checkError(t, err, "worn out")
		if done.work.Load() != 3 {
			t.Errorf("counted %d, want 3", done.work.Load())
		}
	}
}

// groupMembers lists the living processes of a process group.
func groupMembers(t *testing.T, group int) []string {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var members []string
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // ended meanwhile
		}
		// state, parent, group
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if fields[0] != "Z" && fields[0] != "X" && fields[2] == strconv.Itoa(group) {
			members = append(members, string(text))
		}
	}
	return members
}

// stopped reports whether all threads of a process have stopped.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks) > 0 && !slices.ContainsFunc(tasks, func(task string) bool {
		text, err := os.ReadFile(task)
		return err == nil && !bytes.HasPrefix(text[bytes.LastIndexByte(text, ')')+1:], []byte(" T "))
	})
}
