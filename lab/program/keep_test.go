package program

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/kernel"
)

// The test binary is its own keeper.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "__keep" {
		if err := Keep(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 4 && os.Args[1] == execVerb {
		if err := ServeExec(context.Background(), Exec{os.Args[2], os.Args[3]}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// kept is a keeper under way.
type kept struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
	said  bytes.Buffer
	pid   int // of the program
}

func keep(t *testing.T, c Config) *kept {
	t.Helper()
	k := &kept{cmd: exec.Command(os.Args[0], "__keep")}
	k.cmd.Stderr = &k.said
	k.cmd.WaitDelay = time.Minute
	in, err := k.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	k.in, k.lines = in, bufio.NewReader(out)
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.in.Close(); _ = k.cmd.Wait() })
	if err := json.NewEncoder(in).Encode(c); err != nil {
		t.Fatal(err)
	}
	line, _ := k.lines.ReadBytes('\n') // none if it cannot be started
	var s Started
	if json.Unmarshal(line, &s) == nil {
		k.pid = s.PID
	}
	return k
}

// end closes the input and waits.
func (k *kept) end() error {
	k.in.Close()
	_, _ = io.Copy(io.Discard, k.lines)
	return k.cmd.Wait()
}

// wait waits for the keeper's own end.
func (k *kept) wait() error {
	_, _ = io.Copy(io.Discard, k.lines)
	return k.cmd.Wait()
}

// pids reads what a program writes into a file: its processes, once there are n of them.
func pids(t *testing.T, file string, n int) []int {
	t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		text, _ := os.ReadFile(file)
		var all []int
		for word := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, pid)
		}
		if len(all) >= n {
			return all
		}
	}
	t.Fatalf("%s does not come to have %d processes", file, n)
	return nil
}

func lives(pid int) bool {
	p, err := kernel.ReadProcess(os.DirFS("/"), strconv.Itoa(pid))
	return err == nil && !p.Ended()
}

// Whatever group or session its children have made, and whatever they do with SIGTERM,
// all are gone with the program, and so is its folder.
func TestKeepEndsAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	own := filepath.Join(dir, "own")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "pids")
	c := Config{Argv: Shell(fmt.Sprintf(`echo $$ >> %[1]s; trap '' TERM
		setsid sh -c 'echo $$ >> %[1]s; trap "" TERM; while :; do sleep 1000; done' &
		(echo $(sh -c 'echo $PPID') >> %[1]s; exec sleep 1000) &
		wait; wait; sleep 1000`, file))}
	c.Remove = own
	k := keep(t, c)
	all := pids(t, file, 3)
	began := time.Now()
	if err := k.end(); err != nil {
		t.Errorf("%v: %s", err, &k.said)
	}
	for _, pid := range all {
		if lives(pid) {
			t.Errorf("process %d lives on", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if _, err := os.Stat(own); err == nil {
		t.Error("its folder is still there")
	}
	if limit := StopLimit + 30*time.Second; time.Since(began) > limit { // beside others that want the CPU
		t.Errorf("it took %s", time.Since(began))
	}
}

// The end of a program is told, with what it said last.
func TestKeepTells(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config Config
		want   string
	}{
		"status":      {Config{Argv: Shell("echo no space left >&2; exit 3")}, "no space left\nexit status 3\n"},
		"killed":      {Config{Argv: Shell("kill -9 $$")}, "killed by SIGKILL\n"},
		"ended":       {Config{Argv: Shell("true")}, "it ended with status 0\n"},
		"not there":   {Config{Argv: []string{"/no/such/program"}}, "fork/exec /no/such/program: no such file or directory\n"},
		"not found":   {Config{Argv: Shell("no-such-program-at-all")}, "exit status 127\n"},
		"before":      {Config{Before: [][]string{{"true"}, {"false"}}, Argv: []string{"sleep", "1000"}}, "exit status 1\n"},
		"again fails": {Config{Argv: []string{"/bin/sh", "-c", "test -e there && exit 4; touch there"}, Dir: t.TempDir(), Repeat: true}, "exit status 4\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := keep(t, test.config)
			if err := k.wait(); err == nil || !strings.HasSuffix(k.said.String(), test.want) {
				t.Errorf("%v, %q; want %q", err, &k.said, test.want)
			}
		})
	}
}

