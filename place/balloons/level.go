package balloons

import (
	"berth.dev/berth/internal/plain"
	"berth.dev/berth/machine"
)

// Order says whether to keep together or apart.
type Order int

// The orders.
const (
	AsPolicy Order = iota // as the policy sets it for all types
	Pack
	Spread
)

// Fill decides between instances of a type.
type Fill int

// The ways to fill instances.
const (
	Emptiest  Fill = iota // the most CPU time left, then the fewest members
	Fullest               // the least CPU time left, then the most members
	FirstFree             // the lowest number
)

// Level is a kind of domain, or the whole machine.
type Level int

// The levels.
const (
	NoLevel Level = iota
	SystemLevel
	PackageLevel
	DieLevel
	NUMALevel
	L3Level
	L2Level
	CoreLevel
)

func orderNames() []string { return []string{"", "pack", "spread"} }

func fillNames() []string { return []string{"balanced", "packed", "first-free"} }

func levelNames() []string {
	return []string{"", "system", "package", "die", "numa", "l3cache", "l2cache", "core"}
}

// kind returns the kind of domain of a level that is one.
func (l Level) kind() machine.Kind { return machine.Kind(l - PackageLevel) }

// String returns "", "pack" or "spread".
func (o Order) String() string { return plain.Word(orderNames(), o) }

// MarshalText writes the order's name.
func (o Order) MarshalText() ([]byte, error) { return plain.MarshalWord(orderNames(), o) }

// UnmarshalText reads an order's name.
func (o *Order) UnmarshalText(text []byte) error { return plain.UnmarshalWord(orderNames(), text, o) }

// String returns "balanced", "packed" or "first-free".
func (f Fill) String() string { return plain.Word(fillNames(), f) }

// MarshalText writes the name.
func (f Fill) MarshalText() ([]byte, error) { return plain.MarshalWord(fillNames(), f) }

// UnmarshalText reads a name.
func (f *Fill) UnmarshalText(text []byte) error { return plain.UnmarshalWord(fillNames(), text, f) }

// String returns the level's name: "system", "package", "die", "numa",
// "l3cache", "l2cache", "core", or "".
func (l Level) String() string { return plain.Word(levelNames(), l) }

// MarshalText writes the level's name.
func (l Level) MarshalText() ([]byte, error) { return plain.MarshalWord(levelNames(), l) }

// UnmarshalText reads a level's name.
func (l *Level) UnmarshalText(text []byte) error { return plain.UnmarshalWord(levelNames(), text, l) }
