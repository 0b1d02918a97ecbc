package fakekernel

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// attach moves a process within a hierarchy.
func (k *Kernel) attach(m mount, dir, pid string) error {
	if _, err := strconv.ParseUint(pid, 10, 31); err != nil {
		return syscall.EINVAL
	}
	if _, err := os.Stat(k.real("proc/" + pid)); err != nil {
		return syscall.ESRCH
	}
	if m.has("cpuset") && m.version == 1 && (k.get(dir, "cpuset.cpus") == "" || k.get(dir, "cpuset.mems") == "") {
		return syscall.ENOSPC
	}
	if kind := k.get(dir, "cgroup.type"); m.version == 2 && kind != "" {
		holds := slices.Contains(strings.Fields(k.get(dir, "cgroup.procs")), pid)
		switch {
		case kind == "domain invalid":
			return syscall.EOPNOTSUPP
		case k.get(dir, "cgroup.subtree_control") != "" && !holds:
			return syscall.EBUSY
		}
	}
	if err := k.removeProcess(m, pid); err != nil {
		return err
	}
	if err := k.addProcess(dir, pid); err != nil {
		return err
	}
	text := k.get("proc/"+pid, "cgroup")
	var lines []string
	for i, mount := range k.mounts() {
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, mount.prefix(i)+":") {
				continue
			}
			if mount.dir == m.dir {
				line = mount.prefix(i) + ":/" + strings.TrimPrefix(strings.TrimPrefix(dir, m.dir), "/")
			}
			lines = append(lines, line)
		}
	}
	return k.put("proc/"+pid+"/cgroup", strings.Join(lines, "\n"))
}

func (k *Kernel) addProcess(dir, pid string) error {
	pids := append(strings.Fields(k.get(dir, "cgroup.procs")), pid)
	slices.Sort(pids)
	return k.setProcs(dir, pids)
}

func (k *Kernel) setProcs(dir string, pids []string) error {
	for _, file := range []string{"cgroup.procs", "tasks"} { // each has one thread
		if file == "tasks" && !k.exists(dir+"/"+file) {
			continue
		}
		if err := k.put(dir+"/"+file, strings.Join(pids, "\n")); err != nil {
			return err
		}
	}
	return k.retype(dir)
}

// removeProcess takes a process out of the group that it is in.
func (k *Kernel) removeProcess(m mount, pid string) error {
	dir := k.holder(m, pid)
	if dir == "" {
		return nil
	}
	pids := strings.Fields(k.get(dir, "cgroup.procs"))
	return k.setProcs(dir, slices.DeleteFunc(pids, func(p string) bool { return p == pid }))
}

// holder returns the group that a process is in, "" if it is in none.
func (k *Kernel) holder(m mount, pid string) string {
	dirs := []string{m.dir}
	for len(dirs) > 0 {
		dir := dirs[0]
		if slices.Contains(strings.Fields(k.get(dir, "cgroup.procs")), pid) {
			return dir
		}
		dirs = append(dirs[1:], k.children(dir)...)
	}
	return ""
}
