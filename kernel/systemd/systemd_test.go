package systemd

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
	"berth.dev/berth/kernel"
	"berth.dev/berth/kernel/knob"
)

// fakeBus is a manager that does to a tree what systemd does to the kernel.
type fakeBus struct {
	root  string                       // the tree
	units map[string]map[string]string // by unit: ControlGroup, LoadState, Slice
	set   map[string]any               // by unit and property
	sent  []string
	err   error
	sets  error // of what would set properties
	deaf  bool  // answers and writes nothing
	late  bool  // answers, and writes a moment later
}

func (b *fakeBus) GetUnitPropertyContext(_ context.Context, unit, property string) (*sd.Property, error) {
	return b.get(unit, property)
}

func (b *fakeBus) GetUnitTypePropertyContext(_ context.Context, unit, kind, property string) (*sd.Property, error) {
	if !strings.HasSuffix(unit, "."+strings.ToLower(kind)) {
		return nil, dbus.Error{Name: "org.freedesktop.DBus.Error.UnknownInterface"}
	}
	return b.get(unit, property)
}

func (b *fakeBus) get(unit, property string) (*sd.Property, error) {
	if b.err != nil {
		return nil, b.err
	}
	if v, ok := b.set[unit+" "+property]; ok {
		return &sd.Property{Name: property, Value: dbus.MakeVariant(v)}, nil
	}
	if b.units[unit] == nil && property != "ControlGroup" {
		return nil, dbus.Error{Name: "org.freedesktop.systemd1.NoSuchUnit"}
	}
	return &sd.Property{Name: property, Value: dbus.MakeVariant(b.units[unit][property])}, nil
}

func (b *fakeBus) SetUnitPropertiesContext(_ context.Context, unit string, runtime bool, properties ...sd.Property) error {
	if !runtime {
		return errors.New("not at runtime")
	}
	if b.sets != nil {
		return b.sets
	}
	var values []any
	for _, p := range properties {
		b.set[unit+" "+p.Name] = p.Value.Value()
		b.sent = append(b.sent, unit+" "+p.Name+"="+p.Value.String())
		values = append(values, p.Value.Value())
	}
	group := b.units[unit]["ControlGroup"]
	if b.deaf || group == "" {
		return nil
	}
	if properties[0].Name == accounting {
		lines := filepath.Join(b.root, mount, group, "io.max")
		if properties[0].Value.Value() == true {
			return os.WriteFile(lines, nil, 0o644)
		}
		return os.Remove(lines)
	}
	for name, k := range knobs() {
		if k.properties[0] != properties[0].Name {
			continue
		}
		text, ok := k.decode(values)
		if !ok {
			text = map[string]string{"cpu.weight": "100", "cpu.idle": "0", "cpu.max": "max 100000"}[name]
		}
		if text == "" {
			continue // the kernel keeps a set that it does not clear
		}
		write := func() error {
			return os.WriteFile(filepath.Join(b.root, mount, group, name), []byte(text+"\n"), 0o644)
		}
		if b.late {
			time.AfterFunc(5*time.Millisecond, func() { _ = write() })
		} else if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// host is a tree with groups of units and of others, and its manager.
func host(t *testing.T) (*kernel.Root, *fakeBus) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"cpuset.cpus.effective":                              "0-3",
		"system.slice/cpuset.cpus.effective":                 "0-3",
		"system.slice/web.service/cpuset.cpus":               "",
		"system.slice/web.service/cpu.weight":                "100",
		"system.slice/web.service/cpu.idle":                  "0",
		"system.slice/web.service/cpu.max":                   "max 100000",
		"system.slice/web.service/cpuset.cpus.partition":     "member",
		"system.slice/web.service/own/cpuset.cpus":           "",
		"system.slice/other.service/cpuset.cpus":             "",
		"user.slice/user-1.slice/a.slice/b.service/cpu.idle": "0",
		"berth/web/cpuset.cpus":                              "",
	} {
		fakekernel.Plant(t, filepath.Join(dir, mount, name), text+"\n")
	}
	for name, text := range map[string]string{
		"self/mountinfo":            "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
		"sys/kernel/random/boot_id": "a boot",
	} {
		fakekernel.Plant(t, filepath.Join(dir, "proc", name), text+"\n")
	}
	root, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	bus := &fakeBus{root: dir, set: map[string]any{}, units: map[string]map[string]string{
		"web.service":   {"ControlGroup": "/system.slice/web.service", "LoadState": "loaded", "Slice": "system.slice"},
		"other.service": {"ControlGroup": "/elsewhere/other.service", "LoadState": "loaded", "Slice": "elsewhere.slice"},
		"idle.service":  {"LoadState": "loaded", "Slice": "system-deep.slice"},
		"gone.service":  {"LoadState": "not-found"},
		"system.slice":  {"ControlGroup": "/system.slice", "LoadState": "loaded", "Slice": "-.slice"},
	}}
	files := New(root.Files, func(context.Context) (Bus, error) { return bus, nil })
	files.patience = 20 * time.Millisecond
	root.Files = files
	return root, bus
}

