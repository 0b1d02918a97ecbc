package vmtest

import (
	"fmt"
	"math/bits"
	"strings"
)

// The numbers of the files that QEMU inherits.
const (
	consoleFD = 3 + iota
	outFD
	resultFD
	initrdFD
	diskFD
)

// cpuModel has what guests need under emulation: AMD's models show wrong cache
// and thread lists there.
const cpuModel = "SapphireRapids"

// cpuFlags keep QEMU from complaining of what it does not emulate, and kernels from
// copying byte by byte: real CPUs are quick at "rep movsb", emulated ones are not.
const cpuFlags = "check=off,erms=off,fsrm=off"

// bootArgs quieten and shorten the boot. maxcpus=1 leaves the CPUs to vminit,
// panic=-1 with -no-reboot makes a panic end QEMU.
const bootArgs = "console=ttyS0 quiet loglevel=3 panic=-1 psi=1 rdinit=/init maxcpus=1 tsc=reliable noreplace-smp mitigations=off " +
	"lsm=capability cryptomgr.notests rcupdate.rcu_expedited=1 nmi_watchdog=0 random.trust_cpu=on"

// arguments returns QEMU's arguments for a valid machine.
func (k *Kit) arguments(m Machine, job Job) []string {
	m = m.normal()
	var args []string
	add := func(a ...string) { args = append(args, a...) }
	for _, dir := range k.Firmware {
		add("-L", dir)
	}
	add("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")
	boot := bootArgs
	switch {
	case m.VirtualTime:
		add("-accel", "tcg,thread=single", "-icount", fmt.Sprintf("shift=%d,sleep=off", bits.TrailingZeros(uint(m.Instruction))))
	case k.KVM:
		add("-accel", "kvm")
	default:
		add("-accel", "tcg,thread=single")
		if k.TSCKHz > 0 {
			// A kernel that is interrupted while it measures this against the PIT
			// takes it for too low, and its clock then runs up to ten times too fast:
			// arch/x86/kernel/tsc.c prefers that to what the HPET says.
			boot += fmt.Sprintf(" tsc_early_khz=%d", k.TSCKHz)
		}
	}
	add(m.arguments()...)
	add("-kernel", job.Kernel.Image, "-initrd", fdPath(initrdFD))
	add("-append", strings.TrimSpace(boot+" "+job.Boot))
	if job.Disk != "" {
		add("-drive", "file="+job.Disk+",format=raw,if=virtio,snapshot=on")
	}
	if d := m.Disk; d != nil {
		add("-drive", fmt.Sprintf("file=%s,format=raw,if=none,id=disk,throttling.iops-total=%d", fdPath(diskFD), d.IOPS))
		add("-device", fmt.Sprintf("virtio-blk-pci,drive=disk,num-queues=1,queue-size=%d", d.Depth))
	}
	add(chardev("console", consoleFD)...)
	add("-serial", "chardev:console", "-device", "virtio-serial-pci")
	add(chardev(OutPort, outFD)...)
	add("-device", "virtserialport,chardev="+OutPort+",name="+OutPort)
	add(chardev(ResultPort, resultFD)...)
	add("-device", "virtserialport,chardev="+ResultPort+",name="+ResultPort)
	return args
}

func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// chardev writes to an inherited file.
func chardev(id string, fd int) []string {
	return []string{
		"-add-fd", fmt.Sprintf("fd=%d,set=%d", fd, fd),
		"-chardev", fmt.Sprintf("file,id=%s,path=/dev/fdset/%d,append=on", id, fd),
	}
}

// arguments returns the arguments that make a normal machine.
func (m Machine) arguments() []string {
	board := "q35"
	if m.L3 == PerModule {
		board += ",smp-cache.0.cache=l3,smp-cache.0.topology=module"
	}
	args := []string{"-machine", board, "-cpu", cpuModel + "," + cpuFlags, "-smp", m.smp()}
	args = append(args, m.memory()...)
	args = append(args, m.singleThreads()...)
	if len(m.MaxKHz) > 0 {
		args = append(args, "-device", "pc-testdev") // the registers of the frequency tables
	}
	return args
}

func (m Machine) smp() string {
	cpus := fmt.Sprintf("%d", m.positions())
	if !m.SingleThread.IsEmpty() {
		cpus = "1,maxcpus=" + cpus
	}
	s := fmt.Sprintf("%s,sockets=%d,dies=%d,cores=%d,threads=%d", cpus, m.Sockets, m.Dies, m.Cores, m.Threads)
	if m.Modules > 1 {
		s += fmt.Sprintf(",modules=%d", m.Modules)
	}
	return s
}

// memory places memory on nodes. All nodes come before the first distance.
func (m Machine) memory() []string {
	if len(m.Nodes) == 0 {
		return []string{"-m", fmt.Sprint(m.MiB)}
	}
	var args []string
	total := 0
	for i, node := range m.Nodes {
		total += node.MiB
		numa := fmt.Sprintf("node,nodeid=%d,memdev=m%d", i, i)
		for cpu := range node.CPUs.All() {
			numa += fmt.Sprintf(",cpus=%d", cpu)
		}
		args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=m%d,size=%dM", i, node.MiB), "-numa", numa)
	}
	for i, row := range m.Distances {
		for j, d := range row {
			args = append(args, "-numa", fmt.Sprintf("dist,src=%d,dst=%d,val=%d", i, j, d))
		}
	}
	return append(args, "-m", fmt.Sprint(total))
}

// singleThreads plugs in all CPUs but the first where some are missing.
func (m Machine) singleThreads() []string {
	if m.SingleThread.IsEmpty() {
		return nil
	}
	var args []string
	for _, c := range m.CPUs()[1:] {
		device := fmt.Sprintf("%s-x86_64-cpu,%s,socket-id=%d,die-id=%d,core-id=%d,thread-id=%d",
			cpuModel, cpuFlags, c.Socket, c.Die%m.Dies, c.Core%m.Cores, c.Thread)
		if m.Modules > 1 {
			device += fmt.Sprintf(",module-id=%d", c.Module%m.Modules)
		}
		args = append(args, "-device", device)
	}
	return args
}
