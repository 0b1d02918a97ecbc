package balloons

import (
	"berth.dev/berth/internal/plain"
)

// Order says whether to keep together or apart.
type Order = plain.Enum[orderWords]

// The orders.
const (
	AsPolicy Order = iota // as the policy sets it for all types
	Pack
	Spread
)

// Fill decides between instances of a type.
type Fill = plain.Enum[fillWords]

// The ways to fill instances.
const (
	Emptiest  Fill = iota // the most CPU time left, then the fewest members
	Fullest               // the least CPU time left, then the most members
	FirstFree             // the lowest number
)

// Level is a kind of domain, or the whole machine.
type Level = plain.Enum[levelWords]

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

type orderWords struct{}

func (orderWords) Words() []string { return []string{"", "pack", "spread"} }

type fillWords struct{}

func (fillWords) Words() []string { return []string{"balanced", "packed", "first-free"} }

type levelWords struct{}

func (levelWords) Words() []string {
	return []string{"", "system", "package", "die", "numa", "l3cache", "l2cache", "core"}
}