func TestOwner(t *testing.T) {
	t.Parallel()
	root, bus := host(t)
	files := root.Files.(*Files)
	for group, want := range map[string]string{
		"sys/fs/cgroup/system.slice/web.service":                       "web.service",
		"sys/fs/cgroup/system.slice":                                   "system.slice",
		"sys/fs/cgroup/system.slice/system-deep.slice/idle.service":    "idle.service", // stopped, and this will be its group
		"sys/fs/cgroup/system.slice/idle.service":                      "",
		"sys/fs/cgroup/system.slice/other.service":                     "",
		"sys/fs/cgroup/user.slice/user-1.slice/a.slice/b.service":      "",
		"sys/fs/cgroup/system.slice/gone.service":                      "",
		"sys/fs/cgroup/system.slice/web.service/own":                   "",
		"sys/fs/cgroup/berth/web":                                      "",
		"sys/fs/cgroup":                                                "",
		"elsewhere/system.slice/web.service":                           "",
		"sys/fs/cgroup/system.slice/web.target":                        "",
		"sys/fs/cgroup/system.slice/system-deep.slice/unknown.service": "",
	} {
		u, ok, err := files.owner(t.Context(), group)
		if err != nil || ok != (want != "") || ok && u.name != want {
			t.Errorf("owner(%s) = %q, %v, %v; want %q", group, u.name, ok, err, want)
		}
	}
	bus.err = errors.New("no answer")
	if _, _, err := files.owner(t.Context(), "sys/fs/cgroup/system.slice"); err == nil {
		t.Error("owner without an answer: no error")
	}
}

