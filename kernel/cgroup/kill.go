package cgroup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// Kill kills every process in the group itself, and those they fork meanwhile,
// and waits until all have left it: cgroup.kill (5.14) on v2, else SIGKILL
// until none is left. A frozen v1 group is thawed, for the dead to leave it.
func (g Group) Kill(ctx context.Context) error {
	if err := g.kill(ctx); err != nil {
		return fmt.Errorf("kill group %q: %w", g.rel, err)
	}
	return nil
}

func (g Group) kill(ctx context.Context) error {
	if err := g.thaw(); err != nil {
		return err
	}
	host := g.base.host
	for _, p := range g.base.parts {
		file := g.dir(p) + "/cgroup.kill"
		if p.Version != 2 || !host.exists(file) {
			continue
		}
		if err := host.root.WriteFile(file, "1\n"); err != nil {
			return err
		}
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		pids, _, err := g.Procs()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := host.Signal(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("process %d: %w", pid, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still holds %v: %w", pids, ctx.Err())
		case <-time.After(wait):
		}
	}
}

func (g Group) thaw() error {
	p, err := g.part(Freezer)
	if err != nil || p.Version == 2 {
		return nil
	}
	host, file := g.base.host, g.dir(p)+"/freezer.state"
	text, ok, err := host.read(file)
	if err != nil || !ok || strings.TrimSpace(text) == "THAWED" {
		return err
	}
	return host.root.WriteFile(file, "THAWED\n")
}
