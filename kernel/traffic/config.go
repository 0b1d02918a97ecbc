package traffic

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/strictyaml"
)

// Config says which network classes there are to be, and on which devices.
type Config struct {
	// Devices are the network devices to divide, by name (eth0); the others are left alone.
	// Default: none, which suits classes that have only receive.
	Devices map[string]LinkConfig `json:"devices,omitempty"`
	// Classes are what workloads may send, by name.
	Classes map[string]Share `json:"classes"`
	// Others is what all may send that have no class. Default: the floor that those of the
	// classes leave, and priority 4.
	Others Share `json:"others,omitzero"`
	// Service are the classes that workloads of a class of service have (LSE, LSR, LS, BE,
	// SYSTEM) unless they ask for another. Default: none.
	Service map[string]string `json:"service,omitempty"`
}

// LinkConfig is a network device.
type LinkConfig struct {
	// Rate is what may be sent in all, as in 950Mbit. Default: 95 % of the speed that the
	// device tells, so that what waits waits here and not in the device.
	Rate Rate `json:"rate,omitzero"`
}

// ofSpeed is the default rate, in percent of the speed.
const ofSpeed = 95

// Share is what a class may send on each device.
type Share struct {
	// Floor is what it can always have, as in 100Mbit, or 10% of the device's rate. Default: none.
	Floor Amount `json:"floor,omitzero"`
	// Ceiling is what it may have at most. Default: the device's rate.
	Ceiling Amount `json:"ceiling,omitzero"`
	// Priority says who gets first what the floors leave, from 1 (first) to 8. Default: 4.
	Priority int `json:"priority,omitempty"`
	// Receive is what each workload of the class may receive at most, through the devices of
	// ReceiveFrom together, as in 100Mbit: what arrives beyond it is dropped. Default: no limit.
	Receive Rate `json:"receive,omitzero"`
	// ReceiveTogether is what all workloads of the class may receive at most together, as Receive.
	// Default: no limit.
	ReceiveTogether Rate `json:"receiveTogether,omitzero"`
	// ReceiveFrom are the network devices that Receive and ReceiveTogether are about, by name with
	// spaces in between, as in "eth0 eth1". Default: all but the loopback device.
	ReceiveFrom Devices `json:"receiveFrom,omitempty"`
}

// Others is the name of what all without a class have.
const Others = "others"

const defaultPriority = 4

// Rate is a number of bits per second.
type Rate uint64

