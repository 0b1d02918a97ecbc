// Package traffic has network classes: what workloads may send through network devices. A
// program of a control group on cgroup v2 gives packets the number of their class. A device is
// divided by a queueing discipline of Berth's, HTB, with a class for the link, one for each
// network class, and one for everybody else (tc-htb(8)); or, where it has fq and ceilings are
// enough, by a program that says when packets leave. What a configuration comes to on a host is
// a kernel.Plan on files that stand for all of this (Over).
package traffic

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
)

// major is that of the handle of Berth's discipline: kernels number their own from 0x8000 on.
const major = 0x6be7

// Minors of the classes that are always there; those of network classes are from first to last.
const (
	linkMinor   = 1
	othersMinor = 2
	firstMinor  = 0x10
	lastMinor   = 0xffef
	// Classes of the guard, of work whose rate it lowers.
	firstGuarded = 0xfff0
	lastGuarded  = 0xfffe
)

// Mechanism is what divides a device among classes: the name of the directory that stands for it.
type Mechanism string

// The mechanisms.
const (
	// HTB is a discipline at the root of a device: floors, ceilings and priorities.
	HTB Mechanism = "htb"
	// EDT is a program before the device's own fq, which keeps packets until they are due: it says
	// when that is (earliest departure time). It has ceilings, and neither floors nor priorities.
	EDT Mechanism = "edt"
)

// Class is a class of HTB: bytes per second that it has at least, and may have at most; what
// others leave goes to the lowest priority number first, from 0 to 7.
type Class struct {
	Rate, Ceil uint64
	Prio       uint32
}

// Floor and Ceiling are Rate and Ceil in bits per second, Priority is that of Share.
func (c Class) Floor() Rate   { return rateOf(c.Rate) }
func (c Class) Ceiling() Rate { return rateOf(c.Ceil) }
func (c Class) Priority() int { return int(c.Prio) + 1 }

const none = "none" // the text of a class that is not there

func (c Class) String() string { return fmt.Sprintf("rate %d ceil %d prio %d", c.Rate, c.Ceil, c.Prio) }

// parseClass reads what String writes, and none, the zero Class. What somebody else has written
// need not be what Berth would write (check).
func parseClass(text string) (c Class, err error) {
	if strings.TrimSpace(text) == none {
		return c, nil
	}
	n, err := fmt.Sscanf(strings.TrimSpace(text), "rate %d ceil %d prio %d", &c.Rate, &c.Ceil, &c.Prio)
	if err != nil || n != 3 || c.String() != strings.TrimSpace(text) || c.Rate == 0 {
		return Class{}, fmt.Errorf("%q is no class: rate BYTES ceil BYTES prio 0 to 7, or none", text)
	}
	return c, nil
}

// check returns what is wrong with a class that is to be written.
func (c Class) check() error {
	if c.Ceil < c.Rate || c.Prio > 7 {
		return fmt.Errorf("%q: its ceil is below its rate, or its prio not from 0 to 7", c)
	}
	return nil
}

// mark is the text of the file of a control group whose packets are of a class.
func mark(minor uint16) string { return fmt.Sprintf("%x:%04x", major, minor) }

// ParseMark returns which class a mark's text says, 0 for none.
func ParseMark(text string) (uint16, error) {
	text = strings.TrimSpace(text)
	if text == none {
		return 0, nil
	}
	hex, ours := strings.CutPrefix(text, fmt.Sprintf("%x:", major))
	n, err := strconv.ParseUint(hex, 16, 16)
	if !ours || err != nil || n == 0 || mark(uint16(n)) != text {
		return 0, fmt.Errorf("%q is no class of a device: %s, or none", text, mark(firstMinor))
	}
	return uint16(n), nil
}

// Qdisc is the discipline at the root of a device. The kernel's default ones have the handle 0.
type Qdisc struct {
	Kind   string // "" while the device is down: it has no discipline then
	Handle uint32
	Paces  bool // packets leave when they are due (fq, or mq of nothing else), and EDT can say when
}

func (q Qdisc) String() string {
	if q.Kind == "" {
		return none
	}
	return fmt.Sprintf("%s %x:", q.Kind, q.Handle>>16)
}

func (q Qdisc) ours() bool { return q == htbRoot }

// htbRoot is Berth's.
var htbRoot = Qdisc{Kind: "htb", Handle: major << 16}

// Device is a network device of a host.
type Device struct {
	Name  string
	Root  string           // its root discipline, as in "pfifo_fast 0:"
	Paces bool             // that keeps packets until they are due (Qdisc)
	By    Mechanism        // what Berth divides it by; "" if it does not
	Has   map[uint16]Class // its classes then, by minor

	// The rest is known of devices that the configuration names.
	// Speed is what the device says that the link has, in bits per second; 0 if it says nothing.
	Speed    Rate
	Queues   int // for sending
	Loopback bool
	Virtual  bool // no hardware
}

