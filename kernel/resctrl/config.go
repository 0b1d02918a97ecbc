package resctrl

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/internal/strictyaml"
	"berth.dev/berth/kernel"
)

// Config says which classes there are to be: partitions, which share no ways of a cache, and
// the classes in each, which may. It is the format of the rdt package of goresctrl and of
// CRI Resource Manager (their documentation, doc/rdt.md), with a few forms more.
//
// An allocation of a cache is text, or texts by cache ids ("all", "0,2-3"), each for code and
// data at once or {unified, code, data}. The texts are "60%", "20-60%" (of classes), "4 ways",
// "0-3" (numbers of ways) and "0xf0". Bandwidth is a text or a list of them, by cache ids or
// not: "50%", "2000MBps", "20GBps". Of a list the one counts that the host has.
type Config struct {
	// Options say what of the configuration a host may lack.
	Options Options `json:"options,omitzero"`
	// Partitions share no ways of a cache, by name.
	Partitions map[string]Partition `json:"partitions,omitempty"`
	// Service are the classes that workloads of a class of service have (LSE, LSR, LS, BE,
	// SYSTEM) unless they ask for another. Default: none.
	Service map[string]string `json:"service,omitempty"`
}

// Options say what must be there.
type Options struct {
	// L2 is about L2 caches.
	L2 Option `json:"l2,omitzero"`
	// L3 is about L3 caches.
	L3 Option `json:"l3,omitzero"`
	// MB is about memory bandwidth.
	MB Option `json:"mb,omitzero"`
	// Mode is of CRI Resource Manager, and means nothing here.
	Mode string `json:"mode,omitempty"`
	// MonitoringDisabled is of CRI Resource Manager, and means nothing here.
	MonitoringDisabled bool `json:"monitoringDisabled,omitempty"`
}

// Option is about one resource.
type Option struct {
	// Optional is false for what the host must have; where it may lack it, allocations of it
	// are left out. Default: true.
	Optional *bool `json:"optional,omitempty"`
}

func (o Option) optional() bool { return o.Optional == nil || *o.Optional }

// Partition is a part of the caches that no other partition has, and its classes.
type Partition struct {
	// L2Allocation are its ways of L2 caches. Without any it has no part of its own, and its
	// classes may use all ways.
	L2Allocation any `json:"l2Allocation,omitempty"`
	// L3Allocation are its ways of L3 caches, likewise.
	L3Allocation any `json:"l3Allocation,omitempty"`
	// MBAllocation bounds the memory bandwidth of each of its classes. Default: no limit.
	MBAllocation any `json:"mbAllocation,omitempty"`
	// SMBAAllocation bounds that of slow memory (CXL on AMD). Default: no limit.
	SMBAAllocation any `json:"smbaAllocation,omitempty"`
	// Classes are by name; DEFAULT is all work that has no class.
	Classes map[string]*Class `json:"classes,omitempty"`
}

// Class is what the work of a class has of its partition. Nothing is all of it.
type Class struct {
	// L2Allocation are its ways of the partition's part of the L2 caches.
	L2Allocation any `json:"l2Allocation,omitempty"`
	// L3Allocation are its ways of the partition's part of the L3 caches.
	L3Allocation any `json:"l3Allocation,omitempty"`
	// MBAllocation is its memory bandwidth: a percentage is of the partition's.
	MBAllocation any `json:"mbAllocation,omitempty"`
	// SMBAAllocation is its bandwidth of slow memory.
	SMBAAllocation any `json:"smbaAllocation,omitempty"`
	// L3Schema is a former name of L3Allocation.
	L3Schema any `json:"l3schema,omitempty"`
	// MBSchema is a former name of MBAllocation.
	MBSchema any `json:"mbschema,omitempty"`
	// Exclusive has the kernel refuse that any other group gets these ways, those of other
	// programs too (mode "exclusive"). It takes a class alone in its partition, and ways that
	// no device fills. Default: false.
	Exclusive bool `json:"exclusive,omitempty"`
	// Mode is the same in the kernel's words: shareable, or exclusive. pseudo-locksetup is not
	// supported. Default: shareable, or what Exclusive says.
	Mode string `json:"mode,omitempty"`
	// Kubernetes says who may ask for the class. It is for others, and kept.
	Kubernetes map[string]any `json:"kubernetes,omitempty"`
}

