// Package labtest is for tests of experiments: the test binary in the roles of the lab, and as a run that is killed.
package labtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"berth.dev/berth/lab/load"
	"berth.dev/berth/lab/noise"
	"berth.dev/berth/lab/program"
)

// Main runs the tests of a package, or plays a role (Role). It does not return.
func Main(m *testing.M) {
	Role()
	os.Exit(m.Run())
}

// Role plays the role that the arguments of this process name, as the hidden verbs of the program berth do, and
// ends the process. It returns if they name none.
func Role() {
	if len(os.Args) < 2 {
		return
	}
	ctx := context.Background()
	var err error
	switch os.Args[1] {
	case "__tenant":
		err = load.ServeTenant(ctx, os.Stdin, os.Stdout)
	case "__noise":
		err = noise.Child(ctx, os.Stdin, os.Stdout, os.NewFile(3, "descriptor 3"))
	case "__program":
		err = program.Keep(ctx, os.Stdin, os.Stdout)
	case "__exec":
		err = program.ServeExec(ctx, program.Exec{Address: os.Args[2], Command: os.Args[3]})
	case "__load":
		err = load.Serve(os.Stdin, os.Stdout, func() { os.Exit(1) })
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// folder is the environment variable of Doomed.
const folder = "BERTH_TEST_KILLED"

// Doomed is the folder in which this process is to run an experiment until it is killed; "" if Kill has not
// started it.
func Doomed() string { return os.Getenv(folder) }

// Kill runs the calling test in another process, in which Doomed is a folder, kills it when it prints a line, and
// returns its process ID. The test is skipped if the process ends before.
func Kill(t *testing.T, dir, line string) (pid int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), folder+"="+dir)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != line; {
		said += lines.Text() + "\n"
	}
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err == nil {
		t.Skip("it was not killed: ", said)
	}
	t.Log("it was killed after: ", said)
	return cmd.Process.Pid
}