// Host has the network devices of a host.
type Host struct{ Devices map[string]*Device }

// Lacks is a *kernel.NotSupportedError over a tree that is not the live host: what Over adds is
// not there.
func Lacks(fsys fs.FS) error {
	if _, err := fs.Stat(fsys, dir); errors.Is(err, fs.ErrNotExist) {
		return &kernel.NotSupportedError{Feature: "network classes", Reason: "this is not the live host", Remedy: "open /"}
	}
	return nil
}

// Read reads the devices, and of those that a configuration names what their hardware says. Over
// a tree that is not the live host it is a *kernel.NotSupportedError.
func Read(fsys fs.FS, c *Config) (*Host, error) {
	if err := Lacks(fsys); err != nil {
		return nil, err
	}
	text, err := fs.ReadFile(fsys, path.Join(dir, allFile))
	h := &Host{}
	if err == nil {
		h.Devices, err = parseDevices(string(text))
	}
	if err != nil {
		return nil, fmt.Errorf("read network devices: %w", err)
	}
	for _, name := range c.named() {
		if d := h.Devices[name]; d != nil {
			d.readHardware(fsys)
		}
	}
	return h, nil
}

// Words after the root of a device in allFile.
const (
	pacesWord = " paces"
	edtWord   = " edt"
)

// text is the device's part of allFile: a line, and one for each class.
func (d *Device) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", d.Name, d.Root)
	if d.Paces {
		b.WriteString(pacesWord)
	}
	if d.By == EDT {
		b.WriteString(edtWord)
	}
	b.WriteString("\n")
	for _, minor := range slices.Sorted(maps.Keys(d.Has)) {
		fmt.Fprintf(&b, "\t%04x %s\n", minor, d.Has[minor])
	}
	return b.String()
}

// parseDevices reads allFile.
func parseDevices(text string) (map[string]*Device, error) {
	all := map[string]*Device{}
	var d *Device
	for line := range strings.Lines(text) {
		first, rest, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		hex, isClass := strings.CutPrefix(first, "\t")
		switch {
		case line == "\n":
		case !isClass:
			d = &Device{Name: first, Has: map[uint16]Class{}}
			root, edt := strings.CutSuffix(rest, edtWord)
			d.Root, d.Paces = strings.CutSuffix(root, pacesWord)
			switch {
			case d.Root == htbRoot.String():
				d.By = HTB
			case edt:
				d.By = EDT
			}
			all[first] = d
		case d == nil:
			return nil, fmt.Errorf("%q is a class of no device", line)
		default:
			minor, err := strconv.ParseUint(hex, 16, 16)
			if err == nil {
				d.Has[uint16(minor)], err = parseClass(rest)
			}
			if err != nil {
				return nil, fmt.Errorf("class %q of %s: %w", hex, d.Name, err)
			}
		}
	}
	return all, nil
}

// Means says what divides the device, or can, and what that can do.
func (d *Device) Means() string {
	own := d.By == HTB || d.Root == none || strings.HasSuffix(d.Root, " 0:")
	switch {
	case d.Paces && own:
		return "ceilings by fq, floors and priorities by HTB"
	case d.Paces:
		return "ceilings by fq; no floors or priorities, as it is somebody else's"
	case own:
		return "floors, ceilings and priorities by HTB"
	}
	return fmt.Sprintf("not to be divided, as %q is somebody else's", d.Root)
}

// readHardware reads what sysfs tells (Documentation/ABI/testing/sysfs-class-net): speed is in
// Mbit/s, -1 or an error if it is not known; type is one of ARPHRD_*, 772 is loopback.
func (d *Device) readHardware(fsys fs.FS) {
	sys := "sys/class/net/" + d.Name
	number := func(file string) int {
		text, _ := fs.ReadFile(fsys, path.Join(sys, file))
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return n
	}
	d.Speed = Rate(max(number("speed"), 0)) * 1e6
	d.Loopback = number("type") == 772
	_, err := fs.Stat(fsys, sys+"/device")
	d.Virtual = err != nil
	queues, _ := fs.Glob(fsys, sys+"/queues/tx-*")
	d.Queues = len(queues)
}

func (d *Device) dir(by Mechanism) string { return path.Join(dir, d.Name, string(by)) }

func (d *Device) file(by Mechanism, minor uint16) string {
	return fmt.Sprintf("%s/%04x", d.dir(by), minor)
}

