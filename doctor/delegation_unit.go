package doctor

import (
	"bytes"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"berth.dev/berth/kernel"
)

// unitDirs are the places in which systemd looks for system units and their
// drop-ins, the most important first (systemd.unit(5), "System Unit Search
// Path"). A file hides one of the same name in a later directory.
func unitDirs() []string {
	return []string{
		"etc/systemd/system.control", "run/systemd/system.control",
		"run/systemd/transient", "run/systemd/generator.early",
		"etc/systemd/system", "etc/systemd/system.attached",
		"run/systemd/system", "run/systemd/system.attached",
		"run/systemd/generator",
		"usr/local/lib/systemd/system", "usr/lib/systemd/system", "lib/systemd/system",
		"run/systemd/generator.late",
	}
}

// DelegationSource is a unit file or drop-in that sets Delegate= for user@.service.
type DelegationSource struct {
	Path string `json:"path"` // relative to the root
	// Values are those of its Delegate= lines, in order.
	Values []string `json:"values"`
}

// sources returns the files that set Delegate= for user@.service in the order
// in which systemd applies them: the unit file, then the drop-ins by rising
// file name whatever their directory.
func (h *host) sources() []DelegationSource {
	list := []DelegationSource{}
	for _, file := range append(h.unitFile(), h.dropIns()...) {
		text, _ := h.text(file)
		if values := delegateValues([]byte(text)); len(values) > 0 {
			list = append(list, DelegationSource{Path: file, Values: values})
		}
	}
	return list
}

// unitFile returns the unit file, if there is one.
func (h *host) unitFile() []string {
	for _, dir := range unitDirs() {
		file := path.Join(dir, "user@.service")
		if _, there := h.lstat(file); there {
			return []string{file}
		}
	}
	return nil
}

// dropIns returns the *.conf files that apply to every instance of
// user@.service, by rising name. Those of user@.service.d hide ones of the same
// name in service.d, those of an earlier unit directory hide ones of a later.
// Drop-ins of one instance (user@1000.service.d) are ignored: their effect
// shows in the controllers of the instance.
func (h *host) dropIns() (files []string) {
	byName := map[string]string{}
	for _, name := range []string{"user@.service.d", "service.d"} {
		for _, dir := range unitDirs() {
			dir = path.Join(dir, name)
			entries, err := fs.ReadDir(h.fsys, dir)
			h.fail(kernel.IgnoreAbsent(err))
			for _, e := range entries {
				hidden := strings.HasPrefix(e.Name(), ".")
				if _, known := byName[e.Name()]; known || hidden || path.Ext(e.Name()) != ".conf" {
					continue
				}
				byName[e.Name()] = path.Join(dir, e.Name())
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if !h.isMask(byName[name]) {
			files = append(files, byName[name])
		}
	}
	return files
}

// isMask reports whether file is a link to /dev/null, which hides the drop-ins
// of its name and says nothing itself.
func (h *host) isMask(file string) bool {
	info, there := h.lstat(file)
	if !there || info.Mode().Type() != fs.ModeSymlink {
		return false
	}
	target, err := fs.ReadLink(h.fsys, file)
	h.fail(err)
	return target == "/dev/null"
}

// delegateValues returns the values of the Delegate= lines of the [Service]
// section, as systemd.syntax(7) reads a unit file: a backslash at its end joins
// a line with the next, comment lines inside of such a join are dropped.
func delegateValues(text []byte) []string {
	var values []string
	section, joined := "", ""
	for line := range bytes.Lines(text) {
		s := strings.TrimSpace(string(line))
		if strings.HasPrefix(s, "#") || strings.HasPrefix(s, ";") {
			continue
		}
		if rest, more := strings.CutSuffix(s, `\`); more {
			joined += rest + " "
			continue
		}
		s, joined = strings.TrimSpace(joined+s), ""
		if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
			section = s[1 : len(s)-1]
			continue
		}
		key, value, isPair := strings.Cut(s, "=")
		if isPair && section == "Service" && strings.TrimSpace(key) == "Delegate" {
			values = append(values, strings.TrimSpace(value))
		}
	}
	return values
}

// merge returns the controllers, sorted, that a run of Delegate= values ends
// in (systemd.resource-control(5)): a list adds to the ones before, an empty
// value or "no" drops them, "yes" means all. Words that name no controller are
// ignored, as systemd does with a warning.
func merge(values []string) []string {
	set := map[string]bool{}
	for _, value := range values {
		switch strings.ToLower(value) {
		case "", "0", "no", "n", "false", "f", "off":
			clear(set)
		case "1", "yes", "y", "true", "t", "on":
			for _, c := range wanted() {
				set[c] = true
			}
		default:
			for word := range strings.FieldsSeq(value) {
				if word = strings.Trim(word, `"'`); slices.Contains(wanted(), word) {
					set[word] = true
				}
			}
		}
	}
	list := slices.AppendSeq([]string{}, maps.Keys(set))
	slices.Sort(list)
	return list
}

// wanted returns the controllers that the drop-in delegates, sorted: all of the v2
// hierarchy that Delegate= can name.
func wanted() []string { return []string{"cpu", "cpuset", "io", "memory", "pids"} }
