package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
)

// Kill kills every process in the group and the groups below it, and those
// they fork meanwhile, and waits until all have left: cgroup.kill (5.14) on v2,
// else SIGKILL until none is left (see kernel.Root.Kill). Frozen v1 groups are thawed,
// if Base was asked for Freezer, for the dead to leave them. After 10 s, or when ctx
// ends, what is left is a *kernel.AliveError. The base itself, which holds this process,
// is refused.
func (g Group) Kill(ctx context.Context) error {
	if err := g.kill(ctx); err != nil {
		return fmt.Errorf("kill group %q: %w", g.rel, err)
	}
	return nil
}

func (g Group) kill(ctx context.Context) error {
	if g.rel == "" {
		return errors.New("it is the base and holds other processes")
	}
	host := g.base.host
	for _, p := range g.base.parts {
		file := g.dir(p) + "/cgroup.kill"
		if p.Version != 2 {
			continue
		}
		if err := kernel.IgnoreAbsent(host.root.WriteFile(file, "1\n")); err != nil {
			return err
		}
	}
	err := host.root.Kill(ctx, g.killable)
	if alive, ok := errors.AsType[*kernel.AliveError](err); ok {
		for i := range alive.Left {
			alive.Left[i].Frozen = host.frozenIn(alive.Left[i].PID)
		}
	}
	return err
}

// frozenIn returns the v1 freezer group that holds a process frozen, "" if none does.
func (h *Host) frozenIn(pid int) string {
	t, ok := h.Hierarchy(Freezer)
	members, err := ReadMembership(h.root.FS(), strconv.Itoa(pid))
	if !ok || t.Version == 2 || err != nil {
		return ""
	}
	i := slices.IndexFunc(members, func(m Membership) bool { return slices.Contains(m.Controllers, Freezer) })
	if i < 0 {
		return ""
	}
	dir, ok := t.dirOf(members[i].Path)
	if text, found, _ := h.read(dir + "/freezer.state"); !ok || !found || strings.TrimSpace(text) == "THAWED" {
		return ""
	}
	return dir
}

// killable thaws the group and those below it, and returns their processes.
func (g Group) killable() ([]int, error) {
	names := []string{g.rel}
	for _, p := range g.base.parts {
		below, err := Below(g.base.host.root.FS(), g.dir(p))
		if kernel.IgnoreAbsent(err) != nil {
			return nil, err
		}
		for _, dir := range below {
			names = append(names, strings.TrimPrefix(dir, p.dir+"/"))
		}
	}
	slices.Sort(names)
	pids := []int{}
	for _, name := range slices.Compact(names) {
		group := Group{g.base, name}
		if err := group.thaw(); err != nil {
			return nil, err
		}
		some, _, err := group.Procs()
		if err != nil && (group == g || !errors.Is(err, kernel.ErrNotSupported)) {
			return nil, err // a group above lists those of a threaded one
		}
		pids = append(pids, some...)
	}
	return pids, nil
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
	return kernel.IgnoreAbsent(host.root.WriteFile(file, "THAWED\n"))
}
