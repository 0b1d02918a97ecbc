package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// DelegationSchema names the version of Delegation in JSON; docs/doctor.md documents it.
const DelegationSchema = "berth.dev/doctor/delegation/v1"

// DelegationState is the one word that says how things stand.
type DelegationState string

// The states.
const (
	// DelegationApplied: every user manager that runs has all the controllers, and the
	// configuration says so too.
	DelegationApplied DelegationState = "applied"
	// DelegationInstalled: the configuration says so, but no manager shows it yet.
	DelegationInstalled DelegationState = "installed but not yet applied"
	// DelegationAbsent: the configuration does not delegate all of them.
	DelegationAbsent DelegationState = "absent"
	// DelegationCustomised: another writer changed Berth's drop-in, and it does not lead
	// to DelegationApplied.
	DelegationCustomised DelegationState = "customised"
	// DelegationNotApplicable: without systemd or cgroup v2 there is nothing to delegate.
	DelegationNotApplicable DelegationState = "not applicable"
)

// UserManager is a user manager that runs.
type UserManager struct {
	Unit string `json:"unit"` // "user@1000.service"
	// Controllers is its cgroup.controllers, sorted.
	Controllers []string `json:"controllers"`
	// Missing are the wanted ones that it lacks though the kernel offers them.
	Missing []string `json:"missing"`
}

// Delegation is how things stand with the systemd drop-in that lets ordinary users
// divide their share of CPUs, memory and I/O among groups of their own, on a host or
// in the tree of one.
//
// systemd runs one manager per user, user@UID.service. By default it hands that
// manager only some controllers (cpu, memory and pids in recent versions), so
// that rootless containers can neither be pinned nor limited in I/O. A drop-in
// user@.service.d/*.conf with Delegate= changes that for all users.
//
// InspectDelegation looks, Enable and Disable decide, DelegationChange.Apply writes.
// Telling systemd to reload is left to the caller.
type Delegation struct {
	Schema string          `json:"schema"`
	State  DelegationState `json:"state"`
	Reason string          `json:"reason"`
	Remedy string          `json:"remedy,omitempty"`
	Path   string          `json:"path"`
	File   FileState       `json:"file"`
	// Wanted are the controllers that ought to be delegated, Configured those
	// that the unit and its drop-ins, Sources, delegate when merged.
	Wanted     []string           `json:"wanted"`
	Configured []string           `json:"configured"`
	Sources    []DelegationSource `json:"sources"`
	// Running says that systemd is PID 1; false for the tree of an image.
	Running bool `json:"running"`
	// Version is systemd's, 0 if unknown.
	Version int `json:"version,omitempty"`
	// Offered are the wanted controllers that the kernel has in its v2
	// hierarchy; nil where that is not mounted.
	Offered []string `json:"offered"`
	// Managers are the user managers that run.
	Managers []UserManager `json:"managers"`

	text      []byte // the drop-in's, nil where absent
	dirExists bool
}

// InspectDelegation looks at the tree fsys. v2 is where the v2 hierarchy is
// mounted, relative to the tree's top ("sys/fs/cgroup"), "" where it is not. A tree that
// shows no process 1 is taken for an image that systemd will boot.
func InspectDelegation(fsys fs.FS, v2 string) (Delegation, error) {
	h := &host{fsys: fsys}
	s := h.delegation(v2)
	return s, h.err
}

func (h *host) delegation(v2 string) Delegation {
	s := Delegation{
		Schema: DelegationSchema, Path: DelegationPath, Wanted: wanted(), Managers: []UserManager{}, Sources: h.sources(),
		Running: h.systemd(), Version: h.systemdVersion(), dirExists: h.exists(path.Dir(DelegationPath)),
	}
	s.File, s.text = h.dropInFile()
	var values []string
	for _, source := range s.Sources {
		values = append(values, source.Values...)
	}
	s.Configured = merge(values)
	if s.Running && v2 != "" {
		offered, _ := h.controllers(v2)
		s.Offered = minus(wanted(), lacking(offered))
		for _, dir := range h.glob(path.Join(v2, "user.slice/user-*.slice/user@*.service")) {
			if has, there := h.controllers(dir); there {
				s.Managers = append(s.Managers, UserManager{Unit: path.Base(dir), Controllers: has, Missing: minus(s.Offered, has)})
			}
		}
	}
	init, _ := h.text("proc/1/comm")
	s.judge(init)
	return s
}

