package kernel

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/internal/fork"
)

// Between listing a process and killing it, the process may end, and another one get its
// number or the process leave the group: neither is killed.
func TestKillHitsNobodyElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		between func(*fakekernel.Kernel) error
		again   []int // what is listed after that
	}{
		"number reused":               {func(k *fakekernel.Kernel) error { return k.Reuse("100") }, []int{100}},
		"number reused, not a member": {func(k *fakekernel.Kernel) error { return k.Reuse("100") }, nil},
		"left":                        {func(*fakekernel.Kernel) error { return nil }, nil},
	} {
		root, k := fake(t, fakekernel.V1())
		calls := 0
		err := root.Kill(t.Context(), func() ([]int, error) {
			switch calls++; calls {
			case 1:
				return []int{100}, nil
			case 2:
				return test.again, test.between(k)
			}
			return nil, nil
		})
		if err != nil || root.startTime("100") == "" {
			t.Errorf("%s: killed, or %v", name, err)
		}
	}
}

// On the live host a process is held by a pidfd. Not parallel: a child that is being
// started has the locks of other tests' undo logs until it executes.
func TestKillLive(t *testing.T) {
	root, err := Open("/")
	if err != nil {
		t.Fatal(err)
	}
	var children []*exec.Cmd
	for range pinned + 3 { // more than are held at once
		c := exec.Command("sleep", "60")
		if err := fork.Start(c); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
		children = append(children, c)
	}
	calls := 0
	spared := children[len(children)-1].Process.Pid
	err = root.Kill(t.Context(), func() ([]int, error) {
		calls++
		var pids []int
		for _, c := range children {
			p, err := ReadProcess(root.FS(), strconv.Itoa(c.Process.Pid))
			if err == nil && !p.Ended() && (calls == 1 || c.Process.Pid != spared) {
				pids = append(pids, c.Process.Pid)
			}
		}
		return pids, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := ReadProcess(root.FS(), strconv.Itoa(spared)); err != nil || p.Ended() {
		t.Errorf("the process that is not listed any more was killed: %v, %v", p, err)
	}
	if p, err := ReadProcess(root.FS(), strconv.Itoa(children[0].Process.Pid)); err == nil && !p.Ended() {
		t.Error("the first child lives")
	}
}

// What cannot be killed is given up after ten seconds, or earlier with the context.
func TestKillGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root, k := fake(t, fakekernel.V1())
		if err := k.Block("100"); err != nil {
			t.Fatal(err)
		}
		list := func() ([]int, error) {
			if root.startTime("100") == "" {
				return nil, nil
			}
			return []int{100}, nil
		}
		began := time.Now()
		err := root.Kill(t.Context(), list)
		var alive *AliveError
		if !errors.As(err, &alive) || errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Second {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		if diff := cmp.Diff([]Alive{{PID: 100, State: "D"}}, alive.Left); diff != "" || !strings.Contains(err.Error(), "100 (state D") {
			t.Errorf("%v: left (-want +got):\n%s", err, diff)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if err := root.Kill(ctx, list); !errors.As(err, &alive) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("with a context, after %v: %v", time.Since(began), err)
		}
		if err := k.Wake("100"); err != nil {
			t.Fatal(err)
		}
		if err := root.Kill(t.Context(), list); err != nil {
			t.Error(err)
		}
	})
}

// Many processes, and a list that is slow, do not make Kill take longer: it looks at the time
// after each chunk of them. What has ended by then is not said to be left.
func TestKillGivesUpOnMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		root, k := fake(t, fakekernel.V1())
		if err := k.Block("100"); err != nil {
			t.Fatal(err)
		}
		const slow = time.Second
		began := time.Now()
		err := root.Kill(t.Context(), func() ([]int, error) {
			time.Sleep(slow)
			pids := []int{100}
			for pid := 1000; len(pids) < 40*pinned && time.Since(began) < killTime; pid++ {
				pids = append(pids, pid)
			}
			return pids, nil
		})
		var alive *AliveError
		if took := time.Since(began); !errors.As(err, &alive) || took > killTime+3*slow {
			t.Fatalf("after %v: %v", took, err)
		}
		if len(alive.Left) != 1 || alive.Left[0].PID != 100 {
			t.Errorf("left: %v", alive.Left)
		}
	})
}

func TestAliveErrorIsShort(t *testing.T) {
	t.Parallel()
	e := &AliveError{Left: []Alive{{PID: 1, State: "D", Frozen: "sys/fs/cgroup/freezer/x"}, {PID: 2, State: "R"}, {PID: 3}}}
	for len(e.Left) < 500 {
		e.Left = append(e.Left, Alive{PID: 4})
	}
	want := "SIGKILL was sent, but these processes have not ended: 1 (frozen by /sys/fs/cgroup/freezer/x: thaw that group), 2 (state R), 3, 4, 4, 4, 4, 4 and 492 more"
	if e.Error() != want {
		t.Error(e.Error())
	}
}
