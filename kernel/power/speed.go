package power

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/kernel"
)

// Intel Speed Select (Documentation/admin-guide/pm/intel-speed-select.rst) is a device that takes
// commands, /dev/isst_interface (linux/isst_if.h). As files they are settings as any other.

const (
	speedDir   = cpuDir + "/speed_select"
	speedAll   = speedDir + "/all"
	speedPower = "/core_power"
	speedOrder = "/priority_type"
	speedTurbo = "/turbo_freq"
	speedClos  = "/clos"

	ordered      = "ordered"
	proportional = "proportional"
	// unlike are settings of power domains of one package that differ: no single value is all of them.
	unlike = "differs"
)

// Priorities is how many priorities of cores there are (SST-CP): 0 is served first, 3 last.
const Priorities = 4

// SpeedPackage is what a package of CPUs has of Intel Speed Select.
type SpeedPackage struct {
	ID int `json:"id"`
	// CorePower says whether priorities of cores count (SST-CP), "0" or "1"; "" where the processor
	// has none.
	CorePower string `json:"corePower"`
	// Order says how they count: "ordered", the lower number first, or "proportional", by weights.
	Order string `json:"order"`
	// Turbo says whether cores of priority 0 and 1 may run faster at the cost of the others
	// (SST-TF), "0" or "1"; "" where the performance level has none.
	Turbo string `json:"turbo"`
	// Priority is that of each online CPU: the number of the class of service of its core.
	Priority map[int]int `json:"priority"`
	// Most is the highest clock of cores of each priority, in kHz; 0 is not known.
	Most [Priorities]int `json:"most"`
	// Domains are the power domains: turbo counts the cores of each by themselves.
	Domains []SpeedDomain `json:"domains"`
}

// SpeedDomain is a power domain of a package.
type SpeedDomain struct {
	CPUs cpuset.Set `json:"cpus"`
	// HighCores is for how many cores of priority 0 and 1 turbo has a clock; 0 is not known.
	HighCores int `json:"highCores"`
}

// SpeedCalls are the commands of Intel Speed Select. Where there is no device the errors are
// fs.ErrNotExist, and fs.ErrPermission where this user may not use it. What is said of a CPU
// that is offline is EBUSY.
type SpeedCalls interface {
	// Packages returns all packages, by number.
	Packages() ([]SpeedPackage, error)
	// Priority returns that of a CPU.
	Priority(cpu int) (int, error)
	// SetPriority gives one to the core of a CPU, with all its CPUs.
	SetPriority(cpu, priority int) error
	// SetCorePower has the priorities of a package count, or not.
	SetCorePower(pkg int, on bool) error
	// SetOrder says how they count.
	SetOrder(pkg int, ordered bool) error
	// SetTurbo switches turbo by priority.
	SetTurbo(pkg int, on bool) error
}

// Over returns a root that has, beside the kernel's own files:
//
//	sys/devices/system/cpu/speed_select/all                      all packages, as JSON
//	sys/devices/system/cpu/speed_select/package0/core_power      0 or 1
//	sys/devices/system/cpu/speed_select/package0/priority_type   ordered, or proportional
//	sys/devices/system/cpu/speed_select/package0/turbo_freq      0 or 1
//	sys/devices/system/cpu/speed_select/cpu4/clos                0 to 3
//
// Only the live host has any. A root that has them already stays as it is.
func Over(root *kernel.Root) *kernel.Root {
	if _, err := fs.Stat(root.FS(), speedDir); err == nil || !root.IsLive() {
		return root
	}
	return Lay(root, &library{online: func() string {
		text, _ := fs.ReadFile(root.FS(), cpuDir+"/online")
		return string(text)
	}})
}

// Lay is Over with given calls, for a test that plays the device.
func Lay(root *kernel.Root, calls SpeedCalls) *kernel.Root { return root.Lay(speedFiles{calls}) }

// speedFiles are the kernel.Overlay.
type speedFiles struct{ calls SpeedCalls }

// Has implements kernel.Overlay.
func (speedFiles) Has(name string) bool { return kernel.Within(name, speedDir) }

// Stat implements kernel.Overlay.
func (f speedFiles) Stat(name string) (inode uint64, dir bool, err error) {
	if name == speedDir {
		return 0, true, nil
	}
	_, err = f.Read(name)
	return 0, false, err
}