// Link is what a configuration comes to on one device.
type Link struct {
	Device  *Device
	Rate    Rate
	By      Mechanism
	Why     string // that one
	Classes map[uint16]Class
	Notes   []string
}

// has are the classes that the device has by the mechanism.
func (k *Link) has() map[uint16]Class {
	if k.Device.By != k.By {
		return nil
	}
	return k.Device.Has
}

// Layout is what a configuration comes to on a host.
type Layout struct {
	Links []Link
	ids   map[string]uint16
	words map[uint16]string // by minor
}

// MarkOf returns the text that the file of a control group (MarkFile) has for a class that devices
// have (Config.Divides).
func (l *Layout) MarkOf(class string) string { return mark(l.ids[class]) }

// Minor is the number of a class, or of Others.
func (l *Layout) Minor(class string) uint16 {
	if class == Others {
		return othersMinor
	}
	return l.ids[class]
}

// Find returns what a class has of a device; Others is that of everybody else.
func (k *Link) Find(l *Layout, class string) Class { return classOf(k.Classes, l.Minor(class)) }

// classOf is a class of a device. By EDT everybody else has none where all of the link is theirs.
func classOf(classes map[uint16]Class, minor uint16) Class {
	c, ok := classes[minor]
	if link, is := classes[linkMinor]; !ok && is && minor == othersMinor {
		return Class{Rate: noFloor, Ceil: link.Ceil, Prio: defaultPriority - 1}
	}
	return c
}

// InForce reports whether the device has what the class is to have.
func (k *Link) InForce(l *Layout, class string) bool {
	minor := l.Minor(class)
	has, is := k.has()[minor]
	want, ok := k.Classes[minor]
	return k.Device.By == k.By && is == ok && has == want
}

// By returns what is to divide a device; "" if the layout has none of the name.
func (l *Layout) By(device string) Mechanism {
	for _, k := range l.Links {
		if k.Device.Name == device {
			return k.By
		}
	}
	return ""
}

// idsOf numbers classes, so that another class changes no number, but where two of the same
// number would meet.
func idsOf(names []string) map[string]uint16 {
	ids, taken := map[string]uint16{}, map[uint16]bool{}
	for _, name := range slices.Sorted(slices.Values(names)) {
		h := fnv.New32a()
		h.Write([]byte(name))
		id := uint16(firstMinor + h.Sum32()%(lastMinor-firstMinor+1))
		for taken[id] {
			if id++; id > lastMinor {
				id = firstMinor
			}
		}
		ids[name], taken[id] = id, true
	}
	return ids
}

// noFloor is the rate of a class without a floor: HTB has none of 0.
const noFloor = 1000

// Layout returns what the configuration comes to, on the devices on which it can be. The error
// joins what is wrong with the others, each as strictyaml.Error with its field.
func (c *Config) Layout(h *Host) (*Layout, error) {
	l := &Layout{ids: idsOf(c.divided()), words: map[uint16]string{linkMinor: "the whole link", othersMinor: "all without a network class"}}
	for name, id := range l.ids {
		l.words[id] = "network class " + name
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Devices)) {
		k, err := c.link(h, l, name)
		if errs = append(errs, err); err == nil {
			l.Links = append(l.Links, *k)
		}
	}
	return l, errors.Join(errs...)
}

// ordered reports whether a class has a floor or a priority.
func (c *Config) ordered() bool {
	is := func(s Share) bool { return !s.Floor.none() || s.Priority != 0 }
	return is(c.Others) || slices.ContainsFunc(c.divided(), func(name string) bool { return is(c.Classes[name]) })
}

// mechanism returns what divides a device, and why that does: fq stays where ceilings are enough,
// and the kernel's default discipline makes room for HTB. That of somebody else is never replaced.
func (c *Config) mechanism(d *Device) (by Mechanism, why string, err error) {
	ordered := c.ordered()
	foreign := d.By != HTB && d.Root != none && !strings.HasSuffix(d.Root, " 0:")
	switch {
	case d.Paces && !ordered:
		return EDT, fmt.Sprintf("%s has fq, and no class has a floor or a priority", d.Name), nil
	case foreign && d.Paces:
		return "", "", fmt.Errorf("%s has %q, put there by somebody else: it keeps packets until they are due and has neither floors nor priorities: leave those out of the classes and say ceilings alone, or remove it (tc qdisc del dev %s root)", d.Name, d.Root, d.Name)
	case foreign:
		return "", "", fmt.Errorf("%s has a root queueing discipline of somebody else's, %q, which is not replaced: remove it (tc qdisc del dev %s root), or leave the device out", d.Name, d.Root, d.Name)
	case ordered:
		return HTB, "classes have floors or priorities", nil
	case d.By == HTB:
		return HTB, fmt.Sprintf("HTB divides %s already; if it had fq before, `berth restore` brings that back", d.Name), nil
	}
	return HTB, fmt.Sprintf("%s has no fq, or the kernel no tcx (Linux 6.6)", d.Name), nil
}