// A group with a name that no unit can have is no unit's: it is written directly, and systemd, which would call the name invalid, is not asked.
func TestNamesOfNoUnit(t *testing.T) {
	t.Parallel()
	root, bus := host(t)
	bus.err = dbus.Error{Name: "org.freedesktop.DBus.Error.InvalidArgs"}
	for _, name := range []string{".service", "@.service", "@a.service", "a@.service", "a b.service", "\u00e4.service"} {
		dir := mount + "/user.slice/" + name
		if err := os.MkdirAll(filepath.Join(bus.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bus.root, dir, "cpu.weight"), []byte("100\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		err := root.WriteFile(dir+"/cpu.weight", "50\n")
		text, _ := os.ReadFile(filepath.Join(bus.root, dir, "cpu.weight"))
		if err != nil || string(text) != "50\n" || Asks(dir+"/cpu.weight") {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	for _, name := range []string{"a.service", "a@b.service", "a@b@c.service", `a\x2db-:1.2_.scope`, strings.Repeat("a", 247) + ".service", "_cpu.slice"} {
		if !Asks(mount + "/" + name + "/cpu.weight") {
			t.Errorf("%s: systemd is not asked", name)
		}
	}
}

// TestPlan applies and undoes a plan in the group of a unit.
func TestPlan(t *testing.T) {
	t.Parallel()
	root, bus := host(t)
	const web = mount + "/system.slice/web.service/"
	plan := kernel.Plan{
		{Path: web + "cpuset.cpus", Value: "1-2,9", Format: kernel.List},
		{Path: web + "cpu.max", Value: "1000 30000"},
		{Path: web + "cpu.weight", Value: "20"},
		{Path: web + "own/cpuset.cpus", Value: "1", Format: kernel.List},
		{Path: mount + "/berth/web/cpuset.cpus", Value: "3", Format: kernel.List},
	}
	undo, err := kernel.Apply(root, plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"web.service AllowedCPUs=@ay [0x6, 0x2]",
		"web.service CPUQuotaPerSecUSec=@t 33334", "web.service CPUQuotaPeriodUSec=@t 30000",
		"web.service CPUWeight=@t 20",
	}
	if diff := cmp.Diff(want, bus.sent); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	bus.sent = nil
	if err := undo(); err != nil {
		t.Error(err)
	}
	want = []string{
		"web.service CPUWeight=@t 18446744073709551615",
		"web.service CPUQuotaPerSecUSec=@t 18446744073709551615", "web.service CPUQuotaPeriodUSec=@t 18446744073709551615",
		"web.service AllowedCPUs=@ay [0xf]", "web.service AllowedCPUs=@ay []",
	}
	if diff := cmp.Diff(want, bus.sent); diff != "" {
		t.Errorf("undone (-want +got):\n%s", diff)
	}
	for _, name := range []string{web + "own/cpuset.cpus", mount + "/berth/web/cpuset.cpus"} {
		if text, err := fs.ReadFile(root.FS(), name); err != nil || string(text) != "\n" {
			t.Errorf("/%s is %q, %v; want it empty", name, text, err)
		}
	}
}

// TestStopped undoes in a unit that was stopped meanwhile.
func TestStopped(t *testing.T) {
	t.Parallel()
	root, bus := host(t)
	const name = mount + "/system.slice/web.service/cpu.idle"
	undo, err := kernel.Apply(root, kernel.Plan{{Path: name, Value: "1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	bus.units["web.service"]["ControlGroup"] = ""
	if err := os.RemoveAll(filepath.Join(bus.root, path.Dir(name))); err != nil {
		t.Fatal(err)
	}
	if text, err := fs.ReadFile(root.FS(), name); err != nil || string(text) != "1\n" {
		t.Errorf("a stopped unit's file is %q, %v; want what systemd would set", text, err)
	}
	if _, err := fs.Stat(root.FS(), mount+"/system.slice/web.service/cpu.max"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that nobody set: %v", err)
	}
	bus.err = errors.New("no answer")
	if err := undo(); err == nil {
		t.Error("undone though systemd does not answer")
	}
	bus.err = nil
	if err := undo(); err != nil {
		t.Error(err)
	}
	if got := bus.set["web.service CPUWeight"]; got != unset {
		t.Errorf("CPUWeight is %v after the undo, want %v", got, unset)
	}
}

// While no manager listens, nothing is known of a unit that was stopped: what it has is still to be undone.
func TestStoppedWithoutManager(t *testing.T) {
	t.Parallel()
	root, bus := host(t)
	files := root.Files.(*Files)
	const name = mount + "/system.slice/web.service/cpu.weight"
	log, err := kernel.OpenUndoLog(root, filepath.Join(t.TempDir(), "undo"), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := kernel.Apply(root, kernel.Plan{{Path: name, Value: "20"}}, log); err != nil {
		t.Fatal(err)
	}
	bus.units["web.service"]["ControlGroup"] = ""
	if err := os.RemoveAll(filepath.Join(bus.root, path.Dir(name))); err != nil {
		t.Fatal(err)
	}
	all := func(kernel.Step) bool { return true }
	dial := files.dial
	files.bus, files.dial = nil, func(context.Context) (Bus, error) { return nil, noManager }
	items, err := log.Undo(all)
	if _, is := errors.AsType[*ConnectionError](err); !is || len(items) != 1 || items[0].Outcome != kernel.Failed || !log.Has(all) {
		t.Errorf("without a manager: %+v, %v", items, err)
	}
	files.dial = dial
	if items, err = log.Undo(all); err != nil || len(items) != 1 || items[0].Outcome != kernel.Restored || log.Has(all) {
		t.Errorf("with it again: %+v, %v", items, err)
	}
	if got := bus.set["web.service CPUWeight"]; got != uint64(100) && got != unset {
		t.Errorf("CPUWeight is %v after the undo", got)
	}
}

// What was set is forgotten with the group, unless its unit is only stopped.
func TestForget(t *testing.T) {
	t.Parallel()
	root, bus := host(t)
	files := root.Files.(*Files)
	group := func(unit string) string { return mount + "/system.slice/" + unit }
	write := func(unit string) {
		t.Helper()
		bus.units[unit] = map[string]string{"ControlGroup": "/system.slice/" + unit, "LoadState": "loaded", "Slice": "system.slice"}
		if err := os.MkdirAll(filepath.Join(bus.root, group(unit)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := root.WriteFile(group(unit)+"/cpu.weight", "20\n"); err != nil {
			t.Fatal(err)
		}
	}
	for _, unit := range []string{"pod.scope", "batch.service"} {
		write(unit)
		if err := os.RemoveAll(filepath.Join(bus.root, group(unit))); err != nil {
			t.Fatal(err)
		}
	}
	delete(bus.units, "pod.scope")
	bus.units["batch.service"]["ControlGroup"] = ""
	write("web.service")
	for unit, want := range map[string]bool{"pod.scope": false, "batch.service": true, "web.service": true} {
		if _, is := files.noted(group(unit), "CPUWeight"); is != want {
			t.Errorf("%s is known: %v, want %v", unit, is, want)
		}
	}
}

// A unit that is idle, and stopped then, gets the weight of its own back.
func TestStoppedWeight(t *testing.T) {
	t.Parallel()
	root, bus := host(t)
	const group = mount + "/system.slice/web.service/"
	if err := os.WriteFile(filepath.Join(bus.root, group+"cpu.weight"), []byte("150\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	undo, err := kernel.Apply(root, kernel.Plan{{Path: group + "cpu.idle", Value: "1", Disturbs: []string{group + "cpu.weight"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	bus.units["web.service"]["ControlGroup"] = ""
	if err := os.RemoveAll(filepath.Join(bus.root, group)); err != nil {
		t.Fatal(err)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	if got := bus.set["web.service CPUWeight"]; got != uint64(150) {
		t.Errorf("CPUWeight is %v after the undo, want 150", got)
	}
}

func TestWriteErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		file, value string
		breakIt     func(*fakeBus)
		want        string
	}{
		{"cpuset.cpus", "x", nil, `unit web.service: AllowedCPUs "x"`},
		{"cpu.max", "5", nil, "not a quota and a period"},
		{"cpu.max", "max 0", nil, "not 1 us to 1 s"},
		{"cpu.max", "-1 1000", nil, "invalid syntax"},
		{"cpu.idle", "2", nil, "neither 0 nor 1"},
		{"cpu.weight", "ten", nil, "invalid syntax"},
		{"cpu.weight", "7", func(b *fakeBus) { b.deaf = true }, `shows "100"`},
		{"cpu.weight", "7", func(b *fakeBus) { b.err = dbus.Error{Name: "org.freedesktop.DBus.Error.AccessDenied"} }, syscall.EACCES.Error()},
		{"absent", "7", nil, "no such file"},
	} {
		root, bus := host(t)
		if tc.breakIt != nil {
			tc.breakIt(bus)
		}
		err := root.WriteFile(mount+"/system.slice/web.service/"+tc.file, tc.value+"\n")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("write %q to %s: %v; want %q in it", tc.value, tc.file, err, tc.want)
		}
	}
}

// What comes of a connection is an error of its own, whatever was asked; what systemd says of a unit is
// none.
func TestConnectionError(t *testing.T) {
	t.Parallel()
	const name = mount + "/system.slice/web.service/cpu.weight"
	said := func(name string) error { return dbus.Error{Name: name} }
	for _, tc := range []struct {
		err  error
		lost bool
	}{
		{io.EOF, true}, {io.ErrUnexpectedEOF, true}, {dbus.ErrClosed, true}, {context.DeadlineExceeded, true},
		{&net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)}, true},
		{said("org.freedesktop.DBus.Error.NoReply"), true}, {said("org.freedesktop.DBus.Error.Disconnected"), true},
		{said("org.freedesktop.DBus.Error.TimedOut"), true}, {said("org.freedesktop.DBus.Error.ServiceUnknown"), true},
		{said("org.freedesktop.DBus.Error.AccessDenied"), false}, {said("org.freedesktop.DBus.Error.InvalidArgs"), false},
		{said("org.freedesktop.systemd1.UnitMasked"), false}, {errors.New("invalid unit name"), false},
	} {
		for what, breakIt := range map[string]func(*fakeBus){
			"asked": func(b *fakeBus) { b.err = tc.err }, "set": func(b *fakeBus) { b.sets = tc.err },
		} {
			root, bus := host(t)
			breakIt(bus)
			err := root.WriteFile(name, "20\n")
			if _, is := errors.AsType[*ConnectionError](err); is != tc.lost || err == nil || !strings.Contains(err.Error(), "web.service") {
				t.Errorf("%s, %v: %v; want a connection's %v", what, tc.err, err, tc.lost)
			}
			bus.err, bus.sets = nil, nil
			if err := root.WriteFile(name, "20\n"); err != nil {
				t.Errorf("after %v: %v", tc.err, err)
			}
		}
	}
	root, bus := host(t)
	files := root.Files.(*Files)
	for what, dial := range map[string]func(context.Context) (Bus, error){
		"no manager":     func(context.Context) (Bus, error) { return nil, noManager },
		"one that hangs": func(context.Context) (Bus, error) { bus.sets = errors.New("odd"); return &hungUp{bus, true}, nil },
	} {
		files.dial, files.bus = dial, nil
		err := root.WriteFile(name, "30\n")
		if _, is := errors.AsType[*ConnectionError](err); !is || kernel.Absent(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for name, want := range map[string]bool{name: true, mount + "/system.slice/cpu.weight": true, mount + "/berth/web/cpu.weight": false, "sys/fs/resctrl/a.slice/tasks": false} {
		if Asks(name) != want {
			t.Errorf("asks of %s: %v", name, !want)
		}
	}
}

// A file may come only with the setting: systemd enables the controller that it needs, after
// it has answered. One that does not come is an error; so is one in a group that is gone.
func TestControllerComesLate(t *testing.T) {
	t.Parallel()
	const group, file = mount + "/system.slice/web.service", mount + "/system.slice/web.service/cpu.idle"
	for name, tc := range map[string]struct {
		change func(*testing.T, *fakeBus)
		want   error
	}{
		"late":  {func(_ *testing.T, b *fakeBus) { b.late = true }, nil},
		"never": {func(_ *testing.T, b *fakeBus) { b.deaf = true }, fs.ErrNotExist},
		"no group": {func(t *testing.T, b *fakeBus) {
			b.deaf = true
			if err := os.RemoveAll(filepath.Join(b.root, group)); err != nil {
				t.Fatal(err)
			}
		}, fs.ErrNotExist},
	} {
		root, bus := host(t)
		root.Files.(*Files).patience = time.Second
		if name != "late" {
			root.Files.(*Files).patience = 20 * time.Millisecond
		}
		if err := os.Remove(filepath.Join(bus.root, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		tc.change(t, bus)
		if err := root.WriteFile(file, "1\n"); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// A setting of one controller has systemd disable another one that no setting needs, though
// Berth enabled it for its next step: that is planned, and brings the controller back.
func TestControllerGoes(t *testing.T) {
	t.Parallel()
	const group = mount + "/system.slice/web.service/"
	for file, value := range map[string]string{"cpu.weight": "100", "cpuset.cpus": "1-2"} {
		root, bus := host(t)
		gone := func() {
			for _, file := range []string{"cpu.weight", "cpu.idle"} {
				if err := os.Remove(filepath.Join(bus.root, group+file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
			}
		}
		idle := kernel.Plan{{Op: kernel.Write, Path: group + "cpu.idle", Value: "1"}}
		gone()
		if _, err := kernel.Apply(root, idle, nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: before anything was set: %v, want that there is no file", file, err)
		}
		if err := root.WriteFile(group+file, value+"\n"); err != nil {
			t.Fatal(err)
		}
		gone()
		if _, err := kernel.Apply(root, idle, nil); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if text, err := os.ReadFile(filepath.Join(bus.root, group+"cpu.idle")); err != nil || strings.TrimSpace(string(text)) != "1" {
			t.Errorf("%s: cpu.idle is %q, %v", file, text, err)
		}
	}
}

// noManager is what connecting says without /run/systemd/private.
var noManager = &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.ENOENT)}

// hungUp is a bus whose connection may be gone.
type hungUp struct {
	*fakeBus
	gone bool
}

func (h *hungUp) Connected() bool { return !h.gone }

// lineFiles take a line out that says no limit, as the kernel does.
type lineFiles struct {
	kernel.Files
	dir    string
	before func(data string) error // a write; nil is nothing
}

func (f lineFiles) WriteFile(name, data string) error {
	if _, err := os.Stat(filepath.Join(f.dir, name)); err != nil {
		return err
	}
	if f.before != nil {
		if err := f.before(data); err != nil {
			return err
		}
	}
	if strings.HasSuffix(data, " wiops=max\n") || strings.HasSuffix(data, ":0 rbps=max\n") || strings.HasSuffix(data, " default\n") {
		data = ""
	}
	return os.WriteFile(filepath.Join(f.dir, name), []byte(data), 0o644)
}

// A limit of one device has no property of its own: systemd is told to leave the unit the controller,
// which it takes away with any other property, for as long as there is one.
func TestDeviceLine(t *testing.T) {
	t.Parallel()
	const group, unlimited = mount + "/system.slice/web.service/", "254:0 rbps=max wbps=max riops=max wiops=max"
	root, bus := host(t)
	files := root.Files.(*Files)
	files.Files = lineFiles{Files: files.Files, dir: bus.root}
	line := kernel.Step{Path: group + "io.max", Value: "254:0 rbps=1048576", Format: kernel.Keyed, Unset: unlimited}
	if _, err := kernel.Apply(root, kernel.Plan{line}, nil); !errors.Is(err, fs.ErrNotExist) || len(bus.sent) > 0 {
		t.Errorf("where nobody has enabled the controller: %v, sent %q", err, bus.sent)
	}
	undo, err := kernel.Apply(root, kernel.Plan{{Path: group + "cpu.weight", Value: "20"}, line}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := fs.ReadFile(root.FS(), line.Path); err != nil || string(text) != "254:0 rbps=1048576\n" {
		t.Errorf("%q, %v", text, err)
	}
	again := line
	again.Value = "254:0 rbps=2097152"
	back, err := kernel.Apply(root, kernel.Plan{again}, nil)
	if err == nil {
		err = back()
	}
	if err != nil {
		t.Error(err)
	}
	want := []string{"web.service CPUWeight=@t 20", "web.service IOAccounting=true"}
	if diff := cmp.Diff(want, bus.sent); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	// A line of another file keeps the controller.
	weight := group + "io.weight"
	if err := os.WriteFile(filepath.Join(bus.root, weight), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct {
		name, text string
		sent       int // by then
	}{{weight, "254:0 20", 2}, {line.Path, unlimited, 2}, {weight, "254:0 default", 3}, {line.Path, line.Value, 4}} {
		if err := root.WriteFile(w.name, w.text+"\n"); err != nil || len(bus.sent) != w.sent {
			t.Errorf("%s %s: %v, sent %q", w.name, w.text, err, bus.sent)
		}
	}
	want = append(want, "web.service IOAccounting=false", "web.service IOAccounting=true")
	if diff := cmp.Diff(want, bus.sent); diff != "" {
		t.Errorf("with a weight (-want +got):\n%s", diff)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	want = append(want, "web.service IOAccounting=false", "web.service CPUWeight=@t 18446744073709551615")
	if diff := cmp.Diff(want, bus.sent); diff != "" {
		t.Errorf("undone (-want +got):\n%s", diff)
	}
	// What has gone with the controller meanwhile is undone; a controller that does not come is an error.
	if err := root.WriteFile(line.Path, unlimited+"\n"); err != nil {
		t.Errorf("undone once more: %v", err)
	}
	bus.deaf = true
	if err := root.WriteFile(line.Path, line.Value+"\n"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("where the controller does not come: %v", err)
	}
	if bus.set["web.service "+accounting] != false {
		t.Error("the unit stays accounted for though nothing was written")
	}
}

// A unit is accounted for as long as Berth has lines there, whatever they say, and by Berth's doing.
func TestAccounting(t *testing.T) {
	t.Parallel()
	const lines, limit = mount + "/system.slice/web.service/io.max", "254:0 rbps=1048576"
	refused := errors.New("refused")
	for name, tc := range map[string]struct {
		writes []string
		before func(*fakeBus, string) error
		want   []string
	}{
		"one word lifts the last limit":    {writes: []string{limit, "254:0 rbps=max"}, want: []string{"true", "false"}},
		"nothing is lifted":                {writes: []string{"254:0 rbps=max"}},
		"one of two words is a limit":      {writes: []string{limit, "254:0 rbps=5 wbps=max"}, want: []string{"true"}},
		"the kernel refuses the first one": {writes: []string{limit}, before: func(*fakeBus, string) error { return refused }, want: []string{"true", "false"}},
		"another one stays, and the next is refused": {writes: []string{limit, "254:0 rbps=9"}, want: []string{"true"},
			before: func(_ *fakeBus, data string) error {
				if strings.HasSuffix(data, "=9\n") {
					return refused
				}
				return nil
			}},
		"somebody ended it meanwhile": {writes: []string{limit, "254:0 rbps=max"}, want: []string{"true"}, before: func(b *fakeBus, data string) error {
			if strings.HasSuffix(data, "max\n") {
				b.set["web.service "+accounting] = false
			}
			return nil
		}},
	} {
		root, bus := host(t)
		files := root.Files.(*Files)
		files.Files = lineFiles{Files: files.Files, dir: bus.root, before: func(data string) error {
			if tc.before == nil {
				return nil
			}
			return tc.before(bus, data)
		}}
		for _, line := range tc.writes {
			if err := root.WriteFile(lines, line+"\n"); err != nil && !errors.Is(err, refused) && name != "nothing is lifted" {
				t.Errorf("%s: %s: %v", name, line, err)
			}
		}
		var want []string
		for _, on := range tc.want {
			want = append(want, "web.service IOAccounting="+on)
		}
		if diff := cmp.Diff(want, bus.sent); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	root, bus := host(t) // the administrator's
	bus.set["web.service "+accounting] = true
	if err := os.WriteFile(filepath.Join(bus.root, lines), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{limit, "254:0 rbps=max"} {
		if err := root.WriteFile(lines, line+"\n"); err != nil || len(bus.sent) > 0 {
			t.Errorf("where it was on before: %v, sent %q", err, bus.sent)
		}
	}
}

// All files of lines are readers' as io.max is: those that the kernel has come with accounting.
func TestLineFiles(t *testing.T) {
	t.Parallel()
	const slice, web = mount + "/system.slice/", mount + "/system.slice/web.service/"
	root, bus := host(t)
	files := map[string]bool{"io.max": true, "io.latency": true, "io.bfq.weight": false, "io.weight": true}
	if err := os.WriteFile(filepath.Join(bus.root, slice+"io.latency"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	is := func(file string) bool {
		_, err := fs.Stat(root.FS(), web+file)
		_, readErr := fs.ReadFile(root.FS(), web+file)
		if (err == nil) != (readErr == nil) || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, but to read it %v", file, err, readErr)
		}
		return err == nil
	}
	for file := range files {
		if is(file) {
			t.Errorf("%s is there before anything was set", file)
		}
	}
	if err := root.WriteFile(web+"cpu.weight", "20\n"); err != nil {
		t.Fatal(err)
	}
	for file, want := range files {
		if is(file) != want {
			t.Errorf("%s is there: %v", file, !want)
		}
		if err := os.WriteFile(filepath.Join(bus.root, web+file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if info, err := fs.Stat(root.FS(), web+file); err != nil || info.Sys() != nil {
			t.Errorf("%s: %v, want no inode", file, err)
		}
	}
}

// The last line that goes does not take the controller of one that comes.
func TestLinesAtOnce(t *testing.T) {
	t.Parallel()
	const group = mount + "/system.slice/web.service/"
	root, bus := host(t)
	files := root.Files.(*Files)
	gone := make(chan error, 1)
	files.Files = lineFiles{Files: files.Files, dir: bus.root, before: func(data string) error {
		if data != "254:0 20\n" {
			return nil
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			gone <- root.WriteFile(group+"io.max", "254:0 rbps=max\n")
		}()
		select {
		case <-done:
		case <-time.After(50 * time.Millisecond): // it waits for this write
		}
		return nil
	}}
	if err := root.WriteFile(group+"io.max", "254:0 rbps=1048576\n"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bus.root, group+"io.weight"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := root.WriteFile(group+"io.weight", "254:0 20\n"); err != nil {
		t.Error(err)
	}
	if err := <-gone; err != nil {
		t.Error(err)
	}
	if bus.set["web.service "+accounting] != true {
		t.Error("the controller of the line that came was taken away")
	}
}

func TestReconnect(t *testing.T) {
	t.Parallel()
	_, bus := host(t)
	var dialled []context.Context
	var bus2 *hungUp
	files := New(kernel.NewRoot("", nil), func(ctx context.Context) (Bus, error) {
		dialled = append(dialled, ctx)
		bus2 = &hungUp{fakeBus: bus}
		return bus2, nil
	})
	ask := func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if _, ok, err := files.owner(ctx, mount+"/system.slice"); err != nil || !ok {
			t.Errorf("owner: %v, %v", ok, err)
		}
	}
	ask()
	ask()
	if len(dialled) != 1 || dialled[0].Err() != nil {
		t.Errorf("dialled %d times, want once for as long as the process lives", len(dialled))
	}
	bus2.gone = true
	ask()
	if len(dialled) != 2 {
		t.Errorf("dialled %d times, want anew after the connection was lost", len(dialled))
	}
}

// mounted is a tree with a mount of control groups.
type mounted struct {
	fs.FS
	groups string
}

func (m mounted) Open(name string) (fs.File, error) {
	if name == mount {
		return os.Open(m.groups)
	}
	return m.FS.Open(name)
}

func TestRunning(t *testing.T) {
	t.Parallel()
	var groups string // of v2, if this machine has them
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " - cgroup2 ") {
			groups = strings.Fields(line)[4]
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"", "run/systemd/system", mount + "/cgroup.controllers"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if running(os.DirFS(dir)) {
			t.Errorf("with %q, a copy: it runs", name)
		}
		if live := name != ""; groups != "" && running(mounted{os.DirFS(dir), groups}) != live {
			t.Errorf("with %q and control groups: running is not %v", name, live)
		}
	}
}

// Systemd is that of the live host, also where a container sees that in a folder: a copy has none, nor a
// tree with a socket of somebody else.
func TestManager(t *testing.T) {
	const socket = "run/systemd/private"
	me := os.Geteuid()
	tree := func() string {
		dir := t.TempDir()
		for _, name := range []string{"run/systemd/system", mount} {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, mount, "cgroup.controllers"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	listen := func(dir string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, socket)})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	rootOf := func(dir string) *os.Root {
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = root.Close() })
		return root
	}
	plain, host, linked, copied, swapped := tree(), tree(), tree(), tree(), tree()
	if err := os.WriteFile(filepath.Join(plain, socket), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l := listen(host)
	defer l.Close()
	for _, dir := range []string{linked, swapped} {
		if err := os.Symlink(filepath.Join(host, socket), filepath.Join(dir, socket)); err != nil {
			t.Fatal(err)
		}
	}
	dead := listen(copied)
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		dir  string
		uid  int
		want bool
	}{{host, me, true}, {host, me + 1, false}, {plain, me, false}, {linked, me, false}, {t.TempDir(), me, false}} {
		f, err := openSocket(rootOf(tc.dir), tc.uid)
		if (err == nil) != tc.want {
			t.Errorf("a socket of user %d in %s: %v", tc.uid, tc.dir, err)
		}
		if err == nil {
			_ = f.Close()
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(host, "run"))
	for _, tc := range []struct {
		dir  string
		uid  int
		want bool
	}{
		{"/", 0, true},
		{"/", 1000, true},
		{host, 0, me == 0},
		{host, 1000, false}, // her manager is none of the host's
		{plain, 0, false},
		{linked, 0, false},
	} {
		if dial := manager(tc.dir, tc.uid); (dial != nil) != tc.want {
			t.Errorf("user %d in %s: a manager is there: %v, want %v", tc.uid, tc.dir, dial != nil, tc.want)
		}
	}
	t.Setenv("XDG_RUNTIME_DIR", plain)
	if manager("/", 1000) != nil {
		t.Error("a user without a manager has one")
	}

	// Nobody listens at a copied socket: that tree's files are written directly.
	if _, err := connectTo(t.Context(), rootOf(copied), me); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connected to a copied socket: %v", err)
	}
	root, err := Open(copied)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := root.Files.(*Files); ok {
		t.Error("a copy of a host is taken for a live one")
	}
	// A link that leads out of the tree is not followed, whenever it is made.
	if _, err := connectTo(t.Context(), rootOf(swapped), me); err == nil || !strings.Contains(err.Error(), "is not a socket of user") {
		t.Errorf("connected by a link: %v", err)
	}
	outside := tree()
	if err := errors.Join(os.RemoveAll(filepath.Join(outside, "run")), os.Symlink(filepath.Join(host, "run"), filepath.Join(outside, "run"))); err != nil {
		t.Fatal(err)
	}
	if _, err := connectTo(t.Context(), rootOf(outside), me); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("connected through a folder that is a link: %v", err)
	}
	conn, err := net.Dial("unix", filepath.Join(host, socket))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := listens(conn, me); err != nil {
		t.Error(err)
	}
	if err := listens(conn, me+1); err == nil {
		t.Error("a listener of somebody else is accepted")
	}
	if first, err := l.Accept(); err != nil {
		t.Fatal(err)
	} else {
		defer first.Close()
	}

	accepted := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			err = conn.Close() // it is no systemd
		}
		accepted <- err
	}()
	if _, err := connectTo(t.Context(), rootOf(host), me); err == nil {
		t.Error("connected to nobody")
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}

// serve accepts connections as systemd does, and says nothing, or authenticates, or answers calls then.
func serve(l net.Listener, authenticates, answers bool) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			in := bufio.NewReader(conn)
			for line := ""; line != "BEGIN\r\n"; {
				if line, err = in.ReadString('\n'); err != nil {
					return
				}
				reply := "OK 0123456789abcdef0123456789abcdef\r\n"
				if line == "\x00AUTH\r\n" {
					reply = "REJECTED EXTERNAL\r\n"
				}
				if authenticates && line != "BEGIN\r\n" {
					_, _ = conn.Write([]byte(reply))
				}
			}
			for {
				call, err := dbus.DecodeMessage(in)
				if err != nil {
					return
				}
				reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(call.Serial())}}
				if answers {
					_ = reply.EncodeTo(conn, binary.LittleEndian)
				}
			}
		}()
	}
}

// A manager that accepts and says nothing holds nobody up for longer than she may wait.
func TestSilentManager(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ authenticates, answers bool }{"silent": {}, "then silent": {authenticates: true}, "well": {true, true}} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "run/systemd"), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(dir, "run/systemd/private"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go serve(l, tc.authenticates, tc.answers)
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		files := New(kernel.NewRoot("", nil), func(ctx context.Context) (Bus, error) { return connectTo(ctx, root, os.Geteuid()) })
		limit := 50 * time.Millisecond
		if tc.answers {
			limit = time.Minute
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		errs := make(chan error)
		for range 2 { // one waits for the other
			go func() {
				_, err := files.connect(ctx)
				errs <- err
			}()
		}
		for range 2 {
			if err := <-errs; errors.Is(err, context.DeadlineExceeded) == tc.answers || tc.answers && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		cancel()
		if conn, ok := files.bus.(*sd.Conn); ok {
			if !conn.Connected() {
				t.Errorf("%s: the connection ended with the caller", name)
			}
			conn.Close()
		}
	}
}

// What was written directly, by a program that does not ask systemd, is undone through it.
func TestDirectBefore(t *testing.T) {
	t.Parallel()
	root, bus := host(t)
	const name = mount + "/system.slice/web.service/cpu.weight"
	direct, err := kernel.Open(bus.root)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "undo")
	log, err := kernel.OpenUndoLog(direct, file, "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.Apply(direct, kernel.Plan{{Path: name, Value: "20"}}, log); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if log, err = kernel.OpenUndoLog(root, file, "another"); err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if log.Outdated(name) {
		t.Error("the group is said to be another one")
	}
	if _, err := kernel.Apply(root, kernel.Plan{{Path: name, Value: "30"}}, log); err != nil {
		t.Fatal(err)
	}
	items, err := log.Undo(func(kernel.Step) bool { return true })
	if err != nil || len(items) != 1 || items[0].Outcome != kernel.Restored || items[0].Original != "100" {
		t.Errorf("undone: %+v, %v", items, err)
	}
	if text, err := fs.ReadFile(root.FS(), name); err != nil || string(text) != "100\n" {
		t.Errorf("the weight is %q, %v", text, err)
	}
}

// So is a weight that a step disturbs.
func TestDirectDisturbed(t *testing.T) {
	t.Parallel()
	const group = mount + "/system.slice/web.service/"
	idle := kernel.Plan{{Path: group + "cpu.idle", Value: "1", Disturbs: []string{group + "cpu.weight"}}}
	for _, through := range []string{"noted directly", "noted through systemd"} {
		root, bus := host(t)
		noting, err := kernel.Open(bus.root)
		undoing := root
		if err != nil {
			t.Fatal(err)
		}
		if through != "noted directly" {
			noting, undoing = root, noting
		}
		weight := filepath.Join(bus.root, group+"cpu.weight")
		if err := os.WriteFile(weight, []byte("150\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "undo")
		log, err := kernel.OpenUndoLog(noting, file, "one")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kernel.Apply(noting, idle, log); err != nil {
			t.Fatal(err)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(weight, []byte("100\n"), 0o644); err != nil { // as the kernel does
			t.Fatal(err)
		}
		if log, err = kernel.OpenUndoLog(undoing, file, "another"); err != nil {
			t.Fatal(err)
		}
		if _, err := log.Undo(func(kernel.Step) bool { return true }); err != nil {
			t.Error(err)
		}
		if text, err := os.ReadFile(weight); err != nil || string(text) != "150\n" {
			t.Errorf("%s: the weight is %q, %v", through, text, err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
}

// knobs are all that systemd has, by file.
func knobs() map[string]property {
	all := map[string]property{}
	for _, row := range knob.All() {
		for _, file := range row.Files() {
			if k, ok := knobOf(file); ok {
				all[file] = k
			}
		}
	}
	return all
}

// TestKnobs decodes what was encoded.
func TestKnobs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ file, text, want string }{ // "" is the default
		{"cpuset.cpus", "0-3,64,1023", "0-3,64,1023"},
		{"cpuset.mems", "", ""},
		{"cpu.weight", "10000", "10000"},
		{"cpu.weight", "100", ""},
		{"cpu.idle", "1", "1"},
		{"cpu.idle", "0", ""},
		{"cpu.max", "max 100000", ""},
		{"cpu.max", "max 50000", "max 50000"},
		{"cpu.max", "20000 100000", "20000 100000"},
		{"cpu.max", "33333 99999", "33333 99999"},
		{"io.weight", "default 200\n8:0 50", "default 200"},
		{"io.weight", "default 100", ""},
		{"memory.max", "max", ""},
		{"memory.max", "0", "0"},
		{"memory.low", "0", ""},
		{"memory.min", "4096", "4096"},
		{"memory.high", "1073741824", "1073741824"},
		{"pids.max", "12", "12"},
	} {
		k, ok := knobOf(tc.file)
		if !ok {
			t.Errorf("%s: no property", tc.file)
			continue
		}
		values, err := k.encode(tc.text)
		if err != nil {
			t.Errorf("%s %q: %v", tc.file, tc.text, err)
			continue
		}
		got, ok := k.decode(values)
		if ok != (tc.want != "") || ok && got != tc.want || k.isDefault(tc.text) == ok {
			t.Errorf("%s %q: decoded %q, %v; want %q", tc.file, tc.text, got, ok, tc.want)
		}
	}
}

func FuzzKnobs(f *testing.F) {
	for _, text := range []string{"", "0-3", "max", "7", "max 100000", "1000 30000", "default 5\n8:0 1", "1", "0100"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, k := range knobs() {
			values, err := k.encode(text)
			if err != nil {
				continue
			}
			if again, ok := k.decode(values); ok && !k.same(text, again) {
				t.Errorf("%s: %q became %q", name, text, again)
			}
		}
	})
}

// A file that a group lacks, as its controller is not enabled, is not asked of systemd: a
// reader of all groups would ask for hundreds.
func TestGroupWithoutFile(t *testing.T) {
	t.Parallel()
	root, bus := host(t)
	const name = mount + "/system.slice/web.service/cpu.idle"
	if err := os.Remove(filepath.Join(bus.root, name)); err != nil {
		t.Fatal(err)
	}
	bus.err = errors.New("systemd was asked")
	if text, err := fs.ReadFile(root.FS(), name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read: %q, %v", text, err)
	}
	if _, err := fs.Stat(root.FS(), name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat: %v", err)
	}
}

func TestControlGroup(t *testing.T) {
	t.Parallel()
	root, _ := host(t)
	for name, want := range map[string]string{
		"web.service": "system.slice/web.service", "system.slice": "system.slice",
		"idle.service": "it is not active, and has no group", "gone.service": "unit gone.service: there is no such unit ('systemctl list-units' lists them)",
		"web": "it ends in .service, .scope or .slice", "a/web.service": "no unit with a group has such a name", "a@.service": "an instance after the first @",
		"a b.service": `letters, digits and :-_.\@`,
	} {
		group, err := ControlGroup(t.Context(), root, name)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && group != want {
			t.Errorf("%s: %q, %v; want %q", name, group, err, want)
		}
	}
}