// speedFile takes a name apart: the file, and the number of its package or CPU.
func speedFile(name string) (file string, number int, err error) {
	dir, base := path.Split(strings.TrimPrefix(name, speedDir))
	file, kind := "/"+base, "package"
	if file == speedClos {
		kind = "cpu"
	}
	number, err = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(dir, "/"+kind), "/"))
	if known := []string{speedPower, speedOrder, speedTurbo, speedClos}; err != nil || number < 0 || !slices.Contains(known, file) {
		return "", 0, fs.ErrNotExist
	}
	return file, number, nil
}

// Read implements kernel.Overlay.
func (f speedFiles) Read(name string) (string, error) {
	if name == speedAll {
		all, err := f.calls.Packages()
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(all)
		return string(text), err
	}
	file, number, err := speedFile(name)
	if err != nil {
		return "", err
	}
	if file == speedClos {
		priority, err := f.calls.Priority(number)
		return strconv.Itoa(priority), unloaded(err)
	}
	all, err := f.calls.Packages()
	if err != nil {
		return "", unloaded(err)
	}
	i := slices.IndexFunc(all, func(p SpeedPackage) bool { return p.ID == number })
	if i < 0 {
		return "", errNoCPU
	}
	text := map[string]string{speedPower: all[i].CorePower, speedOrder: all[i].Order, speedTurbo: all[i].Turbo}[file]
	if text == "" {
		return "", fs.ErrNotExist
	}
	return text, nil
}

// Write implements kernel.Overlay.
func (f speedFiles) Write(name, text string) error {
	file, number, err := speedFile(name)
	if err != nil {
		return err
	}
	text = strings.TrimSpace(text)
	either := func(off, on string, set func(int, bool) error) error {
		if text != off && text != on {
			return fmt.Errorf("%q is neither %s nor %s: %w", text, off, on, syscall.EINVAL)
		}
		return unloaded(set(number, text == on))
	}
	switch file {
	case speedPower:
		return either("0", "1", f.calls.SetCorePower)
	case speedOrder:
		return either(proportional, ordered, f.calls.SetOrder)
	case speedTurbo:
		return either("0", "1", f.calls.SetTurbo)
	}
	priority, err := strconv.Atoi(text)
	if err != nil || priority < 0 || priority >= Priorities {
		return fmt.Errorf("%q is no priority, 0 to %d: %w", text, Priorities-1, syscall.EINVAL)
	}
	return unloaded(f.calls.SetPriority(number, priority))
}

// errNoCPU is of a package whose CPUs are all offline: it keeps what was set.
var errNoCPU = fmt.Errorf("no CPU of the package is online: %w", syscall.EBUSY)

// unloaded has what is set outlast the device: it is not gone with it, and can be restored once that is
// back.
func unloaded(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("/dev/isst_interface is not there any more, load its module: %w", syscall.ENXIO)
	}
	return err
}

func (p SpeedPackage) file(name string) string {
	return fmt.Sprintf("%s/package%d%s", speedDir, p.ID, name)
}

func closFile(cpu int) string { return fmt.Sprintf("%s/cpu%d%s", speedDir, cpu, speedClos) }

// LacksSpeed returns why there is no Intel Speed Select; nil if there is.
func (h *Host) LacksSpeed() *kernel.NotSupportedError { return h.noSpeed }

// speed reads Intel Speed Select. A device that cannot be read is a host without: its other
// settings are there all the same.
func (r *reader) speed() ([]SpeedPackage, *kernel.NotSupportedError) {
	lacks := &kernel.NotSupportedError{Feature: "priorities of cores (Intel Speed Select)"}
	text, err := fs.ReadFile(r.fs, speedAll)
	var all []SpeedPackage
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		lacks.Reason = "there is no /dev/isst_interface"
		lacks.Remedy = "on a server of Intel that has it load isst_if_mbox_pci and isst_if_mmio, or isst_tpmi; a virtual machine has none"
	case errors.Is(err, fs.ErrPermission):
		lacks.Reason, lacks.Remedy = "this user may not use /dev/isst_interface", "run as root, with CAP_SYS_ADMIN"
	case err != nil:
		lacks.Reason, lacks.Remedy = "/dev/isst_interface: "+err.Error(), "see what intel-speed-select --info says"
	case len(all) == 0:
		lacks.Reason = "no package has it"
	default:
		return all, nil
	}
	return nil, lacks
}
