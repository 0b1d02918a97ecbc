// Package rivals finds out who else decides about the CPUs of containers on a node. Two of
// them undo each other's work: the kubelet's static CPU manager writes its own CPUs back
// every 10 s.
package rivals

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/kernel"
)

// Rival is somebody else who sets CPUs or memory nodes of containers.
type Rival struct {
	Who    string // "the kubelet's CPU manager"
	Why    string // what says so
	Remedy string // what to change
	Unsure bool   // only the name of a process says so, of one that nothing shows to set CPUs
}

// Error says all of it.
func (r *Rival) Error() string {
	return fmt.Sprintf("%s sets CPUs of containers, too (%s): %s", r.Who, r.Why, r.Remedy)
}

// maxState is how much of a state file is read, in bytes.
const maxState = 16 << 20

// Find looks for all that it knows, below the root of a host's files.
func Find(host fs.FS) (all []Rival, err error) {
	programs, dirs, err := running(host)
	errs := []error{err}
	for _, dir := range dirs {
		for _, m := range []struct{ file, who, field, none string }{
			{"cpu_manager_state", "the kubelet's CPU manager", "cpuManagerPolicy", "none"},
			{"memory_manager_state", "the kubelet's memory manager", "memoryManagerPolicy", "None"},
		} {
			file := path.Join(dir, m.file)
			policy, ok, err := policyOf(host, file)
			if err != nil {
				errs = append(errs, err)
			}
			if ok && !strings.EqualFold(policy, "none") {
				all = append(all, Rival{Who: m.who, Why: fmt.Sprintf("/%s has policy %q", file, policy), Remedy: fmt.Sprintf(
					"drain the node, set %s: %s in the kubelet's configuration, remove /%s, and start the kubelet again", m.field, m.none, file)})
			}
		}
	}
	all = append(all, plugins(host)...)
	return append(all, programs...), errors.Join(errs...)
}

// kubeletDir is where the kubelet has its state unless --root-dir says another directory.
const kubeletDir = "var/lib/kubelet"

// process is what a process may do: anybody names programs as he likes. Root writes to control
// groups by the modes of their files, without a capability, wherever it sees them.
type process struct {
	root     bool // its user is root, of the host's users, in all respects
	admin    bool // and it has CAP_SYS_ADMIN, as services and privileged pods have
	hostPIDs bool // it is in no PID namespace but the host's, as are services and pods that manage a host
}

// manages reports whether it is root and more than any pod: a service, a privileged pod, or one
// that sees the host's processes.
func (p process) manages() bool { return p.root && (p.admin || p.hostPIDs) }

// capSysAdmin is the bit of CAP_SYS_ADMIN (capabilities(7)).
const capSysAdmin = 21

// processOf reads status and uid_map of a process (user_namespaces(7)): its map is that of the
// first process only in the user namespace of the host, which need not be the first of the
// kernel. A link in ns would tell, too, but only those who may trace the process.
func processOf(host fs.FS, pid string) (p process) {
	status, _ := fs.ReadFile(host, path.Join("proc", pid, "status"))
	users, _ := fs.ReadFile(host, path.Join("proc", pid, "uid_map"))
	first, _ := fs.ReadFile(host, "proc/1/uid_map")
	var root, admin bool
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		switch fields := strings.Fields(value); {
		case len(fields) == 0:
		case key == "Uid": // real, effective, saved, of file systems
			root = slices.Equal(fields, []string{"0", "0", "0", "0"})
		case key == "CapEff":
			caps, err := strconv.ParseUint(fields[0], 16, 64)
			admin = err == nil && caps&(1<<capSysAdmin) != 0
		case key == "NSpid": // its numbers, one in each PID namespace that it is in
			p.hostPIDs = len(fields) == 1
		}
	}
	p.root = root && len(users) > 0 && bytes.Equal(users, first)
	p.admin = p.root && admin
	return p
}

// The programs whose pods need no capabilities, as the kernel calls them: nri-plugins' policies and
// Intel's daemon; and what of the host they work through.
const policyPlugin, controlPlane = "nri-resource-po", "ctlplane"

var worksThrough = map[string]string{
	policyPlugin: "run/nri",       // where runtimes listen for plugins, which write for them
	controlPlane: "sys/fs/cgroup", // whose files root may write
}

