package resctrl

import (
	"errors"
	"slices"

	"berth.dev/berth/internal/strictyaml"
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
