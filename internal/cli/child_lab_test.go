package cli

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// The guard of a lab that was killed answers nobody, and is not ended by that: it has values to restore.
func TestLabGuardOutlivesItsReader(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "__guard")
	cmd.Env = append(os.Environ(), runsBerth+"=1")
	cmd.Stdin = strings.NewReader("{}") // without rights it answers that it has none
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = to
	if err := errors.Join(from.Close(), cmd.Start()); errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		t.Skip("cannot give up rights: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(to.Close(), cmd.Wait())
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signaled() || !strings.Contains(stderr.String(), "broken pipe") {
		t.Errorf("%v, %q; want it to say that its pipe is broken", err, stderr.String())
	}
}
