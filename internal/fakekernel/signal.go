package fakekernel

import (
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// pending is there while a process that SIGKILL has been sent to cannot end yet.
const pending = "pending-sigkill"

// Signal ends a process of this kernel with SIGKILL, at once or, where it waits in the
// kernel (Block) or is frozen by a v1 group, as soon as it does not any more. Other
// signals do nothing. It reaches no process of the real one.
func (k *Kernel) Signal(pid int, sig syscall.Signal) error {
	id := strconv.Itoa(pid)
	if !k.exists("proc/" + id) {
		return syscall.ESRCH
	}
	if sig != syscall.SIGKILL {
		return nil
	}
	err := k.create("proc/"+id+"/"+pending, "")
	if err == nil {
		err = k.end(id)
	}
	if err != nil && !k.exists("proc/"+id) {
		return syscall.ESRCH // Wake has ended it meanwhile
	}
	return err
}

// Block has a process wait in the kernel, uninterruptibly (state D): SIGKILL ends it once
// Wake was called.
func (k *Kernel) Block(pid string) error { return k.state(pid, " D ") }

// Wake ends the wait of Block.
func (k *Kernel) Wake(pid string) error {
	if err := k.state(pid, " S "); err != nil {
		return err
	}
	return k.end(pid)
}

// state puts a process into a state of proc_pid_stat(5).
func (k *Kernel) state(pid, state string) error {
	name, text := "proc/"+pid+"/stat", k.get("proc/"+pid, "stat")
	i := strings.LastIndexByte(text, ')') + 1
	return k.put(name, text[:i]+state+text[i+3:])
}

// end ends a process that SIGKILL was sent to, if it can.
func (k *Kernel) end(pid string) error {
	if !k.exists("proc/"+pid+"/"+pending) || strings.Contains(k.get("proc/"+pid, "stat"), ") D ") {
		return nil
	}
	for _, m := range k.mounts() {
		if dir := k.holder(m, pid); m.version == 1 && dir != "" && k.frozen(m, dir) {
			return nil
		}
	}
	return k.Exit(pid)
}

// frozen reports whether a v1 group or one around it is frozen.
func (k *Kernel) frozen(m mount, dir string) bool {
	for ; strings.HasPrefix(dir, m.dir+"/"); dir = path.Dir(dir) {
		if k.get(dir, "freezer.state") == "FROZEN" {
			return true
		}
	}
	return false
}

// thaw ends the processes of a group and below it that only waited for that.
func (k *Kernel) thaw(dir string) error {
	for _, pid := range strings.Fields(k.get(dir, "cgroup.procs")) {
		if err := k.end(pid); err != nil {
			return err
		}
	}
	for _, child := range k.children(dir) {
		if err := k.thaw(child); err != nil {
			return err
		}
	}
	return nil
}

// kill sends SIGKILL to what is in a group and below it.
func (k *Kernel) kill(dir string) error {
	for _, text := range strings.Fields(k.get(dir, "cgroup.procs")) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		if err := k.Signal(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	for _, child := range k.children(dir) {
		if err := k.kill(child); err != nil {
			return err
		}
	}
	return nil
}

// Reuse ends a process and starts another one with its number, in the layout's own
// group.
func (k *Kernel) Reuse(pid string) error {
	if err := k.Exit(pid); err != nil {
		return err
	}
	if err := k.Start(pid); err != nil {
		return err
	}
	text, err := os.ReadFile(k.real("proc/" + pid + "/stat"))
	if err != nil {
		return err
	}
	return k.put("proc/"+pid+"/stat", strings.TrimSpace(string(text))+"1")
}
