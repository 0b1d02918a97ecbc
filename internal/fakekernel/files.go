package fakekernel

import (
	"os"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/cpuset"
)

// file is a file of a new group.
type file struct{ name, text string }

// filesV1 are those of a controller in groups below the root.
var filesV1 = map[string][]file{
	"cpu": {
		{"cpu.shares", "1024"}, {"cpu.idle", "0"}, {"cpu.cfs_quota_us", "-1"}, {"cpu.cfs_period_us", "100000"},
		{"cpu.cfs_burst_us", "0"}, {"cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\nnr_bursts 0\nburst_time 0"},
		{"cpu.stat.local", "throttled_time 0"},
	},
	"cpuacct": {{"cpuacct.usage", "0"}},
	"cpuset": {
		{"cpuset.cpus", ""}, {"cpuset.mems", ""}, {"cpuset.effective_cpus", ""}, {"cpuset.effective_mems", ""},
	},
	"memory": {
		{"memory.limit_in_bytes", "9223372036854771712"}, {"memory.soft_limit_in_bytes", "9223372036854771712"},
		{"memory.usage_in_bytes", "0"},
	},
	"freezer": {{"freezer.state", "THAWED"}},
	"blkio": {
		{"blkio.throttle.read_bps_device", ""}, {"blkio.throttle.write_bps_device", ""},
		{"blkio.throttle.read_iops_device", ""}, {"blkio.throttle.write_iops_device", ""},
	},
	"pids": {{"pids.max", "max"}, {"pids.current", "0"}},
}

var filesV2 = map[string][]file{
	"cpu": {{"cpu.weight", "100"}, {"cpu.idle", "0"}, {"cpu.max", "max 100000"}, {"cpu.max.burst", "0"}},
	"cpuset": {
		{"cpuset.cpus", ""}, {"cpuset.mems", ""}, {"cpuset.cpus.effective", ""}, {"cpuset.mems.effective", ""},
		{"cpuset.cpus.exclusive", ""}, {"cpuset.cpus.partition", "member"},
	},
	"memory": {{"memory.max", "max"}, {"memory.high", "max"}, {"memory.low", "0"}, {"memory.current", "0"}},
	"io":     {{"io.max", ""}, {"io.latency", ""}},
	"pids":   {{"pids.max", "max"}, {"pids.current", "0"}},
}

// weights are the files by which disks are shared out, of the root and of other groups.
func (k *Kernel) weights(m mount) (root, other []file) {
	switch {
	case k.layout.Weights == "none":
		return nil, nil
	case m.version == 1:
		return []file{{"blkio.bfq.io_serviced", ""}}, []file{{"blkio.bfq.weight", "100"}, {"blkio.bfq.weight_device", ""}}
	case k.layout.Weights == "bfq":
		return nil, []file{{"io.bfq.weight", "default 100"}}
	}
	return []file{{"io.cost.qos", ""}, {"io.cost.model", ""}}, []file{{"io.weight", "default 100"}}
}

// populate makes the files of a new group. A root group has no limits of its own.
func (k *Kernel) populate(m mount, dir string, root bool) error {
	files := []file{{"cgroup.procs", ""}}
	if m.version == 1 {
		files = append(files, file{"tasks", ""})
		for _, c := range m.controllers {
			if !root || c == "cpu" || c == "cpuacct" || c == "cpuset" {
				files = append(files, filesV1[c]...)
			}
			if rootWeights, weights := k.weights(m); c == "blkio" && root {
				files = append(files, rootWeights...)
			} else if c == "blkio" {
				files = append(files, weights...)
			}
		}
	} else {
		files = append(files,
			file{"cgroup.subtree_control", ""},
			file{"cpu.stat", "usage_usec 0\nuser_usec 0\nsystem_usec 0"})
		if !root || k.layout.Inner {
			files = append(files, file{"cgroup.type", "domain"})
		}
		if root {
			files = append(files, file{"cgroup.controllers", inOrder(m.controllers)})
			if rootWeights, _ := k.weights(m); m.has("io") {
				files = append(files, rootWeights...)
			}
			if m.has("cpuset") {
				files = append(files, file{"cpuset.cpus.effective", k.layout.CPUs}, file{"cpuset.mems.effective", k.layout.Mems})
			}
		} else {
			files = append(files, file{"cgroup.controllers", ""}, file{"cgroup.freeze", "0"}, file{"cgroup.kill", ""})
		}
	}
	for _, f := range files {
		if f.name == "cpu.idle" && !k.atLeast(5, 15) {
			continue
		}
		if err := k.create(path.Join(dir, f.name), f.text); err != nil {
			return err
		}
	}
	if m.version == 1 {
		if m.has("cpuset") && root {
			for name, text := range map[string]string{
				"cpuset.cpus": k.layout.CPUs, "cpuset.mems": k.layout.Mems,
				"cpuset.effective_cpus": k.layout.CPUs, "cpuset.effective_mems": k.layout.Mems,
			} {
				if err := k.put(dir+"/"+name, text); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if root {
		return nil
	}
	return k.offer(m, dir, strings.Fields(k.get(path.Dir(dir), "cgroup.subtree_control")))
}

// offer makes a v2 group's files those of the given controllers.
func (k *Kernel) offer(m mount, dir string, controllers []string) error {
	_, weights := k.weights(m)
	for c, files := range filesV2 {
		if c == "io" {
			files = slices.Concat(files, weights)
		}
		for _, f := range files {
			if f.name == "cpuset.cpus.exclusive" && !k.atLeast(6, 7) || f.name == "cpu.idle" && !k.atLeast(5, 15) {
				continue
			}
			name := path.Join(dir, f.name)
			_, err := os.Stat(k.real(name))
			switch {
			case !slices.Contains(controllers, c):
				os.Remove(k.real(name))
			case err != nil:
				if err := k.create(name, f.text); err != nil {
					return err
				}
			}
		}
	}
	if err := k.put(dir+"/cgroup.controllers", inOrder(controllers)); err != nil {
		return err
	}
	stat := "usage_usec 0\nuser_usec 0\nsystem_usec 0"
	if slices.Contains(controllers, "cpu") {
		stat += "\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0"
	}
	if err := k.put(dir+"/cpu.stat", stat); err != nil {
		return err
	}
	return k.effective(m)
}

// effective recomputes the effective sets of a v2 hierarchy.
func (k *Kernel) effective(m mount) error {
	if err := k.spread(m.dir, "cpuset.cpus", k.online()); err != nil {
		return err
	}
	return k.spread(m.dir, "cpuset.mems", mustSet(k.layout.Mems))
}

// spread gives a group what it may use: partitions below it take theirs out.
func (k *Kernel) spread(dir, kind string, has cpuset.Set) error {
	rest, taken := has, map[string]cpuset.Set{}
	for _, child := range k.children(dir) {
		if kind == "cpuset.cpus" && k.isPartition(child) {
			taken[child] = k.exclusive(child).Intersect(has)
			rest = rest.Minus(taken[child])
		}
	}
	if file := dir + "/" + kind + ".effective"; k.exists(file) {
		if err := k.put(file, rest.String()); err != nil {
			return err
		}
	}
	for _, child := range k.children(dir) {
		share, isPartition := taken[child]
		if !isPartition {
			if share = k.set(child, kind).Intersect(rest); share.IsEmpty() {
				share = rest
			}
		}
		if err := k.spread(child, kind, share); err != nil {
			return err
		}
	}
	return nil
}
