package daemon

import (
	"path/filepath"
	"strings"

	"berth.dev/berth/kernel/cgroup"
	"berth.dev/berth/watch/cgroupstat"
)

// trees are the hierarchies in which groups are placed and measured, each from
// where groups are named; first the one where CPUs are given. None with affinity.
func (d *daemon) trees() ([]cgroupstat.Tree, error) {
	bases := d.keeper.node.Bases()
	host, err := cgroup.Detect(d.root)
	if err != nil {
		return nil, err
	}
	var trees []cgroupstat.Tree
	for _, base := range bases {
		for _, h := range host.Hierarchies {
			if base == h.Dir || strings.HasPrefix(base, h.Dir+"/") {
				trees = append(trees, cgroupstat.Tree{Version: h.Version, Controllers: h.Controllers, Dir: filepath.Join(d.root.Name(), base)})
				if len(trees) == 1 {
					d.loop.prefix = strings.TrimSuffix(strings.TrimPrefix(base, h.Dir), "/")
				}
			}
		}
	}
	return trees, nil
}
