package balloons

import (
	"fmt"
	"slices"

	"berth.dev/berth/machine"
)

// Order says whether to keep together or apart.
type Order int

// The orders.
const (
	AsPolicy Order = iota // what the policy says for all types
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
func (o Order) String() string { return textOf(orderNames(), int(o)) }

// MarshalText writes the order's name.
func (o Order) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads an order's name.
func (o *Order) UnmarshalText(text []byte) error {
	n, err := numberOf(orderNames(), text, "order")
	*o = Order(n)
	return err
}

// String returns "balanced", "packed" or "first-free".
func (f Fill) String() string { return textOf(fillNames(), int(f)) }

// MarshalText writes the name.
func (f Fill) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads a name.
func (f *Fill) UnmarshalText(text []byte) error {
	n, err := numberOf(fillNames(), text, "fill order")
	*f = Fill(n)
	return err
}

// String returns the level's name: "system", "package", "die", "numa",
// "l3cache", "l2cache", "core", or "".
func (l Level) String() string { return textOf(levelNames(), int(l)) }

// MarshalText writes the level's name.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads a level's name.
func (l *Level) UnmarshalText(text []byte) error {
	n, err := numberOf(levelNames(), text, "level")
	*l = Level(n)
	return err
}

func textOf(names []string, n int) string {
	if n < 0 || n >= len(names) {
		return fmt.Sprintf("unknown(%d)", n)
	}
	return names[n]
}

func numberOf(names []string, text []byte, what string) (int, error) {
	n := slices.Index(names, string(text))
	if n < 0 {
		return 0, fmt.Errorf("read %s: unknown name %q", what, text)
	}
	return n, nil
}