// Names returns the classes, sorted, without the default one.
func (c *Config) Names() (names []string) {
	for _, p := range c.Partitions {
		for name := range p.Classes {
			if Canonical(name) != Default {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// Has reports whether there is a class of the name.
func (c *Config) Has(name string) bool {
	if c == nil || Canonical(name) == Default {
		return false
	}
	for _, p := range c.Partitions {
		if _, ok := p.Classes[name]; ok {
			return true
		}
	}
	return false
}

// OfService returns the class that a class of service has for its workloads that name none
// themselves; "" where it has no such class.
func (c *Config) OfService(class string) string { return c.Service[class] }

// Canonical returns the name of a class; that of the default group has several.
func Canonical(name string) string {
	switch name {
	case "", "system/default", "SYSTEM_DEFAULT":
		return Default
	}
	return name
}

// Parse reads a file of goresctrl or CRI Resource Manager: its partitions stand at the top
// or below "rdt". Errors are strictyaml.Errors.
func Parse(data []byte, name string) (*Config, error) {
	var file struct {
		strictyaml.Open
		Config
		RDT *Config `json:"rdt"`
	}
	if _, err := strictyaml.Decode(data, name, &file); err != nil {
		return nil, err
	}
	c := &file.Config
	if file.RDT != nil {
		c = file.RDT
	}
	if len(c.Partitions) == 0 {
		return nil, &strictyaml.Error{File: name, Field: "partitions", Err: errors.New("there are none")}
	}
	return c, c.Validate()
}

var className = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$`)

// Validate reports all that is wrong on any host, joined, each as strictyaml.Error with its
// field.
func (c *Config) Validate() error {
	var errs []error
	fail := func(field string, err error) {
		if err != nil {
			errs = append(errs, &strictyaml.Error{Field: field, Err: err})
		}
	}
	in := map[string]string{}
	for _, pname := range slices.Sorted(maps.Keys(c.Partitions)) {
		p, field := c.Partitions[pname], "partitions."+pname
		for what, a := range map[string]any{"l2Allocation": p.L2Allocation, "l3Allocation": p.L3Allocation} {
			fail(field+"."+what, eachCache(a, func(s share) error {
				if s.low > 0 {
					return errors.New("a range of percent is for classes: a partition has a percentage, ways or a mask")
				}
				return nil
			}))
		}
		fail(field+".mbAllocation", eachBandwidth(p.MBAllocation))
		fail(field+".smbaAllocation", eachBandwidth(p.SMBAAllocation))
		for _, name := range slices.Sorted(maps.Keys(p.Classes)) {
			class, at := p.Classes[name], field+".classes."+name
			canonical := Canonical(name)
			if canonical != Default && !className.MatchString(name) {
				fail(at, fmt.Errorf("%q is not a name: 1 to 63 letters, digits, '-', '_' or '.', a letter or digit first", name))
			}
			if other, twice := in[canonical]; twice {
				fail(at, fmt.Errorf("there is a class %q in partition %q, too", name, other))
			}
			in[canonical] = pname
			if class == nil {
				continue
			}
			for what, a := range map[string]any{"l2Allocation": class.L2Allocation, "l3Allocation": class.l3()} {
				fail(at+"."+what, eachCache(a, nil))
			}
			fail(at+".mbAllocation", eachBandwidth(class.mb()))
			fail(at+".smbaAllocation", eachBandwidth(class.SMBAAllocation))
			fail(at+".mode", class.checkMode())
			if class.exclusive() && canonical == Default {
				fail(at+".exclusive", errors.New("the default group cannot be exclusive: the ways of all that has no class are shared"))
			}
			if class.exclusive() && len(p.Classes) > 1 {
				fail(at+".exclusive", fmt.Errorf("partition %q has other classes, which would share its ways: give it a partition of its own", pname))
			}
		}
	}
	for _, service := range slices.Sorted(maps.Keys(c.Service)) {
		at := "service." + service
		if !slices.Contains([]string{"LSE", "LSR", "LS", "BE", "SYSTEM"}, service) {
			fail(at, fmt.Errorf("%q is no class of service: LSE, LSR, LS, BE or SYSTEM", service))
		}
		if name := c.Service[service]; in[name] == "" || name == Default {
			fail(at, fmt.Errorf("there is no class %q%s", name, strictyaml.Nearest(name, c.Names())))
		}
	}
	return errors.Join(errs...)
}

// The modes of a group (resctrl.rst, "mode"), and those that stand for pseudo-locking.
const (
	modeShareable, modeExclusive    = "shareable", "exclusive"
	modePseudoLocked, modeLockSetup = "pseudo-locked", "pseudo-locksetup"
)

func (c *Class) exclusive() bool { return c != nil && (c.Exclusive || c.Mode == modeExclusive) }

// checkMode reports a mode that no class can have; pseudo-locking is a *kernel.NotSupportedError.
func (c *Class) checkMode() error {
	switch c.Mode {
	case "", modeExclusive:
		return nil
	case modeShareable:
		if c.Exclusive {
			return errors.New("it is shareable, and exclusive: true says that it is not")
		}
		return nil
	case modeLockSetup, modePseudoLocked:
		return &kernel.NotSupportedError{
			Feature: "cache pseudo-locking",
			Reason:  "a pseudo-locked region is memory that a program maps from /dev/pseudo_lock: no thread can be in its group, so that no workload could have the class",
			Remedy:  "exclusive: true keeps ways for one class; or lock a region without Berth, which gives no class its ways",
		}
	}
	return fmt.Errorf("%q is no mode: %s or %s", c.Mode, modeShareable, modeExclusive)
}

func (c *Class) l3() any {
	if c == nil {
		return nil
	}
	if c.L3Allocation == nil {
		return c.L3Schema
	}
	return c.L3Allocation
}

func (c *Class) l2() any {
	if c == nil {
		return nil
	}
	return c.L2Allocation
}

func (c *Class) mb() any {
	if c == nil {
		return nil
	}
	if c.MBAllocation == nil {
		return c.MBSchema
	}
	return c.MBAllocation
}

func (c *Class) smba() any {
	if c == nil {
		return nil
	}
	return c.SMBAAllocation
}

// share is an allocation of a cache: one of percent, ways and mask.
type share struct {
	given     bool
	low, high int // percent
	ways      int
	mask      uint64
}

var errShare = errors.New(`it is "60%", "20-60%", "4 ways", "0-3" (numbers of ways) or "0xf0"`)

func parseShare(text string) (s share, err error) {
	s.given = true
	text = strings.TrimSpace(text)
	number := func(text string, most int) (n int) {
		if n, err = strconv.Atoi(strings.TrimSpace(text)); err == nil && (n < 0 || n > most) {
			err = errShare
		}
		return n
	}
	if p, ok := strings.CutSuffix(text, "%"); ok {
		low, high, isRange := strings.Cut(p, "-")
		if !isRange {
			if s.high = number(low, 100); err == nil && s.high == 0 {
				return s, errors.New("0% is no part of a cache: leave it out, or give it at least one way")
			}
		} else if s.low = number(low, 100); err == nil {
			if s.high = number(high, 100); err == nil && s.low > s.high {
				err = errors.New("a range of percent rises")
			}
		}
	} else if w, ok := strings.CutSuffix(strings.TrimSuffix(text, "s"), "way"); ok {
		if s.ways = number(w, 64); err == nil && s.ways == 0 {
			err = errors.New("0 ways are no part of a cache")
		}
	} else if hex, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		s.mask, err = strconv.ParseUint(hex, 16, 64)
	} else {
		var set cpuset.Set
		if set, err = cpuset.Parse(text); err == nil {
			for bit := range set.All() {
				if bit > 63 {
					return s, errors.New("no cache has so many ways")
				}
				s.mask |= 1 << bit
			}
		}
	}
	if err != nil && !errors.Is(err, errShare) && errors.Unwrap(err) != nil {
		err = fmt.Errorf("%q: %w", text, errShare)
	} else if err != nil {
		err = fmt.Errorf("%q: %w", text, err)
	}
	if err == nil && s.high == 0 && s.ways == 0 && s.mask == 0 {
		err = fmt.Errorf("%q: it is no way", text)
	}
	return s, err
}

// contiguous reports whether a mask has no gaps.
func contiguous(mask uint64) bool {
	return mask != 0 && bits.OnesCount64(mask) == bits.Len64(mask)-bits.TrailingZeros64(mask)
}

// byDomain reads an allocation by cache ids: the value of a domain is the one that names it,
// else that of "all". ok is false where neither is given.
type byDomain struct {
	all   any
	some  map[int]any
	given bool
}

// kinds are the keys of an allocation that is told apart by what is cached.
var kinds = []string{"unified", "code", "data"}

func domainsOf(a any) (d byDomain, err error) {
	if a == nil {
		return d, nil
	}
	d.given = true
	m, isMap := a.(map[string]any)
	if !isMap || slices.ContainsFunc(kinds, func(k string) bool { return m[k] != nil }) {
		d.all = a
		return d, nil
	}
	d.some = map[int]any{}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if key == "all" {
			d.all = m[key]
			continue
		}
		ids, err := cpuset.Parse(key)
		if err != nil {
			return d, fmt.Errorf("%q is neither \"all\" nor a list of cache ids", key)
		}
		for id := range ids.All() {
			if _, twice := d.some[id]; twice {
				return d, fmt.Errorf("cache id %d is there twice", id)
			}
			d.some[id] = m[key]
		}
	}
	return d, nil
}

// of returns what a cache id has, nil if nothing is said of it.
func (d *byDomain) of(id int) any {
	if v, ok := d.some[id]; ok {
		return v
	}
	return d.all
}

func eachCache(a any, check func(share) error) error {
	d, err := domainsOf(a)
	if err != nil || !d.given {
		return err
	}
	for _, v := range append(slices.Collect(maps.Values(d.some)), d.all) {
		if v == nil {
			continue
		}
		kinds, err := kindsOf(v)
		if err != nil {
			return err
		}
		for _, text := range kinds {
			s, err := parseShare(text)
			if err == nil && check != nil {
				err = check(s)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// kindsOf reads a text, or one each of {unified, code, data}.
func kindsOf(v any) (map[string]string, error) {
	switch v := v.(type) {
	case string:
		return map[string]string{"unified": v}, nil
	case map[string]any:
		all := map[string]string{}
		for _, kind := range slices.Sorted(maps.Keys(v)) {
			text, ok := v[kind].(string)
			if !ok || !slices.Contains(kinds, kind) {
				return nil, fmt.Errorf("%q: it has the texts unified, code and data", kind)
			}
			all[kind] = text
		}
		_, code := all["code"]
		_, data := all["data"]
		if code != data {
			return nil, errors.New("code and data: both or none, beside unified for hosts that do not tell them apart")
		}
		return all, nil
	}
	return nil, fmt.Errorf("%v: %w, as text", v, errShare)
}

// limit is an allocation of bandwidth in the units that it is given in.
type limit struct {
	percent uint64 // 0: none
	mbps    uint64
}

var errLimit = errors.New(`it is "50%", "2000MBps" or "20GBps", or a list of these`)

var suffixes = []struct {
	suffix string
	by     uint64
}{{"%", 1}, {"MBps", 1}, {"GBps", 1000}}

func limitOf(v any) (l limit, err error) {
	items, isList := v.([]any)
	if !isList {
		items = []any{v}
	}
	for _, item := range items {
		text, ok := item.(string)
		if !ok {
			return l, errLimit
		}
		text = strings.TrimSpace(text)
		unit, scale := "", uint64(1)
		for _, u := range suffixes {
			if strings.HasSuffix(text, u.suffix) {
				unit, scale = u.suffix, u.by
			}
		}
		n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(text, unit)), 10, 32)
		if err != nil || unit == "" || n == 0 || unit == "%" && n > 100 {
			return l, fmt.Errorf("%q: %w", text, errLimit)
		}
		if unit == "%" {
			l.percent = n
		} else {
			l.mbps = n * scale
		}
	}
	return l, nil
}

func eachBandwidth(a any) error {
	d, err := domainsOf(a)
	if err != nil || !d.given {
		return err
	}
	for _, v := range append(slices.Collect(maps.Values(d.some)), d.all) {
		if v == nil {
			continue
		}
		if _, err := limitOf(v); err != nil {
			return err
		}
	}
	return nil
}