// A program that goes into the background is kept, and ended.
func TestKeepDaemon(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pids")
	k := keep(t, Config{Argv: Shell(fmt.Sprintf("setsid sh -c 'echo $$ >> %s; exec sleep 1000' & exit 0", file))})
	all := pids(t, file, 1)
	time.Sleep(50 * time.Millisecond) // its first process has ended by then
	if !lives(all[0]) || !lives(k.cmd.Process.Pid) {
		t.Fatalf("the daemon or its keeper has ended: %s", &k.said)
	}
	if err := k.end(); err != nil || lives(all[0]) {
		t.Errorf("%v: %s; the daemon lives: %v", err, &k.said, lives(all[0]))
	}
}

// All processes below a keeper stop, and go on; the keeper does neither.
func TestHalt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pids")
	k := keep(t, Config{Argv: Shell(fmt.Sprintf(`setsid sh -c 'echo $$ >> %[1]s; while :; do :; done' & echo $$ >> %[1]s; while :; do :; done`, file))})
	all := pids(t, file, 2)
	if err := Halt(k.cmd.Process.Pid, 0, time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, pid := range all {
		before := spent(t, pid)
		time.Sleep(60 * time.Millisecond)
		if after := spent(t, pid); after != before || !halted(pid) {
			t.Errorf("process %d used %s while it was halted", pid, after-before)
		}
	}
	if err := Resume(k.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	for _, pid := range all {
		for before, n := spent(t, pid), 0; spent(t, pid) == before; n++ {
			if n > 6000 {
				t.Fatalf("process %d does not go on", pid)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	if err := Halt(k.cmd.Process.Pid, 0, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := k.end(); err != nil { // although it is halted
		t.Errorf("%v: %s", err, &k.said)
	}
	for _, pid := range all {
		if lives(pid) {
			t.Errorf("process %d lives on", pid)
		}
	}
}

// A child may stop between vfork and exec, which its parent waits for: asleep, and not stopped.
func TestHaltVfork(t *testing.T) {
	t.Parallel()
	k := keep(t, Config{Argv: Shell(`while :; do /bin/true; done & while :; do /bin/true; done`)})
	for i := range 400 {
		if err := errors.Join(Halt(k.cmd.Process.Pid, 0, time.Minute), Resume(k.cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i%100) * 10 * time.Microsecond)
	}
	if err := k.end(); err != nil {
		t.Errorf("%v: %s", err, &k.said)
	}
}

// A child that was started while its parent was about to stop stops, too.
func TestHaltForking(t *testing.T) {
	t.Parallel()
	k := keep(t, Config{Argv: Shell(`while :; do sleep 300 & a=$!; sleep 300 & kill -9 $a $!; wait; done`)})
	for i := range 400 {
		if err := Halt(k.cmd.Process.Pid, 0, time.Minute); err != nil {
			t.Fatal(err)
		}
		all, err := Below(k.cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range all {
			if !halted(pid) {
				t.Fatalf("time %d: process %d has not stopped", i, pid)
			}
		}
		if err := Resume(k.cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i%100) * 10 * time.Microsecond)
	}
	if err := k.end(); err != nil {
		t.Errorf("%v: %s", err, &k.said)
	}
}

// The keeper starts nothing while its program is halted, though a copy may have ended just then.
func TestHaltRepeated(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pids")
	const copies = 2
	k := keep(t, Config{Argv: Shell("echo $$ >> " + file), Repeat: true, Copies: copies})
	pids(t, file, copies)
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for range 60 {
		if err := Halt(k.cmd.Process.Pid, copies, time.Minute); err != nil {
			t.Fatal(err)
		}
		was := size()
		time.Sleep(5 * time.Millisecond)
		if is := size(); is != was {
			t.Fatalf("%d bytes were written while it was halted", is-was)
		}
		if err := Resume(k.cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	if err := k.end(); err != nil {
		t.Errorf("%v: %s", err, &k.said)
	}
}

func spent(t *testing.T, pid int) time.Duration {
	t.Helper()
	p, err := kernel.ReadProcess(os.DirFS("/"), strconv.Itoa(pid))
	if err != nil {
		t.Fatal(err)
	}
	return p.Own
}
