package testbox

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/fakekernel"
)

// makerEnv makes a process of this test binary make a box of that name and wait for it.
const makerEnv = "BERTH_TEST_BOX_MAKER"

func TestMain(m *testing.M) {
	Main()
	if Inside() {
		fmt.Println("inside")
		_, _ = io.Copy(io.Discard, os.Stdin) // the maker's, which stays open
		os.Exit(0)
	}
	if group := os.Getenv(makerEnv); group != "" {
		fmt.Fprintln(os.Stderr, "maker:", makeAndWait(group))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func makeAndWait(group string) error {
	runtime.LockOSThread()
	b, err := Make(Spec{Group: group, Dir: "/", Tmpfs: map[string]os.FileMode{"/run": 0o755}})
	if err != nil {
		return err
	}
	cmd, err := b.Command(context.Background())
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// A box is gone, with its processes and groups, when its maker was killed.
func TestMakerIsKilled(t *testing.T) {
	if os.Geteuid() != 0 || testing.Short() {
		t.Skip("a box needs root, and this is not a short run")
	}
	fakekernel.LockHost(t, fakekernel.Shared)
	all, err := Hierarchies()
	if err != nil {
		t.Skip(err)
	}
	group := fmt.Sprintf("berth-testbox-%d", os.Getpid())
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), makerEnv+"="+group)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "inside\n" {
		_ = cmd.Wait()
		t.Skipf("no box can be made here: %s", complaints.String())
	}
	left := func() (names []string) {
		for _, h := range all {
			if _, err := os.Stat(h.dir(group)); err == nil {
				names = append(names, h.dir(group))
			}
		}
		return names
	}
	if got := left(); len(got) != len(all) {
		t.Errorf("the box has groups %v, want one in each of %d hierarchies", got, len(all))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for end := time.Now().Add(2 * time.Minute); len(left()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("two minutes after the maker was killed there still are %v", left())
		}
	}
}
