package machine

import "berth.dev/berth/internal/plain"

// kinds is the number of kinds of domain.
const kinds = int(Core) + 1

func kindNames() []string {
	return []string{Socket: "socket", Die: "die", Node: "node", L3: "l3", L2: "l2", Core: "core"}
}

// Kinds returns every kind, from Socket to Core.
func Kinds() []Kind { return []Kind{Socket, Die, Node, L3, L2, Core} }

// String returns the kind's name: "socket", "die", "node", "l3", "l2", "core".
func (k Kind) String() string { return plain.Word(kindNames(), k) }

// MarshalText writes the kind's name. A number that is no kind is an error.
func (k Kind) MarshalText() ([]byte, error) { return plain.MarshalWord(kindNames(), k) }

// UnmarshalText reads a kind's name.
func (k *Kind) UnmarshalText(text []byte) error { return plain.UnmarshalWord(kindNames(), text, k) }