func (s *Delegation) judge(init string) {
	lack := lacking(s.Configured)
	behind := s.behind()
	reload := "systemctl daemon-reload; where that does not help, log out everywhere and in again"
	switch {
	case init != "" && !s.Running:
		s.set(DelegationNotApplicable, fmt.Sprintf("process 1 is %s, not systemd: there are no user managers", init), "")
	case s.Running && len(s.Offered) == 0:
		s.set(DelegationNotApplicable, "cgroup v2 offers no controllers here, and v1 has no safe delegation",
			"boot with systemd.unified_cgroup_hierarchy=1 (kernel command line)")
	case len(lack) == 0 && len(s.Managers) > 0 && len(behind) == 0:
		s.set(DelegationApplied, fmt.Sprintf("%s: %s", count(len(s.Managers), "user manager has", "user managers have"),
			strings.Join(s.Offered, " ")), "")
		s.noteUnoffered()
	case s.File == FileCustomised:
		s.set(DelegationCustomised, "/"+DelegationPath+" is not as Berth wrote it"+s.lackClause(lack),
			"see what it says; to have Berth's again, move it away and run: berth doctor delegation enable")
	case len(lack) > 0 && s.File != FileAbsent:
		s.set(DelegationInstalled, "a later file takes it back: "+s.sourceNames(), "remove the Delegate= line from the later file")
	case len(lack) > 0:
		s.set(DelegationAbsent, "user@.service"+s.lackClause(lack), "sudo berth doctor delegation enable")
	case !s.Running:
		s.set(DelegationInstalled, "systemd does not run in this tree: it takes effect when the tree is booted", "")
	case len(s.Managers) == 0:
		s.set(DelegationInstalled, "no user manager runs that could show it", "log in as an ordinary user, then look again")
	case s.Version > 0 && s.Version < 244:
		s.set(DelegationInstalled, fmt.Sprintf("systemd %d does not know the controller cpuset", s.Version), "systemd 244 or newer")
	default:
		s.set(DelegationInstalled, fmt.Sprintf("%s without %s", behind[0].Unit, strings.Join(behind[0].Missing, " ")), reload)
	}
}

func (s *Delegation) set(state DelegationState, reason, remedy string) {
	s.State, s.Reason, s.Remedy = state, reason, remedy
}

// noteUnoffered adds the controllers that even a complete delegation cannot give.
func (s *Delegation) noteUnoffered() {
	if lack := lacking(s.Offered); len(lack) > 0 {
		s.Reason += "; the kernel does not offer " + strings.Join(lack, " ") + " in cgroup v2"
	}
}

func (s *Delegation) lackClause(lack []string) string {
	has := strings.Join(s.Configured, " ")
	switch {
	case len(lack) == 0:
		return ", though all is delegated on paper"
	case has == "":
		return " delegates nothing"
	}
	return fmt.Sprintf(" delegates %s, not %s", has, strings.Join(lack, " "))
}

func (s *Delegation) behind() []UserManager {
	return slices.DeleteFunc(slices.Clone(s.Managers), func(m UserManager) bool { return len(m.Missing) == 0 })
}

func (s *Delegation) sourceNames() string {
	names := make([]string, len(s.Sources))
	for i, source := range s.Sources {
		names[i] = "/" + source.Path
	}
	return strings.Join(names, ", ")
}

// controllers returns those of a group, sorted; there is false if it has just gone.
func (h *host) controllers(dir string) (list []string, there bool) {
	text, there := h.text(path.Join(dir, "cgroup.controllers"))
	list = strings.Fields(text)
	slices.Sort(list)
	return list, there
}

// lacking returns the wanted controllers that are not in has.
func lacking(has []string) []string { return minus(wanted(), has) }

func minus(list, drop []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(c string) bool { return slices.Contains(drop, c) })
}
