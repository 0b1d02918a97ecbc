package daemon

import (
	"path/filepath"
	"strings"

	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch/cgroupstat"
)

// treesOf are the hierarchies in which groups are placed and measured, each from
// its base on, and the path of the first base in its hierarchy.
func treesOf(root *kernel.Root, bases []string) (trees []cgroupstat.Tree, prefix string, err error) {
	host, err := cgroup.Detect(root)
	if err != nil {
		return nil, "", err
	}
	for i, base := range bases {
		for _, h := range host.Hierarchies {
			if base != h.Dir && !strings.HasPrefix(base, h.Dir+"/") {
				continue
			}
			trees = append(trees, cgroupstat.Tree{Version: h.Version, Controllers: h.Controllers, Dir: filepath.Join(root.Name(), base)})
			if i == 0 {
				prefix = strings.TrimPrefix(base, h.Dir)
			}
		}
	}
	return trees, prefix, nil
}
