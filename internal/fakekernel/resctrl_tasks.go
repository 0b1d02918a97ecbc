package fakekernel

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// writeTasks: "Tasks will be assigned sequentially. [...] A single failure encountered while
// attempting to assign a task will cause the operation to abort and already added tasks
// before the failure will remain in the group."
func (k *Kernel) writeTasks(dir, data string) error {
	ids := strings.Split(data, ",")
	if k.layout.Resctrl.Single && len(ids) > 1 {
		return syscall.EINVAL
	}
	if len(data) > 4095 {
		return syscall.E2BIG
	}
	// One look at all groups, as a list of a thousand is to take no second.
	holder := map[string]string{}
	for _, g := range k.allResctrlGroups() {
		for _, id := range strings.Fields(k.get(g, "tasks")) {
			holder[id] = g
		}
	}
	took := map[string]bool{}
	move := func() error {
		changed := map[string]bool{dir: true}
		for id := range took {
			changed[holder[id]] = true
		}
		for g := range changed {
			lines := slices.DeleteFunc(strings.Fields(k.get(g, "tasks")), func(id string) bool { return took[id] })
			if g == dir {
				for _, id := range ids {
					if took[strings.TrimSpace(id)] {
						lines = append(lines, strings.TrimSpace(id))
					}
				}
			}
			if err := k.put(g+"/tasks", strings.Join(lines, "\n")); err != nil {
				return err
			}
		}
		return nil
	}
	parent, monitors := k.parentOf(dir)
	for _, id := range ids {
		id = strings.TrimSpace(id)
		if n, err := strconv.Atoi(id); err != nil || n < 0 {
			return errors.Join(k.status(syscall.EINVAL, "Task list parsing error pid %s", id), move())
		}
		if holder[id] == "" {
			return errors.Join(k.status(syscall.ESRCH, "No task %s\nError while processing task %s", id, id), move())
		}
		if in, _ := k.parentOf(holder[id]); monitors && in != parent {
			return errors.Join(k.status(syscall.EINVAL, "Can't move task to different control group\nError while processing task %s", id), move())
		}
		took[id] = true
	}
	return move()
}

// parentOf is the group that allocates around a group, and whether that is another one.
func (k *Kernel) parentOf(dir string) (string, bool) {
	if path.Base(path.Dir(dir)) == "mon_groups" {
		return path.Dir(path.Dir(dir)), true
	}
	return dir, false
}

func (k *Kernel) allResctrlGroups() (all []string) {
	for _, g := range k.resctrlGroups() {
		all = append(append(all, g), k.children(g+"/mon_groups")...)
	}
	return all
}

func (k *Kernel) addTask(dir, id string) error {
	return k.put(dir+"/tasks", strings.TrimSpace(k.get(dir, "tasks")+"\n"+id))
}

func (k *Kernel) removeTask(id string) {
	for _, g := range k.allResctrlGroups() {
		ids := strings.Fields(k.get(g, "tasks"))
		if i := slices.Index(ids, id); i >= 0 {
			_ = k.put(g+"/tasks", strings.Join(slices.Delete(ids, i, i+1), "\n"))
		}
	}
}

// Fork has a task make another one, which starts in its group.
func (k *Kernel) Fork(parent, child string) error {
	for _, g := range k.allResctrlGroups() {
		if slices.Contains(strings.Fields(k.get(g, "tasks")), parent) {
			return k.addTask(g, child)
		}
	}
	return syscall.ESRCH
}