// rateUnits are those of tc(8), the greatest first.
var rateUnits = []struct {
	suffix string
	by     uint64
}{{"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// Least and most of a rate. HTB counts nanoseconds of a byte.
const leastRate, mostRate Rate = 8 * noFloor, 10e12

// UnmarshalText reads 100Mbit or 2.5Gbit.
func (r *Rate) UnmarshalText(text []byte) error {
	for _, u := range rateUnits {
		number, ok := strings.CutSuffix(string(text), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if rate := n * float64(u.by); err == nil && rate >= float64(leastRate) && rate <= float64(mostRate) {
			*r = Rate(rate)
			return nil
		}
		break
	}
	return fmt.Errorf("%q is no rate from %s to %s, such as 100Mbit or 2.5Gbit", text, leastRate, mostRate)
}

// String is for people: rounded to three digits after the point.
func (r Rate) String() string {
	for _, u := range rateUnits {
		if uint64(r) >= u.by {
			text := strconv.FormatFloat(float64(r)/float64(u.by), 'f', 3, 64)
			return strings.TrimRight(strings.TrimRight(text, "0"), ".") + u.suffix
		}
	}
	return "0bit"
}

// MarshalText writes the text of String, or every bit where that is rounded.
func (r Rate) MarshalText() ([]byte, error) {
	text := []byte(r.String())
	var again Rate
	if again.UnmarshalText(text) == nil && again != r {
		text = fmt.Appendf(nil, "%dbit", r)
	}
	return text, nil
}

func (r Rate) bytes() uint64   { return uint64(r) / 8 }
func rateOf(bytes uint64) Rate { return Rate(8 * bytes) }

// Amount is a rate, or a part of that of a device.
type Amount struct {
	Rate    Rate
	Percent float64
}

func (a Amount) none() bool { return a == Amount{} }

// UnmarshalText reads a Rate, or 10%.
func (a *Amount) UnmarshalText(text []byte) error {
	number, ok := strings.CutSuffix(string(text), "%")
	if !ok {
		*a = Amount{}
		return a.Rate.UnmarshalText(text)
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n > 0 && n <= 100) {
		return fmt.Errorf("%q is not above 0%% and up to 100%%", text)
	}
	*a = Amount{Percent: n}
	return nil
}

// String is for people.
func (a Amount) String() string {
	if a.Percent > 0 {
		return strconv.FormatFloat(a.Percent, 'g', -1, 64) + "%"
	}
	return a.Rate.String()
}

// MarshalText writes what UnmarshalText reads, unrounded.
func (a Amount) MarshalText() ([]byte, error) {
	if a.Percent > 0 {
		return []byte(a.String()), nil
	}
	return a.Rate.MarshalText()
}

// bytes per second of a link of as many.
func (a Amount) bytes(link uint64) uint64 {
	if a.Percent > 0 {
		return uint64(a.Percent / 100 * float64(link))
	}
	return a.Rate.bytes()
}

// on is what a share comes to on a link of so many bytes per second.
func (s Share) on(link uint64) (Class, error) {
	c := Class{Rate: noFloor, Ceil: link, Prio: defaultPriority - 1}
	if !s.Floor.none() {
		c.Rate = max(s.Floor.bytes(link), noFloor)
	}
	if !s.Ceiling.none() {
		c.Ceil = min(max(s.Ceiling.bytes(link), noFloor), link)
	}
	if s.Priority > 0 {
		c.Prio = uint32(s.Priority - 1)
	}
	switch {
	case c.Rate > link:
		return c, fmt.Errorf("the floor, %s, is more than the link's %s", rateOf(c.Rate), rateOf(link))
	case c.Rate > c.Ceil:
		return c, fmt.Errorf("the floor, %s, is above the ceiling, %s", rateOf(c.Rate), rateOf(c.Ceil))
	}
	return c, nil
}

// Names returns the classes, sorted.
func (c *Config) Names() []string {
	if c == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(c.Classes))
}

// Links are the devices.
func (c *Config) Links() map[string]LinkConfig {
	if c == nil {
		return nil
	}
	return c.Devices
}

// named are the devices that the configuration names.
func (c *Config) named() []string {
	names := slices.Collect(maps.Keys(c.Links()))
	for _, class := range c.Names() {
		names = append(names, c.FromOf(class).Names()...)
	}
	return names
}

// Has reports whether there is a class of the name.
func (c *Config) Has(name string) bool { return slices.Contains(c.Names(), name) }

// Divides reports whether there is a class of the name that devices have: one that says only what
// its workloads receive is among the others there.
func (c *Config) Divides(name string) bool {
	if !c.Has(name) {
		return false
	}
	s := c.Classes[name]
	return s != Share{Receive: s.Receive, ReceiveTogether: s.ReceiveTogether, ReceiveFrom: s.ReceiveFrom}
}

// TogetherOf returns what the workloads of a class receive together.
func (c *Config) TogetherOf(class string) (s Together) {
	if share := c.Classes[class]; share.ReceiveTogether > 0 {
		s = Together{idsOf(c.Names())[class], share.ReceiveTogether, share.ReceiveFrom}
	}
	return s
}

// ReceiveOf returns the limit of what each workload of a class receives.
func (c *Config) ReceiveOf(class string) Limit {
	s := c.Classes[class]
	if s.Receive > 0 && s.ReceiveFrom != "" {
		return Limit{Arrival: Arrival{s.ReceiveFrom, s.Receive}}
	}
	return Limit{Receive: s.Receive}
}

// FromOf returns the devices that a class names for what its workloads receive, "" for none.
func (c *Config) FromOf(class string) Devices {
	if c == nil {
		return ""
	}
	return c.Classes[class].ReceiveFrom
}

// Absent says which devices some classes receive through that are not there, or are never counted, each
// as strictyaml.Error with its field. One that comes later is counted then.
func (c *Config) Absent(h *Host, classes ...string) error {
	var errs []error
	for _, class := range classes {
		absent := func(format string, args ...any) {
			errs = append(errs, &strictyaml.Error{Field: "classes." + class + ".receiveFrom", Err: fmt.Errorf("class %s: "+format, append([]any{class}, args...)...)})
		}
		for _, name := range c.FromOf(class).Names() {
			switch d := h.Devices[name]; {
			case d == nil:
				absent("there is no network device %q%s: what arrives is counted once there is", name, strictyaml.Nearest(name, slices.Sorted(maps.Keys(h.Devices))))
			case d.Loopback:
				absent("%s is the loopback device, of which nothing is counted: leave it out", name)
			}
		}
	}
	return errors.Join(errs...)
}

// divided are the names of the classes that devices have, sorted.
func (c *Config) divided() []string {
	return slices.DeleteFunc(c.Names(), func(name string) bool { return !c.Divides(name) })
}

// OfService returns the class that a class of service has for its workloads that name none
// themselves; "" where it has no such class.
func (c *Config) OfService(class string) string { return c.Service[class] }

var (
	className  = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$`)
	deviceName = regexp.MustCompile(`^[^\s/:]+$`)
)

// isDeviceName is dev_valid_name in net/core/dev.c.
func isDeviceName(name string) bool {
	return deviceName.MatchString(name) && len(name) < nameSize && name != "." && name != ".."
}

// Validate reports all that is wrong on any host, joined, each as strictyaml.Error with its
// field.
func (c *Config) Validate() error {
	var errs []error
	want := func(ok bool, field, form string, args ...any) {
		if !ok {
			errs = append(errs, &strictyaml.Error{Field: field, Err: fmt.Errorf(form, args...)})
		}
	}
	want(len(c.Devices) > 0 || len(c.Classes) > 0 && len(c.divided()) == 0 && c.Others == Share{}, "devices", "there are none: name those to divide, as in eth0: {}")
	for _, name := range slices.Sorted(maps.Keys(c.Devices)) {
		want(isDeviceName(name), "devices."+name, "%q is not the name of a network device", name)
	}
	want(len(c.Classes) > 0, "classes", "there are none")
	sum := c.Others.Floor.Percent
	for _, name := range c.Names() {
		at, s := "classes."+name, c.Classes[name]
		want(className.MatchString(name) && name != "none" && name != Others, at, "%q is not a name: 1 to 63 letters, digits, '-', '_' or '.', a letter or digit first; none is no class, and others what all without have", name)
		want(s != Share{}, at, "it says nothing: floor, ceiling, priority, receive or receiveTogether")
		s.validate(at, want)
		sum += s.Floor.Percent
	}
	c.Others.validate("others", want)
	want(c.Others.Receive == 0 && c.Others.ReceiveTogether == 0 && c.Others.ReceiveFrom == "", "others.receive", "what everybody else receives has no limit: give them a class")
	want(sum <= 100, "classes", "the floors add up to %g%% of a link: lower some", sum)
	for _, service := range slices.Sorted(maps.Keys(c.Service)) {
		at, name := "service."+service, c.Service[service]
		want(slices.Contains([]string{"LSE", "LSR", "LS", "BE", "SYSTEM"}, service), at, "%q is no class of service: LSE, LSR, LS, BE or SYSTEM", service)
		want(c.Has(name), at, "there is no class %q%s", name, strictyaml.Nearest(name, c.Names()))
	}
	return errors.Join(errs...)
}

func (s Share) validate(at string, want func(ok bool, field, form string, args ...any)) {
	want(s.Priority >= 0 && s.Priority <= 8, at+".priority", "%d is not 1 (first) to 8", s.Priority)
	for field, rate := range map[string]Rate{"floor": s.Floor.Rate, "ceiling": s.Ceiling.Rate, "receive": s.Receive, "receiveTogether": s.ReceiveTogether} {
		want(rate == 0 || rate >= leastRate && rate <= mostRate, at+"."+field, "%s is not %s to %s", rate, leastRate, mostRate)
	}
	if s.ReceiveFrom != "" {
		err := s.ReceiveFrom.validate()
		want(err == nil, at+".receiveFrom", "%w", err)
		want(s.Receive != 0 || s.ReceiveTogether != 0, at+".receiveFrom", "nothing is limited there: say receive or receiveTogether")
	}
	if f, c := s.Floor, s.Ceiling; !f.none() && !c.none() && (f.Rate > 0) == (c.Rate > 0) {
		want(f.Rate <= c.Rate && f.Percent <= c.Percent, at+".ceiling", "%s is below the floor, %s", c, f)
	}
}
