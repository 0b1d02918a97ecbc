package program

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fork"
	"berth.dev/berth/kernel"
	"berth.dev/berth/lab/load"
)

// Exec is a command that is run again and again: once for each request to a service.
type Exec struct {
	// Address is that of the service: a name of its own after "@" (load.Target).
	Address string `json:"address"`
	// Command is run by the shell, with the number of the request in place of its range.
	Command string `json:"command"`
}

// execVerb is the hidden verb of the process that serves an Exec, which a keeper starts.
const execVerb = "__exec"

// argv starts the service.
func (e Exec) argv() []string { return []string{"/proc/self/exe", execVerb, e.Address, e.Command} }

// mostOutput bounds what a run of a command may print where somebody asks for it, in bytes.
const mostOutput = 1 << 20

// ServeExec is the process that runs a command for each request, until ctx is done: as many
// at once as there are connections. The answer to a request comes when its run has ended,
// and is "ok" where that ended with status 0. What a run leaves in the background goes on
// until the keeper ends.
//
// Only processes of the same user are answered (SO_PEERCRED), and none can say what is run.
func ServeExec(ctx context.Context, e Exec) error {
	if !strings.HasPrefix(e.Address, "@") {
		return fmt.Errorf("serve command: address %q: want one after @", e.Address)
	}
	l, err := net.Listen("unix", e.Address)
	if err != nil {
		return fmt.Errorf("serve command: %w", err)
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve command: %w", err)
		}
		go func() {
			if ownPeer(conn) {
				_ = e.serve(conn) // the client is gone, and with it whoever cares
			}
			conn.Close()
		}()
	}
}

// ownPeer reports whether the other end is a process of this user.
func ownPeer(conn net.Conn) bool {
	peer, err := kernel.ReadPeer(conn)
	return err == nil && int(peer.Uid) == os.Geteuid()
}

// serve answers the requests of a connection, one by one.
func (e Exec) serve(conn net.Conn) error {
	out, err := inMemory("output")
	if err != nil {
		return err
	}
	defer out.Close()
	said, err := inMemory("errors")
	if err != nil {
		return err
	}
	defer said.Close()
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		number, command := strings.TrimSuffix(line, "\n"), e.Command
		var to *os.File
		switch number {
		case load.Nothing:
			command = ":"
		case load.Output:
			number, to = "0", out
		}
		answer := "ok"
		if err := e.run(load.Numbered(command, number), to, said); err != nil {
			answer = err.Error()
		}
		if _, err := fmt.Fprintln(conn, answer); err != nil {
			return err
		}
		if to == nil || answer != "ok" {
			continue
		}
		printed, err := io.ReadAll(io.NewSectionReader(to, 0, mostOutput))
		if err == nil {
			_, err = fmt.Fprintf(conn, "%d\n%s", len(printed), printed)
		}
		if err != nil {
			return err
		}
	}
}

func inMemory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("berth-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	// A program may open /dev/stdout anew, with an offset of its own: nobody writes over another.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND); err != nil {
		return nil, os.NewSyscallError("fcntl", errors.Join(err, unix.Close(fd)))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// run runs a command. Its error says how it ended, and the last line of what it said.
func (e Exec) run(command string, out, said *os.File) error {
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Stderr = said
	if out != nil {
		cmd.Stdout = out
	}
	for _, f := range []*os.File{out, said} {
		if f == nil {
			continue
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := f.Truncate(0); err != nil {
			return err
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err := fork.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	var status *exec.ExitError
	if !errors.As(err, &status) {
		return err
	}
	text := statusText(status.Sys().(syscall.WaitStatus))
	if words := lastLine(said); words != "" {
		text += ": " + words
	}
	return errors.New(text)
}

// lastLine is the last line of a file that says something, without what a line cannot have.
func lastLine(f *os.File) string {
	const tail = 512
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	text, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-tail), tail))
	text = bytes.TrimSpace(text)
	return string(bytes.TrimSpace(text[bytes.LastIndexByte(text, '\n')+1:]))
}

// Run has a served command run once, and returns what it printed.
func (e Exec) Run(ctx context.Context) ([]byte, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", e.Address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	printed, err := output(conn)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return printed, err
}

func output(conn io.ReadWriter) ([]byte, error) {
	if _, err := fmt.Fprintln(conn, load.Output); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(conn)
	answer, err := lines.ReadString('\n')
	if err != nil {
		return nil, errors.New("it did not come to an end")
	}
	if answer = strings.TrimSuffix(answer, "\n"); answer != "ok" {
		return nil, errors.New(answer)
	}
	var n int
	if _, err := fmt.Fscanf(lines, "%d\n", &n); err != nil || n < 0 || n > mostOutput {
		return nil, fmt.Errorf("length of what it printed: %w", err)
	}
	printed := make([]byte, n)
	_, err = io.ReadFull(lines, printed)
	return printed, err
}