// link is what the configuration comes to on one device.
func (c *Config) link(h *Host, l *Layout, name string) (*Link, error) {
	field := "devices." + name
	fail := func(format string, args ...any) (*Link, error) {
		return nil, &strictyaml.Error{Field: field, Err: fmt.Errorf(format, args...)}
	}
	d, rate := h.Devices[name], c.Devices[name].Rate
	var by Mechanism
	var why string
	if d != nil && !d.Loopback {
		var err error
		if by, why, err = c.mechanism(d); err != nil {
			return nil, &strictyaml.Error{Field: field, Err: err}
		}
	}
	switch {
	case d == nil:
		return fail("there is no network device %q%s", name, strictyaml.Nearest(name, slices.Sorted(maps.Keys(h.Devices))))
	case d.Loopback:
		return fail("%s is the loopback device, on which nobody waits for a link: leave it out", name)
	case rate == 0 && d.Virtual:
		return fail("%s is a virtual device, whose link has no speed of its own: say rate, as in 1Gbit", name)
	case rate == 0 && d.Speed == 0:
		return fail("%s does not say how fast its link is: say rate, as in 1Gbit", name)
	}
	if rate == 0 {
		rate = d.Speed / 100 * ofSpeed
	}
	k := &Link{Device: d, Rate: rate, By: by, Why: why, Classes: map[uint16]Class{}}
	link := rate.bytes()
	k.Classes[linkMinor] = Class{Rate: link, Ceil: link}
	var sum, floors uint64 // of all classes, and of those that have a floor
	count := func(s Share, of Class) {
		if sum += of.Rate; !s.Floor.none() {
			floors += of.Rate
		}
	}
	for _, class := range slices.Sorted(maps.Keys(l.ids)) {
		of, err := c.Classes[class].on(link)
		if err != nil {
			return nil, &strictyaml.Error{Field: "classes." + class, Err: fmt.Errorf("on %s: %w", name, err)}
		}
		k.Classes[l.ids[class]] = of
		count(c.Classes[class], of)
	}
	others, err := c.Others.on(link)
	if err != nil {
		return nil, &strictyaml.Error{Field: "others", Err: fmt.Errorf("on %s: %w", name, err)}
	}
	if by == EDT {
		if !c.Others.Ceiling.none() {
			k.Classes[othersMinor] = others
		}
		return k, nil
	}
	if c.Others.Floor.none() && sum < link {
		others.Rate = min(max(link-sum, noFloor), others.Ceil)
	}
	k.Classes[othersMinor] = others
	if count(c.Others, others); floors > link {
		return fail("the floors add up to %s, more than the %s of %s: lower some", rateOf(floors), rate, name)
	}
	if d.Queues > 1 {
		k.Notes = append(k.Notes, fmt.Sprintf("%s sends through %d queues, and HTB through one lock: many CPUs that send at the same time wait for each other", name, d.Queues))
	}
	return k, nil
}

// words say what divides the device.
func (k *Link) words() string {
	if k.By == EDT {
		return fmt.Sprintf("%s tells its fq when packets leave, link %s", k.Device.Name, k.Rate)
	}
	return fmt.Sprintf("HTB at the root of %s, link %s", k.Device.Name, k.Rate)
}

// Plan returns the writes that lead to the layout from what the host shows.
func (l *Layout) Plan() (plan kernel.Plan) {
	var removals kernel.Plan
	for _, k := range l.Links {
		if k.Device.By != k.By {
			plan = append(plan, kernel.Step{Op: kernel.Mkdir, Path: k.Device.dir(k.By), Why: k.words()})
		}
		for _, minor := range slices.Sorted(maps.Keys(k.Classes)) {
			if has, ok := k.has()[minor]; !ok || has != k.Classes[minor] {
				plan = append(plan, kernel.Step{Path: k.Device.file(k.By, minor), Value: k.Classes[minor].String(), Why: l.words[minor]})
			}
		}
		for _, minor := range slices.Sorted(maps.Keys(k.has())) {
			if _, ok := k.Classes[minor]; !ok && minor < firstGuarded {
				removals = append(removals, kernel.Step{Path: k.Device.file(k.By, minor), Value: none, Why: "no network class has it"})
			}
		}
	}
	return append(plan, removals...)
}
