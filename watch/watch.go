// Package watch is the vocabulary of observation: a Sample is one value of a
// Quantity of a Subject at a Time; a Series is the bounded history of one of
// them.
//
// It is pure. Readers of one kernel dialect each live below it and produce
// samples; judging them is left to others. What a host does not tell is absent:
// there is no sample, and never a zero that stands for one.
package watch

import (
	"errors"
	"strconv"

	"berth.dev/berth/internal/plain"
)

// Time is nanoseconds on a clock that never goes back (CLOCK_MONOTONIC), from
// an origin that is the same for all samples of one recording. A difference of
// two is a Time too.
type Time int64

// Spans of time.
const (
	Millisecond Time = 1e6
	Second      Time = 1e9
)

// Seconds converts to seconds.
func (t Time) Seconds() float64 { return float64(t) / float64(Second) }

// ErrGone says that a subject does not exist (any more). A reader returns it
// instead of samples.
var ErrGone = errors.New("it is gone")

// Scope is what kind of thing a Subject is.
type Scope = plain.Enum[scopes]

// The scopes.
const (
	Host  Scope = iota // this host; Name is empty
	Group              // a control group; Name is its path below the hierarchy's root
	// Process is the processes of one program that are in no group of their own; Name is
	// the program's, "" for all of them.
	Process
)

// Part is a piece of a Subject; the zero value is the whole of it.
type Part struct {
	Kind PartKind `json:"kind"`
	// ID is the number of a CPU, NUMA node, last-level cache or network interface; for a
	// block device it is DeviceID of its numbers.
	ID int `json:"id"`
}

// PartKind is what kind of piece a Part is.
type PartKind = plain.Enum[partKinds]

// The kinds of parts.
const (
	Whole PartKind = iota
	CPU
	Node
	Device
	Cache
	Link // a network interface
)

// DeviceID packs the major and minor number of a block device as the kernel
// does (include/linux/kdev_t.h): 12 and 20 bits.
func DeviceID(major, minor int) int { return major<<20 | minor }

// String returns "", "cpu3", "node0", "link2" or "8:0".
func (p Part) String() string {
	switch p.Kind {
	case Whole:
		return ""
	case Device:
		return strconv.Itoa(p.ID>>20) + ":" + strconv.Itoa(p.ID&(1<<20-1))
	}
	return p.Kind.String() + strconv.Itoa(p.ID)
}

// Subject is what a sample is about. It is comparable.
type Subject struct {
	Scope Scope  `json:"scope"`
	Name  string `json:"name,omitempty"`
	Part  Part   `json:"part,omitzero"`
}

// String returns "host", "host/cpu3", "group a/b", "group a/b/node0" or "process nginx".
func (s Subject) String() string {
	text := s.Scope.String()
	if s.Name != "" {
		text += " " + s.Name
	}
	if s.Part.Kind != Whole {
		text += "/" + s.Part.String()
	}
	return text
}

// Sample is one observation. Value is in the unit of the quantity.
type Sample struct {
	Time     Time     `json:"time"`
	Subject  Subject  `json:"subject"`
	Quantity Quantity `json:"quantity"`
	Value    float64  `json:"value"`
	// By names the group to which the value is owed, for QueuedBy only.
	By string `json:"by,omitempty"`
}

type scopes struct{}

type partKinds struct{}

var (
	scopeNames = []string{Host: "host", Group: "group", Process: "process"}
	partNames  = []string{Whole: "whole", CPU: "cpu", Node: "node", Device: "device", Cache: "cache", Link: "link"}
)

func (scopes) Words() []string { return scopeNames }

func (partKinds) Words() []string { return partNames }