// sees reports whether a process sees a directory of the host: its pod was given it.
func sees(host fs.FS, pid, name string) bool {
	hosts, _ := kernel.ReadMountsOf(host, "1") // what cannot be read shows nothing
	dir := kernel.MountOf(hosts, name)
	if dir == nil {
		return false
	}
	rel := "/" + name
	if dir.Dir != "." {
		rel = strings.TrimPrefix(rel, "/"+dir.Dir)
	}
	of := path.Join(dir.Root, rel) // in its file system
	its, _ := kernel.ReadMountsOf(host, pid)
	return slices.ContainsFunc(its, func(m kernel.Mount) bool { return m.Device == dir.Device && kernel.Within(of, m.Root) })
}

// rootDir is the directory of a kubelet's state, "" if it is that of all others. Of a flag that is
// given twice, the last counts.
func rootDir(host fs.FS, pid string) (dir string) {
	text, _ := fs.ReadFile(host, path.Join("proc", pid, "cmdline"))
	args := strings.Split(string(text), "\x00")
	for i, arg := range args {
		flag, value, has := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if flag != "root-dir" || !strings.HasPrefix(arg, "-") {
			continue
		}
		if !has && i+1 < len(args) {
			value = args[i+1]
		}
		dir = strings.TrimPrefix(path.Clean(value), "/")
		if !path.IsAbs(value) || !fs.ValidPath(dir) {
			dir = ""
		}
	}
	return dir
}

// policyOf reads the policy from a checkpoint of the kubelet. All of its versions have it
// at the top.
func policyOf(host fs.FS, name string) (policy string, ok bool, err error) {
	info, err := fs.Stat(host, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxState) {
		err = fmt.Errorf("%s of %d bytes is no state of a kubelet", info.Mode(), info.Size())
	}
	var text []byte
	if err == nil {
		text, err = fs.ReadFile(host, name)
	}
	var state struct {
		Policy string `json:"policyName"`
	}
	if err == nil {
		err = json.Unmarshal(text, &state)
	}
	if err != nil {
		return "", false, fmt.Errorf("read /%s: %w", name, err)
	}
	return state.Policy, state.Policy != "", nil
}

// plugins are NRI plugins that the runtime starts itself and that are known to set CPUs.
func plugins(host fs.FS) (all []Rival) {
	const dir = "opt/nri/plugins"
	entries, _ := fs.ReadDir(host, dir) // mostly there is none
	for _, e := range entries {
		if known(e.Name()) {
			all = append(all, Rival{Who: "NRI plugin " + e.Name(), Why: "it is in /" + dir, Remedy: "remove it, and start the runtime again"})
		}
	}
	return all
}

func known(plugin string) bool {
	return slices.ContainsFunc([]string{"resource-policy", "topology-aware", "balloons"}, func(name string) bool { return strings.Contains(plugin, name) })
}

// running are programs, by the names that the kernel has: 15 letters of them. dirs are those with
// the state of kubelets.
func running(host fs.FS) (all []Rival, dirs []string, err error) {
	dirs = []string{kubeletDir}
	programs := map[string]Rival{
		"koordlet":   {Who: "Koordinator's koordlet", Remedy: "remove the koordlet from this node, or switch its features CPUSetAllocator and BECPUSuppress off and start with --beside-others"},
		policyPlugin: {Who: "an NRI resource policy plugin", Remedy: "remove nri-plugins from this node"},
		"cri-resmgr": {Who: "CRI Resource Manager", Remedy: "have the kubelet use the runtime's own socket, and end cri-resmgr"},
		controlPlane: {Who: "Intel's CPU control plane", Remedy: "remove it from this node"},
	}
	profile, _ := fs.ReadFile(host, "etc/tuned/active_profile")
	if p := strings.TrimSpace(string(profile)); strings.Contains(p, "cpu-partitioning") || strings.HasPrefix(p, "realtime") {
		programs["tuned"] = Rival{Who: "tuned", Remedy: fmt.Sprintf("choose a profile that does not partition CPUs instead of %q", p)}
	}
	entries, err := fs.ReadDir(host, "proc")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, dirs, nil
	}
	for _, e := range entries {
		if strings.Trim(e.Name(), "0123456789") != "" {
			continue
		}
		comm, err := fs.ReadFile(host, path.Join("proc", e.Name(), "comm"))
		if err != nil {
			continue // it has ended
		}
		name := strings.TrimSpace(string(comm))
		r, rival := programs[name]
		if !rival && name != "kubelet" {
			continue
		}
		switch p := processOf(host, e.Name()); {
		case rival:
			r.Why = "process " + e.Name()
			door, has := worksThrough[name]
			r.Unsure = !p.manages() && !(has && p.root && sees(host, e.Name(), door))
			all = append(all, r)
		case p.admin && p.hostPIDs: // a path of a container's is none of the host's
			if dir := rootDir(host, e.Name()); dir != "" && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return all, dirs, err
}
