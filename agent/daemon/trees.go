package daemon

import (
	"path/filepath"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch/cgroupstat"
)

// treesOf are the hierarchies in which groups are placed, each from its base on, and
// the path of the first base in its hierarchy; alike is true if all bases have that
// path. Others are those in which groups are only measured, from the same path on: container
// runtimes and systemd give a group the same path in all hierarchies.
func treesOf(root *kernel.Root, bases []string) (trees, others []cgroupstat.Tree, prefix string, alike bool, err error) {
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, nil, "", false, err
	}
	tree := func(h cgroup.Hierarchy, dir string) cgroupstat.Tree {
		return cgroupstat.Tree{Version: h.Version, Controllers: h.Controllers, Dir: filepath.Join(root.Name(), dir)}
	}
	for i, base := range bases {
		for _, h := range host.Hierarchies {
			if !kernel.Within(base, h.Dir) {
				continue
			}
			trees = append(trees, tree(h, base))
			at := strings.TrimPrefix(base, h.Dir)
			if i == 0 {
				prefix, alike = at, true
			}
			alike = alike && at == prefix
		}
	}
	for _, h := range host.Hierarchies {
		if !slices.ContainsFunc(bases, func(base string) bool { return kernel.Within(base, h.Dir) }) && len(bases) > 0 {
			others = append(others, tree(h, filepath.Join(h.Dir, prefix)))
		}
	}
	return trees, others, prefix, alike, nil
}
